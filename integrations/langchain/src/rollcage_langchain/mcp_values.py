"""Results of MCP tools in the form of langchain-mcp-adapters, from any framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcage_adapter import is_object, is_tuple, mcp_content

from rollcage_langchain.private import mcp_error

__all__ = ["of_mcp"]


def of_mcp(value: Any) -> Any:
    """Return content blocks and an artifact, the result of such a tool.

    Raises:
        ToolException: the tool failed.
    """
    if is_tuple(value):
        return value
    blocks = mcp_content(value, mcp_error)
    result: Any = value.get("result", value) if is_object(value) else None
    structured: Any = result.get("structuredContent") if is_object(result) else None
    artifact = None if structured is None else {"structured_content": structured}
    return [_block(each) for each in blocks], artifact


def _block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": str(block.get("text", ""))}
    if block["type"] == "image" and "data" in block:
        return {"type": "image", "base64": block["data"], "mime_type": block.get("mime_type")}
    return block
