"""A client's request: a call's arguments, and whether the server would read the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollcage import Contract

from rollcage_mcp.contracts import READS
from rollcage_mcp.errors import MessageInvalid, ServerError
from rollcage_mcp.messages import Message, check_unambiguous, text_result

__all__ = ["MORE", "arguments_of", "as_result", "check_names", "oddity"]

_ANSWERED: Final = READS | {"tools/call"}
_OF_CALLS: Final = ("name", "arguments", "_meta")
MORE: Final = "mcp:more"
"""The argument that holds the other parameters of a call."""


def arguments_of(message: Message) -> dict[str, Any]:
    """Return a tool call's arguments, with all other parameters for the server."""
    arguments = dict(message.params.get("arguments") or {})
    more = {name: each for name, each in message.params.items() if name not in _OF_CALLS}
    return {**arguments, MORE: more} if more else arguments


def check_names(arguments: Mapping[str, Any], contract: Contract) -> None:
    """Check that a server which ignores case would read the same arguments.

    Raises:
        ServerError: it would read other ones, and so do something else than the gate has seen.
    """
    more: Mapping[str, Any] = arguments.get(MORE) or {}
    for names, known in ((arguments, contract.takes.names), (more, _OF_CALLS)):
        folded = {each.casefold(): each for each in known}
        for each in names:
            other = folded.setdefault(each.casefold(), each)
            if each not in known and other != each:
                raise ServerError(-32602, f"{each!a} and {other!a} differ by capitals alone")


def oddity(message: Message) -> str:
    """Return why a client's message can't be accepted; empty if it can.

    Bytes that are passed on must mean the same to every reader, and a request must have an id, so
    that it can be answered.
    """
    method = "" if message.kind == "response" else message.method
    if message.kind == "notification" and method in _ANSWERED:
        return f"{method} is a request: it needs an id"
    alike = next(
        (each for each in _ANSWERED if each.casefold() == method.strip().casefold()), method
    )
    if method not in _ANSWERED and alike != method:
        return f"there is no method {method!a}: it is called {alike}"
    if method != "tools/call":  # only its gated arguments are sent
        try:
            check_unambiguous(message)
        except MessageInvalid as error:
            return str(error)
    return ""


def as_result(response: Any) -> dict[str, Any]:
    """Return a person's answer in the tool's place, as the tool's result."""
    text = response if isinstance(response, str) else repr(response)
    return {"result": text_result(text)}
