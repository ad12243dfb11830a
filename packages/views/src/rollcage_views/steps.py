"""A step in a few words: the call, its outcome, a model's answer and the tools that it called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from rollcage_views.runs import Step
from rollcage_views.text import arguments_text, value_text, visible
from rollcage_views.values import items_of, mapping_of

__all__ = ["answer_text", "call_text", "outcome_text", "state_text"]

_LONGEST: Final = 4000  # characters of a model's answer that are read
_CALLS: Final = 20  # calls of one answer that are listed


def state_text(step: Step) -> str:
    """Return the state of a step, and whether it was undone since."""
    text = step.state.replace("_", " ")
    if step.state == "hit" and step.outcome is not None and step.outcome["status"] != "ok":
        text += f" ({step.outcome['status']})"
    return ", ".join([text, *_marks(step)])


def _marks(step: Step) -> Iterator[str]:
    """Yield the further states of a step."""
    if step.rolled:
        yield "rolled back"
    elif step.undone in ("verified", "compensated"):
        yield "undone"
    if step.once is not None:
        yield "once"
    if step.answered:
        yield "answered"
    if step.unclear:
        yield "unclear"
    if step.accepted:
        yield "accepted"
    if step.gone == "again":
        yield f"again as {step.replacement}"
    elif step.gone == "moved":
        yield "moved"
    elif step.gone == "left":
        yield "left behind"
    if step.assumed:
        yield "assumed"


def call_text(step: Step) -> str:
    """Return the arguments of a call; for a model, its last message, and a count of the others."""
    messages = items_of(step.args.get("messages")) if step.kind == "model" else None
    if not messages:
        return arguments_text(step.args)
    last = mapping_of(messages[-1]) or {}
    role = f"{visible(str(last['role']))}: " if isinstance(last.get("role"), str) else ""
    earlier = f"({len(messages) - 1} earlier) " if len(messages) > 1 else ""
    return f"{earlier}{role}{_content_text(last.get('content'))}"


def answer_text(step: Step) -> str | None:
    """Return a model's answer and the tools that it called; None if it is not recorded."""
    answer = mapping_of((step.outcome or {}).get("answer"))
    if step.kind != "model" or answer is None:
        return None
    text = answer.get("text")
    shown = [value_text(text)] if isinstance(text, str) and text else []
    calls = [mapping_of(each) or {} for each in items_of(answer.get("tool_calls")) or []]
    if calls:
        asked = ", ".join(map(_asked_text, calls[:_CALLS]))
        shown.append(f"→ {asked}" + (", …" if len(calls) > _CALLS else ""))
    return " ".join(shown) or '""'


def outcome_text(step: Step) -> str:
    """Return the result of a step, or its error, as one line."""
    if step.state == "blocked" and step.verdict is not None:
        return f"{visible(step.verdict['code'])}: {visible(step.verdict['reason'])}"
    outcome = step.outcome or {}
    shown = ""
    if outcome.get("status") == "ok":
        given = answer_text(step)
        shown = _drift_text(outcome.get("drift"))
        shown += value_text(outcome.get("value")) if given is None else given
    elif outcome.get("error"):
        error = outcome["error"]
        shown = f"{visible(str(error.get('type')))}: {visible(str(error.get('message')))}"
    if step.happened is not None:
        found = value_text(step.happened.get("value"))
        shown = f"{shown}; it happened, and gave {found}".lstrip("; ")
    if step.resolved_by:
        shown = f"{shown} (resolved by {visible(step.resolved_by)})".lstrip()
    if step.unreplayable:
        shown = f"not replayable: {visible(step.unreplayable)}; {shown}"
    if step.undeclared:
        shown = f"undeclared: {visible(', '.join(step.undeclared))}; {shown}"
    return shown


def _drift_text(drift: dict[str, Any] | None) -> str:
    """Return how an output breaks its contract, as a prefix of the output."""
    if drift is None:
        return ""
    reported = ", reported only" if drift.get("reported") else ""
    return f"{visible(drift['code'])} at {visible(drift['path'])}{reported}: "


def _asked_text(call: dict[str, Any]) -> str:
    """Return a tool that a model requested; the JSON of its arguments is the model's own."""
    given = call.get("arguments", call.get("args"))
    if isinstance(given, str):
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError:
            given = {"": given}
    arguments = mapping_of(given)
    arguments_shown = arguments_text(arguments) if arguments is not None else value_text(given)
    return f"{visible(str(call.get('name', '?')))}({arguments_shown})"


def _content_text(content: Any) -> str:
    """Return the text of a message, or the texts of its parts."""
    parts = [mapping_of(each) or {} for each in items_of(content) or []]
    texts = [each["text"] for each in parts if isinstance(each.get("text"), str)]
    return value_text(" ".join(texts)[:_LONGEST]) if texts else value_text(content)
