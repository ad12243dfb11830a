"""What the tests of stores share: a store, processes that use it, tools, and ways to harm it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from rollcage import Compensation, compensate, tool
from rollcage.store import Store, check_attested
from rollcage.store.url import open_store
from rollcage.trace import check_events

__all__ = ["HOLD", "JOB", "StoreBase", "drop", "keep", "note", "world"]

JOB: Final = """
import asyncio, os, signal, sys
from rollcage import UnknownOutcome, tool
from rollcage.session.session import Session

url, world, at, when, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]

def put(number):
    if number == at and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(world, "a") as file:
        file.write(f"{number}\\n")
    if number == at and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return number

def ended(number):
    if number == at and when == "between":
        os.kill(os.getpid(), signal.SIGKILL)

async def tasks():
    @tool(effect="write", name="store_suite.add")
    async def add(number: int) -> int:
        return put(number)

    async with Session("job", store=url):
        for number in range(5):
            await add(number)
            ended(number)

if how == "tasks":
    asyncio.run(tasks())

@tool(effect="write", name="store_suite.add")
def add(number: int) -> int:
    return put(number)

with Session("job", store=url):
    for number in range(5):
        add(number)
        ended(number)
"""
HOLD: Final = """
import sys
from rollcage import tool
from rollcage.session.session import Session

@tool(effect="write", name="store_suite.note")
def note(text: str) -> str:
    return text

with Session("held", store=sys.argv[1], replay=sys.argv[2]) as session:
    note("one")
    print(session.run_id, flush=True)
    sys.stdin.readline()
    note("two")
"""


@tool(effect="write", name="store_suite.note")
def note(text: str) -> str:
    """Give the text back."""
    return text


@tool(effect="write", name="store_suite.drop")
def drop(number: int) -> None:
    """Take a number out of the world."""
    world.remove(number)


def _dropped(args: Any) -> list[Compensation]:
    return [compensate(drop, number=args["number"])]


@tool(effect="write", name="store_suite.keep", undo=_dropped)
def keep(number: int) -> int:
    """Put a number into the world."""
    world.append(number)
    return number


world: Final[list[int]] = []


class StoreBase:
    """Subclass it, and say with the fixture `url` where a new store of each test's own is."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """The URL of a store of the test's own, which is not there yet."""
        raise NotImplementedError

    @pytest.fixture
    def tamper(self) -> Callable[[bytes, bytes], None] | None:
        """Replace some bytes by as many others in all that the store keeps, without its knowledge.

        Without it, nothing shows whether the store checks what it gives: those tests are skipped.
        """
        return None

    @pytest.fixture
    def lose_locks(self) -> Callable[[Store], None] | None:
        """Have the locks of all runs lost that this process writes, though it lives and goes on.

        Leave it out where only the end of a process can lose them: that test is skipped.
        """
        return None

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        """That store; the traces that a test left in it are checked."""
        world.clear()
        store = open_store(url)
        yield store
        for info in store.runs():
            if info.pruned is not None:
                continue
            trace = open_store(url).read(info.run)
            if trace.data:
                check_events(trace.data, trace.where)
                check_attested(trace)

    @pytest.fixture
    def origin(self, tmp_path: Path) -> Store:
        """Another store, which runs are copied from."""
        return open_store(str(tmp_path / "origin"))

    @pytest.fixture
    def start(self, url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
        """Run a program in a process of its own, with the store's URL and more arguments."""
        started: list[subprocess.Popen[str]] = []

        def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", program, url, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            return process

        yield begin
        for process in started:
            process.kill()
            process.communicate()
