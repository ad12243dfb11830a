"""A call that did not happen keeps its place beside the calls that were made meanwhile."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from rollcage import DidNotHappen, Session, tool
from rollcage.errors import Diverged

done: list[str] = []
seen = threading.Event()


def ask(args: Mapping[str, Any]) -> DidNotHappen:
    assert seen.wait(30)  # the call beside it is made meanwhile
    return DidNotHappen()


@tool(effect="write", name="beside.slow", probe=ask)
async def slow(name: str) -> str:
    done.append(name)
    return name


@tool(effect="write", name="beside.quick")
async def quick(name: str) -> str:
    done.append(name)
    seen.set()
    return name


def cut(store: Path, behind: Callable[[bytes], bool]) -> None:
    """Have a log end behind the first line of which this holds."""
    (log,) = store.glob("logs/*.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if behind(line))
    cut_log(log, last + 1)


async def attempt(store: Path, *calls: Callable[[], Any]) -> None:
    async with Session("job", store=store):
        await asyncio.gather(*(call() for call in calls))


def asked_beside(store: Path) -> None:
    """Record a run that died in one of two calls, and then asked about it beside the other one."""
    done.clear()
    seen.clear()
    calls = [lambda: slow("a"), lambda: quick("b")]
    asyncio.run(attempt(store, *calls))
    cut(store, lambda line: b'"name":"beside.slow"' in line)
    done.clear()
    seen.clear()
    asyncio.run(attempt(store, *calls))
    assert done == ["b", "a"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run whose call was asked about while another one was made, and died when it was known."""
    asked_beside(tmp_path)
    cut(tmp_path, lambda line: b'"by":"probe"' in line)
    return tmp_path


@pytest.mark.damaged
def test_it_is_made_beside_them(store: Path) -> None:
    done.clear()
    asyncio.run(attempt(store, lambda: slow("a"), lambda: quick("b")))
    assert done == ["a"]


@pytest.mark.damaged
def test_another_call_is_not(store: Path) -> None:
    done.clear()
    with pytest.raises(Diverged):
        asyncio.run(attempt(store, lambda: slow("c")))
    assert done == []


@pytest.mark.damaged
def test_they_are_of_one_turn(tmp_path: Path) -> None:
    """Dead in its body again, it is made behind the other one, in whatever order they come."""
    asked_beside(tmp_path)
    cut(tmp_path, lambda line: b'"again":1' in line)

    async def one_by_one() -> None:
        async with Session("job", store=tmp_path) as session:
            with session.turn():
                await slow("a")
                await quick("b")

    done.clear()
    asyncio.run(one_by_one())
    assert done == ["a"]
