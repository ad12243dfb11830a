"""The order that stops or pauses a run, for its page."""

from __future__ import annotations

from typing import Any

from rollcage.stages.orders import Order
from rollcage_views import Viewer, order_data

__all__ = ["order_key", "told_order"]


def order_key(order: Order | None) -> str:
    """Return a short key of an order; empty without one."""
    return "" if order is None else f"{order.kind}-{order.time}"


def told_order(order: Order | None, viewer: Viewer) -> dict[str, Any] | None:
    """Return an order for machines; its reason only for viewers with values."""
    data = order_data(order)
    return data if data is None or viewer.values else data | {"reason": ""}
