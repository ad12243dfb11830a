"""AutoGen's own values in a trace: neutral data from which each is restored.

A closed set of types, restored from plain data by their own validating constructors.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, Final

from autogen_core import Image
from autogen_core.models import CreateResult
from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult
from rollcage.session.adapters import register_native
from rollcage_adapter import Parts, is_list, is_object, register_parts

__all__ = ["Piece", "last_piece", "register", "register_messages"]

_OWN: Final = "autogen"


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a streaming tool's output; the last one is the result.

    It distinguishes a recorded stream from a result that is a list.
    """

    value: Any = None


def last_piece(value: Any) -> Any:
    """Return the result of a recorded stream; any other value unchanged."""
    if is_list(value) and value and all(isinstance(each, Piece) for each in value):
        return value[-1].value
    return value


def _tool_result_parts(value: ToolResult) -> dict[str, Any]:
    content = [
        {"type": "text", "text": each.content}
        if isinstance(each, TextResultContent)
        else {"type": "image", "data": each.content.to_base64(), "mime_type": "image/png"}
        for each in value.result
    ]
    return {"content": content, "is_error": value.is_error, _OWN: {"name": value.name}}


def _tool_result(*, content: Any, is_error: Any, autogen: Any) -> ToolResult:
    blocks = [
        TextResultContent(content=each["text"])
        if each["type"] == "text"
        else ImageResultContent(content=Image.from_base64(each["data"]))
        for each in content
    ]
    return ToolResult(name=autogen["name"], result=blocks, is_error=is_error)


def _image(*, data: Any, mime_type: Any = None) -> Image:  # noqa: ARG001 - for other readers
    return Image.from_base64(data)


@functools.cache
def register() -> None:
    """Register the types of autogen-core for the trace. Once is enough."""
    register_parts(
        {
            Piece: Parts.of_attributes("autogen.piece", Piece, {"value": "value"}),
            CreateResult: Parts.of_model("autogen.create_result", CreateResult, exclude_none=True),
            ToolResult: Parts("autogen.tool_result", _tool_result_parts, _tool_result),
            Image: Parts(
                "autogen.image",
                lambda v: {"data": v.to_base64(), "mime_type": "image/png"},
                _image,
            ),
        }
    )


# --- messages of agents --------------------------------------------------------------------------


class _Messages:
    """Messages and events: source and content; under `autogen`, data for AutoGen only."""

    name = "autogen.message"
    portable = True

    def __init__(self, types: dict[str, Any]) -> None:
        self._types = types

    def project(self, value: Any) -> dict[str, Any]:
        parts = value.model_dump(mode="json", exclude_none=True)
        shared = {name: parts.pop(name) for name in ("source", "content") if name in parts}
        return {**shared, _OWN: parts}

    def revive(self, data: Any) -> Any:
        own: Any = data.get(_OWN) if is_object(data) else None
        kind: Any = own.get("type") if is_object(own) else None
        cls = self._types.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise ValueError(f"no message of AutoGen is called {kind!r}")
        shared = {name: each for name, each in data.items() if name != _OWN}
        return cls.model_validate({**own, **shared})


def register_messages() -> None:
    """Register the types of autogen-agentchat for the trace, when it has been imported."""
    if "autogen_agentchat.messages" in sys.modules and "autogen_agentchat.base" in sys.modules:
        _register_messages()


@functools.cache
def _register_messages() -> None:
    from autogen_agentchat import messages
    from autogen_agentchat.base import TaskResult

    bases = (messages.BaseAgentEvent, messages.BaseChatMessage)
    types: dict[str, Any] = {
        name: each
        for name, each in vars(messages).items()
        if isinstance(each, type) and issubclass(each, bases) and "type" in each.model_fields
        if each.model_fields["type"].default == name
    }
    register_native(types.values(), _Messages(types))
    parts = {"messages": "messages", "stop_reason": "stop_reason"}
    register_parts({TaskResult: Parts.of_attributes("autogen.task_result", TaskResult, parts)})
