"""The paths whose work is counted: `python -m benchmarks.paths FOLDER COUNT [PATH …]`.

Each is walked `COUNT` times (`opening`: a tenth of it) between two calls of `getppid`. Nobody else
calls that: callgrind is told to dump there, and strace shows it, so both count exactly what lies
between. Garbage is not collected, for how much of it there is depends on what was walked before.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import rollcage
from rollcage import Contract, Session, StepView, Verdict, tool
from rollcage.calls.stage import Guard, Stage
from rollcage.replay.call import Call
from rollcage_policy import Policy

from benchmarks.floor import Floor
from benchmarks.gate import APPLYING
from benchmarks.workload import asend_mail, mail, send_mail

__all__ = ["PATHS", "calls_of"]

WARM_UP: Final = 30  # calls before the first mark: caches, the interpreter's own adapting
STEPS: Final = 200  # of the run that is opened, and of those that are replayed at the least
_OURS: Final = os.path.dirname(rollcage.__file__)  # noqa: PTH120 - compared for each frame

Walk = Callable[[int, int], None]
"""Makes so many calls, the first of which has this number."""

write_mail: Final = tool(name="send_mail", effect="write")(send_mail)
read_mail: Final = tool(name="read_mail", effect="read")(send_mail)
pure_mail: Final = tool(name="pure_mail", effect="pure")(send_mail)
awrite_mail: Final = tool(name="send_mail", effect="write")(asend_mail)


@tool(effect="write")
def outer(number: int) -> str:
    """Make another write."""
    return write_mail(**mail(number))


@tool(effect="write", once="pay/{number}")
def pay(number: int) -> str:
    """Pay nothing, once."""
    return "paid"


def _model(number: int) -> str:
    return "answer"


MODEL: Final = Contract.of(_model, name="model", effect="read")


def _each(call: Callable[[int], object]) -> Walk:
    def walk(first: int, count: int) -> None:
        for number in range(first, first + count):
            call(number)

    return walk


def _mails(tool: Callable[..., object]) -> Walk:
    return _each(lambda number: tool(**mail(number)))


@contextlib.contextmanager
def floor(folder: Path) -> Iterator[Walk]:
    """What a recorded write can't avoid: see `benchmarks.floor`."""
    made = Floor(folder / "floor.jsonl")
    yield _each(lambda number: made.write(mail(number)))


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[Walk]:
    """The function alone: what it takes to count a call."""
    yield _mails(send_mail)


@contextlib.contextmanager
def _in_session(folder: Path, walk: Walk, **given: Any) -> Iterator[Walk]:
    with Session("job", store=folder, **given):
        yield walk


def _recorded(folder: Path, walk: Walk, count: int) -> None:
    """Record what is replayed then; the session dies, so that the next one resumes its run."""
    with contextlib.suppress(InterruptedError), Session("job", store=folder):
        walk(0, count)
        raise InterruptedError


def write(folder: Path) -> AbstractContextManager[Walk]:
    """A write of five arguments."""
    return _in_session(folder, _mails(write_mail))


def read(folder: Path) -> AbstractContextManager[Walk]:
    """A read of the same arguments."""
    return _in_session(folder, _mails(read_mail))


def pure(folder: Path) -> AbstractContextManager[Walk]:
    """A pure call of the same arguments."""
    return _in_session(folder, _mails(pure_mail))


def hit(folder: Path) -> AbstractContextManager[Walk]:
    """A write that a recorded step answers."""
    _recorded(folder, _mails(write_mail), STEPS)
    return _in_session(folder, _mails(write_mail))


@contextlib.contextmanager
def model_hit(folder: Path) -> Iterator[Walk]:
    """A model's call that a recorded step answers."""

    def ask(number: int) -> None:
        here[-1].run_call(MODEL, {"number": number}, _model, kind="model")

    here: list[Session] = []
    with contextlib.suppress(InterruptedError), Session("job", store=folder) as first:
        here.append(first)
        _each(ask)(0, STEPS)
        raise InterruptedError
    with Session("job", store=folder) as second:
        here.append(second)
        yield _each(ask)


def nested(folder: Path) -> AbstractContextManager[Walk]:
    """A write whose body makes a write: both."""
    return _in_session(folder, _each(outer))


@contextlib.contextmanager
def branch(folder: Path) -> Iterator[Walk]:
    """A write in a branch of its own, the branch opened and joined."""

    def call(number: int) -> None:
        with session.branch(f"part {number}"):
            write_mail(**mail(number))

    with Session("job", store=folder) as session:
        yield _each(call)


@contextlib.contextmanager
def async_write(folder: Path) -> Iterator[Walk]:
    """A write of an async tool, one after another in one event loop."""
    with asyncio.Runner() as runner:
        session = Session("job", store=folder)

        async def walk(first: int, count: int) -> None:
            for number in range(first, first + count):
                await awrite_mail(**mail(number))

        async def enter() -> None:
            await session.__aenter__()

        async def leave() -> None:
            await session.__aexit__(None, None, None)

        context = contextvars.copy_context()
        runner.run(enter(), context=context)
        yield lambda first, count: runner.run(walk(first, count), context=context)
        runner.run(leave(), context=context)


@contextlib.contextmanager
def whole_session(folder: Path) -> Iterator[Walk]:
    """A session of one write: opened, written, left."""

    def call(number: int) -> None:
        with Session(f"job {number}", store=folder):
            write_mail(**mail(number))

    yield _each(call)


@contextlib.contextmanager
def opening(folder: Path) -> Iterator[Walk]:
    """Entering a session that resumes a run of `STEPS` writes, and leaving it with an error."""
    _recorded(folder, _mails(write_mail), STEPS)

    def call(number: int) -> None:
        with contextlib.suppress(InterruptedError), Session("job", store=folder):
            raise InterruptedError

    yield _each(call)


def empty_policy(folder: Path) -> AbstractContextManager[Walk]:
    """A write under a policy without a rule."""
    return _in_session(folder, _mails(write_mail), gate=[_policy(0)])


def ten_rules(folder: Path) -> AbstractContextManager[Walk]:
    """A write under a policy of ten rules that apply to it, each with a condition."""
    return _in_session(folder, _mails(write_mail), gate=[_policy(10)])


def _policy(rules: int) -> Policy:
    applying = "".join(APPLYING.format(number) for number in range(rules))
    return Policy.parse('version = 1\ndefault = "allow"\n' + applying)


def ten_functions(folder: Path) -> AbstractContextManager[Walk]:
    """A write that ten functions decide on."""
    return _in_session(folder, _mails(write_mail), gate=[_rule(n) for n in range(10)])


def _rule(number: int) -> Callable[[StepView], Verdict | None]:
    def rule(view: StepView) -> Verdict | None:
        if view.args["priority"] > 1_000_000 + number:
            return Verdict("deny", "it is urgent", "urgent")
        return None

    return rule


def once(folder: Path) -> AbstractContextManager[Walk]:
    """A write that names its effect, claimed in the store."""
    return _in_session(folder, _each(pay))


class _Idle(Guard):
    """Has no opinion."""

    def decide(self, call: Call) -> Verdict | None:
        """Abstain."""


def guarded(folder: Path) -> AbstractContextManager[Walk]:
    """A write that a guard without an opinion decides on."""
    return _in_session(folder, _mails(write_mail), gate=[_Idle()])


def staged(folder: Path) -> AbstractContextManager[Walk]:
    """A write in a session with a stage that overrides nothing."""
    return _in_session(folder, _mails(write_mail), stages=[Stage()])


PATHS: Final[dict[str, Callable[[Path], AbstractContextManager[Walk]]]] = {
    "bare": bare,
    "floor": floor,
    "write": write,
    "read": read,
    "pure": pure,
    "hit": hit,
    "model hit": model_hit,
    "nested write": nested,
    "write in a branch": branch,
    "async write": async_write,
    "open, write, leave": whole_session,
    "opening": opening,
    "write, ten rules": ten_rules,
    "once-write": once,
    "write, empty policy": empty_policy,
    "write, ten functions": ten_functions,
    "write, empty guard": guarded,
    "write, empty stage": staged,
}
"""By name: opens what a path needs, and gives its walk."""


def calls_of(path: str, count: int) -> int:
    """Return how often a path is walked: a tenth of `count` if a call costs a hundred writes."""
    return count // 10 if path == "opening" else count


class Frames:
    """What one call enters of the package: its functions, and the files that they are in."""

    def __init__(self) -> None:
        self.calls = 0
        self.files: set[str] = set()

    def notice(self, frame: FrameType, event: str, arg: object) -> None:
        """Count a function that is entered, or goes on; for `sys.setprofile`."""
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_OURS):
            self.calls += 1
            self.files.add(file)


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def main() -> None:
    """Walk the paths that the command line names, or all; print their bytes and frames as JSON."""
    folder, count, *names = sys.argv[1:]
    found: dict[str, dict[str, float]] = {}
    gc.disable()
    for number, name in enumerate(names or PATHS):
        calls = calls_of(name, int(count))
        here = Path(folder, str(number))
        here.mkdir()
        with PATHS[name](here) as walk:
            walk(0, WARM_UP)
            before = _size(here)
            os.getppid()
            walk(WARM_UP, calls)
            os.getppid()
            size = (_size(here) - before) / calls
            frames = Frames()
            sys.setprofile(frames.notice)
            walk(WARM_UP + calls, 1)
            sys.setprofile(None)
        found[name] = {"bytes": size, "calls": frames.calls, "files": len(frames.files)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
