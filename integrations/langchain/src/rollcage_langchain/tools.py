"""Guarded tools: each call is recorded and replayed at the tool's own body, with native values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, Tool
from rollcage import Contract, Session
from rollcage.errors import ContractError, ReplayedError
from rollcage_adapter import (
    GUARD,
    BodyForm,
    Declarations,
    Effect,
    GuardedCall,
    GuardedTool,
    Instead,
    Running,
    as_written,
    call_id_here,
    guard_each,
    mcp_failure,
    plain_body,
    refuse,
    required_contract,
    swapped,
)

from rollcage_langchain.contracts import BodySignature, contract_for, parameters_of
from rollcage_langchain.mcp_values import of_mcp
from rollcage_langchain.memory import follow_checkpoints
from rollcage_langchain.private import VALIDATES, mcp_error
from rollcage_langchain.values import THIS_CALL, relabel

__all__ = ["as_tools", "guard_tools", "running"]

T = TypeVar("T", bound=BaseTool)

# The parts that hold a tool's body: its functions, or overridden methods of BaseTool.
_FORMS: Final[Mapping[str, BodyForm]] = {
    "func": "run",
    "coroutine": "arun",
    "_run": "run",
    "_arun": "arun",
}


def guard_tools(
    tools: Sequence[T],
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[T]:
    """Return LangChain tools of the same types, whose calls go through the session.

    The originals are not changed. A tool that this session guards already is returned itself.

    Args:
        tools: any `BaseTool`: structured, simple, subclasses, async only, with a dict schema.
        session: the session that guards the calls; it must be entered before the first one.
        effects: by a tool's name, its effect; any other tool is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it:
            `{"send_mail": {"idempotent": True, "secret": "password"}}`.

    Raises:
        ContractError: an unknown name, a declaration that can't be used, an object that is
            no tool, or a tool that another session guards.
        ToolRefused: a tool that the session's facade does not give.
    """
    follow_checkpoints(session)
    return guard_each(
        tools,
        session,
        effects,
        contracts,
        framework="LangChain",
        kinds=BaseTool,
        guard=lambda tool, effect, declared: _guarded(tool, session, effect, declared),
    )


def as_tools(
    functions: Iterable[Callable[..., Any]], session: Session | None = None
) -> list[StructuredTool]:
    """Return LangChain tools for functions declared with `@rollcage.tool`, sync or async.

    Args:
        functions: the declared functions.
        session: the session that guards the calls; by default, the open one around each call.

    Raises:
        ContractError: a function without a declaration.
    """
    tools = [_as_tool(function) for function in functions]
    return tools if session is None else guard_tools(tools, session)


def _as_tool(function: Callable[..., Any]) -> StructuredTool:
    contract = required_contract(function)
    is_async = inspect.iscoroutinefunction(function)
    parameters = contract.parameters
    return StructuredTool(
        name=contract.name,
        description=contract.description,
        args_schema=dict(parameters) if isinstance(parameters, Mapping) else parameters,
        func=None if is_async else function,
        coroutine=function if is_async else None,
    )


# --- guarding one tool ---------------------------------------------------------------------------


def running() -> Running:
    """Return a tool's or model's running bodies: LangChain sets a config around each call."""
    return Running(var_child_runnable_config.get)


class _Call(GuardedCall):
    """A call of a tool's body; the call's id in its value is replaced in each run."""

    answered = (ReplayedError,)  # from an MCP tool that failed in another framework

    def __init__(self, guard: _Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._signature, self._args, self._kwargs = guard.signature, args, kwargs
        self._id = guard.signature.call_id(kwargs) or call_id_here()
        super().__init__(guard.session, guard.contract, guard.signature.arguments(args, kwargs))

    def instead(self, inside: Callable[..., Any]) -> Instead:
        edited = self._signature.edited(inside, self._args, self._kwargs)
        pair = self._signature.with_artifact
        return Instead(edited, lambda value: (value, None) if pair else value)

    def kept(self, value: Any) -> Any:
        return relabel(value, self._id, THIS_CALL)

    def given(self, value: Any) -> Any:
        value = relabel(value, THIS_CALL, self._id)
        return of_mcp(value) if self._signature.is_mcp else value

    def refusal(self, error: Exception) -> Any:
        failure = mcp_failure(error) if self._signature.is_mcp else None
        if failure is None:
            raise error
        raise mcp_error(failure) from error


class _Guard(GuardedTool):
    """The guard between a tool and one of its bodies."""

    def __init__(
        self, session: Session, contract: Contract, running: Running, signature: BodySignature
    ) -> None:
        super().__init__(session, contract, running)
        self.signature = signature

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:  # noqa: ARG002 - the signature is without it
        return _Call(self, args, kwargs)

    def telling(self, validate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the validation of a call's arguments, and record a call that it refuses."""

        @functools.wraps(validate)
        def telling(*args: Any) -> Any:
            *_, asked, call_id = args
            given = as_written(asked)  # before LangChain adds to it
            try:
                return validate(*args)
            except Exception as error:
                refuse(
                    self.session,
                    self.contract,
                    {n: each for n, each in given.items() if n not in self.signature.injected},
                    reason=type(error).__name__,
                    call_id=call_id or "",
                )
                raise

        return telling


def _guarded(tool: T, session: Session, effect: Effect | None, declared: Any) -> T:
    by_function = isinstance(tool, (StructuredTool, Tool)) and not _overrides_body(tool)
    make = _with_functions if by_function else _with_methods
    return cast("T", make(tool, session, effect, declared))


def _overrides_body(tool: StructuredTool | Tool) -> bool:
    base = StructuredTool if isinstance(tool, StructuredTool) else Tool
    return any(getattr(type(tool), name) is not getattr(base, name) for name in ("_run", "_arun"))


def _with_functions(tool: Any, session: Session, effect: Effect | None, declared: Any) -> Any:
    """Return a copy whose functions are guarded."""
    bodies = {name: getattr(tool, name) for name in ("func", "coroutine")}
    first = bodies["func"] or bodies["coroutine"]
    if first is None:
        raise ContractError(f"{tool.name} has neither a func nor a coroutine: nothing to guard")
    parameters, shared = parameters_of(tool), running()
    contract = contract_for(tool, first, parameters, effect, declared)
    guards = {
        name: _Guard(session, contract, shared, BodySignature(tool, body, parameters))
        for name, body in bodies.items()
        if body is not None
    }
    update = {n: _dressed(each, plain_body(bodies[n]), _FORMS[n]) for n, each in guards.items()}
    copy = tool.model_copy(update=update)
    telling = next(iter(guards.values())).telling(getattr(copy, VALIDATES))
    object.__setattr__(copy, VALIDATES, telling)  # Pydantic's own attribute setting refuses it
    return copy


def _dressed(guard: _Guard, body: Callable[..., Any], form: BodyForm) -> Callable[..., Any]:
    """Give a function a cached signature and only its own annotations.

    LangChain reads both with each call, to know which values to inject.
    """
    hints, guarded = guard.signature.hints, guard.function(body, form)
    dressed: Any = functools.update_wrapper(guarded, body)
    dressed.__annotations__ = {
        n: each for n, each in hints.items() if n in guard.signature.injected
    }
    taken = inspect.signature(body)
    dressed.__signature__ = taken.replace(
        parameters=[
            each.replace(annotation=hints.get(each.name, each.annotation))
            for each in taken.parameters.values()
        ]
    )
    dressed.__rollcage_guard__ = guard
    return guarded


def _with_methods(tool: BaseTool, session: Session, effect: Effect | None, declared: Any) -> Any:
    """Return a copy of a subclass of its class, in which the body's methods are guarded."""
    methods = {name: getattr(type(tool), name) for name in ("_run", "_arun")}
    parameters, shared = parameters_of(tool), running()
    contract = contract_for(tool, methods["_run"], parameters, effect, declared)
    if methods["_arun"] is getattr(BaseTool, "_arun"):  # noqa: B009 - protected, and no other way to tell
        del methods["_arun"]
    members: dict[str, Any] = {}
    for name, method in methods.items():
        guard = _Guard(session, contract, shared, BodySignature(tool, method, parameters))
        members |= {GUARD: guard, name: guard.method(method, _FORMS[name])}
    members[VALIDATES] = members[GUARD].telling(getattr(type(tool), VALIDATES))
    return swapped(tool, members)
