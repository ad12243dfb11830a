"""Crash chaos: runs that are killed at any moment, and recovered in a new process.

Half of them are resumed, half are undone; the recovery itself is killed, too. What happened is
told by a ledger that the bodies write, by the service, and by what is there: not by the log.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rollcage import (
    Diverged,
    Options,
    Session,
    UndoIncomplete,
    UnknownOutcome,
    list_runs,
    newest_run,
    undo_run,
)
from rollcage_toolbox import Workspace

from tests.chaos import service
from tests.chaos.agent import Agent, ChangedItsMind
from tests.chaos.faults import Ledger, Line, lines_of
from tests.chaos.place import Place
from tests.chaos.work import Part, Planner

Do = Literal["work", "undo"]

FINISHED, LISTED, BROKEN = 0, 3, 4
_IDEMPOTENT: Final = frozenset(
    {"restore_file", "restore_dir", "remove_entry", "remove_unpacked"}
    | {"sql_restore", "http_compensate", "mail_compensate"}
)
_UNKNOWN: Final = re.compile(r"step (\d+) \(\w+\) of run (\S+): unknown")
_KILLS: Final = 3  # of one run, at most


class Job(NamedTuple):
    """What a run is to do."""

    plan: tuple[Part, ...]
    whole: bool  # in one transaction
    gives_up: bool  # and it ends by taking that back
    waits: bool


class Moment(NamedTuple):
    """When a child is killed: after some seconds by its parent, or by itself at its n-th call."""

    seconds: float | None = None
    calls: int | None = None


@dataclasses.dataclass
class Ended:
    """What came of one run."""

    number: int
    way: str
    wrong: list[str]
    counts: collections.Counter[str]


# --- a child -------------------------------------------------------------------------------------


def _child(place: Place, job: Job, do: Do, moment: Moment) -> int | None:
    """Let a process of its own do this, and kill it; how it exited, None where it was killed."""
    worker = os.fork()
    if not worker:
        code = BROKEN
        try:
            code = _work(place, job, do, moment)
        finally:
            os._exit(code)
    if moment.seconds is not None:
        signal.sigtimedwait([signal.SIGCHLD], moment.seconds)
        os.kill(worker, signal.SIGKILL)  # not reaped yet: the id is still its own
    _, status = os.waitpid(worker, 0)
    signal.sigtimedwait([signal.SIGCHLD], 0)  # what it left pending
    service.asked(place.port, place.namespace)  # by now, all that it sent is dealt with
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def _work(place: Place, job: Job, do: Do, moment: Moment) -> int:
    listed: set[tuple[str, int]] = set()
    try:
        tools = place.tools()
        ledger = Ledger(place.ledger)
        for tool in tools.values():
            ledger.instrument(tool, place, None)
        if moment.calls is not None:
            sys.setprofile(_Calls(moment.calls))
        if do == "work":
            with (
                contextlib.suppress(ChangedItsMind),
                Session("chaos", store=place.store, options=Options(tools=tools)) as session,
            ):
                agent = Agent(session, place, tools, waits=job.waits)
                agent.run(job.plan, whole=job.whole, gives_up=job.gives_up)
        else:
            run = newest_run(place.store, "chaos")
            assert run is not None
            report = undo_run(place.store, run.run, tools=tools)
            sys.setprofile(None)
            listed = {(e.run, e.step) for e in report.steps if e.status == "unknown"}
            place.said.write_text(json.dumps([str(report), sorted(listed)]))
            return FINISHED if report.complete else LISTED
    except (UnknownOutcome, UndoIncomplete, Diverged) as error:
        told = "".join(traceback.format_exception(error))
        if isinstance(error, UnknownOutcome):
            listed = {(error.run, error.step)}
        else:  # what a user reads of a transaction that could not be undone whole
            listed = {(run, int(step)) for step, run in _UNKNOWN.findall(str(error))}
        place.said.write_text(json.dumps([told, sorted(listed)]))
        return LISTED
    except BaseException:  # noqa: BLE001 - told to the parent, which reports it
        place.said.write_text(json.dumps([traceback.format_exc(), []]))
        return BROKEN
    return FINISHED


class _Calls:
    """Counts the calls that this thread makes of anything, system calls included; kills at one."""

    def __init__(self, last: int) -> None:
        self.made = 0
        self._last = last

    def __call__(self, *_: object) -> None:
        self.made += 1
        if self.made == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


# --- a run ---------------------------------------------------------------------------------------


def _run(order: tuple[int, int, int, str, float, int]) -> Ended:
    number, seed, port, folder, seconds, calls = order
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    name = f"{seed}/{number}"
    chance = random.Random(f"{name}/how")  # noqa: S311 - the same run again, but for its moments
    mail = chance.random() < 0.3
    planner = Planner(name, mail=mail)
    whole = chance.random() < 0.5
    job = Job(planner.plan(), whole, whole and chance.random() < 0.4, chance.random() < 0.3)
    place = Place(Path(folder, str(number)), port)
    place.fill()
    before = place.digest()
    done = before if job.gives_up else planner.world.digest()
    counts: collections.Counter[str] = collections.Counter()

    def moment() -> Moment:
        part = chance.random() * (0.7 if do == "undo" else 1)  # an undo is shorter
        if (job.waits and do == "work") or chance.random() < 0.4:  # other threads' do not count
            return Moment(seconds=part * seconds)
        return Moment(calls=1 + int(part * calls))

    do: Do = "work"
    way: Do = "work" if number % 2 else "undo"
    code: int | None = None
    for attempt in range(_KILLS + 1):
        spared = attempt > 0 and (attempt == _KILLS or chance.random() < 0.3)
        code = _child(place, job, do, Moment() if spared else moment())
        if code is None:
            counts["kills"] += 1
            counts["kills in the middle of an undo"] += _undoing(place)
        elif code != FINISHED or do == way:
            break
        if _ended_well(place):  # there is nothing to resume: the whole would be done anew
            code = FINISHED
            if way == "work":
                do = way
                break
        do = way
        if do == "undo" and not _runs(place):
            code = FINISHED  # killed before there was anything
            break
    ended = Judged(place, before, done, do, code, mail)
    wrong = ended.wrong()
    if code == FINISHED and do == "undo" and not wrong and number % 4 == 0 and _runs(place):
        counts["resumed behind their undo"] += 1  # the save point is loaded: on from there
        code = _child(place, job, "work", Moment())
        wrong = Judged(place, before, done, "work", code, mail).wrong()
    assert code is not None  # the last one is spared
    counts[_WORDS[code, way]] += 1
    counts["unknown outcomes listed"] += len(ended.listed) if code == LISTED else 0
    counts["bodies begun"] += sum(line.began for line in lines_of(place.ledger))
    counts["runs with calls that nobody can look at later"] += mail
    place.remove()
    return Ended(number, way, wrong, counts)


_WORDS: Final = {
    (FINISHED, "work"): "resumed: all done",
    (FINISHED, "undo"): "undone: all undone",
    (LISTED, "work"): "resumed: stopped, listed",
    (LISTED, "undo"): "undone: the rest listed",
    (BROKEN, "work"): "resumed: broken",
    (BROKEN, "undo"): "undone: broken",
}


def _runs(place: Place) -> bool:
    return bool(list_runs(place.store))


def _ended_well(place: Place) -> bool:
    newest = newest_run(place.store, "chaos")
    return newest is not None and newest.status == "ok"


def _events(place: Place) -> list[dict[str, Any]]:
    """What the logs tell; a line that was cut off tells nothing."""
    found: list[dict[str, Any]] = []
    for log in sorted(place.store.glob("logs/*.jsonl")):
        run = log.stem
        for line in log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                found.append({"in": run, **json.loads(line)})
    return found


def _undoing(place: Place) -> bool:
    """Whether the newest log ends inside of an undo."""
    events = _events(place)
    newest = [each["event"] for each in events if each["in"] == events[-1]["in"]]
    marks = [each for each in newest if each in ("undoing", "undone", "rolled")]
    return marks[-1:] == ["undoing"]


class Judged:
    """What is wrong with how a run ended."""

    def __init__(
        self,
        place: Place,
        before: dict[str, Any],
        done: dict[str, Any],
        do: Do,
        code: int | None,
        mail: bool,
    ) -> None:
        self.place, self.before, self.done = place, before, done
        self.do, self.code, self.mail = do, code, mail
        self.lines = lines_of(place.ledger)
        self.events = _events(place)
        self.said = ""
        self.listed: set[tuple[str, int]] = set()
        if place.said.exists():
            self.said, listed = json.loads(place.said.read_text())
            self.listed = {(run, step) for run, step in listed}

    def wrong(self) -> list[str]:
        """Each violation, in words."""
        if self.code not in (FINISHED, LISTED):
            return [f"{self.do} exited with {self.code}: {self.said}"]
        found = self.of_bodies()
        if self.code == FINISHED:
            found += self._state()
            found += [f"left unlisted: {line}" for line in self._in_doubt()]
        else:
            found += self._listing()
        return found

    def of_bodies(self) -> list[str]:
        """What ran unreported or twice, and what was lost."""
        return [*self._unreported(), *self._twice(), *self._lost()]

    def _state(self) -> Iterable[str]:
        """All done, or all undone."""
        with Workspace(self.place.work) as workspace:
            workspace.sweep()  # what a killed process left under a temporary name
        there = self.place.digest()
        wanted = self.done if self.do == "work" else self.before
        for what in wanted:
            one, other = _by_name(wanted[what]), _by_name(there[what])
            if what == "tables":
                one.pop("receipts", None)
                if self.do == "work":
                    other.pop("receipts", None)
            if one != other:
                differs = [k for k in {*one, *other} if one.get(k) != other.get(k)]
                told = [f"{k}: wanted {one.get(k)}, there is {other.get(k)}" for k in differs]
                yield f"after {self.do}, {what} differ: {told}"

    def _unreported(self) -> Iterable[str]:
        """Bodies that ran without a word in the log."""
        started = {(e["in"], e["step"]) for e in self.events if e["event"] == "step"}
        for line in self.lines:
            if (line.run, line.step) not in started:
                yield f"ran unreported: {line}"

    def _twice(self) -> Iterable[str]:
        """Effects that came twice, and were not undone in between."""
        undone = {(e["in"], e["step"]) for e in self.events if e["event"] == "back"}
        ends: dict[str, list[Line]] = {}
        for line in self.lines:
            if not line.began and line.tool not in _IDEMPOTENT:
                ends.setdefault(line.key, []).append(line)
        for lines in ends.values():
            for line in lines[:-1]:
                if (line.run, line.step) not in undone:
                    yield f"ran twice: {line}, of {len(lines)}"

    def _lost(self) -> Iterable[str]:
        """Writes that the log says have ended, and that no body has made."""
        ended = {(line.run, line.step) for line in self.lines if not line.began}
        writes = {
            (e["in"], e["step"])
            for e in self.events
            if e["event"] == "step" and e["effect"] == "write" and e.get("kind") != "branch"
        }
        for event in self.events:
            step = event["in"], event.get("step")
            said = event["event"] == "outcome" and "by" not in event  # not what a probe found
            ok = said and (event["outcome"] or {}).get("status") == "ok"
            if ok and step in writes - ended:
                yield f"lost: {step}, {event['outcome']['status']}"

    def _in_doubt(self) -> list[Line]:
        """Calls whose outcome is unknown: begun, never ended."""
        ended = {(line.run, line.step) for line in self.lines if not line.began}
        return [
            line for line in self.lines
            if line.tool == "mail_post" and (line.run, line.step) not in ended
        ]  # fmt: skip

    def _listing(self) -> Iterable[str]:
        """What is listed must be what can't be known; and that must be listed."""
        if not self.mail:
            yield f"{self.do} came to no end, though all can be looked at: {self.said}"
        names = {(e["in"], e["step"]): e["name"] for e in self.events if e["event"] == "step"}
        for step in self.listed:
            if names.get(step) != "mail_post":
                yield f"listed, though it can be looked at: {step} {names.get(step)}: {self.said}"
        if not self.listed:
            yield f"{self.do} stopped, and lists nothing: {self.said}"
        for line in self._in_doubt():
            if (line.run, line.step) not in self.listed:
                yield f"left unlisted: {line}: {self.said}"


def _by_name(found: Any) -> dict[str, Any]:
    """A list as a dict, for one way to tell what differs."""
    return dict(found) if isinstance(found, dict) else dict.fromkeys(found, 1)


# --- all of them ---------------------------------------------------------------------------------


def crash(*, runs: int, at_once: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Do it; the figures, and the violations."""
    began = time.monotonic()
    with service.serving() as port, tempfile.TemporaryDirectory(prefix="chaos") as folder:
        seconds, calls = _measured(port, Path(folder, "measured"))
        orders = [(number, seed, port, folder, seconds, calls) for number in range(runs)]
        with multiprocessing.get_context("fork").Pool(at_once) as pool:
            ended = list(pool.imap_unordered(_run, orders))
    counts: collections.Counter[str] = collections.Counter()
    for each in ended:
        counts.update(each.counts)
    kinds = ("lost", "ran twice", "ran unreported", "left unlisted")
    wrong = [(each, said) for each in ended for said in each.wrong]
    figures = {
        "runs": runs,
        "at once": at_once,
        "seed": seed,
        **{kind: sum(said.startswith(kind) for _, said in wrong) for kind in kinds},
        "recoveries": dict(sorted(counts.items())),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, [f"run {each.number} ({each.way}): {said}" for each, said in wrong]


def _measured(port: int, folder: Path) -> tuple[float, int]:
    """How long a job takes, and how many calls it makes: moments are spread over that."""
    job = Job(Planner("measured", mail=False).plan(), whole=True, gives_up=True, waits=False)
    took, made = 0.0, 0
    for moment in (Moment(), Moment(calls=0)):  # the first one also imports what is imported late
        place = Place(folder, port)
        place.fill()
        began = time.monotonic()
        code = _work(place, job, "work", moment)
        calls = sys.getprofile()
        sys.setprofile(None)
        took = took or time.monotonic() - began
        made = calls.made if isinstance(calls, _Calls) else 0
        assert code == FINISHED, place.said.read_text()
        place.remove()
    return took, made
