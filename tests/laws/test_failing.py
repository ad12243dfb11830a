"""Branches of a turn that fail, in some attempts, before or behind any of their calls.

However often, and in whatever order they come: nothing is done twice, and the program goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollcage import Session, tool

from tests.laws.lab import folder
from tests.laws.law import LAW, chances
from tests.laws.programs import seeds

pytestmark = pytest.mark.law

LINES = st.lists(st.text("wr", min_size=1, max_size=3), min_size=2, max_size=3)
ATTEMPTS = (0.6, 0.4, 0, 0)  # how probably a branch fails

ran: list[str] = []


class Fails(Exception):
    """Ends a branch, and the attempt behind all of them."""


@tool(name="failing.put")
def put(name: str) -> str:
    ran.append(name)
    return name


@tool(name="failing.look", effect="read")
def look(name: str) -> str:
    return name


def job(root: Path, lines: Sequence[str], order: Sequence[int], fails: Mapping[int, int]) -> None:
    """Run or resume a program whose branches come in this order, and fail before these calls."""
    failed: Fails | None = None
    with Session("job", store=root, replay="continue") as session:
        put("first")
        with session.turn(opens={str(number): () for number in order}) as turn:
            for number in order:
                try:
                    with turn.slot(number), session.branch(str(number)):
                        for at, kind in enumerate(lines[number]):
                            if fails.get(number) == at:
                                raise Fails
                            (put if kind == "w" else look)(f"{number}.{at}")
                except Fails as error:
                    failed = error
        if failed is not None:
            raise failed
        put("last")
        look("last")
        put("very last")


@LAW
@example(["w", "w"], 0)
@given(LINES, seeds)
def test_branches_that_fail_go_on(lines: list[str], seed: int) -> None:
    chance = chances(seed)
    ran.clear()
    with folder() as root:
        for failing in ATTEMPTS:
            numbers = range(len(lines))
            fails = {
                n: chance.randrange(len(lines[n])) for n in numbers if chance.random() < failing
            }
            try:
                job(root, lines, chance.sample(numbers, len(lines)), fails)
            except Fails:
                assert fails
        assert len(ran) == len({*ran}) == 3 + sum(line.count("w") for line in lines)
