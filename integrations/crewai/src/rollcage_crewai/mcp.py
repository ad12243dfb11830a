"""MCP servers: the tools that CrewAI makes, listed by the recording in a replay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from crewai.tools.base_tool import BaseTool
from crewai.utilities.string_utils import sanitize_tool_name
from rollcage import Contract, Session
from rollcage.errors import ContractError
from rollcage_adapter import Declarations, Effect, McpListing, check_names, mcp_definition, swapped

from rollcage_crewai.mcp_values import mcp_failed
from rollcage_crewai.tools import guard_tools

if TYPE_CHECKING:
    from mcp import StdioServerParameters

__all__ = ["mcp_tools"]

_PATIENCE: Final = 30  # seconds, as in CrewAI's own adapter


@contextlib.contextmanager
def mcp_tools(
    serverparams: StdioServerParameters | dict[str, Any],
    session: Session,
    *tool_names: str,
    server: str = "",
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
    connect_timeout: int = _PATIENCE,
) -> Generator[list[BaseTool]]:
    """Give the guarded tools of an MCP server, in place of `MCPServerAdapter(serverparams, ...)`.

    The server's list is recorded, once a session. The server is started on the first request, so
    never in a replay, and stopped at the end of the block. An error result of the server
    (`isError`) is a `ToolFailure`.

    Args:
        serverparams: the parameters of the server, as for `MCPServerAdapter`.
        session: the session that records; it must be entered.
        *tool_names: the tools to take; all by default.
        server: a name for the server; required if the session has several.
        effects: by a tool's name, its effect; any other tool is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it.
        connect_timeout: seconds that the server may take to start.

    Raises:
        ContractError: another server of the session has this name, or a tool of the same name; an
            unknown name; a declaration that can't be used.
        ReplayMiss: the session replays offline, and the server's tools are not recorded.
        ToolRefused: a tool that the session's facade does not give.
    """
    running = _Server(serverparams, connect_timeout)
    try:
        listing = McpListing.of(session, server, serverparams)
        wanted = {sanitize_tool_name(name) for name in tool_names}
        made = [(_tool(running, each), each) for each in listing.tools(running.definitions)]
        found = {tool.name: (tool, each) for tool, each in made}
        missing = wanted - found.keys()
        if missing:
            known = ", ".join(sorted(found)) or "none"
            raise ContractError(f"the MCP server has no {', '.join(sorted(missing))}, but {known}")
        taken = {name: each for name, each in found.items() if not wanted or name in wanted}
        own = {name: each["name"] for name, (_, each) in taken.items()}
        listing.claim(own.values(), "use sessions of their own, or take other tools of one")
        check_names(own, contracts=contracts or {})
        yield guard_tools(
            [tool for tool, _ in taken.values()],
            session,
            effects=effects,
            contracts={name: _declared(own[name], (contracts or {}).get(name)) for name in own},
        )
    finally:
        running.stop()


def _declared(name: str, declared: Contract | Mapping[str, Any] | None) -> Any:
    """Return the declaration of a tool, which is recorded by the server's name for it."""
    return declared if isinstance(declared, Contract) else {"name": name, **(declared or {})}


class _Server:
    """A server that is started on demand."""

    def __init__(self, serverparams: Any, connect_timeout: int) -> None:
        self._serverparams = serverparams
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._adapt: Any = None
        self._is_over = False
        self._tools: dict[str, tuple[Callable[..., Any], Any]] = {}

    def _started(self) -> dict[str, tuple[Callable[..., Any], Any]]:
        from mcpadapt.core import MCPAdapt, ToolAdapter

        class Both(ToolAdapter):
            def adapt(self, func: Any, mcp_tool: Any) -> Any:
                return func, mcp_tool

            async def async_adapt(self, afunc: Any, mcp_tool: Any) -> Any:
                raise NotImplementedError

        with self._lock:
            if self._is_over:  # it would not be stopped
                raise ContractError(
                    "the block of mcp_tools has ended, and its server: use its tools within it"
                )
            if self._adapt is None:
                adapt: Any = MCPAdapt(self._serverparams, Both(), self._connect_timeout)
                found = adapt.__enter__()  # a failure here has ended the server
                self._adapt = adapt
                self._tools = {tool.name: (func, tool) for func, tool in found}
            return self._tools

    def definitions(self) -> list[dict[str, Any]]:
        """Return the server's list."""
        return [mcp_definition(tool) for _, tool in self._started().values()]

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a tool."""
        known = self._started()
        if name not in known:
            raise ContractError(f"the MCP server has no tool {name!r} any more")
        return known[name][0](dict(arguments))

    def stop(self) -> None:
        """Stop the server, if it was started; it is not started again."""
        with self._lock:
            self._is_over = True
            if self._adapt is not None:
                self._adapt.__exit__(None, None, None)
                self._adapt = None


class _Failed(Exception):
    """The server calls the result an error."""


def _tool(server: _Server, definition: Mapping[str, Any]) -> BaseTool:
    """Return a tool as CrewAI's own adapter makes it, but with errors as failures."""
    from crewai_tools.adapters.mcp_adapter import CrewAIToolAdapter
    from mcp.types import Tool

    name, required = str(definition["name"]), definition.get("inputSchema", {}).get("required", ())

    def func(arguments: dict[str, Any] | None) -> Any:
        given = {
            key: each
            for key, each in (arguments or {}).items()
            if each is not None or key in required  # CrewAI fills omitted arguments with None
        }
        result = server.call(name, given)
        if result.isError:
            texts = [str(each.text) for each in result.content if hasattr(each, "text")]
            raise _Failed("\n".join(texts))
        return result

    made = CrewAIToolAdapter().adapt(func, Tool.model_validate(definition))
    body: Callable[..., Any] = type(made)._run  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - what tools override

    def _run(self: Any, **kwargs: Any) -> Any:
        try:
            return body(self, **kwargs)
        except _Failed as error:
            return mcp_failed(str(error), name)

    return swapped(made, {"_run": _run})
