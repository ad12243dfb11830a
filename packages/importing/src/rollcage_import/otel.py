"""Spans from OTLP: each span of the conventions, or of their forerunners, as a `Span`."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rollcage_adapter import NOT_RECORDED, Answer, Effect

from rollcage_import import names
from rollcage_import.messages import answered, conversation
from rollcage_import.spans import Kind, Span, structured, tool_answer

__all__ = ["otel_spans"]

_OURS: Final = "rollcage_otel"
_DEEPEST: Final = 20  # levels of lists and maps in one attribute
_MOST: Final = 10_000  # messages in one attribute
_LATEST: Final = 2**62  # ns: the year 2116
_ERROR: Final = frozenset({2, "2", "STATUS_CODE_ERROR"})
_EFFECTS: Final[dict[Any, Effect]] = {"pure": "pure", "read": "read"}
_WAS_REFUSED: Final = "blocked"
_WAS_REPLAYED: Final = "hit"
_NOTHING: Final[Mapping[str, Any]] = {}

# Events that hold the messages of a model's call in an early form of the conventions, by role.
_ASKED: Final = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant", "gen_ai.tool.message": "tool",
}  # fmt: skip
_CHOICE: Final = "gen_ai.choice"

Attributes = dict[str, Any]


def otel_spans(document: Any, skipped: Counter[str], *, base64_ids: bool = False) -> Iterator[Span]:
    """Yield the spans of one export request, or of a file of them.

    Args:
        document: OTLP as JSON, hostile input.
        skipped: counts the omitted parts, by reason.
        base64_ids: whether ids have the form of protobuf's generic JSON.
    """
    for scope, each in _listed(document, skipped):
        found = _span(each, scope, base64_ids=base64_ids)
        if found is None:
            skipped["no span: it lacks ids or times"] += 1
        else:
            yield found


def _listed(document: Any, skipped: Counter[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for resource in _objects(document, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans", "instrumentationLibrarySpans"):
            about = scope.get("scope") or scope.get("instrumentationLibrary")
            name = about.get("name") if isinstance(about, dict) else ""
            for span in _objects(scope, "spans"):
                yield str(name or ""), span
    for other in ("resourceLogs", "resourceMetrics"):
        if count := len(_objects(document, other)):
            skipped[f"no spans: {other}"] += count


def _objects(holder: Any, *fields: str) -> list[dict[str, Any]]:
    held = holder if isinstance(holder, dict) else {}
    found = next((held[field] for field in fields if field in held), ())
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _span(given: dict[str, Any], scope: str, *, base64_ids: bool) -> Span | None:
    ids = [_id(given.get(field), base64_ids) for field in ("traceId", "spanId", "parentSpanId")]
    start, end = (_nanoseconds(given.get(f"{field}TimeUnixNano")) for field in ("start", "end"))
    if not ids[0] or not ids[1] or start is None:
        return None
    values = _unfolded(_attributes(given.get("attributes")))
    events = [
        (str(e.get("name", "")), _attributes(e.get("attributes")))
        for e in _objects(given, "events")
    ]
    ours = scope == _OURS
    kind, other = _kind(values)
    named = str(given.get("name") or "")
    if ours and kind == "other" and "rollcage.run.status" in values:
        kind, named = "agent", named.removeprefix("run ")
    elif ours and values.get("rollcage.step.state") == _WAS_REPLAYED:
        kind, other = "other", "a call that was replayed"
    span = Span(
        ids[0], ids[1], ids[2], kind, _called(values, kind, named) or other, named, start, end
    )
    status = given.get("status")
    span.error = _error(values, events, status if isinstance(status, dict) else _NOTHING)
    span.is_attempt = ours and "rollcage.run.attempt" in values
    if kind == "tool":
        span.args = structured(_first(values, names.ARGUMENTS), scalars=ours)
        gave = structured(_first(values, names.RESULT), scalars=ours)
        span.result, call_id = tool_answer(gave)
        span.call_id = str(_first(values, names.CALL_ID, call_id))
        span.effect = _EFFECTS.get(values.get("rollcage.step.effect", "") if ours else "", "write")
    if kind == "model":
        span.args, span.answer = _asked(values, events), _answer(values, events)
    if kind in ("tool", "model"):
        span.agent = str(_first(values, names.AGENT[:2], ""))
    if values.get("rollcage.step.state") == _WAS_REFUSED:
        span.refused = span.error[0] if span.error else _WAS_REFUSED
    return span


# --- attributes ----------------------------------------------------------------------------------


def _kind(values: Attributes) -> tuple[Kind, str]:
    """Return the kind of a span; for a span that is no step, also its own statement."""
    other = ""
    for attribute, kinds in names.KINDS.items():
        value = values.get(attribute)
        if isinstance(value, str):
            if value in kinds:
                return kinds[value], ""
            other = other or f"{attribute} {value}"
    return "other", other or "not an operation of the conventions"


def _called(values: Attributes, kind: Kind, named: str) -> str:
    if kind == "other":
        return ""
    operation, _, rest = named.partition(" ")
    shown = rest if operation == values.get("gen_ai.operation.name") else named
    return str(_first(values, names.NAMES[kind], "") or shown)


def _error(
    values: Attributes, events: Sequence[tuple[str, Attributes]], status: Mapping[str, Any]
) -> tuple[str, str] | None:
    if status.get("code") not in _ERROR and "error.type" not in values:
        return None
    raised = next((each for name, each in reversed(events) if name == "exception"), {})
    kind = values.get("error.type") or raised.get("exception.type") or "Error"
    message = raised.get("exception.message") or status.get("message") or ""
    return str(kind), str(message)


def _asked(values: Attributes, events: Sequence[tuple[str, Attributes]]) -> Any:
    given = _first(values, names.MESSAGES)
    if given is NOT_RECORDED:
        given = [{"role": _ASKED[name], **each} for name, each in events if name in _ASKED]
        given = given or _of_events(events, "gen_ai.prompt")
    return given if given is NOT_RECORDED else conversation(given)


def _answer(values: Attributes, events: Sequence[tuple[str, Attributes]]) -> Answer | None:
    given = _first(values, names.ANSWER)
    calls = values.get("ai.response.toolCalls")
    if calls is not None:
        text = values.get("ai.response.text", "")
        given = [{"role": "assistant", "content": text, "tool_calls": calls}]
    if given is NOT_RECORDED:
        choices: Any = [each for name, each in events if name == _CHOICE]
        given = choices or _of_events(events, "gen_ai.completion")
    counts = {
        "input_tokens": _first(values, names.INPUT_TOKENS, None),
        "output_tokens": _first(values, names.OUTPUT_TOKENS, None),
    }
    usage = {name: count for name, count in counts.items() if type(count) is int and count >= 0}
    if given is NOT_RECORDED:
        return Answer(usage=usage) if usage else None
    finish = _first(values, names.FINISH, "")
    if isinstance(finish, list):
        finish = finish[0] if finish else ""
    return answered(given, usage, str(finish))


def _of_events(events: Sequence[tuple[str, Attributes]], attribute: str) -> Any:
    return next((each[attribute] for _, each in events if attribute in each), NOT_RECORDED)


def _first(values: Attributes, wanted: Sequence[str], default: Any = NOT_RECORDED) -> Any:
    return next((values[name] for name in wanted if name in values), default)


# --- attributes ----------------------------------------------------------------------------------


def _attributes(given: Any) -> Attributes:
    pairs = given if isinstance(given, list) else ()
    return {
        str(pair.get("key", "")): _value(pair.get("value"))
        for pair in pairs
        if isinstance(pair, dict)
    }


def _value(given: Any, depth: int = 0) -> Any:
    """Return the value of an attribute; None for an unknown form, or one that is too deep."""
    if not isinstance(given, dict) or len(given) != 1 or depth > _DEEPEST:
        return None
    kind, value = next(iter(given.items()))
    if kind == "intValue":
        return _integer(value)
    if kind == "arrayValue":
        return [_value(each, depth + 1) for each in _objects(value, "values")]
    if kind == "kvlistValue":
        pairs = _objects(value, "values")
        return {str(each.get("key", "")): _value(each.get("value"), depth + 1) for each in pairs}
    return value


def _unfolded(values: Attributes) -> Attributes:
    """Return attributes with lists rebuilt from an entry each (`llm.prompts.0.role`)."""
    lists: dict[str, dict[int, Attributes]] = {}
    for name in ("gen_ai.prompt", "gen_ai.completion", "llm.prompts", "llm.completions",
                 "llm.input_messages", "llm.output_messages"):  # fmt: skip
        for attribute, value in values.items():
            if attribute.startswith(f"{name}."):
                at, _, field = attribute[len(name) + 1 :].partition(".")
                if at.isascii() and at.isdecimal() and len(at) < 6 and int(at) < _MOST:
                    _put(lists.setdefault(name, {}).setdefault(int(at), {}), field, value)
    return values | {
        name: [_nested(each[at]) for at in sorted(each)] for name, each in lists.items()
    }


def _put(message: Attributes, field: str, value: Any) -> None:
    """Set a field of a message; its calls are a list again, with an entry each."""
    for listed in ("tool_calls", "contents"):
        before, found, rest = field.partition(f"{listed}.")
        at, _, inner = rest.partition(".")
        if found and before in ("", "message.") and at.isascii() and at.isdecimal() and len(at) < 6:
            message.setdefault(listed, {}).setdefault(int(at), {})[inner] = value
            return
    message[field] = value


def _nested(message: Attributes) -> Attributes:
    calls, contents = message.get("tool_calls"), message.get("contents")
    if isinstance(calls, dict):
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    if isinstance(contents, dict):
        parts = (
            {k.removeprefix("message_content."): v for k, v in contents[at].items()}
            for at in sorted(contents)
        )
        message.setdefault("message.content", list(parts))
    return message


def _id(value: Any, is_base64: bool) -> str:  # noqa: FBT001 - of two lines
    if not isinstance(value, str) or len(value) > 64:
        return ""
    if is_base64:
        return base64.b64decode(value).hex()
    return value.lower() if value.strip("0") else ""


def _nanoseconds(value: Any) -> int | None:
    at = _integer(value)
    return at if at is not None and 0 < at < _LATEST else None


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            return None
    return value if type(value) is int else None
