"""Programs that are run, killed, resumed, edited, undone and forked, told line by line.

A story follows from its number, up to the order of all that happens on an event loop. Its text has
what each attempt gave and each line that it wrote, without times and hashes, and with short names
for random ids. Whoever changes what is recorded, or what answers a call, sees it in these texts:

    python -m tests.laws.kept    # writes them anew
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import orjson
from rollcage import (
    ApprovalRequired,
    Halt,
    SessionError,
    StepEvent,
    UnknownOutcome,
    aplan_undo,
    aundo_run,
    lift_order,
    plan_undo,
    recorded_events,
    stop_run,
    undo_run,
)
from rollcage.stages.queue import ApprovalQueue, QueueApprover
from rollcage.trace import threads, writer
from rollcage_fork import Fork

from tests.laws.lab import Attempt, Lab, folder
from tests.laws.programs import Block, Branches, Inner, Node, Op, Program, Turn, flat, size
from tests.laws.test_approvals import Persons
from tests.laws.test_divergence import EDITS, edited
from tests.laws.test_forks import changed, has_begun
from tests.laws.test_undo import resolve_all
from tests.laws.timeline import Deed

__all__ = ["KEPT", "STORIES", "story"]

KEPT: Final = Path(__file__).with_name("kept")
STORIES: Final = (
    0, 2, 21, 60, 66, 89, 97, 98, 102, 113, 120, 122, 162, 180, 197, 213, 222, 228, 235,
    1000, 1001, 1002, 1005, 1009, 1030, 1036, 1038, 1056, 1065, 1074, 1106, 1109, 1129, 1134,
    1139, 1143, 1145, 1149, 1173, 1197, 1209, 1216, 1221, 1229, 1232,
    2004, 2009, 2012, 2020, 2029, 2044, 2061, 2066, 2071, 2095, 2106, 2116, 2133, 2149,
    2163, 2173, 2191, 2200, 2232, 2241, 2275, 2326, 2349, 2360, 2395, 2400, 2410, 2446,
    2458, 2498,
)  # fmt: skip
"""Of hundreds, short ones. Together they come by most branches of core, each at least thrice. From
`STEERED` on, they show changes of core that no other test found, or come by rare lines."""
ASKED: Final = 1000
STEERED: Final = 2000
_LEFT_OUT: Final = ("args", "duration", "hash", "time")
_UNTOLD: Final = (
    "_written", "attempt", "duration", "effect", "kind", "name", "run", "step", "time", "what",
)  # fmt: skip
_PLAIN: Final = str.maketrans("", "", '"')
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_IDS: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{16}\b|\b[0-9a-f]{24}\b")


class Waiting(ThreadPoolExecutor):
    """Threads that are waited for: no story has two calls of which one waits for the other."""

    def submit(self, /, *args: Any, **more: Any) -> Future[Any]:
        future = super().submit(*args, **more)
        wait([future], 20)
        return future


class Held(writer._Writer):
    """Writes what was handed over when it is told to, in the thread that tells it."""

    def __init__(self) -> None:
        self.jobs: Any = self  # it is its own queue
        self._held: list[writer._Job] = []

    def put(self, job: writer._Job) -> None:
        self._held.append(job)
        if job[2] is not None and not isinstance(job[2], asyncio.Future):
            self.drain()  # a thread waits

    def drain(self) -> None:
        held, self._held = self._held, []
        writer._serve_all(held)


class Steady(asyncio.SelectorEventLoop):
    """A loop that goes on once all lines handed over are written, and waits for other threads.

    So nothing depends on how fast a thread is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(Waiting())

    def _run_once(self) -> None:
        for each in writer._writers.values():
            each.drain()
            each.drain()  # what the first one woke is known to the loop
        super()._run_once()  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue] - of asyncio


# --- programs -------------------------------------------------------------------------------------


def drawn(chance: random.Random, depth: int = 2, tools: tuple[str, ...] = ()) -> Program:
    """Draw a program, as `programs` does for laws, which are free to draw others."""
    return tuple(_node(chance, depth, tools) for _ in range(chance.randint(1, 4)))


_ASKING: Final = ("once", "once", "risky", "stream")
_STEERING: Final = ("cell", "cell", "slot", "slot", "undo", "pause", "flaky")


def _op(chance: random.Random, tools: tuple[str, ...] = ()) -> Op:
    every = ("write", "write", "plain", "idem", "read", "read", "pure", "model", *tools)
    tool, arg = chance.choice(every), chance.randrange(2)
    ways = ["work", "work", "work", "fail"]
    if tool in ("write", "plain", "idem", "cell", "slot"):
        ways += ["lose before", "lose after"]
    return Op(tool, arg, chance.choice(ways))


def _row(chance: random.Random, depth: int, tools: tuple[str, ...]) -> Program:
    return tuple(_node(chance, depth - 1, tools) for _ in range(chance.randint(1, 3)))


def _node(chance: random.Random, depth: int, tools: tuple[str, ...]) -> Node:
    kind = chance.choice(
        ["op", "op", "outer", "scope", "turn", "turn", "overlap", "branches", "block", "inner"]
    )
    if not depth or kind == "op":
        return _op(chance, tools)
    if kind in ("outer", "scope"):
        return Op(kind, chance.randrange(2), "work", _row(chance, depth, tools))
    if kind in ("turn", "overlap"):
        several = tuple(_op(chance, tools) for _ in range(chance.randint(2, 3)))
        return Turn(several, kind if kind == "overlap" else chance.choice(["slots", "turn"]))
    if kind == "block":
        return Block(_row(chance, depth, tools), chance.random() < 0.4)
    if kind == "inner":
        return Inner(chance.choice(["in", "side"]), _row(chance, depth, tools))
    lines = tuple(_row(chance, depth, tools) for _ in range(chance.randint(1, 3)))
    how = chance.choice(["opens", "slots", "turn"])
    names = tuple("b0" if how == "slots" else f"b{number}" for number in range(len(lines)))
    after = tuple(
        frozenset(each for each in range(number) if chance.random() < 0.3)
        for number in range(len(lines))
    )
    return Branches(lines, names, how, () if how == "turn" else after)


# --- stories --------------------------------------------------------------------------------------


class Teller:
    """Tells what happens in a lab."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._names: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._events: list[str] = []
        self.persons: Persons | None = None
        self.is_steered = False

    def say(self, text: str) -> None:
        said = _IDS.sub(lambda found: self._name(found[0]), text)
        self.told.append(said.replace("  run-0: ", "  "))

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"{'run' if '-' in name else 'id'}-{len(self._names)}")

    def moves_to(self, lab: Lab) -> None:
        """Take the lines of a lab that died as told."""
        self._seen = dict(lab.timeline.sent)

    def event(self, event: StepEvent) -> None:
        """Take in what an observer is told; see `attempt`."""
        said = {
            field.name: value
            for field in dataclasses.fields(event)
            if field.name not in _UNTOLD and (value := getattr(event, field.name))
        }
        if isinstance(said.get("verdict"), dict):
            said["verdict"] = said["verdict"].get("code") or said["verdict"]["decision"]
        self._events.append(f"{event.what} {event.step} {_text(said) if said else ''}".rstrip())

    def lines(self, lab: Lab) -> None:
        """Tell of the lines that were written since."""
        for run in lab.timeline.sent:
            its = lab.timeline.lines(run)
            for line in its[self._seen.get(run, 0) :]:
                self.say(f"  {run}: {_shown(orjson.loads(line))}")
            self._seen[run] = len(its)

    def decide(self, lab: Lab, persons: Persons) -> None:
        """Have persons answer all that waits for them."""
        queue = ApprovalQueue(lab.store)
        for request in sorted(queue.waiting(), key=lambda each: (each.name, each.key)):
            self.say(f"  {request.name} {_text(dict(request.args))} is decided")
            queue.decide(request.id, persons.answer(request))

    def attempt(self, attempt: Attempt) -> None:
        """Tell what an attempt gave, and what an observer was told."""
        for event in self._events:
            self.say(f"  {event}")
        self._events.clear()
        for place, (how, said) in sorted(attempt.given.items()):
            self.say(f"  {'.'.join(map(str, place))}: {how} {said}")
        error, stats, report = attempt.error, attempt.stats, attempt.report
        if error is not None:
            step = f" of step {error.step}" if isinstance(error, UnknownOutcome) else ""
            self.say(f"  {type(error).__name__}{step}")
        if stats is not None:
            counted = " ".join(
                f"{name}={getattr(stats, name)}" for name in stats.__slots__ if getattr(stats, name)
            )
            self.say(f"  {attempt.run} ran {' '.join(attempt.ran) or 'nothing'}; {counted}")
        if report is not None and self.is_steered:
            data = dataclasses.asdict(report) | {"halted": bool(report.halted)}
            self.say(f"  report {_text({name: value for name, value in data.items() if value})}")

    def recorded(self, lab: Lab, run: str) -> None:
        """Tell what an observer would be told of a finished log."""
        for event in recorded_events(lab.timeline.lines(run)):
            if isinstance(event, StepEvent):
                self.event(event)
            else:
                said = f"{event.what} {event.mode} {event.status} {event.error}"
                self._events.append(said.strip())
        for said in self._events:
            self.say(f"  {said}")
        self._events.clear()


def _shown(event: dict[str, Any]) -> str:
    """Return a line as text: short, without sentences, zeros, and what is another each time."""
    kept = {name: value for name, value in event.items() if value and name not in _LEFT_OUT}
    for name in ("error", "verdict"):
        if name in kept:
            kept[name] = kept[name].get("type") or kept[name].get("code")
    return f"{kept.pop('event')} {_text(kept)}"


def _text(data: Any) -> str:
    """Return data as text, with the beginnings of hashes."""
    text = orjson.dumps(data, option=orjson.OPT_SORT_KEYS).decode()
    return _HEX.sub(lambda found: found[0][:4], text).translate(_PLAIN)


def _program(nodes: Program) -> str:
    """Return a program as text."""
    return ", ".join(map(_node_text, nodes))


def _node_text(node: Node) -> str:
    match node:
        case Op(tool, arg, does, inner):
            how = "" if does == "work" else f" {does}"
            return f"{tool}-{arg}{how}" + (f" [{_program(inner)}]" if inner else "")
        case Turn(nodes, how):
            return f"{how} ({_program(nodes)})"
        case Block(nodes, raises):
            return f"{'taken back' if raises else 'block'} [{_program(nodes)}]"
        case Inner(name, nodes):
            return f"session {name} [{_program(nodes)}]"
        case Branches(lines, _, how):
            each = (f"{node.before(at)} [{_program(line)}]" for at, line in enumerate(lines))
            return f"{how} branches {' '.join(each)}"


@contextmanager
def _undisturbed() -> Iterator[Path]:
    """Make a folder; hold lines; keep garbage, which ends forgotten calls when it is collected."""
    gc.disable()
    try:
        with (
            mock.patch.object(writer, "_Writer", Held),
            mock.patch.dict(writer._writers, clear=True),
            mock.patch.object(threads, "ThreadPoolExecutor", Waiting),
            folder() as root,
            warnings.catch_warnings(action="ignore"),
        ):
            yield root
    finally:
        gc.enable()


def story(number: int) -> str:
    """Return the text of a story.

    From `ASKED` on, persons decide, and effects have keys. From `STEERED` on, tools tell of states,
    and runs are steered: stopped, paused, undone in part.
    """
    chance = random.Random(number)  # noqa: S311 - no secret
    is_asked, is_steered = number >= ASKED, number >= STEERED
    tools = (*(_ASKING if is_asked else ()), *(_STEERING if is_steered else ()))
    whats = [*_WHAT, *(_STEERED if is_steered else ())]
    program, teller = drawn(chance, tools=tools), Teller()
    teller.is_steered = is_steered
    if is_asked:
        teller.persons = Persons(chance)
    teller.say(_program(program))
    with _undisturbed() as root:
        lab = Lab(root / "first")
        recorded = _attempts(teller, lab, program, chance)
        lab = lab.at(root / "cut", chance.randint(2, len(lab.timeline.moments)))
        if not recorded or lab.timeline.newest() is None:
            return "\n".join([*teller.told, ""])
        teller.say(f"killed behind {len(lab.timeline.moments)}")
        teller.moves_to(lab)
        for turn in range(3):
            start = len(lab.timeline.moments)
            what: Callable[..., Any] = chance.choice(whats)
            teller.say(what.__name__[1:])
            what(teller, lab, program, chance)
            teller.lines(lab)
            if chance.random() < 0.5:
                behind = chance.randint(start, len(lab.timeline.moments))
                lab = lab.at(root / f"cut {turn}", behind)
                teller.say(f"killed behind {behind}")
                teller.moves_to(lab)
        teller.say("resumed")
        _attempts(teller, lab, program, chance, on_divergence="warn")
        teller.say("offline")
        teller.attempt(_attempt(teller, lab, program, chance, replay="offline"))
        if is_steered:
            teller.say("verified")
            teller.attempt(_attempt(teller, lab, program, chance, replay="verify"))
            teller.say("recorded")
            teller.recorded(lab, lab.newest())
    return "\n".join([*teller.told, ""])


def _attempt(
    teller: Teller, lab: Lab, program: Program, chance: random.Random, **how: Any
) -> Attempt:
    """Run a program in an order: in one thread, or on a loop."""
    sync, at_once = chance.random() < 0.4, chance.random() < 0.7
    shuffle = chance.choice([None, chance.randrange(1000)])
    sync = sync and all(op.tool != "stream" for op in flat(program))
    how = {"sync": sync, "at_once": at_once, "shuffle": shuffle, "observers": [teller.event]} | how
    if teller.persons is not None:
        approver = teller.persons.answer if chance.random() < 0.6 else QueueApprover(lab.store)
        how |= {"gate": [teller.persons.rule], "approver": approver}
    return lab.attempt(program, runner=asyncio.Runner(loop_factory=Steady), **how)


def _attempts(
    teller: Teller, lab: Lab, program: Program, chance: random.Random, **how: Any
) -> bool:
    """Run a program until it is through or halts; tell whether it is through."""
    for _ in range(6):
        replay = "continue" if lab.finished() else "auto"
        attempt = _attempt(teller, lab, program, chance, replay=replay, **how)
        teller.attempt(attempt)
        teller.lines(lab)
        if isinstance(attempt.error, UnknownOutcome):
            lab.resolve(attempt.error.run, attempt.error.step)
        elif isinstance(attempt.error, ApprovalRequired) and teller.persons is not None:
            teller.decide(lab, teller.persons)
        else:
            return attempt.error is None
    return False


def _resumed(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    _attempts(teller, lab, program, chance)


def _edited(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Resume as another program, which diverges."""
    other = edited(program, chance, EDITS)
    way = chance.choice(["halt", "undo", "warn"])
    teller.say(f"{way}: {_program(other)}")
    _attempts(teller, lab, other, chance, on_divergence=way)


def _undone(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Take steps back, as a plan says before."""
    run = lab.newest()
    lab.settle()
    if chance.random() < 0.8:
        resolve_all(lab, run)
    steps = [event["step"] for event in lab.events(run) if event["event"] == "step"]
    to = chance.choice([*steps, None])
    teller.say(f"to {to}")
    lab.begin(size(program))
    for what in (plan_undo, undo_run):
        try:
            said: Any = what(lab.store, run, tools=lab.tools(sync=True), to=to).as_data()
        except (Halt, SessionError) as error:
            teller.say(f"  {type(error).__name__}")
            return
        teller.say(f"  {_text(said)}")


def _forked(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Fork the run, with a change or without one; a fork that writes is resumed."""
    run, live = lab.newest(), chance.random() < 0.5
    lab.settle()
    resolve_all(lab, run)
    step, change = changed(lab, run, chance)
    fork = chance.choice([
        Fork(run, live=live),
        Fork(run, step, change, live=live) if step else Fork(run, model="another", live=live),
        Fork(run, step, args={"arg": 7}, live=live) if step else Fork(run, live=live),
    ])  # fmt: skip
    kind = "args" if fork.args else "change" if fork.change else "alone"
    teller.say(f"{'live' if live else 'dry'} {kind} of step {fork.at}")
    attempt = _attempt(teller, lab, program, chance, stages=[fork], on_divergence="warn")
    teller.attempt(attempt)
    if live and attempt.run and has_begun(lab, attempt.run):
        how: dict[str, Any] = {"run": attempt.run, "stages": [fork], "on_divergence": "warn"}
        teller.attempt(_attempt(teller, lab, program, chance, replay="continue", **how))


def _stopped(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Stop the run before some effect that is new, and let it go on."""
    left = chance.randint(1, 3)
    other = edited(program, chance, EDITS)
    teller.say(f"{left}: {_program(other)}")

    def watch(_: Deed) -> None:
        nonlocal left
        left -= 1
        if not left:
            stop_run(lab.store, lab.newest(), by="ann", reason="too many")

    lab.world.watch = watch
    try:
        _attempts(teller, lab, other, chance, on_divergence="warn")
    finally:
        lab.world.watch = None
    teller.say("lifted" if lift_order(lab.store, lab.newest()) else "not stopped")
    _attempts(teller, lab, other, chance, on_divergence=chance.choice(["undo", "warn"]))


def _retried(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Resume with failures made again, all or none."""
    _attempts(teller, lab, program, chance, retry_failed=chance.random() < 0.6)


def _copied(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Begin another run on the copy of the newest."""
    lab.settle()
    attempt = _attempt(teller, lab, program, chance, source=lab.newest(), on_divergence="warn")
    teller.attempt(attempt)


def _undone_so(teller: Teller, lab: Lab, program: Program, chance: random.Random) -> None:
    """Take steps of a branch back, or restore states of unknown ones, as was planned or not."""
    run = lab.newest()
    steps = [event["step"] for event in lab.events(run) if event["event"] == "step"]
    how: dict[str, Any] = {
        "to": chance.choice([*steps, None, None]),
        "branch": chance.choice(["b0", "b1", None, None]),
        "in_doubt": chance.choice(["list", "restore"]),
        "accept": [each for each in steps if chance.random() < 0.1],
    }
    teller.say(str(how))
    sync = chance.random() < 0.5
    lab.begin(size(program))
    with asyncio.Runner(loop_factory=Steady) as runner:
        try:
            if sync:
                plan = plan_undo(lab.store, run, tools=lab.tools(sync=True), **how)
            else:
                plan = runner.run(aplan_undo(lab.store, run, tools=lab.tools(sync=False), **how))
            teller.say(f"  {_text(plan.as_data())}")
            if chance.random() < 0.5:
                _resumed(teller, lab, program, chance)
                lab.begin(size(program))
            how |= {"expected": plan, "observers": [teller.event]}
            if sync:
                report = undo_run(lab.store, run, tools=lab.tools(sync=True), **how)
            else:
                report = runner.run(aundo_run(lab.store, run, tools=lab.tools(sync=False), **how))
            teller.say(f"  {_text(report.as_data())}")
        except (Halt, SessionError) as error:
            teller.say(f"  {type(error).__name__}")


_WHAT: Final = (_resumed, _edited, _edited, _undone, _undone, _forked)
_STEERED: Final = (_stopped, _retried, _copied, _undone_so, _undone_so)


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    for number in map(int, sys.argv[1:]) if len(sys.argv) > 1 else STORIES:
        (KEPT / f"{number:03}.txt").write_text(story(number), encoding="utf-8")
