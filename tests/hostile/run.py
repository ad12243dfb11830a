"""Puts the corpus through the real gate: a policy, a session, tools that note whether they ran."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollcage import Session
from rollcage.errors import ArgumentsInvalid, Blocked, PolicyInvalid
from rollcage_policy import Policy, UserInput, surroundings

from tests.hostile.case import Case, Category, Place, plant
from tests.hostile.commands import commands
from tests.hostile.files_and_urls import paths, urls
from tests.hostile.policies import policies
from tests.hostile.tools import RAN, TOOLS
from tests.hostile.values import values

SECTIONS = (paths, urls, commands, values, policies)


HOW = ("arguments", "rule", "failed", "policy")
"""What refuses: the tool's own schema; a rule, or that none allows it; a condition that failed; the
loading of the policy."""


class Row(NamedTuple):
    """What came of one category.

    Attributes:
        name: the category's.
        hostile: how many calls must not run.
        passed: how many of them did.
        benign: how many calls must run.
        blocked: how many of them did not.
        refused: the hostile ones by what refused them, in the order of `HOW`.
        wrong: what was not as it must be, in words.
    """

    name: str
    hostile: int
    passed: int
    benign: int
    blocked: int
    refused: tuple[int, ...]
    wrong: tuple[str, ...]


def run(base: Path) -> list[Row]:
    """All categories, each in a session of its own below `base`."""
    place = plant(base / "place")
    return [_row(each, base) for each in _categories(place)]


def _categories(place: Place) -> Iterator[Category]:
    for section in SECTIONS:
        yield from section(place)


def _row(category: Category, base: Path) -> Row:
    def resolve(host: str, port: int) -> Sequence[str]:
        if host not in category.answers:
            raise OSError(f"{host} is not known")
        return category.answers[host]

    with surroundings(user_input=category.user_input, resolver=resolve):
        hostile = [_try(each, category, base) for each in category.hostile]
        benign = [_try(each, category, base) for each in category.benign]
    # Whatever the session says: a body that ran has got through.
    passed = [each for each in hostile if each.ran or each.how not in HOW]
    blocked = [each for each in benign if not each.ran or each.how]
    hows = [each.how for each in hostile]
    return Row(
        category.name,
        len(hostile),
        len(passed),
        len(benign),
        len(blocked),
        tuple(hows.count(how) for how in HOW),
        tuple(f"{category.name}: {each.told}" for each in passed + blocked),
    )


class Tried(NamedTuple):
    """What came of one call: whether its body ran, what refused it, and that in words."""

    ran: bool
    how: str
    told: str


def _session(policy: Policy, category: Category, base: Path) -> Any:
    said = () if category.user_input is None else (UserInput(*category.user_input),)
    return Session("hostile", store=base / "store", replay="off", gate=[policy, *said])


def _try(case: Case, category: Category, base: Path) -> Tried:
    RAN.clear()
    how, why = "", ""
    try:
        policy = Policy.parse(case.policy or category.policy, form=case.form, base=base)
        with _session(policy, category, base) as session:
            session.call(TOOLS[case.tool], **case.args)
    except PolicyInvalid as error:
        how, why = "policy", str(error)
    except ArgumentsInvalid as error:
        how, why = "arguments", str(error)
    except Blocked as error:
        how, why = "failed" if error.verdict_code == "rule_error" else "rule", str(error)
    except Exception as error:  # noqa: BLE001 - told as what it is: neither run nor refused
        how, why = type(error).__name__, str(error)
    args = ascii(reprlib.repr(case.args))
    text = f"{case.tool}({args}) {case.policy[:300]!a}: {how or 'ran'} {why[:300]!a}"
    return Tried(bool(RAN), how, text)


def table(rows: list[Row]) -> str:
    """The rows, and their sums."""
    lines: list[tuple[str, ...]] = [("category", *Row._fields[1:5], *HOW)]
    figures = [[*row[1:5], *row.refused] for row in rows]
    for row, each in zip(rows, figures, strict=True):
        lines.append((row.name, *map(str, each)))
    lines.append(("all", *(str(sum(column)) for column in zip(*figures, strict=True))))
    return "\n".join(f"{name:<32}" + "".join(f"{c:>10}" for c in cells) for name, *cells in lines)


def sound(rows: list[Row]) -> bool:
    """Whether nothing hostile ran, and all that is harmless did."""
    return not any(row.passed or row.blocked for row in rows)


assert os.sep == "/", "the corpus plants links and asks for paths as POSIX has them"
