"""Tools of MCP servers, made by langchain-mcp-adapters and replayed without the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcage import Session
from rollcage_adapter import Declarations, Effect, McpListing, mcp_definitions

from rollcage_langchain.tools import guard_tools

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from langchain_mcp_adapters.client import MultiServerMCPClient

__all__ = ["mcp_tools"]


async def mcp_tools(
    client: MultiServerMCPClient,
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[BaseTool]:
    """Return the guarded tools of a client's servers, in place of `await client.get_tools()`.

    The servers' lists are recorded, once a session: a replay starts and reaches no server. After
    that each call opens a connection of its own, like the client's own tools.

    Args:
        client: knows the servers by their names; its callbacks and interceptors count.
        session: the session that records; it must be entered.
        effects: by a tool's name, its effect; any other tool is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it.

    Raises:
        ContractError: two servers have a tool of the same name (give the client
            `tool_name_prefix=True`), an unknown name, or a declaration that can't be used.
        ReplayMiss: the session replays offline, and the tools of a server are not recorded.
        ToolRefused: a tool that the session's facade does not give.
    """
    tools: list[BaseTool] = []
    for server, connection in client.connections.items():
        listing = McpListing.of(session, server, dict(connection))

        async def ask(server: str = server) -> list[dict[str, Any]]:
            async with client.session(server) as opened:
                return await mcp_definitions(opened)

        made = [_tool(client, server, each) for each in await listing.atools(ask)]
        listing.claim([tool.name for tool in made], "make the client with tool_name_prefix=True")
        tools += made
    return guard_tools(tools, session, effects=effects, contracts=contracts)


def _tool(client: MultiServerMCPClient, server: str, definition: dict[str, Any]) -> BaseTool:
    from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
    from mcp.types import Tool

    return convert_mcp_tool_to_langchain_tool(
        None,
        Tool.model_validate(definition),
        connection=client.connections[server],
        callbacks=client.callbacks,
        tool_interceptors=client.tool_interceptors,
        server_name=server,
        tool_name_prefix=client.tool_name_prefix,
        handle_tool_errors=client.handle_tool_errors,
    )
