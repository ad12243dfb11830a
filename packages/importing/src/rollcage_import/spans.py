"""A span of whatever origin: one call, one agent, or something around them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from typing import Any, Final, Literal

import orjson
from rollcage_adapter import NOT_RECORDED, Answer, Effect

__all__ = ["Kind", "Span", "data_of", "moment", "structured", "tool_answer"]

Kind = Literal["agent", "model", "tool", "other"]
_LATEST: Final = 2**62  # ns: the year 2116
_FRACTION: Final = re.compile(r"\.(\d+)")


@dataclasses.dataclass(slots=True, eq=False)
class Span:
    """One span, with the names of its origin taken away. What is not known of it is empty.

    Attributes:
        trace: the id of its trace.
        id: its own.
        parent: that of the span around it.
        kind: what it is about; an `other` is no step, and the steps inside of it move up.
        name: of the agent, the model or the tool; of an `other` span, what it is.
        title: what the span itself is called.
        start: when it began (Unix, ns).
        end: when it ended; None where it has no end.
        args: of a tool, its arguments; of a model, its messages.
        result: what a tool gave.
        answer: what a model answered.
        error: the type of its error and the text; None without one.
        refused: the code of a call that was refused, so that nothing ran.
        call_id: the model's id of the call.
        agent: who made it.
        effect: of a tool that Rollcage called, as it was declared there.
        is_attempt: whether it is a session of Rollcage: an attempt at the run around it.
    """

    trace: str
    id: str
    parent: str
    kind: Kind
    name: str
    title: str
    start: int
    end: int | None = None
    args: Any = NOT_RECORDED
    result: Any = NOT_RECORDED
    answer: Answer | None = None
    error: tuple[str, str] | None = None
    refused: str = ""
    call_id: str = ""
    agent: str = ""
    effect: Effect = "write"
    is_attempt: bool = False


def moment(value: Any) -> int | None:
    """An instant as ns since 1970: ISO 8601, where UTC goes without saying; None for another."""
    if not isinstance(value, str):
        return None
    try:
        # Python reads six digits of a second; others write up to nine.
        found = dt.datetime.fromisoformat(_FRACTION.sub(lambda m: f".{m[1][:6]:0<6}", value))
        since = found.replace(tzinfo=found.tzinfo or dt.UTC) - dt.datetime(
            1970, 1, 1, tzinfo=dt.UTC
        )
    except (ValueError, OverflowError):
        return None
    at = since // dt.timedelta(microseconds=1) * 1000
    return at if 0 <= at < _LATEST else None


def structured(value: Any, *, scalars: bool = False) -> Any:
    """What a text of JSON holds, if that is an object or a list; anything else as it is.

    Args:
        value: often a text, for attributes of spans hold little else.
        scalars: a text of any JSON is read: its writer always writes that.
    """
    if not isinstance(value, str) or not (scalars or value[:1] in ("{", "[")):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def data_of(value: Any) -> dict[str, Any]:
    """An object, also one in a text of JSON; an empty one for anything else."""
    found = structured(value)
    return found if isinstance(found, dict) else {}


def tool_answer(value: Any) -> tuple[Any, str]:
    """What a tool gave, and its call's id if that is recorded as LangChain's message."""
    message = data_of(value)
    fields = data_of(message.get("kwargs" if "lc" in message else "data")) or message
    kind = message.get("type") if "data" in message else fields.get("type")
    if kind != "tool" or "content" not in fields:
        return value, ""
    return structured(fields["content"]), str(fields.get("tool_call_id") or "")
