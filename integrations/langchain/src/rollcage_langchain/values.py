"""LangChain's own values in a trace: neutral data from which each comes back as itself.

A closed set of types, revived from plain data by their own validating constructors. Nothing is
pickled, and LangChain's `load()`, which makes whatever class the data name, is not used.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, cast

import pydantic
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.types import Command, Send
from rollcage.adapter import Parts, is_list, is_object, is_tuple, register_parts
from rollcage.trace import register_native

__all__ = ["register", "role_of"]

_ROLES: Final = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "remove": "remove",
}
_MESSAGES: Final[tuple[type[BaseMessage], ...]] = (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
_BY_TYPE: Final[dict[str, type[BaseMessage]]] = {
    cls.model_fields["type"].default: cls for cls in _MESSAGES
}
# What a reader without LangChain wants of a message, by LangChain's name and by ours.
_SHARED: Final = {
    "content": "content",
    "name": "name",
    "tool_calls": "tool_calls",
    "tool_call_id": "tool_call_id",
    "usage_metadata": "usage",
}
_OWN: Final = "langchain"


class _Messages:
    """Messages: role, content, tool calls and usage; under `langchain`, what only it knows."""

    name = "langchain.message"
    portable = True

    def project(self, value: BaseMessage) -> dict[str, Any]:
        kind = value.type
        shared: dict[str, Any] = {"role": role_of(value), "content": value.content}
        own: dict[str, Any] = {"type": kind}
        for name, field in type(value).model_fields.items():
            each = getattr(value, name)
            if name in ("type", "content") or each == field.get_default(call_default_factory=True):
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
    """What providers put beside a message, with the models that they parse an answer into as data.

    LangChain makes the model of the data again.
    """
    parsed = kwargs.get("parsed")
    if not isinstance(parsed, pydantic.BaseModel):
        return kwargs
    return {**kwargs, "parsed": parsed.model_dump(mode="json", by_alias=True)}


def role_of(message: BaseMessage) -> str:
    """The name that everybody uses for who says a message."""
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


def _send_parts(value: Send) -> dict[str, Any]:
    # A timeout is newer than the oldest LangGraph we work with.
    return {"node": value.node, "arg": value.arg, "timeout": getattr(value, "timeout", None)}


def _send(*, node: Any, arg: Any = None, **more: Any) -> Send:
    if not isinstance(node, str):
        raise ValueError("a Send names its node")
    return Send(node, arg, **more)


def _document(*, text: Any, metadata: Any, id: Any = None) -> Document:  # noqa: A002 - its name
    return Document(page_content=text, metadata=metadata, id=id)


def _generation_parts(value: ChatGeneration) -> dict[str, Any]:
    return {"message": value.message, "info": value.generation_info}


def _generation(cls: type[ChatGeneration], *, message: Any, info: Any = None) -> ChatGeneration:
    return cls(message=message, generation_info=info)


def _result(*, generations: Any, info: Any = None) -> ChatResult:
    return ChatResult(generations=generations, llm_output=info)


@functools.cache
def register() -> None:
    """Teach the trace LangChain's types. Once is enough."""
    register_native(_MESSAGES, _Messages())
    register_parts(
        {
            Document: Parts(
                "langchain.document",
                lambda v: {"text": v.page_content, "metadata": v.metadata, "id": v.id},
                _document,
            ),
            Command: Parts("langchain.command", _command_parts, _command, portable=False),
            Send: Parts("langchain.send", _send_parts, _send, portable=False),
            ChatResult: Parts(
                "langchain.result",
                lambda v: {"generations": v.generations, "info": v.llm_output},
                _result,
            ),
            ChatGeneration: Parts(
                "langchain.generation",
                _generation_parts,
                functools.partial(_generation, ChatGeneration),
            ),
            ChatGenerationChunk: Parts(
                "langchain.chunk",
                _generation_parts,
                functools.partial(_generation, ChatGenerationChunk),
            ),
        }
    )
