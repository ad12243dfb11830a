"""Results of MCP tools in the form of CrewAI's own tools, from any framework."""

from __future__ import annotations

from typing import Any, Final

from crewai.tools.tool_failure import ToolFailure, ToolFailureReason
from rollcage_adapter import mcp_blocks

__all__ = ["is_mcp", "mcp_failed", "mcp_text"]

_KINDS: Final = {"CrewAIMCPTool", "MCPNativeTool", "MCPToolWrapper"}


def is_mcp(tool: Any) -> bool:
    """Return whether a tool is CrewAI's, of an MCP server."""
    return any(each.__name__ in _KINDS for each in type(tool).__mro__)


def mcp_text(value: Any) -> Any:
    """Return the text of content blocks; any other value unchanged."""
    blocks = None if isinstance(value, (str, ToolFailure)) else mcp_blocks(value)
    if blocks is None:
        return value
    return "\n".join(
        str(each["text"]) if "text" in each else f"[{each['type']}: {each.get('mime_type', '')}]"
        for each in blocks
    )


def mcp_failed(text: str, tool: str) -> ToolFailure:
    """Return the failure of CrewAI's own tools for a server's error result."""
    return ToolFailure(message=text, reason=ToolFailureReason.MCP_ERROR, details={"tool": tool})
