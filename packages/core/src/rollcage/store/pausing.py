"""Pausing runs: each call of theirs waits, from the next one on, until that is lifted."""

from __future__ import annotations

from rollcage.errors import OrderRefused
from rollcage.store.jobs import store_option
from rollcage.store.protocol import StopOrder, Store, check_order
from rollcage.store.stopping import ended_with, order_for, stopped_by

__all__ = ["not_pausable", "pause_run", "paused_by", "unpause_run"]


def pause_run(store: Store, run: str, *, by: str, reason: str, time: int) -> StopOrder:
    """Have the next call of a run wait, and those of what resumes it, until it is unpaused.

    What runs already goes on, and its end is recorded. Of two pauses, the later word counts. A stop
    takes the place of a pause, and no pause that of a stop.

    Args:
        store: where it is kept.
        run: its id.
        by: who says so.
        reason: why.
        time: when (Unix, µs).

    Returns:
        The order that was given.

    Raises:
        OrderRefused: it was imported, is over or stopped; or the reason is too long.
        RunNotFound: there is no such run.
        StoreError: the order can't be given.
    """
    order = StopOrder(run, by, reason, time, "pause")
    check_order(order)
    over = ended_with(store, store.info(run))
    if over is not None:
        ended = f"it ended as {over.status!r}"
        if over.run != run:
            ended = f"run {over.run}, which went on with it, ended as {over.status!r}"
        raise OrderRefused(f"run {run} can't be paused: {ended}, and makes no more calls")
    stop = stopped_by(store, run)
    if stop is not None:
        raise not_pausable(run, stop, store_option(store))
    store.stop(order)
    return order


def unpause_run(store: Store, run: str) -> tuple[StopOrder, StopOrder | None]:
    """Let the calls of a paused run go on. It does not matter who paused it.

    Returns:
        The order that was lifted, and what pauses it all the same: that of a run that it builds on.

    Raises:
        OrderRefused: it is not paused, or has an order to stop.
        RunNotFound: there is no such run.
        StoreError: the order can't be given.
    """
    order, at = store.stop_order(run), store_option(store)
    if order is not None and not order.is_pause:
        raise OrderRefused(
            f"run {run} is not paused but stopped{_by_whom(order)}. To let it go on: rollcage stop "
            f"{order.run or run} --lift{at}"
        )
    order = order or paused_by(store, run)
    if order is not None and order.run != run:
        raise OrderRefused(
            f"run {run} builds on run {order.run}, which was paused{_by_whom(order)}. To let it go "
            f"on: rollcage unpause {order.run}{at}"
        )
    # Also where there is none: whoever has lifted it may not have been able to tell a live run.
    if not store.lift(run, "pause") or order is None:
        raise OrderRefused(f"run {run} is not paused: there is nothing to lift")
    return order, paused_by(store, run)


def paused_by(store: Store, run: str) -> StopOrder | None:
    """The order by which the calls of a run wait: its own, or that of a run that it builds on.

    Raises:
        RunNotFound: there is no such run.
        StoreError: it can't be determined.
    """
    return order_for(store, run, "pause")


def not_pausable(run: str, order: StopOrder | None, at: str) -> OrderRefused:
    """The error of a pause that would take the place of a stop."""
    who = "" if order is None else _by_whom(order)
    ordered = run if order is None else order.run or run
    return OrderRefused(
        f"run {run} can't be paused: it was stopped{who}. To let it go on: rollcage stop {ordered} "
        f"--lift{at}"
    )


def _by_whom(order: StopOrder) -> str:
    who = f" by {order.by}" if order.by else ""
    return f"{who}: {order.reason}" if order.reason else who
