"""The attributes of calls in spans; their content only if it is switched on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import orjson
from rollcage import StepEvent

from rollcage_otel import names

__all__ = [
    "Attributes",
    "captures_content",
    "content",
    "error_message",
    "gen_ai",
    "operation",
    "outcome",
    "own",
    "same_operation",
]

_CAPTURES: Final = {"1", "true", "span_only", "span_and_event"}
_VERDICT: Final = {"decision": names.DECISION, "rule": names.RULE, "code": names.VERDICT_CODE}
_WRITTEN: Final = {  # fields of an event
    "fingerprint": names.FINGERPRINT,
    "approved_by": names.APPROVED_BY,
}
_OPENINFERENCE: Final = {"execute_tool": "TOOL", "chat": "LLM", "invoke_agent": "AGENT"}

Attributes = dict[str, str | int | bool]


def captures_content() -> bool:
    """Return whether the environment allows arguments and results in spans.

    The variable has the same meaning for other instrumentations.
    """
    return os.environ.get(names.CAPTURE_CONTENT, "").strip().lower() in _CAPTURES


def operation(event: StepEvent) -> str:
    """Return the operation of a call in the conventions; a tool that is an agent is that agent."""
    if event.kind == "model":
        return "chat"
    return "invoke_agent" if event.effect == "scope" else "execute_tool"


def same_operation(given: Mapping[str, Any], wanted: str, name: str) -> bool:
    """Return whether the attributes of a foreign span describe this very call."""
    named = given.get(names.TOOL_NAME) or given.get("tool.name") or given.get(names.AGENT_NAME)
    if wanted != "chat" and named != name:
        return False
    kind = given.get("openinference.span.kind")
    return given.get(names.OPERATION) == wanted or kind == _OPENINFERENCE[wanted]


def own(event: StepEvent) -> Attributes:
    """Return Rollcage's attributes of a call that begins, is blocked, or was replayed."""
    found: dict[str, Any] = {
        names.RUN: event.run,
        names.STEP: event.step or None,
        names.KIND: event.kind,
        names.EFFECT: event.effect,
        names.BRANCH: event.branch,
        names.APPROVAL: event.approval,
        names.SIMULATED: event.simulated,
    }
    found |= {attribute: event.get(field) for field, attribute in _WRITTEN.items()}
    if event.verdict is not None:
        found |= {attribute: event.verdict.get(field) for field, attribute in _VERDICT.items()}
    if event.origin is not None:
        found[names.ORIGIN_RUN], found[names.ORIGIN_STEP] = event.origin
    return _without_empty(found)


def gen_ai(event: StepEvent) -> Attributes:
    """Return the attributes of a call in the conventions."""
    asked = operation(event)
    found: dict[str, Any] = {
        names.OPERATION: asked,
        names.CONVERSATION: event.get("conversation"),
        names.AGENT_NAME: event.name if asked == "invoke_agent" else event.agent,
    }
    if asked == "chat":
        found[names.MODEL] = event.name
    else:
        found |= {names.TOOL_NAME: event.name, names.TOOL_TYPE: "function"}
        found[names.CALL_ID] = event.call_id
    return _without_empty(found)


def outcome(event: StepEvent) -> Attributes:
    """Return the tokens that a call used; a hit uses none."""
    if event.what != "settled" or event.usage is None:
        return {}
    used = {"input_tokens": names.INPUT_TOKENS, "output_tokens": names.OUTPUT_TOKENS}
    return {used[what]: count for what, count in event.usage.items() if what in used}


def content(event: StepEvent) -> Attributes:
    """Return the arguments of a call, and its result, as far as the trace holds them."""
    written = event.data()
    arguments, ended = written.get("args"), written.get("outcome") or {}
    answer, found = ended.get("answer") or {}, dict[str, Any]()
    if event.kind == "model" and arguments is not None:
        messages = arguments.get("messages")
        given = messages if isinstance(messages, list) else [_json(arguments)]
        found[names.INPUT_MESSAGES] = _json([_message(each) for each in given])
    elif arguments is not None:
        found[names.ARGUMENTS] = _json(arguments)
    if "text" in answer or "tool_calls" in answer:
        parts = [{"type": "text", "content": answer["text"]}] if answer.get("text") else []
        parts += [{"type": "tool_call", **each} for each in answer.get("tool_calls", ())]
        found[names.OUTPUT_MESSAGES] = _json([{"role": "assistant", "parts": parts}])
    elif "value" in ended:
        found[names.RESULT] = _json(ended["value"])
    return found


def error_message(event: StepEvent) -> str:
    """Return the message of a call's error, which is content too."""
    error = (event.data().get("outcome") or {}).get("error") or {}
    return str(error.get("message", ""))


def _message(given: Any) -> dict[str, Any]:
    """Return a message in the form of the conventions."""
    fields = given if isinstance(given, dict) else {"content": given}
    text = fields.get("content", "")
    part = {"type": "text", "content": text if isinstance(text, str) else _json(text)}
    return {"role": fields.get("role", "user"), "parts": [part]}


def _without_empty(found: dict[str, Any]) -> Attributes:
    return {name: value for name, value in found.items() if value not in (None, "", False)}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
