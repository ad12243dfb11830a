"""Agents of a framework that are killed at any moment, while a server works for them.

A program names what such an agent does once (`survives`); each attempt is a process forked off it,
so that the framework is imported once.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers import LINE_SERVER, world_of
from rollcage import DidNotHappen, Happened

TURNS = [["a", "b"], ["c"], ["d", "e"]]  # what the agent has written, message by message
SCRIPT: list[Any] = [
    *([("write", {"text": text, "after": 0.02}) for text in turn] for turn in TURNS),
    "done",
]
_LONGEST = 300.0  # seconds of an attempt, however busy the machine is


def store(job: Path) -> str:
    """Where its runs are: in a folder, or in SQLite."""
    return (
        f"sqlite:///{job / 'runs.db'}" if job.name.endswith(tuple("13579")) else str(job / "store")
    )


def command(folder: Path) -> list[str]:
    """The server of an agent; its tool `write` puts a text into a file."""
    return [sys.executable, LINE_SERVER, str(folder / "world")]


def contracts(folder: Path) -> dict[str, Any]:
    """What is declared of that tool: whether a call has happened is seen in the file."""

    def probe(args: dict[str, Any]) -> Happened | DidNotHappen:
        text = args["text"]
        with (folder / "probed").open("a") as file:
            file.write(text + "\n")
        return Happened(f"wrote {text}") if text in world_of(folder) else DidNotHappen()

    return {"write": {"probe": probe}}


def survives(attempt: Callable[[Path], None], folder: Path, rounds: int) -> None:
    """Kill an agent several times in each job; in the end, all was written, and nothing twice.

    Args:
        attempt: has the job that a folder holds gone on with to its end.
        folder: for jobs.
        rounds: how many of them.
    """
    dice = random.Random(rounds)  # noqa: S311 - a seed
    usual = _timed(attempt, folder / "first")
    killed = 0
    for number in range(rounds):
        job = folder / str(number)
        job.mkdir()
        for _ in range(3):
            killed += not _ended_well(attempt, job, dice.random() * usual)
        assert _ended_well(attempt, job, _LONGEST), "it was killed, but took too long"
        wrote = world_of(job)
        assert sorted(wrote) == sorted(text for turn in TURNS for text in turn), wrote
    probed = sum((folder / f"{each}" / "probed").exists() for each in range(rounds))
    print(f"{killed} killed in {rounds} jobs; of {probed}, a write was of unknown outcome")


def _timed(attempt: Callable[[Path], None], job: Path) -> float:
    job.mkdir()
    began = time.monotonic()
    assert _ended_well(attempt, job, _LONGEST)
    return time.monotonic() - began


def _ended_well(attempt: Callable[[Path], None], job: Path, patience: float) -> bool:
    """Have an attempt made in a process that is killed after a while; False where it was."""
    child = os.fork()
    if not child:
        code = 1
        try:
            attempt(job)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    until = time.monotonic() + patience
    ended = (0, 0)
    while not ended[0] and time.monotonic() < until:
        time.sleep(0.005)  # the moment to kill it is at random
        ended = os.waitpid(child, os.WNOHANG)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    while _serves(job):
        time.sleep(0.01)  # a server does what it was told before it sees that nobody is there
    assert ended[1] in (0, signal.SIGKILL), f"it failed by itself: {ended[1]}"
    return ended[1] == 0


def _serves(job: Path) -> bool:
    """Whether a server of this job still runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if LINE_SERVER.encode() in words and str(job / "world").encode() in words:
            return True
    return False
