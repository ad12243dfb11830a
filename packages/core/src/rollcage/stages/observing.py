"""Notify observers of each step: by its lines, and of each hit at once.

Events follow from lines (see `Told`), so a finished log gives the same events. Observers are called
outside of the attempt's lock, by the thread or task that wrote the line, and change nothing: their
errors are logged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from rollcage.calls.stage import Stage
from rollcage.trace.chain import checked
from rollcage.trace.lines import BAD, check_line
from rollcage.trace.run import Run, misfit
from rollcage.trace.told import Instrument, Observer, RunEvent, StepEvent

if TYPE_CHECKING:
    import threading

    from rollcage.replay.call import Call
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Outcome, Step

__all__ = ["Observing", "recorded_events", "wanted"]

_log: Final = logging.getLogger("rollcage")
_KINDS: Final = (
    "run", "attempt", "step", "outcome", "requested", "decided", "refused", "back", "ended",
)  # fmt: skip
_UNWRITTEN: Final = ("offline", "verify")  # modes of an attempt that writes no line


def wanted(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return the observers to notify in a session that is entered now."""
    return tuple(each for each in observers if not isinstance(each, Instrument) or each.wanted())


@dataclasses.dataclass(slots=True)
class _About:
    """Hold the facts about a step that every event repeats."""

    time: int
    kind: str
    name: str
    effect: str
    agent: str
    branch: str
    parent: int | None
    call_id: str
    undoes: tuple[str, int] | None


class Told:
    """Make events from the lines of a run.

    Args:
        run: the run; each line is applied to it before its events are made.
        hits: whether a line also gives events for the replayed steps that it names; live, each hit
            gives its event at once.
        attempt: the id of an attempt that writes no line; else empty.
    """

    def __init__(self, run: Run, *, hits: bool, attempt: str = "") -> None:
        self.run, self._hits, self._unwritten = run, hits, attempt
        self.begun: set[int] = set()  # steps that have begun, and are not told of again
        self._open: dict[int, _About] = {}
        self._lost: dict[int, _About] = {}
        self._durations: dict[int, int] = {}
        self._requests: dict[int, str] = {}  # by step
        self._by: dict[str, str] = {}  # by request, who decided
        self._time = 0

    @property
    def attempt(self) -> str:
        """Return the id of the attempt of the events."""
        return self._unwritten or self.run.attempt

    def of(self, line: Event) -> Iterator[StepEvent]:
        """Yield the events of a line."""
        kind = line["event"]
        self._time = line.get("time", self._time)
        if self._hits:
            for first, last in line.get("replayed", ()):
                for n in range(first, last + 1):
                    if self.run.steps[n].effect != "branch":
                        yield self.hit(self.run.steps[n])
        if kind == "step":
            yield from self._step(line)
        elif kind == "outcome":
            yield from self._outcome(line)
        elif kind == "requested":
            step = self.run.steps[line["step"]]
            self._requests[step.n] = line["id"]
            yield self._event("asked", step.n, line, self._about(step, {}), approval=line["id"])
        elif kind == "decided":
            self._by[line["id"]] = line.get("by", "")
        elif kind == "refused" and "halted" not in line:
            yield self._refused(line)
        elif kind == "back":
            yield self._back(line)
        elif kind in ("ended", "attempt"):
            yield from self._cut_off(line)

    def hit(self, step: Step, call: Call | None = None) -> StepEvent:
        """Return the event of a recorded step that answers a call."""
        about = self._about(step, {} if call is None else {"call_id": call.place.call_id})
        outcome = None if step.outcome is None else step.result
        return self._event(
            "replayed", step.n, {"outcome": outcome}, about,
            duration=self._durations.get(step.n), origin=(self.run.home(step), step.n),
        )  # fmt: skip

    def starts(self, line: Event, time: int) -> StepEvent:
        """Return the event of a step whose body begins."""
        n = line["step"]
        self.begun.add(n)
        about = self._open[n] = self._about_line(line)
        return self._event("started", n, dict(line), about, time=time)

    def known(self, line: Event) -> None:
        """Take in a line without events."""
        self._time = line.get("time", self._time)
        if "duration" in line:
            self._durations[line["step"]] = line["duration"]
        if line["event"] == "requested":
            self._requests[line["step"]] = line["id"]
        if line["event"] == "decided":
            self._by[line["id"]] = line.get("by", "")

    # --- lines -----------------------------------------------------------------------------------

    def _step(self, line: Event) -> Iterator[StepEvent]:
        if line["effect"] == "branch" or "waits" in line:
            return
        n = line["step"]
        if "from" in line or (
            "once" in line and "outcome" in line
        ):  # its outcome was made elsewhere
            if "from" in line and not self._hits:
                return  # told when it answered
            origin = (self.run.id, line["from"]) if "from" in line else tuple(line["once"][:2])
            about = self._about_line(line)
            yield self._event("replayed", n, line, about, origin=cast("tuple[str, int]", origin))
            return
        if n not in self.begun:
            yield self.starts(line, line.get("time", self._time))
        if "outcome" in line:
            yield from self._outcome(line)

    def _outcome(self, line: Event) -> Iterator[StepEvent]:
        n = line["step"]
        step = self.run.steps[n]
        if step.effect == "branch":
            return
        duration, outcome = line.get("duration"), line["outcome"]
        if duration is not None:
            self._durations[n] = duration
        about = self._open.pop(n, None) or self._lost.pop(n, None)
        if about is None:
            if outcome is None:  # it waited, and never began
                return
            about = self._about(step, {})
        time = line.get("time") if line["event"] == "outcome" else None
        if time is None:
            time = about.time + (duration or 0)
        yield self._event("settled", n, line, about, duration=duration, time=time)

    def _refused(self, line: Event) -> StepEvent:
        n = line.get("step", 0)
        return self._event(
            "blocked", n, line, self._about_line(line), approval=self._requests.get(n)
        )

    def _back(self, line: Event) -> StepEvent:
        step = self.run.steps[line["step"]]
        return self._event(
            "undone", step.n, line, self._about(step, {}), status=line["status"],
            origin=(self.run.home(step), step.n),
        )  # fmt: skip

    def _cut_off(self, line: Event) -> Iterator[StepEvent]:
        """Yield the events of begun writes whose outcome is unknown at the end of an attempt."""
        cut, self._open = self._open, {}
        for n, about in cut.items():
            if about.effect == "write":
                self._lost[n] = about
                yield self._event("settled", n, line, about, status="unknown")

    # --- events ----------------------------------------------------------------------------------

    def _event(self, what: Any, n: int, line: Event, about: _About, **more: Any) -> StepEvent:
        outcome = line.get("outcome") or {}
        outcome = {} if what in ("started", "undone") else outcome
        status = outcome.get("status", "")
        if what == "settled" and "outcome" in line and line["outcome"] is None:
            status = "not_started"
        verdict, usage = line.get("verdict"), outcome.get("usage")
        approval = more.pop("approval", None) or line.get("approval") or ""
        if self._by.get(approval):
            line = {**line, "approved_by": self._by[approval]}
        return StepEvent(
            what,
            self.run.id,
            n,
            more.pop("time", None) or line.get("time") or self._time,
            kind=about.kind,
            name=about.name,
            effect=about.effect,
            agent=about.agent,
            branch=about.branch,
            parent=about.parent,
            call_id=about.call_id,
            status=more.pop("status", status),
            error="" if "error" not in outcome else outcome["error"]["type"],
            usage=None if usage is None else dict(usage),
            verdict=None if verdict is None else dict(verdict),
            undoes=about.undoes,
            approval=approval,
            attempt=self.attempt,
            _written=line,
            **more,
        )

    def _about(self, step: Step, line: Event) -> _About:
        branch, parent = self._place(step.branch)
        return _About(
            self._time, "model" if step.effect == "model" else "tool", step.name, step.effect,
            step.agent, branch, parent, line.get("call_id", ""), self._undoes(step.branch),
        )  # fmt: skip

    def _about_line(self, line: Event) -> _About:
        branch, parent = self._place(line["branch"])
        effect = line.get("effect", "")
        kind = line.get("kind") or ("model" if effect == "model" else "tool")
        return _About(
            line.get("time", self._time), kind, line["name"], effect, line.get("agent", ""), branch,
            parent, line.get("call_id", ""), self._undoes(line["branch"]),
        )  # fmt: skip

    def _place(self, branch: str) -> tuple[str, int | None]:
        """Return the names of the blocks around a place, and the step whose body it is in."""
        names: list[str] = []
        owner = self.run.owner(branch)
        while owner is not None and owner.effect == "branch":
            names.append(owner.name)
            owner = self.run.owner(owner.branch)
        return "/".join(reversed(names)), None if owner is None else owner.n

    def _undoes(self, branch: str) -> tuple[str, int] | None:
        """Return the step that a compensating call takes back."""
        if branch[:1] != "-":
            return None
        return self.run.id, int(branch[1:].partition(".")[0])


class Observing(Stage):
    """Notify observers of the steps of a session, and wrap bodies for them.

    Args:
        observers: in the order of notification.
    """

    opens_in_context = True  # an instrument may have its span be current

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._instruments = tuple(each for each in observers if isinstance(each, Instrument))
        self._queue: list[StepEvent | RunEvent] = []
        self._told: Told | None = None
        self._early: list[Event] = []
        self._session: Session | None = None
        self._run: RunEvent | None = None  # that was opened, and not closed
        self._ends = False
        self._error = ""
        self._process = os.getpid()
        self.folds = dict.fromkeys(_KINDS, self._line)

    # --- the seams -------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        """Tell instruments that the session was entered."""
        attempt = session.attempt
        run = attempt.run
        self._session = session
        is_read = session.replay in _UNWRITTEN
        self._told = Told(run, hits=False, attempt=os.urandom(12).hex() if is_read else "")
        for line in self._early:
            self._told.known(line)
        self._early.clear()
        lock: Any = attempt.lock
        if not isinstance(lock, _Lock):
            lock = attempt.lock = _Lock(attempt.lock)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue] - it is used as one
        lock.flushes.append(self._take)
        self._run = RunEvent(
            "opened", run.id, run.name if session.around is None else session.name,
            cast("Any", _mode(session)), run.id, run.source or None,
            attempt.options.clock.wall() // 1000, attempt=self._told.attempt,
        )  # fmt: skip
        for each in self._instruments:
            with _logged(f"the opening of run {run.id}"):
                each.opened(self._run)

    def marks(self, call: Call) -> None:
        """Notify of a body that begins, if its line is written only at its end."""
        if call.effect not in ("write", "scope") and self._is_mine(call.place.branch):
            assert self._told is not None
            if call.supplied is None:
                self._queue.append(self._told.starts(call.event, call.event["time"]))

    @contextlib.contextmanager
    def inside(self, call: Call) -> Generator[None]:
        """Enter the context managers of instruments around a body."""
        looks = call.place.looks  # no step: the instruments have not heard of it
        if not self._instruments or looks or not self._is_mine(call.place.branch):
            yield
            return
        run, step = call.attempt.run.id, call.event["step"]
        entered: list[contextlib.AbstractContextManager[object]] = []
        for each in self._instruments:
            with _logged(f"the body of step {step} of run {run}"):
                surrounding = each.around(run, step)
                surrounding.__enter__()
                entered.append(surrounding)
        try:
            yield
        finally:
            for left in reversed(entered):
                with _logged(f"the end of the body of step {step} of run {run}"):
                    left.__exit__(None, None, None)

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:  # noqa: ARG002 - the seam's
        """Notify of a hit at once; or of a step in a framework's memory."""
        if step is not None and self._told is not None and self._is_mine(step.branch):
            self._queue.append(self._told.hit(step, call))

    def closed(self, session: Session, error: BaseException | None) -> None:
        """Note that the session is left, and notify once its last line is written."""
        self._ends = True
        ended_by = session.attempt.halted or error
        self._error = "" if ended_by is None else type(ended_by).__name__
        if session.around is not None:
            self._ended("", session.attempt.options.clock.wall() // 1000)

    def gave_up(self) -> None:
        """Notify that the session could not be entered after all."""
        if self._run is not None and self._told is not None:
            self._ended("", self._run.time)
            for tell in self._take():
                tell()

    # --- lines -----------------------------------------------------------------------------------

    def _line(self, line: Event) -> None:
        told = self._told
        if told is None:
            if "duration" in line or line["event"] in ("requested", "decided"):
                self._early.append(line)
            return
        if not self._is_line_mine(line):
            told.known(line)
            return
        self._queue.extend(told.of(line))
        if line["event"] == "ended":
            self._error = line.get("error", {}).get("type", "")
            self._ended(line["status"], line["time"])

    def _ended(self, status: str, time: int) -> None:
        if self._run is not None:
            closed = dataclasses.replace(
                self._run, what="closed", time=time, status=status, error=self._error
            )
            self._run = None
            self._queue.append(closed)

    def _is_mine(self, branch: str) -> bool:
        """Tell whether calls in a branch belong to the session, or to a session nested in it."""
        session = self._session
        if session is None or session.around is None:
            return session is not None
        mine, run = session.home_branch, session.attempt.run
        while branch != mine:
            owner = run.owner(branch)
            if owner is None:
                return False
            branch = owner.branch
        return True

    def _is_line_mine(self, line: Event) -> bool:
        if self._session is None or self._session.around is None:
            return True
        branch = line.get("branch")
        if branch is None and "step" in line:
            branch = self._session.attempt.run.steps[line["step"]].branch
        return branch is not None and self._is_mine(branch)

    def _take(self) -> list[Callable[[], None]]:
        """Take the pending notifications, with the lock held; they are made after its release."""
        if self._ends and self._run is not None and self._session is not None:
            attempt = self._session.attempt
            if attempt.closed:  # its last line could not be written, or it writes none
                self._ended("", attempt.options.clock.wall() // 1000)
        if not self._queue:
            return []
        queue, self._queue = self._queue, []
        return [_delivery(self._deliver, event) for event in queue]

    def _deliver(self, event: StepEvent | RunEvent) -> None:
        if os.getpid() != self._process:
            return  # a forked child has no part in the attempt
        if isinstance(event, RunEvent):
            for each in self._instruments:
                with _logged(f"the end of run {event.run}"):
                    each.closed(event)
            return
        for observer in self._observers:
            try:
                observer(event)
            except Exception:  # noqa: BLE001 - whatever it is, the run goes on
                _log.exception(
                    "an observer failed on %s of %s (step %d of run %s)",
                    event.what,
                    event.name,
                    event.step,
                    event.run,
                )


class _Lock:
    """Notify observers when the lock is finally released."""

    __slots__ = ("_depth", "_lock", "flushes")

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._depth = 0
        self.flushes: list[Callable[[], list[Callable[[], None]]]] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        told: list[Callable[[], None]] = []
        if not self._depth:
            for flush in self.flushes:
                told += flush()
        self._lock.release()
        for tell in told:
            tell()


def _delivery(deliver: Callable[[Any], None], event: StepEvent | RunEvent) -> Callable[[], None]:
    return lambda: deliver(event)


def _mode(session: Session) -> str:
    """Return the mode of an attempt, in the words of `RunEvent`."""
    if session.replay in _UNWRITTEN:
        return session.replay
    run = session.attempt.run
    return run_mode(run)


def run_mode(run: Run) -> str:
    """Tell whether an attempt that begins now records, resumes, or is a fork's first."""
    if run.source and not run.continues:
        return "fork"
    return "resume" if run.steps or run.attempts > 1 else "record"


@contextlib.contextmanager
def _logged(about: str) -> Generator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, the run goes on
        _log.exception("an observer failed on %s", about)


def recorded_events(
    lines: Iterable[bytes], where: str = "the log"
) -> Iterator[RunEvent | StepEvent]:
    """Yield the events that an instrument would have received of a run, in the order of its log.

    Each attempt is opened and, if it has ended, closed. A hit comes with the line that names it,
    and a step written at its end starts there: live, both came earlier.

    Args:
        lines: all lines of the log: `Store.read(run)`.
        where: the name of the log in errors.

    Raises:
        TraceCorrupt: the lines were changed or damaged.
        StoreError: the log has another format.
    """
    run = Run()
    told = Told(run, hits=True)
    opened: RunEvent | None = None
    for number, line in enumerate(checked(lines, where), 1):
        try:
            check_line(run, line)
            run.apply(line)
            steps = list(told.of(line))
            turned: RunEvent | None = None
            if line["event"] == "attempt":
                steps = [dataclasses.replace(each, attempt=_of(opened)) for each in steps]
                opened = turned = RunEvent(
                    "opened", run.id, run.name, cast("Any", run_mode(run)), run.id,
                    run.source or None, line["time"], attempt=run.attempt,
                )  # fmt: skip
            elif line["event"] == "ended" and opened is not None:
                ended_by = line.get("error", {}).get("type", "")
                turned = dataclasses.replace(
                    opened, what="closed", time=line["time"], status=line["status"], error=ended_by
                )
                opened = None
        except BAD as error:
            raise misfit(where, number, error) from None
        yield from steps
        if turned is not None:
            yield turned


def _of(opened: RunEvent | None) -> str:
    return "" if opened is None else opened.attempt
