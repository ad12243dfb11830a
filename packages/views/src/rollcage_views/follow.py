"""A run while it is written: the news of its log, read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rollcage.errors import TraceCorrupt
from rollcage.trace.chain import HASH, ROOT, checked
from rollcage.trace.lines import BAD
from rollcage.trace.recorded import where_of
from rollcage.trace.store import Store

from rollcage_views.runs import LogFolding, Step

__all__ = ["Following"]

_NAMES: Final = {"decided": "approval.decided", "ordered": "run.stopped"}


class Following:
    """Follow a run: `news` yields the events since the last time.

    The cost grows with the news, not with the run.

    Args:
        store: the store of the run.
        run: its id.
        begun: yield each step when it begins, too.

    Attributes:
        line: the number of the last yielded line.
        lines: how many lines were read.
        started: the beginning of the run, in the form of a `run.started`; empty before it was read.
        finished: the end of its last attempt, or its abandonment; None without one.
    """

    def __init__(self, store: Store, run: str, *, begun: bool = False) -> None:
        self._store = store
        self._run = run
        self._begun = begun
        self.line = 0
        self.lines = 0
        self._head = ROOT
        self._log = LogFolding()
        self.started: dict[str, Any] = {}
        self.finished: dict[str, Any] | None = None

    def news(self) -> Iterator[Step | dict[str, Any]]:
        """Yield each step that has ended, and each other event.

        Raises:
            RunNotFound: the run is gone.
            TraceCorrupt: a line breaks the chain, or is not of a run.
            StoreError: the run can't be read.
        """
        lines = self._store.read(self._run, self.lines)
        if not lines:
            return
        where, before, head = where_of(self._store, self._run), self.lines, self._head
        for number, event in enumerate(checked(lines, where, head=head, before=before), before + 1):
            try:
                found = self._take(number, event)
            except (*BAD, AssertionError) as error:
                why = f"the line does not fit a run: {type(error).__name__}: {error}"
                raise TraceCorrupt(where, number, why) from None
            if found is not None:
                self.line = number
                yield found
        self.lines, self._head = before + len(lines), lines[-1][HASH]

    def _take(self, number: int, event: dict[str, Any]) -> Step | dict[str, Any] | None:
        """Fold in a line; return its meaning: a step, or an event as readers know it."""
        log, kind = self._log, event["event"]
        log.take(number, event)
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
