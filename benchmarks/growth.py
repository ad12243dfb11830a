"""How each thing grows with what there is more of: `python -m benchmarks.growth`.

For each suite, the instructions of the same work at 1, 10 and 100 units, counted by callgrind, and
the slope: the exponent of the growth from 1 to 100. Work that grows with what it is about has a
slope of 1, work that is the same beside any number of things has 0, and 2 is a square. The target
is 1.1 at most.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final

from rollcage import Session, tool
from rollcage_adapter import (
    Answer,
    BodyForm,
    CallNumbers,
    GuardedModel,
    MessageForm,
    ModelCall,
    model_options,
)

from benchmarks.counting import counted
from benchmarks.workload import mail, send_mail

__all__ = ["SIZES", "SUITES", "main", "slope"]

SIZES: Final = (1, 10, 100)
TARGET: Final = 1.1
_STEPS: Final = 5  # writes in one unit, where the unit is not one of them

Work = Callable[[], object]

write_mail: Final = tool(name="send_mail", effect="write")(send_mail)


# --- a model that is asked with a conversation ---------------------------------------------------


class _Form(MessageForm):
    def parts(self, messages: Sequence[Any]) -> list[Any]:
        return list(messages)

    def canonical(self, message: Any, calls: CallNumbers) -> Any:
        return {**message, "content": calls.within(message["content"])}


class _Model:
    def ask(self, messages: list[Any]) -> dict[str, Any]:
        """Answer a conversation."""
        return {"role": "assistant", "content": f"answer {len(messages)}"}


class _Asking(ModelCall):
    def answer(self, value: Any) -> Answer:
        return Answer(value[0]["content"])

    def given(self, value: Any) -> Any:
        return value[0]


class _Guard(GuardedModel):
    framework = "benchmarks"
    form = _Form()
    forms: ClassVar[Mapping[str, BodyForm]] = {"ask": "run"}

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModelCall:
        contract = self.contract_of("model")
        asked = self.request(contract, args[0], model_options(options={}), owner)
        return _Asking(self.session, contract, asked)


def _talk(model: Any, turns: int, size: int) -> None:
    said: list[Any] = []
    for turn in range(turns):
        said = [*said, {"role": "user", "content": f"{turn:08} " + "x" * size}]
        said = [*said, model.ask(said)]


# --- suites --------------------------------------------------------------------------------------


@contextlib.contextmanager
def steps(folder: Path, size: int) -> Iterator[Work]:
    """A session of so many writes, from its opening to its end."""

    def work() -> None:
        with Session("job", store=folder):
            for number in range(size * _STEPS):
                write_mail(**mail(number))

    yield work


@contextlib.contextmanager
def hits(folder: Path, size: int) -> Iterator[Work]:
    """A resume of so many writes: all are answered from the recording."""

    def work() -> None:
        with contextlib.suppress(InterruptedError), Session("job", store=folder):
            for number in range(size * _STEPS):
                write_mail(**mail(number))
            raise InterruptedError

    work()
    yield work


@contextlib.contextmanager
def turns(folder: Path, size: int) -> Iterator[Work]:
    """A conversation of so many turns, each with a message of 2 kB."""

    def work() -> None:
        with Session("job", store=folder) as session:
            _talk(_Guard(session).guarded(_Model()), size, 2_000)

    yield work


@contextlib.contextmanager
def message_size(folder: Path, size: int) -> Iterator[Work]:
    """A conversation of three turns, each with a message of so many kB."""

    def work() -> None:
        with Session("job", store=folder) as session:
            _talk(_Guard(session).guarded(_Model()), 3, size * 1_000)

    yield work


@contextlib.contextmanager
def runs_beside(folder: Path, size: int) -> Iterator[Work]:
    """A session of one write in a store of so many other runs."""
    for number in range(size):
        with Session(f"job {number}", store=folder):
            write_mail(**mail(number))

    def work() -> None:
        with Session("job", store=folder):
            write_mail(**mail(0))

    yield work


@contextlib.contextmanager
def branches(folder: Path, size: int) -> Iterator[Work]:
    """A session of so many branches, with a write in each."""

    def work() -> None:
        with Session("job", store=folder) as session:
            for number in range(size):
                with session.branch(f"part {number}"):
                    write_mail(**mail(number))

    yield work


@contextlib.contextmanager
def attempts(folder: Path, size: int) -> Iterator[Work]:
    """The next attempt at a job that so many attempts have died of, each behind a new write."""

    def work(before: int) -> None:
        with contextlib.suppress(InterruptedError), Session("job", store=folder):
            for number in range(before + 1):
                write_mail(**mail(number))
            raise InterruptedError

    for before in range(size):
        work(before)
    yield functools.partial(work, size)


SUITES: Final[dict[str, Callable[[Path, int], AbstractContextManager[Work]]]] = {
    "steps": steps,
    "hits": hits,
    "turns": turns,
    "message size": message_size,
    "runs beside": runs_beside,
    "branches": branches,
    "attempts": attempts,
}
"""By name: prepares a store, and gives the work that is counted, at a size."""


def slope(least: float, most: float) -> float:
    """The exponent of a growth from the first of the sizes to the last."""
    return math.log(most / least) / math.log(SIZES[-1] / SIZES[0])


def _walk(folder: Path, names: list[str]) -> None:
    """Do the work of suites once at each size, between two marks; see `counting.counted`."""
    gc.disable()
    for name in names:
        for number, size in enumerate((SIZES[0], *SIZES)):  # the first time warms all caches
            here = folder / f"{name} {number}"
            here.mkdir()
            with SUITES[name](here, size) as work:
                if number:
                    os.getppid()
                work()
                if number:
                    os.getppid()


def table(found: dict[str, list[int]]) -> str:
    """The figures as a table in Markdown."""
    rows = [
        "| suite | " + " | ".join(map(str, SIZES)) + " | slope | |",
        "|---|" + "---:|" * 4 + "---|",
    ]
    for name, counts in found.items():
        grown = slope(counts[0], counts[-1])
        shown = " | ".join(f"{count:,}" for count in counts)
        rows.append(
            f"| {name} | {shown} | {grown:.2f} | {'' if grown <= TARGET else 'too steep'} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Count the suites that the command line names, or all; print their slopes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--suites", nargs="+", choices=list(SUITES), help="count these alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--walk", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names: list[str] = asked.suites or list(SUITES)
    if asked.walk is not None:
        _walk(asked.walk, names)
        return
    if shutil.which("valgrind") is None:
        print("skipped: valgrind counts the instructions, and is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = tempfile.mkdtemp(dir=folder)
        arguments = ["--walk", kept, "--suites", *names]
        _, counts = counted("benchmarks.growth", arguments, Path(folder))
    if len(counts) != len(names) * len(SIZES):
        sys.exit(f"callgrind made {len(counts)} counts of {len(names)} suites")
    found = {name: counts[at * len(SIZES) : (at + 1) * len(SIZES)] for at, name in enumerate(names)}
    print(table(found))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
