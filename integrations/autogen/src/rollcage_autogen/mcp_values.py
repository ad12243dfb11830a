"""Results of MCP tools in the form of autogen-ext, from any framework."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from typing import Any

import pydantic
from rollcage_adapter import Parts, is_list, mcp_content, register_parts

__all__ = ["is_mcp_tool", "protocol_blocks", "register_content"]


def is_mcp_tool(tool: Any) -> bool:
    """Return whether a tool is autogen-ext's, of an MCP server."""
    adapters = [each.__name__ for each in type(tool).__mro__]
    return "mcp.types" in sys.modules and "McpToolAdapter" in adapters


@functools.cache
def register_content() -> None:
    """Register the results of such tools for the trace: the protocol's own content blocks."""
    from mcp import types

    blocks: dict[str, type[pydantic.BaseModel]] = {
        "text": types.TextContent,
        "image": types.ImageContent,
        "audio": types.AudioContent,
        "resource_link": types.ResourceLink,
        "resource": types.EmbeddedResource,
    }
    register_parts(
        {
            kind: Parts.of_model(f"autogen.mcp_{name}", kind, by_alias=True, exclude_none=True)
            for name, kind in blocks.items()
        }
    )


def protocol_blocks(value: Any) -> Any:
    """Return content blocks of the protocol, also for a text or blocks of another framework.

    Raises:
        Exception: the tool failed, as autogen-ext says it.
    """
    if is_list(value) and all(isinstance(each, pydantic.BaseModel) for each in value):
        return value
    blocks = mcp_content(value, Exception)  # the same error as autogen-ext's
    from mcp.types import ContentBlock

    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(list[ContentBlock])
    return adapter.validate_python([_protocol(each) for each in blocks])


def _protocol(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block["type"] == "image" and "data" in block:
        return {"type": "image", "data": block["data"], "mimeType": block.get("mime_type") or ""}
    if block["type"] in ("text", "audio", "resource", "resource_link"):
        return block
    return {"type": "text", "text": json.dumps(block)}
