"""Bring a model's question into a form that is equal for equal questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from operator import call as call_with
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, ToolMessage
from rollcage_adapter import CallNumbers, MessageForm, Signature, model_options

from rollcage_langchain.values import role_of

__all__ = ["ASKED", "FORM", "asked_besides"]

ASKED: Final = Signature(("messages", "stop", "run_manager"), frozenset({"run_manager"}))
"""The forms in which every model of LangChain is called."""

# the way an answer is delivered is no part of the question
_VOLATILE: Final = frozenset({"stream"})

Fields = dict[str, Any]


def asked_besides(stop: Sequence[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model call besides its messages."""
    asked = {name: each for name, each in options.items() if name not in _VOLATILE}
    return model_options(stop=stop, options=asked)


class _Form(MessageForm):
    """Bring messages into canonical form, without the ids, usage, metadata and artifacts.

    No model sees those. The ids of tool calls become numbers.
    """

    def parts(self, messages: Sequence[BaseMessage]) -> list[Any]:
        reads = map(_PARTS.__getitem__, map(type, messages))
        return list(map(_CALL, reads, map(_FIELDS, messages)))

    def canonical(self, message: BaseMessage, calls: CallNumbers) -> dict[str, Any]:
        asked: dict[str, Any] = {"role": role_of(message)}
        if message.name:
            asked["name"] = message.name
        if isinstance(message, AIMessage):
            issued = [
                calls.issued(call["name"], call["args"], call["id"])
                for call in (*message.tool_calls, *message.invalid_tool_calls)
            ]
            if issued:
                asked["tool_calls"] = issued
        elif isinstance(message, ToolMessage):
            asked["call"] = calls.of(message.tool_call_id)
            if message.status != "success":
                asked["status"] = message.status
        asked["content"] = calls.within(message.content)
        return asked


class _Parts(dict[type[BaseMessage], Callable[[Fields], Any]]):
    """Hold, by class of messages, a function that reads the fields that `canonical` reads."""

    def __missing__(self, kind: type[BaseMessage]) -> Callable[[Fields], Any]:
        names = ["type", "name", "content"]
        if issubclass(kind, AIMessage):
            names += ["tool_calls", "invalid_tool_calls"]
        elif issubclass(kind, ToolMessage):
            names += ["tool_call_id", "status"]
        elif issubclass(kind, ChatMessage):
            names += ["role"]
        self[kind] = found = itemgetter(*names)
        return found


_PARTS: Final = _Parts()
_FIELDS: Final = attrgetter("__dict__")
_CALL: Final[Any] = call_with  # with one argument; type checkers take it for another function

FORM: Final = _Form()
"""Takes messages of LangChain apart."""
