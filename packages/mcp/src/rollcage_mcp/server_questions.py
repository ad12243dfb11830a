"""Questions of a server to the person at the client, marked as the server's.

The client shows them in the same dialog as the proxy's own requests for approval. So the first line
of each says who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from rollcage_views import visible

from rollcage_mcp.errors import MessageInvalid
from rollcage_mcp.messages import Message, as_answer, as_request, check_unambiguous

__all__ = ["marked_request", "marked_response"]

_QUESTION: Final = "elicitation/create"
_INPUTS: Final = "inputrequests"


def marked_request(message: Message, name: str) -> Message:
    """Mark a server's message if it is a question to the person.

    Args:
        message: the message.
        name: the server's name in the user's configuration.
    """
    if message.kind != "request":
        return message
    if _is_question(message.method):
        return as_request(message.id, message.method, _marked(message.params, name))
    try:
        check_unambiguous(message)
    except MessageInvalid:  # some clients would read another method in its bytes
        return as_request(message.id, message.method, message.params)
    return message


def marked_response(message: Message, name: str) -> Message:
    """Mark the questions in a server's answer that requires input of the person."""
    result: Any = message.data.get("result")
    if not isinstance(result, dict):
        return message
    fields = cast("Mapping[str, Any]", result)
    asking = {word: each for word, each in fields.items() if word.casefold() == _INPUTS}
    if not asking:
        return message
    marked = {word: _marked_inputs(each, name) for word, each in asking.items()}
    return as_answer(message.id, {**fields, **marked})


def _marked_inputs(inputs: Any, name: str) -> Any:
    if not isinstance(inputs, dict):
        return inputs
    return {word: _marked_input(each, name) for word, each in inputs.items()}


def _marked_input(asked: Any, name: str) -> Any:
    if not isinstance(asked, dict):
        return asked
    fields = cast("Mapping[str, Any]", asked)
    # Some clients ignore case: a word under any spelling is read.
    methods = [each for word, each in fields.items() if word.casefold() == "method"]
    if not any(isinstance(each, str) and _is_question(each) for each in methods):
        return asked
    found = [each for word, each in fields.items() if word.casefold() == "params"]
    params: Any = found[-1] if found else {}
    rest = {word: each for word, each in fields.items() if word.casefold() != "params"}
    return {**rest, "params": _marked(params if isinstance(params, dict) else {}, name)}


def _marked(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = [str(each) for word, each in params.items() if word.casefold() == "message"]
    rest = {word: each for word, each in params.items() if word.casefold() != "message"}
    lines = [visible(line) for each in given for line in each.split("\n")]
    who = f"The server {visible(name)}" if name else "The server"
    return {**rest, "message": "\n".join([f"{who} asks, not Rollcage:", *lines])}


def _is_question(method: str) -> bool:
    return method.strip().casefold() == _QUESTION
