"""Guarded tools: each call is recorded and replayed at the tool's own body, with native values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, Tool
from rollcage import Contract, Session
from rollcage.adapter import (
    Declarations,
    Effect,
    Running,
    call_id_here,
    declared_contract,
    fixed,
    guard_each,
    swapped,
    type_hints,
)
from rollcage.errors import ContractError

from rollcage_langchain.checkpoints import follow_checkpoints
from rollcage_langchain.contracts import Signature, contract_for
from rollcage_langchain.relabel import THIS_CALL, relabel

__all__ = ["as_tools", "guard_tools", "guarding", "running"]

T = TypeVar("T", bound=BaseTool)

_GUARD: Final = "__rollcage_guard__"
_BODIES: Final = ("_run", "_arun")  # what subclasses of BaseTool override


def guard_tools(
    tools: Sequence[T],
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[T]:
    """LangChain tools of the same types, whose calls go through the session.

    The originals stay as they are. A tool that this session guards already is given back as it is.

    Args:
        tools: any `BaseTool`: structured, simple, subclasses, async only, with a dict schema.
        session: guards the calls; it must be entered before the first one.
        effects: by a tool's name, its effect; a tool that is not named is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it:
            `{"send_mail": {"idempotent": True, "secret": "password"}}`.

    Raises:
        ContractError: a name that no tool has, a declaration that can't be used, something that is
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
        instead="as_tools makes one of a function declared with @rollcage.tool; what a provider "
        "runs itself can't be guarded",
        guarding=guarding,
        guard=lambda tool, effect, declared: _guarded(tool, session, effect, declared),
    )


def as_tools(
    functions: Iterable[Callable[..., Any]], session: Session | None = None
) -> list[StructuredTool]:
    """LangChain tools for functions declared with `@rollcage.tool`, sync or async.

    Args:
        functions: the declared functions.
        session: guards the calls; by default it is the one that is open around each call.

    Raises:
        ContractError: a function without a declaration.
    """
    tools = [_as_tool(function) for function in functions]
    return tools if session is None else guard_tools(tools, session)


def guarding(tool: BaseTool) -> Session | None:
    """The session that guards a tool; None if there is none."""
    for holder in (type(tool), getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        guard = getattr(holder, _GUARD, None)
        if isinstance(guard, Guard):
            return guard.session
    return None


def _as_tool(function: Callable[..., Any]) -> StructuredTool:
    contract = declared_contract(function)
    if contract is None:
        raise ContractError(f"{function!r} is not declared: decorate it with @rollcage.tool")
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
    """The running bodies of a tool or model: LangChain sets another config around each call."""
    return Running(var_child_runnable_config.get)


class Guard:
    """What stands between one tool and its body."""

    def __init__(self, session: Session, contract: Contract, running: Running) -> None:
        self.session = session
        self.contract = contract
        self._running = running

    def run(
        self,
        signature: Signature,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Guard a sync body."""
        if self._running.here:
            return body(*args, **kwargs)
        call_id = signature.call_id(kwargs) or call_id_here()

        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._running.body():
                return relabel(body(*args, **kwargs), call_id, THIS_CALL)

        value = self.session.run(
            self.contract,
            signature.arguments(args, kwargs),
            fixed(inside, *args, **kwargs),
            instead=signature.instead(inside, args, kwargs),
        )
        return relabel(value, THIS_CALL, call_id)

    async def arun(
        self,
        signature: Signature,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Guard an async body."""
        if self._running.here:
            return await body(*args, **kwargs)
        call_id = signature.call_id(kwargs) or call_id_here()

        async def inside(*args: Any, **kwargs: Any) -> Any:
            with self._running.body():
                return relabel(await body(*args, **kwargs), call_id, THIS_CALL)

        value = await self.session.arun(
            self.contract,
            signature.arguments(args, kwargs),
            fixed(inside, *args, **kwargs),
            instead=signature.instead(inside, args, kwargs),
        )
        return relabel(value, THIS_CALL, call_id)


def _guarded(tool: T, session: Session, effect: Effect | None, declared: Any) -> T:
    by_function = isinstance(tool, (StructuredTool, Tool)) and not _overrides_body(tool)
    make = _with_functions if by_function else _with_methods
    return cast("T", make(tool, session, effect, declared))


def _overrides_body(tool: StructuredTool | Tool) -> bool:
    base = StructuredTool if isinstance(tool, StructuredTool) else Tool
    return any(getattr(type(tool), name) is not getattr(base, name) for name in _BODIES)


def _with_functions(tool: Any, session: Session, effect: Effect | None, declared: Any) -> Any:
    """A copy whose functions are guarded."""
    bodies = {name: getattr(tool, name) for name in ("func", "coroutine")}
    first = bodies["func"] or bodies["coroutine"]
    if first is None:
        raise ContractError(f"{tool.name} has neither a func nor a coroutine: nothing to guard")
    guard = Guard(session, contract_for(tool, first, effect, declared), running())
    makers = {"func": _function, "coroutine": _coroutine}
    update = {
        name: makers[name](guard, Signature(tool, body), _plain(body))
        for name, body in bodies.items()
        if body is not None
    }
    return tool.model_copy(update=update)


def _plain(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body behind `@rollcage.tool`: it is guarded once, here."""
    if declared_contract(body) is None:
        return body
    return cast("Callable[..., Any]", getattr(body, "__wrapped__", body))


def _function(guard: Guard, signature: Signature, body: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return guard.run(signature, body, args, kwargs)

    return _dressed(guarded, body, guard, signature)


def _coroutine(guard: Guard, signature: Signature, body: Callable[..., Any]) -> Callable[..., Any]:
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        return await guard.arun(signature, body, args, kwargs)

    return _dressed(guarded, body, guard, signature)


def _dressed(
    guarded: Any, body: Callable[..., Any], guard: Guard, signature: Signature
) -> Callable[..., Any]:
    """LangChain reads what a body takes with each call, to know what to inject.

    So it finds a signature that is made already, and annotations of nothing else.
    """
    hints = type_hints(body)
    functools.update_wrapper(guarded, body)
    guarded.__annotations__ = {n: each for n, each in hints.items() if n in signature.injected}
    taken = inspect.signature(body)
    guarded.__signature__ = taken.replace(
        parameters=[
            each.replace(annotation=hints.get(each.name, each.annotation))
            for each in taken.parameters.values()
        ]
    )
    guarded.__rollcage_guard__ = guard
    return cast("Callable[..., Any]", guarded)


def _with_methods(tool: BaseTool, session: Session, effect: Effect | None, declared: Any) -> Any:
    """A copy of a subclass of its class, in which the body's methods are guarded."""
    run, arun = (getattr(type(tool), name) for name in _BODIES)
    guard = Guard(session, contract_for(tool, run, effect, declared), running())
    members = {_GUARD: guard, "_run": _method(guard, Signature(tool, run), run)}
    if arun is not getattr(BaseTool, "_arun"):  # noqa: B009 - protected, and no other way to tell
        members["_arun"] = _amethod(guard, Signature(tool, arun), arun)
    return swapped(tool, members)


def _method(guard: Guard, signature: Signature, body: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(body)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        return guard.run(signature, functools.partial(body, self), args, kwargs)

    return guarded


def _amethod(guard: Guard, signature: Signature, body: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(body)
    async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await guard.arun(signature, functools.partial(body, self), args, kwargs)

    return guarded
