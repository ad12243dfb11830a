"""The place of a call in the message that issued it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["slot_of"]


def slot_of(call_id: str | None, issued: Iterable[str | None]) -> int | None:
    """Return a call's place in its message, by its id.

    Args:
        call_id: the id of the call.
        issued: the ids of all the calls of the message, in its order.

    Returns:
        The place, from 0; None if unknown: the message has no call with this id, or two.
    """
    places = [place for place, each in enumerate(issued) if each == call_id]
    return places[0] if len(places) == 1 else None
