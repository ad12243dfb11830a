"""The shared parts of store tests: a store, other processes on it, logs, tools, and damage."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pytest
from rollcage import Store, compensate, open_store, tool
from rollcage.trace.chain import FORMAT, Chain, parse

from rollcage_conformance.stores import worker

__all__ = [
    "FIRST",
    "ODD",
    "Other",
    "StoreBase",
    "Tamper",
    "begun",
    "events_of",
    "numbers",
    "on_a_loop",
    "store_keep",
    "store_note",
    "world",
]

Tamper = Callable[[bytes, bytes], None]
Asked = ParamSpec("Asked")
Self = TypeVar("Self")

FIRST: Final = {"event": "run", "format": FORMAT}
ODD: Final = [
    "a", "A", "a b", "..", ".", "../../up", "/etc/passwd", "a/b", "~a", "%2e", "a%", "-rf", "é",
    "nul.txt", "a\nb", "日本", "😀" * 40, "x" * 200, ".lock", ".part", "a.jsonl", "'; DROP TABLE--",
    "\x1b[31m", "\u202e", "con", " ",
]  # fmt: skip
"""Texts that users choose as names, and that a careless store misreads."""


class Other:
    """Another process that uses the store: see `worker`."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, worker.__file__, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ask(self, name: str, /, **given: Any) -> None:
        """Send a command, without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, given]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return its answer to the oldest command, or the name of the error."""
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        return found.get("error") or found["gave"]

    def do(self, name: str, /, **given: Any) -> Any:
        """Send a command, and return its answer."""
        self.ask(name, **given)
        return self.answer()

    def freeze(self) -> None:
        """Stop the process at its current place."""
        os.kill(self.pid, signal.SIGSTOP)
        self.until_frozen()

    def until_frozen(self) -> None:
        """Wait until it has stopped itself."""
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def wake(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Kill it, and close its pipes."""
        with self._process:
            self._process.kill()


def begun(store: Store, run: str = "r1", **options: Any) -> Chain:
    """Return a log with its first line, open."""
    chain = Chain(store.open(run, **options))
    if not chain.read():
        chain.append(FIRST)
    return chain


def events_of(store: Store, run: str = "r1") -> list[dict[str, Any]]:
    """Return all events of a run, after checking its chain."""
    return parse(store.read(run), run)


def numbers(store: Store, run: str = "r1") -> list[int]:
    """Return the number in each line of a run after the first."""
    return [event["n"] for event in events_of(store, run)[1:]]


def on_a_loop(
    test: Callable[Concatenate[Self, Asked], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Self, Asked], None]:
    """Run an async test in a loop of its own: a store's author may have no plugin for it."""

    @functools.wraps(test)
    def run(self: Self, /, *given: Asked.args, **more: Asked.kwargs) -> None:
        import asyncio

        asyncio.run(test(self, *given, **more))

    return run


@tool(effect="write")
def store_note(text: str) -> str:
    """Give the text back."""
    return text


@tool(effect="write")
def store_drop(number: int) -> None:
    """Take a number out of the world."""
    world.remove(number)


def _dropped(args: Any) -> list[Any]:
    return [compensate(store_drop, number=args["number"])]


@tool(effect="write", undo=_dropped)
def store_keep(number: int) -> int:
    """Put a number into the world."""
    world.append(number)
    return number


world: Final[list[int]] = []


class StoreBase:
    """Subclass it, and return the URL of a new store for each test from the fixture `url`."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """Return the URL of a store of the test's own, which does not exist yet."""
        raise NotImplementedError

    @pytest.fixture
    def tamper(self) -> Tamper | None:
        """Return a function that replaces bytes by as many others in all stored data.

        Without it, the tests for changed lines and values are skipped.
        """
        return None

    @pytest.fixture
    def store(self, url: str) -> Store:
        """Return that store."""
        world.clear()
        return open_store(url)

    @pytest.fixture
    def other(self, url: str) -> Iterator[Other]:
        """Start another process that uses the store."""
        with self.others(url, 1) as (other,):
            yield other

    @contextlib.contextmanager
    def others(self, url: str, count: int) -> Generator[list[Other]]:
        """Start so many processes that use the store."""
        found = [Other(url) for _ in range(count)]
        try:
            yield found
        finally:
            for each in found:
                each.end()

    def until_free(self, store: Store, run: str = "r1") -> None:
        """Wait until the store has noticed that the writer of a run was killed."""
        store.open(run).close()

    @pytest.fixture
    def start(self, url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
        """Return a function that runs a program on the store, in another process."""
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
