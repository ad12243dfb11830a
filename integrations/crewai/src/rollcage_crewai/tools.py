"""Guarded tools: each call is recorded and replayed at the tool's own body, with native values."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from crewai.tools.base_tool import BaseTool, Tool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.tools.tool_failure import ToolFailure, failure_from_exception
from rollcage import Contract, Session
from rollcage.errors import ReplayedError
from rollcage_adapter import (
    GUARD,
    HALTED,
    REFUSED,
    Declarations,
    Effect,
    GuardedCall,
    GuardedTool,
    Instead,
    Running,
    guard_each,
    mcp_failure,
    plain_body,
    required_contract,
)

from rollcage_crewai.bare import refusal, watch_calls
from rollcage_crewai.contracts import arguments_of, contract_for, instead_of
from rollcage_crewai.mcp_values import is_mcp, mcp_failed, mcp_text
from rollcage_crewai.turns import awaiting, this_call
from rollcage_crewai.values import register

__all__ = [
    "as_tools",
    "awaited",
    "guard_tools",
    "untold",
]

T = TypeVar("T", bound=BaseTool | CrewStructuredTool)

_ANSWERED: Final = (*REFUSED, *HALTED)

register()


def guard_tools(
    tools: Sequence[T],
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[T]:
    """Return CrewAI tools of the same types, whose calls go through the session.

    The originals are not changed. A tool that this session guards already is returned itself.

    Args:
        tools: any `BaseTool`: of a class, of `@tool`, `Tool`; async ones too.
        session: the session that guards the calls; it must be entered before the first one.
        effects: by a tool's name, its effect; any other tool is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it:
            `{"send_mail": {"idempotent": True, "secret": "password"}}`.

    Raises:
        ContractError: an unknown name, a declaration that can't be used, an object that is
            no tool, or a tool that another session guards.
        ToolRefused: a tool that the session's facade does not give.
    """
    return guard_each(
        tools,
        session,
        effects,
        contracts,
        framework="CrewAI",
        kinds=(BaseTool, CrewStructuredTool),
        guard=lambda tool, effect, declared: _guarded(tool, session, effect, declared),
    )


def as_tools(
    functions: Iterable[Callable[..., Any]], session: Session | None = None
) -> list[Tool[..., Any]]:
    """Return CrewAI tools for functions declared with `@rollcage.tool`, sync or async.

    Args:
        functions: the declared functions.
        session: the session that guards the calls; by default, the open one around each call.

    Raises:
        ContractError: a function without a declaration.
    """
    tools = [_as_tool(function) for function in functions]
    return [_answering(tool) for tool in tools] if session is None else guard_tools(tools, session)


def untold(tool: BaseTool) -> Callable[..., Any]:
    """Return the body of a guarded tool, which raises the original's errors."""
    return tool._run  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - what tools override


def awaited(value: Any) -> Any:
    """Return a body's value; await an async one here, like CrewAI."""
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


def _as_tool(function: Callable[..., Any]) -> Tool[..., Any]:
    contract = required_contract(function)
    parameters: Any = contract.parameters  # CrewAI makes a model of a JSON Schema itself
    return Tool(
        name=contract.name,
        description=contract.description or contract.name,
        args_schema=parameters,
        func=function,
    )


# --- guarding one tool ---------------------------------------------------------------------------


class _Call(GuardedCall):
    """A call that returns a failure if it is refused, because CrewAI repeats a call that raises.

    Once the session is halted, the failure ends the agent.
    """

    answered: ClassVar[tuple[type[Exception], ...]] = _ANSWERED

    def __init__(self, guard: _Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tool = guard.tool
        self._args = args
        arguments = arguments_of(self._tool.args_schema, args, kwargs)
        super().__init__(guard.session, guard.contract, arguments)

    def aaround(self) -> contextlib.AbstractContextManager[None]:
        """Let a cancellation of the agent cancel an async body."""
        around = awaiting.get()
        return contextlib.nullcontext() if around is None else around.body()

    def instead(self, inside: Callable[..., Any]) -> Instead:
        return instead_of(self._tool.args_schema, inside, self._args)

    def kept(self, value: Any) -> Any:
        return awaited(value)

    def refusal(self, error: Exception) -> ToolFailure:
        return refusal(error, self._tool)


class _McpCall(_Call):
    """A call of an MCP server's tool; another framework may have recorded it."""

    answered = (*_ANSWERED, ReplayedError)

    def given(self, value: Any) -> Any:
        failed = mcp_failure(value)
        return mcp_text(value) if failed is None else mcp_failed(failed, self.contract.name)

    def refusal(self, error: Exception) -> ToolFailure:
        if not isinstance(error, ReplayedError):
            return super().refusal(error)
        failed = mcp_failure(error)
        if failed is None:
            raise error
        return mcp_failed(failed, self.contract.name)


class _Guard(GuardedTool):
    def __init__(self, session: Session, contract: Contract, tool: Any) -> None:
        super().__init__(session, contract, Running(this_call.get))
        self.tool = tool
        self._kind = _McpCall if is_mcp(tool) else _Call

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:  # noqa: ARG002 - a tool's bodies are its own
        return self._kind(self, args, kwargs)


def _guarded(tool: T, session: Session, effect: Effect | None, declared: Any) -> T:
    twin: Any = tool.model_copy()
    by_function = isinstance(tool, (Tool, CrewStructuredTool))
    first: Any = twin.func if by_function else twin.__class__._run  # noqa: SLF001 - what tools override
    guard = _Guard(session, contract_for(tool, first, effect, declared), twin)
    _set(twin, GUARD, guard)
    if by_function:
        twin.func = guard.function(plain_body(first))
    if isinstance(tool, BaseTool):
        _with_methods(twin.__class__, twin, guard)
        _set_structured(twin, type(tool))
    guarded: T = twin
    return guarded


def _with_methods(cls: Any, twin: Any, guard: _Guard) -> None:
    """Guard the methods that the class of a tool overrides, on this one tool."""
    base: Any = Tool if isinstance(twin, Tool) else BaseTool
    for name in ("_run", "_arun", "run", "arun"):
        method: Any = getattr(cls, name)
        if method is not getattr(base, name):
            _set(twin, name, guard.function(functools.partial(method, twin)))


def _set_structured(tool: BaseTool, cls: type[BaseTool]) -> None:
    _set(tool, "to_structured_tool", lambda: _telling(cls.to_structured_tool(tool)))


def _telling(structured: CrewStructuredTool) -> CrewStructuredTool:
    """Return the form of a tool for agents without native calls, which reports an error once.

    CrewAI answers an exception by calling the tool again, five times more.
    """
    body: Callable[..., Any] = structured.func
    structured.tool_failure_policy = None  # the tool's own policy counts: see `refusal`

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return awaited(body(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever the tool raises
            return failure_from_exception(error)

    structured.func = called
    return structured


def _answering(tool: Tool[..., Any]) -> Tool[..., Any]:
    """Return a declared function's tool that answers a refusal like guarded tools."""
    body, policy = tool.func, tool.tool_failure_policy

    @functools.wraps(body)
    async def aanswering(*args: Any, **kwargs: Any) -> Any:
        tool.tool_failure_policy = policy  # an earlier session may have been halted
        try:
            return await body(*args, **kwargs)
        except _ANSWERED as error:
            return refusal(error, tool)

    @functools.wraps(body)
    def answering(*args: Any, **kwargs: Any) -> Any:
        tool.tool_failure_policy = policy
        try:
            return body(*args, **kwargs)
        except _ANSWERED as error:
            return refusal(error, tool)

    own: Any = aanswering if inspect.iscoroutinefunction(body) else answering
    own.__wrapped__ = plain_body(body)  # guarded by `guard_tools`: the tool itself, once
    tool.func = own
    _set_structured(tool, type(tool))
    return tool


def _set(tool: Any, name: str, value: Any) -> None:
    """Set a non-field attribute of one tool; its class and its other tools don't change."""
    object.__setattr__(tool, name, value)


watch_calls()
