"""By whose order a run is stopped or paused: what its page shows, and is told when that changes."""

from __future__ import annotations

from typing import Any

from rollcage.stages.orders import Order
from rollcage_views import Viewer, order_data

__all__ = ["order_key", "told_order"]


def order_key(order: Order | None) -> str:
    """Return which order it is, in a few characters; empty where there is none."""
    return "" if order is None else f"{order.kind}-{order.time}"


def told_order(order: Order | None, viewer: Viewer) -> dict[str, Any] | None:
    """Return an order for machines; why it was given is told to who sees values."""
    data = order_data(order)
    return data if data is None or viewer.values else data | {"reason": ""}
