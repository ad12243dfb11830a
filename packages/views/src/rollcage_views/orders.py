"""Runs whose calls wait, because somebody paused them: who, why, and since when."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rollcage.errors import RollcageError
from rollcage.store import Reader, RunInfo, StopOrder

from rollcage_views.text import time_text, visible

__all__ = ["order_data", "pause_of", "pause_text"]

_OVER: Final = ("ok", "abandoned", "would_write", "would_ask")  # no call of theirs is to come


def pause_of(reader: Reader, info: RunInfo) -> StopOrder | None:
    """By which order the next call of a run waits, or that of its resume; None where none does."""
    if info.status in _OVER or info.pruned is not None:
        return None
    try:
        order = reader.stop_order(info.run)
    except RollcageError:
        return None  # reading that one reports it
    return order if order is not None and order.is_pause else None


def pause_text(order: StopOrder, *, why: bool = True) -> str:
    """`paused by ann since 2026-11-22 10:00:05: the budget`; without the reason, unless `why`."""
    by = f" by {visible(order.by)}" if order.by else ""
    reason = f": {visible(order.reason)}" if why and order.reason else ""
    return f"paused{by} since {time_text(order.time)}{reason}"


def order_data(order: StopOrder | None) -> dict[str, Any] | None:
    """For machines."""
    return None if order is None else dataclasses.asdict(order)
