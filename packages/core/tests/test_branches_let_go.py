"""Branches that were forked off one that has ended are let go of: a loop may have many."""

import gc
import tracemalloc
from pathlib import Path

import pytest
from rollcage import SessionError, tool
from rollcage.session.session import Session


@tool(effect="write", idempotent=True, name="let_go.put")
def put(number: int) -> int:
    return number


def rounds(session: Session, count: int) -> None:
    for number in range(count):
        for name in ("a", "b"):
            with session.branch(name):
                session.call(put, number=number)


def test_what_a_run_holds_does_not_grow_with_the_branches_inside_of_others(tmp_path: Path) -> None:
    held: list[int] = []
    with Session("job", store=tmp_path) as session:
        for number in range(9):
            with session.branch(f"group {number}"):
                rounds(session, 50)
            if number == 1:
                tracemalloc.start()
            if number > 1:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert held[-1] - held[0] < 6 * 100 * 600  # B a branch: names that a cache keeps


def test_a_call_in_one_of_them_is_refused(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        with session.branch("outer"), session.branch("inner") as late:
            late.call(put, number=1)
        with pytest.raises(SessionError, match="'outer/inner' has ended"):
            late.call(put, number=2)


def test_a_resumed_run_finds_all_of_them(tmp_path: Path) -> None:
    for ended in (False, True):
        with Session("job", store=tmp_path, replay="continue") as session:
            for number in range(3):
                with session.branch(f"group {number}"):
                    rounds(session, 3)
            session.call(put, number=-1)
            if ended:
                assert session.stats.hits == session.stats.calls
            else:
                session.pause("later")
