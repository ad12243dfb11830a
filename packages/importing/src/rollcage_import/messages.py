"""Messages of a model in the common forms, and the answer in them.

The forms: the conventions of OpenTelemetry (`parts`), OpenAI's, Anthropic's blocks, LangChain's (as
it dumps them, or as data), and OpenInference's, whose names are dotted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from rollcage_adapter import Answer, ToolRequest

from rollcage_import.spans import data_of, structured

__all__ = ["answered", "conversation"]

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_TEXTS: Final = ("content", "text", "input_text", "output_text")
_CALLS: Final = frozenset({"tool_call", "tool_use", "function_call"})


def conversation(given: Any) -> list[dict[str, Any]]:
    """Return the messages to a model; for any other value, one message of the user."""
    found = structured(given)
    if isinstance(found, dict):
        found = next(
            (found[name] for name in ("messages", "prompts", "input") if name in found), found
        )
    found = structured(found)
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        found = found[0]  # LangChain sends batches: a batch of one
    if not isinstance(found, list):
        found = [found]
    return [_message(each) for each in found]


def answered(given: Any, usage: Mapping[str, int] | None = None, finish: str = "") -> Answer:
    """Return a model's answer.

    Args:
        given: the answer's messages, or one, in any of the forms, or its text.
        usage: the tokens, as `input_tokens` and `output_tokens`.
        finish: the finish reason.
    """
    messages = conversation(given)
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    return Answer(
        text="".join(each["content"] for each in messages if isinstance(each["content"], str)),
        tool_calls=tuple(
            ToolRequest(each["name"], each["arguments"], each["id"]) for each in calls
        ),
        finish_reason=finish,
        usage=usage or None,
    )


def _message(given: Any) -> dict[str, Any]:
    if isinstance(given, list) and len(given) == 2 and isinstance(given[0], str):
        given = {"role": given[0], "content": given[1]}  # LangChain's short form
    if not isinstance(given, dict):
        return {"role": "user", "content": given if isinstance(given, str) else _text(given)}
    fields = _plain(given)
    role = str(fields.get("role") or fields.get("type") or "user")
    content, calls = _content(fields.get("parts", fields.get("content")))
    calls += _calls(fields.get("tool_calls")) or _calls(
        data_of(fields.get("additional_kwargs")).get("tool_calls")
    )
    message: dict[str, Any] = {"role": _ROLES.get(role, role), "content": content}
    if calls:
        message["tool_calls"] = calls
    if fields.get("tool_call_id"):
        message["tool_call_id"] = str(fields["tool_call_id"])
    return message


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message, without its writer's wrappers."""
    if "lc" in given:
        given = data_of(given.get("kwargs"))
    elif isinstance(given.get("message"), dict):  # a generation, a choice
        return _plain(given["message"])
    elif isinstance(given.get("data"), dict) and "type" in given:
        given = {"type": given["type"], **given["data"]}
    return {name.removeprefix("message."): value for name, value in given.items()}


def _content(given: Any) -> tuple[Any, list[dict[str, str]]]:
    """Return the text of a message, or its data if it is more than text; and the calls in it."""
    if given is None or isinstance(given, str):
        return given or "", []
    if not isinstance(given, list):
        return given, []
    texts: list[str] = []
    rest: list[Any] = []
    calls: list[dict[str, str]] = []
    for part in given:
        fields = data_of(part.get("message_content", part)) if isinstance(part, dict) else {}
        text = next((fields[name] for name in _TEXTS if isinstance(fields.get(name), str)), part)
        if fields.get("type") in _CALLS:
            calls += _calls([fields])
        elif isinstance(text, str):
            texts.append(text)
        else:
            rest.append(part)
    return (rest if rest and not texts else "".join(texts), calls)


def _calls(given: Any) -> list[dict[str, str]]:
    found = structured(given)
    return (
        [_call(each) for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    )


def _call(given: dict[str, Any]) -> dict[str, str]:
    fields = {name.removeprefix("tool_call."): value for name, value in given.items()}
    fields |= {name.removeprefix("function."): value for name, value in fields.items()}
    fields |= data_of(fields.get("tool_call")) | data_of(fields.get("function"))
    named = _first(fields, ("name", "toolName"))
    arguments = _first(fields, ("arguments", "args", "input"))
    call_id = _first(fields, ("id", "toolCallId", "call_id"))
    return {
        "name": str(named or ""),
        "arguments": arguments if isinstance(arguments, str) else _text(arguments or {}),
        "id": str(call_id or ""),
    }


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
