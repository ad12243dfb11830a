"""The place of a call in the message that issued it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["calls_of", "slot_of"]


def calls_of(issued: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the calls of a message for `Session.place`.

    Args:
        issued: the name and the arguments of each call; arguments in JSON are parsed.
    """
    return [(name, _parsed(arguments)) for name, arguments in issued]


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


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
