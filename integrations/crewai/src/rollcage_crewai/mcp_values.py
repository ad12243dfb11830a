"""Results of MCP tools as CrewAI's own tools give them, whichever framework recorded them."""

from __future__ import annotations

from typing import Any, Final

from crewai.tools.tool_failure import ToolFailure, ToolFailureReason
from rollcage_adapter import mcp_blocks

__all__ = ["is_mcp", "mcp_failed", "mcp_text"]

_KINDS: Final = {"CrewAIMCPTool", "MCPNativeTool", "MCPToolWrapper"}


def is_mcp(tool: Any) -> bool:
    """Whether it is one of CrewAI's tools of MCP servers."""
    return any(each.__name__ in _KINDS for each in type(tool).__mro__)


def mcp_text(value: Any) -> Any:
    """The text of content blocks; of anything else, that itself."""
    blocks = None if isinstance(value, (str, ToolFailure)) else mcp_blocks(value)
    if blocks is None:
        return value
    return "\n".join(
        str(each["text"]) if "text" in each else f"[{each['type']}: {each.get('mime_type', '')}]"
        for each in blocks
    )


def mcp_failed(text: str, tool: str) -> ToolFailure:
    """What CrewAI's own tools give where a server calls a result an error."""
    return ToolFailure(message=text, reason=ToolFailureReason.MCP_ERROR, details={"tool": tool})
