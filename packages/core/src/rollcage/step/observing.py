"""Events for observers: each thing that became of a step, after it was written.

Observers are called outside of the session's lock, by the thread or task that wrote it. They change
nothing of the run: an error of theirs is logged, and that observer misses that event.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rollcage.step.call import OpenStep
from rollcage.trace.reader import check_events
from rollcage.trace.runs import Traced
from rollcage.trace.told import (
    Happening,
    Instrument,
    Observer,
    RunEvent,
    StepEvent,
    Surrounding,
)

__all__ = [
    "Happening",
    "Happenings",
    "Instrument",
    "InstrumentedBodies",
    "Observer",
    "Observing",
    "RunEvent",
    "StepEvent",
    "notify",
    "recorded_events",
]  # fmt: skip

_log: Final = logging.getLogger("rollcage")

_HAPPENINGS: Final[Mapping[str, Happening]] = {
    "step.started": "started",
    "step.finished": "settled",
    "step.resolved": "settled",
    "step.replayed": "replayed",
    "step.blocked": "blocked",
    "approval.requested": "asked",
    "undo.finished": "undone",
}


def notify(observers: Sequence[Observer], event: RunEvent) -> None:
    """Notify instruments that a run was opened or closed."""
    for each in observers:
        if isinstance(each, Instrument):
            with _logged(f"that run {event.run} was {event.what}"):
                each.opened(event) if event.what == "opened" else each.closed(event)


class InstrumentedBodies:
    """Enters and leaves the bodies of a run, with what its instruments set around them.

    Args:
        run: the run's id.
        instruments: the later ones are the inner ones.
        enter: what makes a step the one whose body is running; it gives what `leave` takes.
        leave: ends that.
    """

    def __init__(
        self,
        run: str,
        instruments: Iterable[Instrument],
        enter: Callable[[OpenStep], Any],
        leave: Callable[[Any], None],
    ) -> None:
        self._run = run
        self._instruments = tuple(instruments)
        self._enter = enter
        self._leave = leave

    def enter(self, step: OpenStep) -> tuple[Any, list[Surrounding]]:
        """Enter the body of a step; the result is for `leave`."""
        token = self._enter(step)
        entered: list[Surrounding] = []
        for each in self._instruments:
            with _logged(f"the body of step {step.number} of run {self._run}"):
                surrounding = each.around(self._run, step.number)
                surrounding.__enter__()
                entered.append(surrounding)
        return token, entered

    def leave(self, entered: tuple[Any, list[Surrounding]]) -> None:
        """End that, in the context in which it was entered."""
        token, surroundings = entered
        for each in reversed(surroundings):
            with _logged(f"the end of a body of run {self._run}"):
                each.__exit__(None, None, None)
        self._leave(token)


@contextlib.contextmanager
def _logged(about: str) -> Generator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, the run goes on
        _log.exception("an observer failed on %s", about)


class Happenings:
    """What became of the steps of a run, from its events."""

    __slots__ = ("_open", "_run")

    def __init__(self, run: str) -> None:
        self._run = run
        self._open: dict[int, dict[str, Any]] = {}  # by step, until it has ended

    def event_of(
        self, what: Happening, event: Mapping[str, Any], outcome: Mapping[str, Any], name: str
    ) -> StepEvent:
        """What observers receive of an event; see `Observing.note`."""
        about, step = self._about(what, event, outcome, name)
        undone = what == "undone"
        origin, undoes = event.get("of" if undone else "origin"), event.get("undoes")
        usage, verdict = outcome.get("usage"), event.get("verdict")
        return StepEvent(
            what,
            self._run,
            step,
            event["time"],
            status=event["status"] if undone else outcome.get("status", ""),
            duration=event.get("duration"),
            error="" if "error" not in outcome else outcome["error"]["type"],
            usage=None if usage is None else dict(usage),
            verdict=None if verdict is None else dict(verdict),
            origin=None if origin is None else (origin[0], origin[1]),
            undoes=None if undoes is None else (undoes[0], undoes[1]),
            approval=event.get("id" if what == "asked" else "approval") or "",
            _written=event,
            **about,
        )

    def _about(
        self, what: Happening, event: Mapping[str, Any], outcome: Mapping[str, Any], name: str
    ) -> tuple[dict[str, Any], int]:
        """Which step it is about: what a step's end lacks, its start has."""
        if what == "undone":
            run, step = event["of"]
            return {"name": name}, step if run == self._run else 0
        step = event.get("step", 0)
        if what == "settled":
            about = self._open.pop(step, None) or {"name": name}
            if outcome.get("status") == "unknown":
                self._open[step] = about  # it may still be resolved
            return about, step
        about = {field: event[field] for field in _ABOUT if field in event}
        if what == "started":
            self._open[step] = about
        return about, step


class Observing:
    """The lock of a run with observers, who are notified when it is released.

    Args:
        run: the run's id.
        observers: in the order in which they are notified.
    """

    __slots__ = ("_happenings", "_lock", "_noted", "observers")

    def __init__(self, run: str, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)
        self._lock = threading.Lock()
        self._noted: list[StepEvent] = []
        self._happenings = Happenings(run)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        noted, self._noted = self._noted, []
        self._lock.release()
        for each in noted:
            self._deliver(each)

    def note(self, event: Mapping[str, Any], outcome: Mapping[str, Any], name: str) -> None:
        """An event was written; the caller has the lock.

        Args:
            event: as it was written.
            outcome: the step's, if it has one.
            name: of the step that it is about, if the event does not say that.
        """
        what = _HAPPENINGS.get(event["event"])
        if what is not None:
            self._noted.append(self._happenings.event_of(what, event, outcome, name))

    def _deliver(self, event: StepEvent) -> None:
        for observer in self.observers:
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


def recorded_events(trace: Traced) -> Iterator[RunEvent | StepEvent]:
    """The events that an instrument would have received of a run, in the order of its trace.

    That the run was opened comes first, and that it was closed last, at the time of its end, what
    was undone afterwards included; of a run that is live or was cut off, it never comes.

    Args:
        trace: its whole lines, `Store.read(run)` for example.

    Raises:
        TraceCorrupt: a line breaks the chain or the schema.
    """
    events = check_events(trace.data, trace.where)
    begun, ended = events[0], None
    run = RunEvent(
        "opened",
        begun["run"],
        begun["name"],
        begun["mode"],
        begun["root"],
        begun.get("source"),
        begun["time"],
    )
    yield run
    happenings = Happenings(run.run)
    names: dict[tuple[str, int], str] = {}  # of steps, by where they first ran
    for event in events:
        ended = event if event["event"] == "run.finished" else ended
        what = _HAPPENINGS.get(event["event"])
        if what is None:
            continue
        if "name" in event and "step" in event:
            first = event.get("origin") or (run.run, event["step"])
            names[first[0], first[1]] = event["name"]
        of = event.get("of") or (run.run, event.get("step", 0))
        name = names.get((of[0], of[1]), "")
        yield happenings.event_of(what, event, event.get("outcome") or {}, name)
    if ended is not None:
        error = (ended.get("error") or {}).get("type", "")
        yield dataclasses.replace(
            run, what="closed", time=ended["time"], status=ended["status"], error=error
        )


_ABOUT: Final = ("kind", "name", "effect", "agent", "branch", "parent", "call_id", "simulated")
