"""The adapter's uses of AutoGen's private names, all of them, and why there is no public way.

Checked with autogen-core, autogen-agentchat and autogen-ext 0.7.5. No other file of the adapter may
use such a name: `tests/test_private_names.py`, at the root of the repository, fails otherwise.
"""

# ruff: noqa: SLF001 - what this file is for

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from autogen_core.tools import BaseTool, FunctionTool
from rollcage_adapter import is_object

if TYPE_CHECKING:
    from autogen_ext.tools.mcp import (  # pyright: ignore[reportMissingTypeStubs] - it has none
        McpWorkbench,
    )

__all__ = [
    "Purpose",
    "as_listed",
    "error_text",
    "function_of",
    "hear_errors",
    "is_connected",
    "is_handoff",
    "list_definitions",
    "listing",
    "model_name",
    "original_names",
    "parameters_of",
    "set_function",
    "tools_of",
    "with_tools",
]

# --- tools ---------------------------------------------------------------------------------------


def function_of(tool: Any) -> Callable[..., Any] | None:
    """Return the function that a `FunctionTool` calls; None for any other tool.

    `FunctionTool._func`: the tool's constructor takes it, and nothing returns it.
    """
    found = getattr(tool, "_func", None)
    return found if callable(found) else None


def parameters_of(tool: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a `FunctionTool`'s function, as AutoGen reads them.

    `FunctionTool._signature`: `run` fills the arguments by it; nothing returns it.
    """
    signature: inspect.Signature = tool._signature
    return signature.parameters


def set_function(
    tool: FunctionTool,
    function: Callable[..., Any],
    arguments: Any,
    returns: Any,
    name: str,
    about: str,
) -> None:
    """Initialize a `FunctionTool` by a contract.

    Its own `__init__` makes a schema of the function's annotations, and refuses some that the
    contract accepts. So `BaseTool` is initialized, and the attributes of `FunctionTool` are set.
    """
    base: Any = BaseTool
    base.__init__(tool, arguments, returns, name, about)
    own: Any = tool
    own._func = function
    own._global_imports = ()
    own._signature = inspect.signature(function)
    own._has_cancellation_support = False


def is_handoff(function: Any) -> bool:
    """Return whether it is the function of a `Handoff`, which only returns a text.

    The module `autogen_agentchat.base._handoff`: the tool of a handoff is a plain `FunctionTool`.
    """
    return getattr(function, "__module__", "") == "autogen_agentchat.base._handoff"


# --- workbenches ---------------------------------------------------------------------------------


def tools_of(workbench: Any) -> list[Any] | None:
    """Return the tools of a `StaticWorkbench`: its own list, which may be changed; None for others.

    `StaticWorkbench._tools`: `list_tools` returns only their schemas.
    """
    found: list[Any] | None = getattr(workbench, "_tools", None)
    return found


def with_tools(workbench: Any, tools: list[Any]) -> Any:
    """Return a copy of a `StaticWorkbench` with these tools in place of its own.

    `StaticWorkbench._tools`: its constructor would read their names and overrides again.
    """
    twin = copy.copy(workbench)
    twin._tools = tools
    return twin


def original_names(workbench: Any) -> Mapping[str, str]:
    """Return the tools' own names, by the names that a workbench shows to the model.

    `_override_name_to_original`, of static and MCP workbenches: its source,
    `tool_overrides`, is a private attribute, too.
    """
    found: Mapping[str, str] = getattr(workbench, "_override_name_to_original", {})
    return found


def error_text(workbench: Any, error: BaseException) -> str:
    """Return the text for the model of an error in a workbench's call.

    `StaticWorkbench._format_errors`: AutoGen's own text, of each error in a group.
    """
    return str(workbench._format_errors(error))


def hear_errors(workbench: Any, hear: Callable[[BaseException], None]) -> None:
    """Let `hear` get each error that a workbench is about to answer a call with; once is enough.

    `McpWorkbench._format_errors`: a result has only the text, which does not tell a lost connection
    from a server's own refusal.
    """
    formatted: Any = getattr(workbench, "_format_errors", None)
    if formatted is not None and not isinstance(formatted, _Hearing):
        workbench._format_errors = _Hearing(formatted, hear)


class _Hearing:
    def __init__(
        self, formatted: Callable[[Any], str], hear: Callable[[BaseException], None]
    ) -> None:
        self._formatted = formatted
        self._hear = hear

    def __call__(self, error: Any) -> str:
        if isinstance(error, BaseException):
            self._hear(error)
        return self._formatted(error)


def is_connected(workbench: McpWorkbench) -> bool:
    """Return whether the server of a workbench was started.

    `McpWorkbench._actor`: `stop` raises before a start, and nothing else tells.
    """
    inner: Any = workbench
    return bool(inner._actor)


async def list_definitions(workbench: McpWorkbench) -> list[Any]:
    """Return the tools of a connected workbench, in the form of the protocol's own library.

    `McpWorkbench._actor`: `list_tools` returns schemas, which lack part of the server's data.
    """
    inner: Any = workbench
    answer: Any = await (await inner._actor.call("list_tools", None))
    return list(answer.tools)


def as_listed(workbench: McpWorkbench, tools: Any) -> Any:
    """Return a copy of a workbench, whose `list_tools` shows these tools in place of its server's.

    `McpWorkbench._actor` and `_actor_loop`: the form of tools for a model (overridden names, their
    schemas) is made in `list_tools` itself, which asks a server.
    """
    twin: Any = copy.copy(workbench)
    twin._actor = _Answering(tools)
    twin._actor_loop = None  # there is nothing to stop
    return twin


class _Answering:
    """Stands for the connection of a workbench, to list tools that are known already."""

    def __init__(self, tools: Any) -> None:
        self._tools = tools

    async def call(self, *_: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(self._tools)
        return answer


# --- models and agents ---------------------------------------------------------------------------


def model_name(client: Any) -> str:
    """Return the model's name, or its client's.

    `_create_args` of the clients, or their `_raw_config`: no client has it in public.
    """
    for place in ("_create_args", "_raw_config"):
        found: Any = getattr(client, place, None)
        if is_object(found) and isinstance(found.get("model"), str):
            return str(found["model"])
    return type(client).__name__


Purpose = Literal["question", "call"]
"""The purpose for which an agent lists its tools."""

_FRAMES: Final = 9  # between an agent and the schema of one of its tools
_METHODS: Final[Mapping[str, Purpose]] = {"_call_llm": "question", "_execute_tool_call": "call"}


def listing() -> tuple[Purpose | None, Mapping[str, Any]]:
    """Return whether an `AssistantAgent` is listing its tools, its purpose, and its own variables.

    It does so before each request to its model, in its own task, where an exception ends it; and
    again for each call, in a task that must not raise. `AssistantAgent._call_llm` and
    `_execute_tool_call`, found on the stack: an agent has no hook, and only its own code tells.
    """
    agents: Any = sys.modules.get("autogen_agentchat.agents")
    if agents is None:
        return None, {}
    methods = {name: getattr(agents.AssistantAgent, name, None) for name in _METHODS}
    codes = {
        getattr(inspect.unwrap(method), "__code__", None): name
        for name, method in methods.items()
        if method is not None
    }
    frame = inspect.currentframe()
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code in codes:
            return _METHODS[codes[frame.f_code]], frame.f_locals
        frame = frame.f_back
    return None, {}
