"""Spans from an export of Langfuse: a trace with its observations, or observations only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from rollcage_adapter import NOT_RECORDED

from rollcage_import.messages import answered, conversation
from rollcage_import.spans import Kind, Span, data_of, moment, structured

__all__ = ["langfuse_spans"]

_KINDS: Final[dict[str, Kind]] = {
    "GENERATION": "model", "TOOL": "tool", "RETRIEVER": "tool", "AGENT": "agent",
}  # fmt: skip
_CAPITAL: Final = re.compile("(?<=[a-z0-9])([A-Z])")
_USAGE: Final = {"input": "input_tokens", "output": "output_tokens"}


def langfuse_spans(document: Any, skipped: Counter[str]) -> Iterator[Span]:
    """Yield the spans of one document: hostile input; omitted parts are counted by reason."""
    fields = document if isinstance(document, dict) else {}
    if isinstance(fields.get("data"), list):  # a page of the API
        for each in fields["data"]:
            yield from langfuse_spans(each, skipped)
        return
    if isinstance(document, list):
        for each in document:
            yield from langfuse_spans(each, skipped)
        return
    about = fields.get("trace")
    trace = _snake(about if isinstance(about, dict) else fields)
    observations = fields.get("observations", trace.get("observations"))
    if observations is None:
        yield from _spans([fields], {}, skipped)
    elif isinstance(observations, list):
        yield from _spans(observations, trace, skipped)
    else:
        skipped["no observation"] += 1


def _spans(given: list[Any], trace: dict[str, Any], skipped: Counter[str]) -> Iterator[Span]:
    spans: list[Span] = []
    for each in given:
        span = _span(_snake(each), str(trace.get("id") or "")) if isinstance(each, dict) else None
        if span is None:
            skipped["no observation: it lacks ids or times"] += 1
        else:
            spans.append(span)
    if trace and spans:  # the enclosing trace, which is no observation itself
        first = min(each.start for each in spans)
        own, name = f"trace {spans[0].trace}", str(trace.get("name") or "")
        start = moment(trace.get("timestamp"))
        begun = first if start is None else min(start, first)
        top = Span(spans[0].trace, own, "", "agent", name, name, begun)
        ends = [each.end for each in spans]
        top.end = max((end for end in ends if end is not None), default=None)
        for each in spans:
            each.parent = each.parent or top.id
        yield top
    yield from spans


def _span(given: dict[str, Any], trace: str) -> Span | None:
    ids = [str(given.get(name) or "") for name in ("trace_id", "id", "parent_observation_id")]
    start, end = moment(given.get("start_time")), moment(given.get("end_time"))
    ids[0] = trace or ids[0]
    kind_there = str(given.get("type") or "").upper()
    if not ids[0] or not ids[1] or start is None:
        return None
    kind: Kind = _KINDS.get(kind_there, "other")
    name = str(given.get("name") or "")
    if kind == "model":
        name = str(given.get("model") or given.get("provided_model_name") or name)
    elif kind == "other":
        name = f"an observation of the type {kind_there or 'none'}"
    span = Span(ids[0], ids[1], ids[2], kind, name, name, start, end)
    asked, gave = given.get("input"), given.get("output")
    if kind == "tool":
        span.args = NOT_RECORDED if asked is None else structured(asked)
        span.result = NOT_RECORDED if gave is None else structured(gave)
        span.call_id = str(data_of(given.get("metadata")).get("tool_call_id") or "")
    if kind == "model":
        span.args = NOT_RECORDED if asked is None else conversation(asked)
        usage = _usage(given)
        span.answer = answered(gave, usage) if gave is not None or usage else None
    if given.get("level") == "ERROR":
        span.error = ("Error", str(given.get("status_message") or ""))
    return span


def _usage(given: dict[str, Any]) -> dict[str, int]:
    counted = data_of(given.get("usage_details")) or data_of(given.get("usage"))
    return {
        _USAGE[name]: n
        for name, n in counted.items()
        if name in _USAGE and type(n) is int and n >= 0
    }


def _snake(given: dict[str, Any]) -> dict[str, Any]:
    """Return fields by their names in files; the API writes them in camel case."""
    return {_CAPITAL.sub(r"_\1", str(name)).lower(): value for name, value in given.items()}
