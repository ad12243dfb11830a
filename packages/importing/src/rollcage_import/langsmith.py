"""Spans from an export of LangSmith: its runs, one by one or with their child runs inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from rollcage_adapter import NOT_RECORDED, Answer

from rollcage_import.messages import answered, conversation
from rollcage_import.spans import Kind, Span, data_of, moment, structured, tool_answer

__all__ = ["langsmith_spans"]

_KINDS: Final[dict[str, Kind]] = {"llm": "model", "tool": "tool", "retriever": "tool"}
_USAGE: Final = {
    "input_tokens": ("prompt_tokens", "input_tokens"),
    "output_tokens": ("completion_tokens", "output_tokens"),
}
_MODEL: Final = ("ls_model_name", "model_name", "model")


def langsmith_spans(document: Any, skipped: Counter[str]) -> Iterator[Span]:
    """Yield the spans of one document: hostile input; omitted parts are counted by reason."""
    open_ = [(document, "", "")]
    while open_:
        given, parent, trace = open_.pop()
        if isinstance(given, dict) and isinstance(given.get("runs"), list):
            given = given["runs"]
        if isinstance(given, list):
            open_ += [(each, parent, trace) for each in reversed(given)]
            continue
        span = _span(given, parent, trace) if isinstance(given, dict) else None
        if span is None:
            skipped["no run: it lacks ids or times"] += 1
            continue
        yield span
        inside = given.get("child_runs")
        if isinstance(inside, list):
            open_ += [(each, span.id, span.trace) for each in reversed(inside)]


def _span(given: dict[str, Any], parent: str, trace: str) -> Span | None:
    own = str(given.get("id") or "")
    around = str(given.get("parent_run_id") or parent)
    start, end = moment(given.get("start_time")), moment(given.get("end_time"))
    if not own or start is None:
        return None
    kind_there = str(given.get("run_type") or "")
    kind: Kind = _KINDS.get(kind_there, "other")
    name = str(given.get("name") or "")
    called = f"a run of the type {kind_there}" if kind == "other" else name
    its_trace = str(given.get("trace_id") or trace or own)
    span = Span(its_trace, own, around, kind, called, name, start, end)
    extra = data_of(given.get("extra"))
    about = data_of(extra.get("metadata"))
    span.agent = str(about.get("lc_agent_name") or "") if kind in ("tool", "model") else ""
    if kind == "tool":
        span.args = _arguments(given.get("inputs"))
        span.result, call_id = _result(given.get("outputs"))
        span.call_id = str(extra.get("tool_call_id") or call_id)
    if kind == "model":
        asked = given.get("inputs")
        span.name = _model(extra, about) or name
        span.args = conversation(asked) if asked else NOT_RECORDED
        span.answer = _answer(given)
    if given.get("error"):
        span.error = _error(str(given["error"]))
    return span


def _arguments(given: Any) -> Any:
    if not isinstance(given, dict) or not given:
        return NOT_RECORDED
    alone = structured(given["input"]) if given.keys() == {"input"} else None
    return alone if isinstance(alone, dict) else given  # a tool's arguments as one text


def _result(given: Any) -> tuple[Any, str]:
    if not isinstance(given, dict) or not given:
        return NOT_RECORDED, ""
    value, call_id = tool_answer(given["output"] if given.keys() == {"output"} else given)
    return structured(value), call_id


def _answer(given: dict[str, Any]) -> Answer | None:
    outputs = data_of(given.get("outputs"))
    found: Any = outputs.get("generations", outputs.get("choices", outputs.get("output", outputs)))
    while isinstance(found, list) and found and isinstance(found[0], list):
        found = found[0]
    usage = _usage(given, outputs, found)
    return answered(found, usage) if outputs else Answer(usage=usage) if usage else None


def _usage(given: dict[str, Any], outputs: dict[str, Any], found: Any) -> dict[str, int]:
    generation = data_of(found[0]) if isinstance(found, list) and found else {}
    message = data_of(generation.get("message"))
    fields = data_of(message.get("kwargs")) or message
    places = (
        data_of(fields.get("usage_metadata")),
        data_of(outputs.get("usage_metadata")),
        data_of(data_of(outputs.get("llm_output")).get("token_usage")),
        given,
    )
    counts: dict[str, int] = {}
    for place in places:
        for ours, theirs in _USAGE.items():
            count = next((place[name] for name in theirs if place.get(name)), None)
            if type(count) is int and count >= 0:
                counts.setdefault(ours, count)
    return counts


def _model(extra: dict[str, Any], about: dict[str, Any]) -> str:
    asked = data_of(extra.get("invocation_params"))
    return next(
        (str(each[name]) for each in (about, asked) for name in _MODEL if each.get(name)), ""
    )


def _error(text: str) -> tuple[str, str]:
    """Return the error's type and message: its `repr`, with the traceback after it."""
    line = text.strip().partition("\n")[0]
    kind, opened, rest = line.partition("(")
    if opened and kind.isidentifier():
        return kind, rest.rstrip(")").rstrip(",").strip("'\"")
    return "Error", line
