"""LangChain's own values in a trace: neutral data from which each is restored.

A closed set of types, restored from plain data by their own validating constructors. Nothing is
pickled, and LangChain's `load()`, which makes any class that the data name, is not used.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final, TypeGuard, cast

import pydantic
from langchain_core import messages
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ChatMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.types import Command, Send
from rollcage.session.adapters import register_native
from rollcage_adapter import Parts, is_list, is_model_class, is_object, is_tuple, register_parts

__all__ = ["THIS_CALL", "register", "relabel", "role_of"]

_ROLES: Final = {"human": "user", "ai": "assistant"}  # other roles have the common name
_EXPORTED: Final[list[Any]] = [getattr(messages, name) for name in messages.__all__]
_BY_TYPE: Final[dict[str, type[BaseMessage]]] = {
    each.model_fields["type"].default: each
    for each in _EXPORTED
    if is_model_class(each) and issubclass(each, BaseMessage)
    if isinstance(each.model_fields["type"].default, str)
}
# The fields of a message for readers without LangChain, by LangChain's name and by ours.
_SHARED: Final = {
    "content": "content",
    "name": "name",
    "tool_calls": "tool_calls",
    "tool_call_id": "tool_call_id",
    "usage_metadata": "usage",
}
_OWN: Final = "langchain"


@functools.lru_cache(maxsize=64)
def _defaults(kind: type[BaseMessage]) -> dict[str, Any]:
    """Return the default of each field, for comparison: making them takes long."""
    fields = kind.model_fields.items()
    return {name: field.get_default(call_default_factory=True) for name, field in fields}


class _Messages:
    """Messages: role, content, tool calls and usage; under `langchain`, data for LangChain only."""

    name = "langchain.message"
    portable = True

    def project(self, value: BaseMessage) -> dict[str, Any]:
        kind = value.type
        shared: dict[str, Any] = {"role": role_of(value), "content": value.content}
        own: dict[str, Any] = {"type": kind}
        for name, default in _defaults(type(value)).items():
            each = getattr(value, name)
            if name in ("type", "content") or each == default:
                continue
            if name in _SHARED:
                shared[_SHARED[name]] = each
            elif name == "additional_kwargs":
                own[name] = _as_data(each)
            else:
                own[name] = each
        own |= value.model_extra or {}
        return {**shared, _OWN: own}

    def revive(self, data: Any) -> BaseMessage:
        shared = _an_object(data)
        fields = dict(_an_object(shared.get(_OWN)))
        kind = fields.pop("type", None)
        cls = _BY_TYPE.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise ValueError(f"no message of LangChain is called {kind!r}")
        fields |= {theirs: shared[ours] for theirs, ours in _SHARED.items() if ours in shared}
        return cls(**fields)


def _as_data(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a provider's further data of a message; parsed answers, as data.

    LangChain makes the model from the data again.
    """
    parsed = kwargs.get("parsed")
    if not isinstance(parsed, pydantic.BaseModel):
        return kwargs
    return {**kwargs, "parsed": parsed.model_dump(mode="json", by_alias=True)}


def role_of(message: BaseMessage) -> str:
    """Return the common name of a message's role."""
    if isinstance(message, ChatMessage):
        return message.role
    kind = message.type.removesuffix("MessageChunk").lower()
    return _ROLES.get(kind, kind)


def _an_object(data: Any) -> Mapping[str, Any]:
    if not is_object(data):
        raise ValueError("a recorded value of LangChain is an object")
    return {str(name): each for name, each in data.items()}


def _command(
    *, update: Any = None, goto: Any = (), graph: Any = None, resume: Any = None
) -> Command[Any]:
    places: list[Any] = [*goto] if is_list(goto) or is_tuple(goto) else [goto]
    if not all(isinstance(each, (str, Send)) for each in places):
        raise ValueError("a Command goes to nodes: by name, or by Send")
    if not isinstance(graph, str | None):
        raise ValueError("a Command names its graph")
    return Command(graph=graph, update=update, goto=cast("Any", goto), resume=resume)


def _command_parts(value: Command[Any]) -> dict[str, Any]:
    goto = None if value.goto == () else value.goto
    return {"update": value.update, "goto": goto, "graph": value.graph, "resume": value.resume}


def _send(*, node: Any, arg: Any = None, **more: Any) -> Send:
    if not isinstance(node, str):
        raise ValueError("a Send names its node")
    return Send(node, arg, **more)


@functools.cache
def register() -> None:
    """Register LangChain's types for the trace. Once is enough."""
    register_native(_BY_TYPE.values(), _Messages())
    take, generation = Parts.of_attributes, {"message": "message", "info": "generation_info"}
    document = {"text": "page_content", "metadata": "metadata", "id": "id"}
    # A timeout is newer than the oldest supported LangGraph.
    send = {"node": "node", "arg": "arg", "timeout": "timeout"}
    result = {"generations": "generations", "info": "llm_output"}
    register_parts(
        {
            Document: take("langchain.document", Document, document),
            Command: Parts("langchain.command", _command_parts, _command, portable=False),
            Send: take("langchain.send", _send, send, portable=False),
            ChatResult: take("langchain.result", ChatResult, result),
            ChatGeneration: take("langchain.generation", ChatGeneration, generation),
            ChatGenerationChunk: take("langchain.chunk", ChatGenerationChunk, generation),
        }
    )


# --- the id of a call inside of its tool's result ------------------------------------------------

THIS_CALL: Final = "(this call)"
"""The recorded form of the id with which a tool's own message names its call."""
_ANSWERS: Final = (ToolMessage, Command)


def relabel(value: Any, old: str, new: str) -> Any:
    """Return a value in which a tool's own messages answer call `new` instead of `old`.

    Looks into a `ToolMessage`, a `Command` or a list of them; other values are unchanged.
    """
    given = value if is_list(value) else [value]
    answers = old and new and any(isinstance(each, _ANSWERS) for each in given)
    return _relabel(value, old, new) if answers else value


def _is_command(value: Any) -> TypeGuard[Command[Any]]:
    return isinstance(value, Command)


def _relabel(value: Any, old: str, new: str) -> Any:
    if isinstance(value, ToolMessage):
        same = value.tool_call_id != old
        return value if same else value.model_copy(update={"tool_call_id": new})
    if _is_command(value):
        return dataclasses.replace(value, update=_relabel(value.update, old, new))
    if is_object(value):
        return {name: _relabel(each, old, new) for name, each in value.items()}
    if is_list(value):
        return [_relabel(each, old, new) for each in value]
    return tuple(_relabel(each, old, new) for each in value) if is_tuple(value) else value
