"""A span from any source: one call, one agent, or an enclosing span."""

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
    """One span, independent of its source. Unknown fields are empty.

    Attributes:
        trace: the id of its trace.
        id: its own id.
        parent: the id of the enclosing span.
        kind: its subject; an `other` is no step, and the steps inside of it move up.
        name: the name of the agent, the model or the tool; for an `other` span, its kind.
        title: the span's own name.
        start: when it began (Unix, ns).
        end: when it ended; None without an end.
        args: a tool's arguments; a model's messages.
        result: a tool's result.
        answer: a model's answer.
        error: the type of its error and the text; None without one.
        refused: the code of a call that was refused, so that nothing ran.
        call_id: the model's id of the call.
        agent: the agent that made it.
        effect: the declared effect of a tool that Rollcage called.
        is_attempt: whether it is a session of Rollcage: an attempt at the enclosing run.
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
    """Return a time as ns since 1970: from ISO 8601, in UTC by default; None for other forms."""
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
    """Return the object or list in a JSON text; any other value unchanged.

    Args:
        value: usually a text, because attributes of spans hold little else.
        scalars: whether to parse any JSON: the span's writer always writes JSON.
    """
    if not isinstance(value, str) or not (scalars or value[:1] in ("{", "[")):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def data_of(value: Any) -> dict[str, Any]:
    """Return an object, also one in a text of JSON; an empty one for any other value."""
    found = structured(value)
    return found if isinstance(found, dict) else {}


def tool_answer(value: Any) -> tuple[Any, str]:
    """Return a tool's result, and its call's id if it is recorded as LangChain's message."""
    message = data_of(value)
    fields = data_of(message.get("kwargs" if "lc" in message else "data")) or message
    kind = message.get("type") if "data" in message else fields.get("type")
    if kind != "tool" or "content" not in fields:
        return value, ""
    return structured(fields["content"]), str(fields.get("tool_call_id") or "")
