"""Runs whose calls wait because of a pause: the person, the reason, and the time."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rollcage import RunInfo, Store, order_of
from rollcage.errors import RollcageError
from rollcage.stages.orders import Order

from rollcage_views.text import time_text, visible

__all__ = ["order_data", "pause_of", "pause_text"]

_OVER: Final = ("ok", "abandoned", "would_write", "would_ask")  # no call of such a run is to come


def pause_of(store: Store, info: RunInfo) -> Order | None:
    """Return the order that makes a run's next call wait; None without one."""
    if info.status in _OVER:
        return None
    try:
        order = order_of(store, info.run)
    except RollcageError:
        return None  # reading the run reports it
    return order if order is not None and order.kind == "pause" else None


def pause_text(order: Order, *, why: bool = True) -> str:
    """Return `paused by ann since 2026-11-22 10:00:05: the budget`, without the reason if asked."""
    by = f" by {visible(order.by)}" if order.by else ""
    reason = f": {visible(order.reason)}" if why and order.reason else ""
    return f"paused{by} since {time_text(order.time)}{reason}"


def order_data(order: Order | None) -> dict[str, Any] | None:
    """Return an order for machines."""
    return None if order is None else dataclasses.asdict(order)
