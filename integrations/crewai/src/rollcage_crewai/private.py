"""The adapter's uses of CrewAI's private names, all of them, and why there is no public way.

Checked with crewai 1.15.30. No other file of the adapter may use such a name:
`tests/test_private_names.py`, at the root of the repository, fails otherwise.
"""

# ruff: noqa: SLF001 - what this file is for
from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, Final

from crewai.mcp.config import MCPServerConfig
from crewai.mcp.tool_resolver import MCPToolResolver
from crewai.tools.base_tool import BaseTool

__all__ = [
    "CREATE_MANAGER",
    "EMIT_CHUNK",
    "EMIT_END",
    "EMIT_START",
    "EMIT_THINKING",
    "FLOW",
    "NATIVE_CALL",
    "McpResolver",
    "cache_of",
    "count_apart",
    "count_usage",
    "original_of",
    "set_cache",
    "streams",
    "without_retries",
]

# --- models --------------------------------------------------------------------------------------

EMIT_START: Final = "_emit_call_started_event"
EMIT_CHUNK: Final = "_emit_stream_chunk_event"
EMIT_THINKING: Final = "_emit_thinking_chunk_event"
EMIT_END: Final = "_emit_call_completed_event"
"""The methods by which a `BaseLLM` emits the events of its calls.

`call` returns only the answer: usage, reasoning, pieces and the finish reason are in the events. A
handler on the bus would be late.
"""


def count_usage(llm: Any, usage: dict[str, Any]) -> None:
    """Count the tokens of a replayed call like the tokens of a live one.

    `BaseLLM._track_token_usage_internal`: the figures of a crew come only from these.
    """
    llm._track_token_usage_internal(usage)


def count_apart(twin: Any) -> None:
    """Let the copy of a model count for itself.

    `BaseLLM._token_usage`: CrewAI counts in place, and copies share it.
    """
    twin._token_usage = dict(twin._token_usage)


def streams(llm: Any) -> bool:
    """Return whether a model emits pieces: by its own setting, or for this call.

    `BaseLLM._effective_stream`: the setting for one call is in a private variable.
    """
    return bool(llm._effective_stream())


def without_retries(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model's `call` that CrewAI does not wrap.

    `_crewai_rate_limit_wrapped`: CrewAI wraps the `call` of each subclass in retries, except one
    with this mark. The model's own retries are inside.
    """
    marked: Any = method
    marked._crewai_rate_limit_wrapped = True
    return method


# --- agents and crews ----------------------------------------------------------------------------

NATIVE_CALL: Final = "_execute_single_native_tool_call"
"""The method of an executor that makes one native call: no hook sees the call's id."""

FLOW: Final = "_flow_definition"
"""The class data of an executor that is a flow: CrewAI reads it from one class only."""

CREATE_MANAGER: Final = "_create_manager_agent"
"""The method of a crew that makes the manager of a hierarchical process, as the crew starts."""


def cache_of(crew: Any) -> Any:
    """Return the tool cache of a crew.

    `Crew._cache_handler`: it is made by the constructor, and given to agents as they start.
    """
    return crew._cache_handler


def set_cache(crew: Any, cache: Any) -> None:
    """Give a crew a tool cache of its own: see `cache_of`."""
    crew._cache_handler = cache


def original_of(tool: Any) -> Any:
    """Return the tool that a `CrewStructuredTool` is the form of; None for any other.

    `CrewStructuredTool._original_tool`: it has no other link to it.
    """
    return getattr(tool, "_original_tool", None)


# --- MCP servers ---------------------------------------------------------------------------------


class McpResolver(MCPToolResolver, abc.ABC):
    """The part of CrewAI that finds the tools of an agent's `mcps`, with methods to override.

    `Agent._logger`, and the resolver's `_resolve_external`, `_resolve_native`, `_create_transport`
    and `_json_schema_to_pydantic`: `resolve` connects to each server, and returns tools with a
    client that repeats calls; it takes no client, and no list of tools.
    """

    def __init__(self, agent: Any) -> None:
        super().__init__(agent, agent._logger)
        self.agent = agent

    @abc.abstractmethod
    def at_address(self, reference: str) -> list[BaseTool]:
        """Return the tools of the server at a reference: its URL, perhaps with `#TOOL`."""

    @abc.abstractmethod
    def of_server(self, config: MCPServerConfig, reference: str | None) -> list[BaseTool]:
        """The tools of a server."""

    def transport_and_name(self, config: MCPServerConfig) -> tuple[Any, str]:
        """Return the transport to a server, and CrewAI's name for the server."""
        return self._create_transport(config)

    def model_of(self, name: str, schema: Mapping[str, Any]) -> Any:
        """Return the Pydantic model of a tool's arguments, as CrewAI makes it."""
        return self._json_schema_to_pydantic(name, dict(schema))

    def ask(self, config: MCPServerConfig) -> None:
        """Request a server's tools, like CrewAI; its `tool_filter` is shown each."""
        super()._resolve_native(config)

    def _resolve_external(self, mcp_ref: str) -> list[BaseTool]:
        return self.at_address(mcp_ref)

    def _resolve_native(
        self, mcp_config: MCPServerConfig, server_reference: str | None = None
    ) -> tuple[list[BaseTool], list[Any]]:
        return self.of_server(mcp_config, server_reference), []
