"""MCP servers: the tools that autogen-ext makes, listed by the recording in a replay."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from autogen_core.tools import BaseTool, ToolSchema
from rollcage import Session
from rollcage.errors import ContractError
from rollcage_adapter import Declarations, Effect, McpListing, mcp_definition, mcp_definitions

from rollcage_autogen.private import as_listed, is_connected, list_definitions
from rollcage_autogen.tools import guard_tools

if TYPE_CHECKING:
    from autogen_ext.tools.mcp import (  # pyright: ignore[reportMissingTypeStubs] - it has none
        McpServerParams,
        McpWorkbench,
    )

__all__ = ["McpTools", "is_mcp", "mcp_tools"]


async def mcp_tools(
    server_params: McpServerParams,
    session: Session,
    *,
    server: str = "",
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[BaseTool[Any, Any]]:
    """Return the guarded tools of an MCP server.

    It is used in place of `await mcp_server_tools(server_params)`.

    The server's list is recorded, once a session: a replay neither starts nor reaches the server.
    After that each call opens a connection of its own, like AutoGen's own tools.

    Args:
        server_params: the parameters of the server.
        session: the session that records; it must be entered.
        server: a name for the server; required if the session has several.
        effects: by a tool's name, its effect; any other tool is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it.

    Raises:
        ContractError: another server of the session has this name, or a tool of the same name; an
            unknown name; a declaration that can't be used.
        ReplayMiss: the session replays offline, and the server's tools are not recorded.
        ToolRefused: a tool that the session's facade does not give.
    """
    from autogen_ext.tools import mcp
    from mcp.types import Tool

    kinds: dict[type, Any] = {
        mcp.StdioServerParams: mcp.StdioMcpToolAdapter,
        mcp.SseServerParams: mcp.SseMcpToolAdapter,
        mcp.StreamableHttpServerParams: mcp.StreamableHttpMcpToolAdapter,
    }
    kind = kinds.get(type(server_params))
    if kind is None:
        raise ContractError(f"{server_params!r} are not parameters of an MCP server of AutoGen")

    async def ask() -> list[dict[str, Any]]:
        async with mcp.create_mcp_server_session(server_params) as opened:
            await opened.initialize()
            return await mcp_definitions(opened)

    listing = McpListing.of(session, server, server_params)
    tools: list[BaseTool[Any, Any]] = [
        kind(server_params=server_params, tool=Tool.model_validate(each))
        for each in await listing.atools(ask)
    ]
    listing.claim([tool.name for tool in tools], "take one of them from a session of its own")
    return guard_tools(tools, session, effects=effects, contracts=contracts)


def is_mcp(workbench: Any) -> TypeGuard[McpWorkbench]:
    """Whether it is AutoGen's workbench for an MCP server."""
    module = sys.modules.get("autogen_ext.tools.mcp")
    return module is not None and isinstance(workbench, module.McpWorkbench)


class McpTools:
    """The list of a workbench's server, live or recorded (`listing`).

    Args:
        workbench: the user's workbench.
        session: the session that records.
        server: its name in the session.

    Raises:
        ContractError: another server of the session has this name.
    """

    def __init__(self, workbench: McpWorkbench, session: Session, server: str) -> None:
        self._workbench = workbench
        self.listing = McpListing.of(session, server, workbench.server_params)

    async def schemas(self) -> list[ToolSchema]:
        """Return the tools of the workbench, as the workbench itself would show them."""
        from mcp.types import ListToolsResult

        definitions = await self.listing.atools(self._ask)
        listed = ListToolsResult.model_validate({"tools": definitions})
        schemas: list[ToolSchema] = await as_listed(self._workbench, listed).list_tools()
        return schemas

    async def _ask(self) -> list[dict[str, Any]]:
        if not is_connected(self._workbench):
            await self._workbench.start()
        return [mcp_definition(tool) for tool in await list_definitions(self._workbench)]

    async def stop(self) -> None:
        """Stop the server, if it was needed."""
        if is_connected(self._workbench):
            await self._workbench.stop()
