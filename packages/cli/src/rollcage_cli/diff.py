"""`rollcage diff`: two runs side by side, step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from rollcage.trace import TAG

from rollcage_cli.errors import DIFFERENT
from rollcage_cli.lookup import find
from rollcage_cli.options import DEFAULT_STORE, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import console, print_json, value_text, visible
from rollcage_cli.steps import StepRow, view

__all__ = ["Change", "Pair", "align", "diff"]

_CHANGES: Final = 20  # of one step that are told in text
_VALUE: Final = 120  # characters of a value that are told in text
_ABSENT: Final = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A place where two steps differ: `a` and `b` are None where there is nothing."""

    path: str
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A step of each run that stand for one another; one of them may be missing."""

    a: StepRow | None
    b: StepRow | None
    changes: list[Change]

    @property
    def relation(self) -> str:
        """`same`, `changed`, `only_a` or `only_b`."""
        if self.a is None:
            return "only_b"
        if self.b is None:
            return "only_a"
        return "changed" if self.changes else "same"


def diff(
    a: RunArgument,
    b: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    all_steps: Annotated[bool, typer.Option("--all", help="Also list the steps that agree.")] = False,  # noqa: FBT002 - how Typer declares a flag
    as_json: JsonOption = False,  # noqa: FBT002 - how Typer declares a flag
) -> None:
    """Compare two runs, step by step.

    A step that ran and its replay are the same step. Exits with 1 if the runs differ.
    """
    found = find(store, a), find(store, b)
    pairs = align(*(_rows(store, each) for each in (a, b)))
    differing = sum(pair.relation != "same" for pair in pairs)
    if as_json:
        shown = [_data(pair) for pair in pairs if all_steps or pair.relation != "same"]
        print_json(
            {"a": found[0].run, "b": found[1].run, "same": not differing,
             "compared": len(pairs), "steps": shown}
        )  # fmt: skip
    else:
        _print(pairs, differing, all_steps=all_steps)
    if differing:
        raise typer.Exit(DIFFERENT)


def _rows(store: Path, reference: str) -> list[StepRow]:
    rows = view(find(store, reference).read()).steps
    return sorted(rows, key=lambda row: (row.turn, row.slot, row.step))


def align(a: Sequence[StepRow], b: Sequence[StepRow]) -> list[Pair]:
    """Pair the steps of two runs.

    First by call (kind, name, version, arguments); between those that agree, by kind and name.
    """
    pairs: list[Pair] = []
    matcher = SequenceMatcher(None, [_call(r) for r in a], [_call(r) for r in b], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            pairs += (_pair(x, y) for x, y in zip(a[a0:a1], b[b0:b1], strict=True))
        else:
            pairs += _align_by_name(a[a0:a1], b[b0:b1])
    return _without_replayed_bodies(pairs)


def _without_replayed_bodies(pairs: Sequence[Pair]) -> list[Pair]:
    """Leave out what a body did whose replay in the other run stands for all of it."""
    replayed_in_b = {p.a.step for p in pairs if p.a and p.b and p.b.state == "hit"}
    replayed_in_a = {p.b.step for p in pairs if p.a and p.b and p.a.state == "hit"}
    kept: list[Pair] = []
    for pair in pairs:
        if pair.b is None and pair.a is not None and pair.a.parent in replayed_in_b:
            replayed_in_b.add(pair.a.step)
        elif pair.a is None and pair.b is not None and pair.b.parent in replayed_in_a:
            replayed_in_a.add(pair.b.step)
        else:
            kept.append(pair)
    return kept


def _align_by_name(a: Sequence[StepRow], b: Sequence[StepRow]) -> Iterator[Pair]:
    matcher = SequenceMatcher(None, [_named(r) for r in a], [_named(r) for r in b], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            yield from (_pair(x, y) for x, y in zip(a[a0:a1], b[b0:b1], strict=True))
        else:
            yield from (Pair(row, None, []) for row in a[a0:a1])
            yield from (Pair(None, row, []) for row in b[b0:b1])


def _named(row: StepRow) -> tuple[str, str]:
    return row.kind, row.name


def _call(row: StepRow) -> tuple[str, str, str]:
    return row.kind, row.name, row.key


def _pair(a: StepRow, b: StepRow) -> Pair:
    changes = [
        *_differences("version", a.version, b.version),
        *_differences("effect", a.effect, b.effect),
        *_differences("args", a.args, b.args),
        *_differences("outcome", _ended(a), _ended(b)),
    ]
    return Pair(a, b, changes)


def _ended(row: StepRow) -> dict[str, Any]:
    """What counts of an outcome: not whether it was replayed, nor how many tokens it took."""
    if row.state == "blocked":
        return {"status": "blocked", "verdict": row.verdict}
    if row.kind == "branch":
        return {"status": "ok"}
    outcome = row.outcome or {"status": row.state}
    return {k: outcome[k] for k in ("status", "value", "error") if outcome.get(k) is not None}


def _differences(path: str, a: Any, b: Any, depth: int = 0) -> Iterator[Change]:
    if isinstance(a, dict) and isinstance(b, dict) and depth < 100 and TAG not in {**a, **b}:
        for name in {**a, **b}:
            inner = a.get(name, _ABSENT), b.get(name, _ABSENT)
            yield from _differences(f"{path}.{name}", *inner, depth + 1)
    elif isinstance(a, list) and isinstance(b, list) and depth < 100:
        for index, inner in enumerate(zip_longest(a, b, fillvalue=_ABSENT)):
            yield from _differences(f"{path}[{index}]", *inner, depth + 1)
    elif type(a) is not type(b) or a != b:
        yield Change(path, *(None if each is _ABSENT else each for each in (a, b)))


# --- telling it ----------------------------------------------------------------------------------


def _data(pair: Pair) -> dict[str, Any]:
    row = pair.a or pair.b
    assert row is not None
    return {
        "relation": pair.relation,
        "name": row.name,
        "kind": row.kind,
        "a": None if pair.a is None else pair.a.step,
        "b": None if pair.b is None else pair.b.step,
        "changes": [dataclasses.asdict(change) for change in pair.changes],
    }


_SIGNS: Final = {"same": "=", "changed": "~", "only_a": "-", "only_b": "+"}
_STYLES: Final = {"same": "dim", "changed": "yellow", "only_a": "red", "only_b": "green"}


def _print(pairs: Sequence[Pair], differing: int, *, all_steps: bool) -> None:
    out = console()
    for pair in pairs:
        row = pair.a or pair.b
        if row is None or (pair.relation == "same" and not all_steps):
            continue
        at = " / ".join("—" if each is None else str(each.step) for each in (pair.a, pair.b))
        said = f"{_SIGNS[pair.relation]} {at}  {visible(row.name)}"
        out.print(Text(said, style=_STYLES[pair.relation]), soft_wrap=True)
        for change in pair.changes[:_CHANGES]:
            was, now = (value_text(each)[:_VALUE] for each in (change.a, change.b))
            out.print(f"    {visible(change.path)}: {was} → {now}", soft_wrap=True)
        if len(pair.changes) > _CHANGES:
            out.print(f"    and {len(pair.changes) - _CHANGES} more")
    out.print(f"{len(pairs)} steps compared, {differing or 'none'} differ")
