"""A run while it is written: what is new in its trace, read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rollcage.errors import TraceCorrupt
from rollcage.store import Reader
from rollcage.trace import (
    CHAIN_START,
    Run,
    Step,
    Tail,
    fold,
    is_log,
    read_events,
    split_tail,
    tail_of,
)
from rollcage.trace.logs import LogFolding

__all__ = ["Following"]

_BEGIN: Final = ("step.started", "step.replayed", "step.blocked", "branch.joined")
_END: Final = ("step.finished", "step.resolved")
_NAMES: Final = {"decided": "approval.decided", "ordered": "run.stopped"}
_WHOLE: Final = ("step.replayed", "step.blocked", "branch.joined")


class Following:
    """Follows a run: `news` tells what happened since it was last asked.

    What it costs grows with what is new, not with the run.

    Args:
        reader: where the run lies.
        run: its id.
        begun: tell each step when it begins, too.

    Attributes:
        line: of what was yielded last, in the trace.
        started: the run's `run.started`; empty before it was read.
        finished: its last `run.finished` or `run.abandoned`; None while there is none, or where
            events of steps came after it.
    """

    def __init__(self, reader: Reader, run: str, *, begun: bool = False) -> None:
        self._reader = reader
        self._run = run
        self._begun = begun
        self.line = 0
        self._tail = Tail(0, 0, CHAIN_START, b"")
        self._open: dict[int, tuple[int, dict[str, Any]]] = {}
        self._log: LogFolding | None = None
        self.started: dict[str, Any] = {}
        self.finished: dict[str, Any] | None = None

    def news(self) -> Iterator[Step | dict[str, Any]]:
        """Each step that has come to its end, and each other event as it is.

        Raises:
            RunNotFound: the run is gone.
            TraceCorrupt: a line that breaks the chain, or is no event of this format.
            StoreError: it can't be read.
        """
        before = self._tail
        trace = self._reader.read(self._run, after=before.lines)
        whole, _ = split_tail(trace.data)
        if not whole:
            return
        rest = tail_of(whole)
        if not before.lines and is_log(whole):
            self._log = LogFolding()
        after = before if before.lines else None
        take = self._take if self._log is None else self._take_line
        for line, event in read_events(whole, trace.where, after=after, restore=False):
            try:
                found = take(line, event)
            except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
                why = f"not an event of this format: {error!r}"
                raise TraceCorrupt(trace.where, line, why) from None
            if found is not None:
                self.line = line
                yield found
        lines, size = before.lines + rest.lines, before.size + rest.size
        self._tail = Tail(lines, size, rest.head, b"", self._log is not None)

    def _take(self, line: int, event: dict[str, Any]) -> Step | dict[str, Any] | None:
        kind = event["event"]
        if kind == "run.started":
            self.started = event
        elif kind in ("run.finished", "run.abandoned"):
            self.finished = event
        elif kind in _BEGIN:
            self.finished = None
            self._open[event["step"]] = (line, event)
            whole = kind in _WHOLE
            return self._step(event["step"], is_over=whole) if whole or self._begun else None
        elif kind in _END and event["step"] in self._open:
            return self._step(event["step"], (line, event), is_over=True)
        return event

    def _take_line(self, line: int, event: dict[str, Any]) -> Step | dict[str, Any] | None:
        """Take in a line of a run's log; what it means, as events of a trace say it."""
        log, kind = self._log, event["event"]
        assert log is not None
        log.take(line, event)
        if kind in ("run", "forked"):
            self.started = log.started()
            return self.started
        if kind == "attempt":
            self.finished = None
            return {**event, "number": len(log.run.attempts)}
        if kind == "ended":
            is_abandoned = event["status"] == "abandoned"
            self.finished = log.run.abandoned if is_abandoned else log.run.finished
            return self.finished
        if kind == "step":
            is_over = "outcome" in event
            return log.step(event["step"]) if is_over or self._begun else None
        if kind == "outcome":
            return log.step(event["step"])
        if kind == "refused" and "step" not in event:
            return log.run.refused[-1].as_event()
        if kind == "requested":
            return log.asked(event["id"]).request
        return {**event, "event": _NAMES.get(kind, kind)}

    @property
    def lines(self) -> int:
        """How many lines of the trace were read."""
        return self._tail.lines

    def _step(self, number: int, *ends: tuple[int, dict[str, Any]], is_over: bool) -> Step:
        """A step by its own events alone; one that is unknown may still be resolved later."""
        begun = self._open[number]
        seen: Run = fold([(1, self.started), begun, *ends])
        (step,) = seen.steps
        if is_over and step.state != "unknown":
            del self._open[number]
        return step
