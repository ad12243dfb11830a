"""So many calls of a tool in a run, over all its attempts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from limits import Limits
from rollcage import Session, compensate, open_store, tool, undo_run
from rollcage.errors import Blocked, SessionError

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing() -> None:
    ran.clear()


@tool(name="limits.other", effect="write")
def other(n: int) -> None:
    ran.append(("other", n))


@tool(
    name="limits.write",
    effect="write",
    raises=[OSError],
    undo=lambda args: [compensate(other, n=args["n"])],
)
def write(n: int) -> int:
    ran.append(n)
    if n < 0:
        raise OSError("full")
    return n


@tool(name="limits.read", effect="read")
def read(n: int) -> int:
    ran.append(n)
    return n


def limited(store: Any, **most: int) -> Session:
    return Session(
        "job",
        store=store,
        replay="continue",
        stages=[Limits({f"limits.{name}": n for name, n in most.items()})],
    )


@pytest.mark.parametrize("work", [write, read])
def test_one_call_too_many_is_denied_in_every_attempt(tmp_path: Path, work: Any) -> None:
    for _ in range(3):
        with limited(tmp_path, write=2, read=2):
            assert [work(1), work(2)] == [1, 2]
            with pytest.raises(Blocked, match="2 times") as no:
                work(3)
            assert no.value.verdict_code == "limit_reached"
            other(1)
    assert ran == [1, 2, ("other", 1)]


def test_what_begins_again_counts_once_and_what_failed_counts(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(OSError, match="full"), limited(tmp_path, write=1):
            write(-1)
    assert ran == [-1] * 3
    with limited(tmp_path, write=1):
        with pytest.raises(OSError, match="full"):
            write(-1)
        with pytest.raises(Blocked):
            write(-1)


def test_what_was_undone_counts(tmp_path: Path) -> None:
    with limited(tmp_path, write=1) as session:
        write(1)
    undo_run(tmp_path, session.run_id, tools=[write, other])
    with limited(tmp_path, write=1), pytest.raises(Blocked):
        write(1)


@pytest.mark.parametrize("work", [write, read])
async def test_calls_at_the_same_time_count(tmp_path: Path, work: Any) -> None:
    async with limited(tmp_path, write=2, read=2) as session:
        found = await asyncio.gather(
            *(session.acall(work, n=n) for n in range(5)), return_exceptions=True
        )
    assert sum(isinstance(each, Blocked) for each in found) == 3
    assert len(ran) == 2


def test_sessions_inside_count_with_the_one_around(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with limited(store, write=2):
        write(1)
        with Session("inner", store=store):
            write(2)
            with pytest.raises(Blocked):
                write(3)


def test_a_limit_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(SessionError):
        Limits({"write": -1})
    with limited(tmp_path, write=0), pytest.raises(Blocked, match="may not be called"):
        write(1)
