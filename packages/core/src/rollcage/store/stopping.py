"""Stopping runs that still go on, or may; and whether one that is let go on really may.

Pausing them, which is an order of another kind, is in `pausing`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

from rollcage.errors import OrderRefused, RunNotFound, RunPruned
from rollcage.store.jobs import store_option
from rollcage.store.protocol import OrderKind, RunInfo, StopOrder, Store, check_order

__all__ = ["ended_with", "lift_stop", "order_above", "order_for", "stop_run", "stopped_by"]

_OVER: Final = ("ok", "abandoned")  # no session resumes such a run by itself
_RESUMED: Final = ("record", "resume")  # the modes of runs that a session resumes


def stop_run(store: Store, run: str, *, by: str, reason: str, time: int) -> StopOrder:
    """Stop a run, and each that is resuming it by now; nothing resumes it until that is lifted.

    Args:
        store: where it is kept.
        run: its id.
        by: who says so.
        reason: why.
        time: when (Unix, µs).

    Returns:
        The order that was given.

    Raises:
        OrderRefused: it was imported, or has come to its end; or the reason is too long.
        RunNotFound: there is no such run.
        StoreError: the order can't be given.
    """
    order = StopOrder(run, by, reason, time)
    check_order(order)
    over = ended_with(store, store.info(run))
    if over is not None and over.mode == "imported":
        raise OrderRefused(f"run {run} can't be stopped: it was imported, and nothing runs in it")
    if over is not None:
        ended = f"it ended as {over.status!r}"
        if over.run != run:
            ended = f"run {over.run}, which went on with it, ended as {over.status!r}"
        raise OrderRefused(
            f"run {run} can't be stopped: {ended}, and nothing runs in it any more. To undo what "
            f"it did: rollcage undo {over.run}{store_option(store)}"
        )
    store.stop(order)
    return order


def lift_stop(store: Store, run: str) -> StopOrder | None:
    """Withdraw the order to stop that was given to a run.

    Returns:
        What stops it all the same: the order that was given to a run that it builds on.

    Raises:
        OrderRefused: it was given none.
        RunNotFound: there is no such run.
        StoreError: the order can't be given.
    """
    order = stopped_by(store, run)
    if order is not None and order.run not in ("", run) and not _has_own(store, run):
        raise OrderRefused(
            f"run {run} builds on run {order.run}, which was stopped: lift that order, with "
            f"rollcage stop {order.run} --lift{store_option(store)}"
        )
    paused = order_for(store, run, "pause") if order is None else None
    if paused is not None:
        raise OrderRefused(
            f"run {run} is not stopped but paused. To let it go on: rollcage unpause "
            f"{paused.run}{store_option(store)}"
        )
    if not store.lift(run, "stop"):
        raise OrderRefused(f"run {run} is not stopped: there is nothing to lift")
    return stopped_by(store, run)


def stopped_by(store: Store, run: str) -> StopOrder | None:
    """The order by which a run is stopped: its own, or that of a run that it builds on.

    Raises:
        RunNotFound: there is no such run.
        StoreError: it can't be determined.
    """
    return order_for(store, run, "stop")


def order_for(store: Store, run: str, kind: OrderKind) -> StopOrder | None:
    """The order of a kind that holds for a run: its own, or that of a run that it builds on.

    Raises:
        RunNotFound: there is no such run.
        StoreError: it can't be determined.
    """
    for each in _built_on(store, run):
        try:
            order = store.stop_order(each)
        except RunNotFound:
            if each == run:
                raise
            return None
        if order is not None and order.is_pause == (kind == "pause"):
            return order
    return None


def order_above(store: Store, run: str) -> StopOrder | None:
    """The order that holds for a run by those that it builds on: a stop before a pause.

    Raises:
        StoreError: it can't be determined.
    """
    found: StopOrder | None = None
    for each in itertools.islice(_built_on(store, run), 1, None):
        with contextlib.suppress(RunNotFound, RunPruned):
            order = store.stop_order(each)
            if order is not None and not order.is_pause:
                return order
            found = found or order
    return found


def _has_own(store: Store, run: str) -> bool:
    order = store.stop_order(run)
    return order is not None and not order.is_pause and order.run in ("", run)


def _built_on(store: Store, run: str) -> Iterator[str]:
    """A run, and those that it resumes, the newest first."""
    seen: set[str] = set()
    each: str | None = run
    while each is not None and each not in seen:
        seen.add(each)
        yield each
        try:
            info = store.info(each)
        except (RunNotFound, RunPruned):
            return
        each = info.source if info.mode == "resume" else None


def ended_with(store: Store, info: RunInfo) -> RunInfo | None:
    """The run with which a job came to its end, of those that go on with this one; None if none."""
    if info.mode == "imported":
        return info
    end: RunInfo | None = None
    left = [info]
    for each in left:
        later = [run for run in store.runs(source=each.run) if run.mode == "resume"]
        left += later
        if not later:
            if each.status is None or (each.status not in _OVER and each.mode in _RESUMED):
                return None
            end = each
    return end
