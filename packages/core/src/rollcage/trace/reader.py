"""Reads a log: every line in the chain, or a clear error that names the line (DESIGN §4)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import orjson
import pydantic

from rollcage.errors import TraceCorrupt
from rollcage.heart.log import ROOT, checked
from rollcage.trace.events import event_adapter
from rollcage.trace.messages import MessagesRead

__all__ = ["Tail", "check_events", "read_events", "split_tail", "tail_of"]


class Tail(NamedTuple):
    """Where a log stands after its last whole line.

    Attributes:
        lines: how many whole lines it has.
        size: of these, in bytes.
        head: the hash of the last one (64 hex digits).
        torn: what stands behind it, of a line whose writing was cut off.
    """

    lines: int
    size: int
    head: bytes
    torn: bytes


def split_tail(data: bytes) -> tuple[bytes, bytes]:
    """Return a log's whole lines, and the torn rest of a last one without its newline."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def tail_of(data: bytes) -> Tail:
    """Return where a log stands, by its last line alone."""
    whole, torn = split_tail(data)
    return Tail(whole.count(b"\n"), len(whole), whole[-67:-3] if whole else ROOT, torn)


def read_events(
    data: bytes, where: str, *, after: Tail | None = None, restore: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line with its number (from 1), after its hash was found right.

    Args:
        data: whole lines only.
        where: a name for them in messages.
        after: what they come after, where they are the rest of a log.
        restore: put the messages of models back that references stand for; never in a rest.

    Raises:
        TraceCorrupt: the first line that is no event, breaks the chain, or refers to nothing.
    """
    head, before = (ROOT, 0) if after is None else (after.head, after.lines)
    lines = io.BytesIO(data).readlines()
    messages = MessagesRead() if restore and after is None else None
    for number, event in enumerate(checked(lines, where, head=head, before=before), before + 1):
        if messages is not None and event.get("effect") == "model":
            try:
                messages.restore(event)
            except ValueError as error:
                raise TraceCorrupt(where, number, str(error)) from None
        yield number, event


def _shallow(value: Any, levels: int = 100) -> Any:
    """Return an event without what is nested deeper: values, of which the schema says nothing."""
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
        where: a name for them in messages.
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
            first = error.errors(include_input=False, include_url=False)[0]
            at = ".".join(map(str, first["loc"]))
            raise TraceCorrupt(where, number, f"{at}: {first['msg']}") from None
        events.append(event)
    return events
