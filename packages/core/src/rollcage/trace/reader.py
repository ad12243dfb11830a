"""Reads a trace: every line in the chain or a clear error that names the line (DESIGN §4)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

import orjson
import pydantic

from rollcage.errors import TraceCorrupt
from rollcage.trace.events import CHAIN_START, FORMAT, HASH_TAIL, LOG_FORMAT, event_adapter
from rollcage.trace.messages import MessagesRead

__all__ = ["Tail", "check_events", "ended", "is_log", "last_time", "read_events", "split_tail"]

_LOG: Final = b'{"event":"run","format":"rollcage/2"'


def is_log(data: bytes) -> bool:
    """Whether these are the lines of a run's log (rollcage/2), by the first one."""
    return data.startswith(_LOG)


class Tail(NamedTuple):
    """Where a trace stands after its last whole line."""

    lines: int
    size: int  # bytes
    head: bytes  # the last line's hash
    torn: bytes  # what stands after it, of a line whose writing was cut off
    is_log: bool = False  # whether it is the log of a run (rollcage/2)


def split_tail(data: bytes) -> tuple[bytes, bytes]:
    """A trace's whole lines, and the torn rest of a last one without its newline."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def read_events(
    data: bytes,
    where: str,
    *,
    after: Tail | None = None,
    begins: str = "run.started",
    restore: bool = True,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each event with its line number (from 1), after its hash was found right.

    Args:
        data: whole lines only.
        where: a name for them in messages.
        after: what they come after, where they are the rest of a trace.
        begins: the first event of such a file.
        restore: put the messages of models back that references stand for; never in a rest.

    Raises:
        TraceCorrupt: the first line that is no event, breaks the chain, or refers to nothing.
    """
    if is_log(data) if after is None else after.is_log:
        yield from _read_log(data, where, after, restore=restore)
        return
    previous, number = (CHAIN_START, 0) if after is None else (after.head, after.lines)
    start, size = 0, len(data)
    messages = MessagesRead() if restore and after is None else None
    while start < size:
        number += 1
        end = data.index(b"\n", start)
        tail = end - HASH_TAIL
        previous = sha256(b"".join((previous, data[start:tail], b"}"))).digest()
        if tail <= start or data[tail:end] != b',"hash":"%b"}' % previous.hex().encode():
            whole = tail > start and data[tail:end].startswith(b',"hash":"')
            message = "its hash does not follow from the lines before it"
            raise TraceCorrupt(where, number, message if whole else "not a line of a trace")
        try:
            event = orjson.loads(data[start:end])
        except orjson.JSONDecodeError as error:
            raise TraceCorrupt(where, number, f"not JSON: {error}") from None
        if number == 1 and (type(event) is not dict or event.get("event") != begins):
            raise TraceCorrupt(where, number, f"it begins with another event than {begins}")
        if messages is not None and type(event) is dict and event.get("kind") == "model":
            try:
                messages.restore(event)
            except ValueError as error:
                raise TraceCorrupt(where, number, str(error)) from None
        yield number, event
        start = end + 1
    if not number:
        raise TraceCorrupt(where, 1, "the trace is empty")


def _read_log(
    data: bytes, where: str, after: Tail | None, *, restore: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """What `read_events` gives, of the log of a run."""
    from rollcage.heart.log import ROOT, checked  # readers of old runs do without the heart

    head, before = (ROOT, 0) if after is None else (after.head.hex().encode(), after.lines)
    lines = io.BytesIO(data).readlines()
    messages = MessagesRead() if restore and after is None else None
    for number, event in enumerate(checked(lines, where, head=head, before=before), before + 1):
        if messages is not None and event.get("effect") == "model":
            try:
                messages.restore(event)
            except ValueError as error:
                raise TraceCorrupt(where, number, str(error)) from None
        yield number, event


def tail_of(data: bytes) -> Tail:
    """Where a trace stands, by its last line alone: what an append goes on from."""
    whole, torn = split_tail(data)
    head = bytes.fromhex(whole[-67:-3].decode()) if whole else CHAIN_START
    return Tail(whole.count(b"\n"), len(whole), head, torn, is_log(data))


def last_time(data: bytes) -> int:
    """When the last of a trace's whole lines was written (Unix, µs)."""
    time: int = orjson.loads(data[data.rfind(b"\n", 0, -1) + 1 :])["time"]
    return time


def ended(data: bytes) -> str | None:
    """How a run ended, by the whole lines of its trace; None where it did not, or they are damaged.

    The status of its `run.finished`; `undone` where steps were undone after that, or an undo
    of them was cut off: either way the next session has them to do; `abandoned` where it was set
    aside, whatever came before or after that.
    """
    lines = (b'\n{"event":"run.abandoned",', b'\n{"event":"run.finished",')
    start = next((at + 1 for line in lines if (at := data.rfind(line)) >= 0), None)
    if start is None:
        return None
    status: str | None = None
    try:
        for _, event in read_events(data[start:], "", after=tail_of(data[:start])):
            if event["event"] == "run.finished":
                status = str(event["status"])
            elif event["event"] == "run.abandoned":
                return "abandoned"
            elif _takes_back(event):
                status = "undone"
    except (TraceCorrupt, KeyError, ValueError, TypeError):
        return None
    return status


def _takes_back(event: dict[str, Any]) -> bool:
    """Whether, with this event, a run does not stand any more as it ended."""
    kind = event["event"]
    if kind == "undo.finished":
        return event["status"] in ("verified", "compensated")
    return kind == "undo.started" or (kind == "run.rewound" and not event.get("incomplete"))


def _shallow(value: Any, levels: int = 100) -> Any:
    """An event without what is nested deeper: values, of which the schema says nothing."""
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return {name: _shallow(each, levels - 1) for name, each in held.items()} if levels else {}
    if isinstance(value, list):
        return [_shallow(each, levels - 1) for each in value] if levels else []
    return value


def check_events(data: bytes, where: str, *, restore: bool = True) -> list[dict[str, Any]]:
    """All events of whole lines, each checked against the published schema too.

    Args:
        data: the lines.
        where: a name for them in messages.
        restore: see `read_events`.

    Raises:
        TraceCorrupt: the first line that breaks the chain or the schema.
    """
    events: list[dict[str, Any]] = []
    validate = event_adapter(LOG_FORMAT if is_log(data) else FORMAT).validate_json
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
