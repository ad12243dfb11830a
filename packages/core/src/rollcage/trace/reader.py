"""Read a log: yield every line in the chain, or name the first bad line (DESIGN §4)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

import orjson
import pydantic

from rollcage.errors import TraceCorrupt
from rollcage.trace.chain import checked
from rollcage.trace.events import event_adapter
from rollcage.trace.messages import MessagesRead

__all__ = ["check_events", "read_events"]


def read_events(
    data: bytes, where: str, *, restore: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line with its number (from 1), after checking its hash.

    Args:
        data: whole lines only.
        where: the name of the log in messages.
        restore: whether to replace references to messages of models by the messages.

    Raises:
        TraceCorrupt: the first line that is no event, breaks the chain, or has a dangling
            reference.
    """
    messages = MessagesRead() if restore else None
    for number, event in enumerate(checked(io.BytesIO(data), where), 1):
        if messages is not None and event.get("effect") == "model":
            try:
                messages.restore(event)
            except ValueError as error:
                raise TraceCorrupt(where, number, str(error)) from None
        yield number, event


def _shallow(value: Any, levels: int = 100) -> Any:
    """Return an event without its deeper levels, about which the schema says nothing."""
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return {name: _shallow(each, levels - 1) for name, each in held.items()} if levels else {}
    if isinstance(value, list):
        return [_shallow(each, levels - 1) for each in value] if levels else []
    return value


def check_events(data: bytes, where: str, *, restore: bool = True) -> list[dict[str, Any]]:
    """Return the events of whole lines, each checked against the published schema too.

    Args:
        data: the lines.
        where: the name of the log in messages.
        restore: see `read_events`.

    Raises:
        TraceCorrupt: the first line that breaks the chain or the schema.
    """
    events: list[dict[str, Any]] = []
    validate = event_adapter().validate_json
    for number, event in read_events(data, where, restore=restore):
        try:
            try:
                validate(orjson.dumps(event))
            except pydantic.ValidationError as error:
                if error.errors()[0]["type"] != "json_invalid":
                    raise
                validate(orjson.dumps(_shallow(event)))  # Pydantic reads 200 levels of JSON
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            at = ".".join(map(str, first["loc"]))
            raise TraceCorrupt(where, number, f"{at}: {first['msg']}") from None
        events.append(event)
    return events
