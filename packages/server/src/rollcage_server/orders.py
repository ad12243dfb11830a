"""By whose order a run is stopped or paused: what its page shows, and is told when that changes."""

from __future__ import annotations

from typing import Any

from rollcage.store import StopOrder, Store, paused_by, stopped_by
from rollcage_views import Viewer, order_data

__all__ = ["order_key", "order_of", "told_order"]


def order_of(store: Store, run: str) -> StopOrder | None:
    """The order that holds for a run, or one that it builds on: a stop before a pause.

    Raises:
        RunNotFound: there is no such run.
        StoreError: nobody can tell.
    """
    return stopped_by(store, run) or paused_by(store, run)


def order_key(order: StopOrder | None) -> str:
    """Which order it is, in a few characters; empty where there is none."""
    return "" if order is None else f"{order.kind}-{order.time}-{order.run[-12:]}"


def told_order(order: StopOrder | None, viewer: Viewer) -> dict[str, Any] | None:
    """An order for machines; why it was given is told to who sees values."""
    data = order_data(order)
    return data if data is None or viewer.values else data | {"reason": ""}
