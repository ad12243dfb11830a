"""The MCP servers that agents name themselves (`Agent(mcps=[...])`), in a guarded crew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crewai.mcp.client import MCPClient
from crewai.mcp.config import MCPServerConfig, MCPServerHTTP
from crewai.tools.base_tool import BaseTool
from crewai.tools.mcp_native_tool import MCPNativeTool
from crewai.utilities.string_utils import sanitize_tool_name
from rollcage import Session
from rollcage_adapter import McpListing

from rollcage_crewai.private import McpResolver

__all__ = ["mcp_tools_of"]


def mcp_tools_of(agent: Any, session: Session) -> Callable[..., list[BaseTool]]:
    """Return an agent's `get_mcp_tools`, which asks a server once a session.

    A replay asks no server.
    """

    def get_mcp_tools(mcps: list[str | MCPServerConfig]) -> list[BaseTool]:
        return _Resolver(agent, session).resolve(mcps)

    return get_mcp_tools


class _Resolver(McpResolver):
    """Finds the tools like CrewAI; their calls are made once.

    If no answer comes, CrewAI's own client makes a call up to three times, though each may have
    happened.
    """

    def __init__(self, agent: Any, session: Session) -> None:
        super().__init__(agent)
        self._session = session

    def at_address(self, reference: str) -> list[BaseTool]:
        """Return the tools of the server at an address: the one named after `#`, or all of them."""
        url, _, only = reference.partition("#")
        tools = self.of_server(MCPServerHTTP(url=url), None)
        wanted = sanitize_tool_name(only)
        return [
            tool
            for tool in tools
            if not only or sanitize_tool_name(getattr(tool, "original_tool_name", "")) == wanted
        ]

    def of_server(self, config: MCPServerConfig, reference: str | None) -> list[BaseTool]:
        """Return a server's recorded tools, or its current ones."""
        _, server = self.transport_and_name(config)
        asked = {"kind": type(config).__name__, **config.model_dump(exclude={"tool_filter"})}
        listing = McpListing.of(self._session, server, asked, form="crewai")
        found = [_as_crewai_lists(each) for each in listing.tools(lambda: self._ask(config))]
        tools: list[BaseTool] = [
            self._native(config, server, each, reference)
            for each in found
            if self._is_wanted(config.tool_filter, server, each)
        ]
        listing.claim([tool.name for tool in tools], "give one of the servers another address")
        return tools

    def _ask(self, config: MCPServerConfig) -> list[dict[str, Any]]:
        """Return the server's list: CrewAI requests it, and shows a filter each of its tools."""
        seen: list[dict[str, Any]] = []

        def show(_: Any, tool: dict[str, Any]) -> bool:
            seen.append({**tool, "name": tool["original_name"]})
            return False

        self.ask(config.model_copy(update={"tool_filter": show}))
        return [{n: v for n, v in each.items() if n != "original_name"} for each in seen]

    def _is_wanted(self, wanted: Any, server: str, tool: dict[str, Any]) -> bool:
        if not callable(wanted):
            return True
        from crewai.mcp.filters import ToolFilterContext

        try:
            context = ToolFilterContext(agent=self.agent, server_name=server, run_context=None)
            return bool(wanted(context, tool))
        # a filter that takes only the tool; the same errors as in CrewAI
        except (TypeError, AttributeError):
            return bool(wanted(tool))

    def _native(
        self,
        config: MCPServerConfig,
        server: str,
        tool: dict[str, Any],
        server_reference: str | None,
    ) -> MCPNativeTool:
        def client() -> MCPClient:
            transport, _ = self.transport_and_name(config)
            return MCPClient(transport=transport, max_retries=1)

        schema: dict[str, Any] = {"description": tool["description"], "args_schema": None}
        if tool["inputSchema"]:
            schema["args_schema"] = self.model_of(tool["name"], tool["inputSchema"])
        return MCPNativeTool(
            client_factory=client,
            tool_name=tool["name"],
            tool_schema=schema,
            server_name=server,
            original_tool_name=tool["original_name"],
            server_reference=server_reference,
        )


def _as_crewai_lists(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded tool, in the form for CrewAI's client and filters."""
    name = str(definition["name"])
    return {
        "name": sanitize_tool_name(name),
        "original_name": name,
        "description": definition.get("description") or "",
        "inputSchema": definition.get("inputSchema") or {},
    }
