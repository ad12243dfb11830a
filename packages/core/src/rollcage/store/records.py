"""What stores know of their runs, as data."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

import orjson

from rollcage.errors import OrderRefused, TraceCorrupt
from rollcage.trace.reader import read_events, tail_of

__all__ = [
    "Measured", "OrderKind", "Pruned", "Repair", "RunInfo", "RunTrace", "StopOrder",
    "check_attested", "check_order",
]  # fmt: skip

_MOST: Final = 3500  # bytes of who gives an order and why, as JSON

OrderKind = Literal["stop", "pause"]
"""What an order says: that a run must end at its next call, or that its next call waits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A trace as it lies in a store, without its lines.

    Attributes:
        digest: the SHA-256 of all of them (hex).
        head: the hash of the last one (hex).
    """

    digest: str
    head: str


@dataclasses.dataclass(frozen=True, slots=True)
class Pruned:
    """What a run was before its trace was removed.

    Attributes:
        time: when it was removed (Unix, µs).
        by: who gave it.
        count: how many lines it had.
        head: the hash of the last of them (hex).
    """

    time: int
    by: str
    count: int
    head: str


@dataclasses.dataclass(frozen=True, slots=True)
class RunInfo:
    """What a store's index knows of a run.

    Attributes:
        run: its id.
        name: the job it belongs to.
        mode: `record`, `resume`, `offline`, `verify`, `imported` or `fork`.
        source: the run that it replayed, if any.
        time: when it started (Unix, µs).
        status: `ok`, `error`, `halted`, `paused` or `partial`, of a fork also `would_write` or
            `would_ask`, as its `run.finished` says, `undone` where steps of it were undone since,
            `abandoned` where it was set aside; None while it is live, or after a crash.
        count: how many lines a finished run has; None otherwise, or where the store has lost that.
        head: the hash of a finished run's last line (hex); None as `count`.
        input: the keyed digest of what the job works on; None where it was given none.
        pruned: what it was before its trace was removed; None where that is there. `count` and
            `head` are then those of the skeleton that was left in its place, if any was.
    """

    run: str
    name: str
    mode: str
    source: str | None
    time: int
    status: str | None = None
    count: int | None = None
    head: str | None = None
    input: str | None = None
    pruned: Pruned | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StopOrder:
    """Somebody's word that a run must stop, or pause, until that is lifted.

    Attributes:
        run: the run that the order is for: this one, or one that it builds on.
        by: who gave it.
        reason: why.
        time: when (Unix, µs).
        kind: `stop`: its next call ends it, and nothing resumes it; `pause`: its next call waits,
            and so does that of a resume.
    """

    run: str
    by: str
    reason: str
    time: int
    kind: OrderKind = "stop"

    @property
    def is_pause(self) -> bool:
        """Whether the next call waits. Any other kind, a later version's too, is a stop."""
        return self.kind == "pause"


def check_order(order: StopOrder) -> None:
    """Refuse an order of which a store keeps not all; each store has the same limit.

    Raises:
        OrderRefused: it is too long.
    """
    texts = [each.encode("utf-8", "replace").decode() for each in (order.by, order.reason)]
    size = len(orjson.dumps(texts))
    if size > _MOST:
        raise OrderRefused(
            f"the reason is too long: with who says so it takes {size:,} bytes, and {_MOST:,} are "
            f"kept at most. Nothing was done: say it in fewer words"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RunTrace:
    """A run's trace as it lies in the store.

    Attributes:
        run: its id.
        where: a name for it in messages.
        data: its whole lines.
        torn: what follows them, of a line whose writing was cut off; not part of the trace.
        info: what the index says, if the run is in one; None if only the end was read.
        after: how many lines come before `data` and were not read.
    """

    run: str
    where: str
    data: bytes
    torn: bytes
    info: RunInfo | None
    after: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was found in an index, and is, or was, made again from the traces.

    Attributes:
        runs: how many the store has.
        damaged: the numbers of its lines that were none.
        lost: the runs of which it had no line, or a damaged one.
        outdated: the runs that began or ended, by their traces, in another way than it says.
        unattested: the runs that ended without their count and head: nothing but their own last
            lines says that they are whole.
        stubs: the runs that were pruned, of which what is left is damaged.
        unreadable: what can't be read of the traces, each as its error says it.
        left: files that killed processes left, and nobody uses any more.
    """

    runs: int
    damaged: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    unattested: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def check_attested(trace: RunTrace) -> None:
    """Hold a finished run's trace against the count and head in the store's index.

    Behind that head, `step.resolved`, `run.abandoned` and an undo may stand: whoever says what
    became of a step, sets the run aside or undoes steps, may be killed before the index is
    written.

    Raises:
        TraceCorrupt: lines are missing from its end, or others were added to it.
    """
    info = trace.info
    if info is None or info.count is None:
        return
    lines = trace.data.count(b"\n")
    more = min(max(lines - info.count, 0), lines)
    end = len(trace.data)  # of the line that the index attests
    for _ in range(more):
        end = trace.data.rfind(b"\n", 0, end - 1) + 1
    head = trace.data[max(end - 67, 0) : max(end - 3, 0)]
    if lines - more != info.count or head != str(info.head).encode():
        raise TraceCorrupt(
            trace.where,
            lines,
            f"the run finished with {info.count} lines ending in {info.head}, this is another end",
        )
    if not more:
        return
    attested = tail_of(trace.data[:end])
    undoing = False
    for line, event in read_events(trace.data[end:], trace.where, after=attested):
        kind = str(event.get("event"))
        undoing = undoing or kind.startswith("undo.")
        if kind not in ("step.resolved", "run.abandoned") and (
            not undoing or kind in ("run.started", "run.finished")
        ):
            message = f"the run finished with {info.count} lines, this is another end"
            raise TraceCorrupt(trace.where, line, message)
