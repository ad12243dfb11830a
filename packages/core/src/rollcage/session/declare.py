"""Declared tools: functions with a contract attached, guarded inside of a session."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypedDict

from rollcage.contract.body import attach_body, plain_body
from rollcage.contract.contract import Contract, Effect, OnMiss, Source
from rollcage.contract.drift import OnDrift
from rollcage.errors import ArgumentsInvalid, Blocked, ContractError, UnguardedCallWarning
from rollcage.session.scope import Enclosing, around, here
from rollcage.undo.compensation import declared_tools

__all__ = [
    "Declared",
    "contract_of",
    "declaration",
    "declare",
    "declared_contracts",
    "guarded",
    "open_sessions",
    "outside",
]

open_sessions: Final[weakref.WeakValueDictionary[int, Enclosing]] = weakref.WeakValueDictionary()
"""The sessions of this process that are open, by the `id` of their calls.

It keeps none alive: a session that nobody can call any more is left (see `forgotten`).
"""


class Declared(TypedDict, total=False):
    """What a tool may declare of itself; each field is described at `Contract`.

    One word or type stands for a list of one.
    """

    name: str
    version: str
    description: str
    effect: Effect
    idempotent: bool
    risk: str
    permissions: Sequence[str]
    raises: type[Exception] | Sequence[type[Exception]]
    unknown_on: type[Exception] | Sequence[type[Exception]]
    secret: Sequence[str]
    labels: Sequence[str]
    returns: Any
    strict: bool
    on_miss: OnMiss | None
    source: Source
    undo: Callable[..., Any] | None
    observe: Callable[[dict[str, Any]], Any] | None
    probe: Callable[..., Any] | None
    once: str
    on_drift: OnDrift | None
    json_output: Any
    allow_empty: bool
    max_output: int | None


_CONTRACT: Final = "__rollcage_contract__"


def contract_of(function: Callable[..., Any]) -> Contract | None:
    """The contract that `@rollcage.tool` attached to a function; None if there is none."""
    found = getattr(function, _CONTRACT, None)
    return found if isinstance(found, Contract) else None


@functools.lru_cache(maxsize=4096)
def _undeclared(function: Callable[..., Any]) -> Contract:
    return Contract.of(function)


def declaration(function: Callable[..., Any]) -> tuple[Callable[..., Any], Contract]:
    """A tool's body (see `plain_body`) and its contract."""
    contract = getattr(function, _CONTRACT, None)
    if contract is not None:
        return plain_body(function), contract
    if not callable(function):
        raise ContractError(f"{function!r} can't be called, so it is not a tool")
    return function, _undeclared(function)


def outside(function: Callable[..., Any], contract: Contract) -> Callable[..., Any]:
    """Return the function with its calls guarded by a session of this core, if there is one.

    `rollcage.tool` calls it outside of the heart's sessions.
    """
    return guarded(function, contract, functools.partial(_session_here, contract))


def declare(function: Callable[..., Any], declared: dict[str, Any]) -> Callable[..., Any]:
    """Declare a function for `Session.tool`."""
    contract = Contract.of(function, **declared)
    wrapper = outside(function, contract)
    written = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    declared_tools.setdefault(contract.name, {})[written] = weakref.ref(wrapper)
    return wrapper


def declared_contracts() -> Iterator[Contract]:
    """The contracts of the tools that this process has declared."""
    for named in list(declared_tools.values()):
        for made in list(named.values()):
            found = contract_of(made())  # type: ignore[arg-type] # None has no contract either  # pyright: ignore[reportArgumentType] - known to mypy
            if found is not None:
                yield found


def guarded(
    function: Callable[..., Any], contract: Contract, session_of: Callable[[], Enclosing | None]
) -> Callable[..., Any]:
    """The function with its calls guarded by the session that `session_of` finds, if any."""
    bind = inspect.signature(function).bind
    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awrapper(*args: Any, **kwargs: Any) -> Any:
            session = session_of()
            if session is None:
                return await function(*args, **kwargs)
            named = _named(session, contract, bind, args, kwargs) if args else kwargs
            return await session.arun(contract, named, function)

        wrapper = awrapper
    else:
        is_sync_stream = inspect.isgeneratorfunction(function)
        is_stream = is_sync_stream or inspect.isasyncgenfunction(function)

        @functools.wraps(function)
        def plain_wrapper(*args: Any, **kwargs: Any) -> Any:
            session = session_of()
            if session is None:
                return function(*args, **kwargs)
            named = _named(session, contract, bind, args, kwargs) if args else kwargs
            if not is_stream:
                return session.run(contract, named, function)
            stream = session.stream if is_sync_stream else session.astream
            return stream(contract, named, function)

        wrapper = plain_wrapper
    setattr(wrapper, _CONTRACT, contract)
    attach_body(wrapper, function)
    return wrapper


def _named(
    session: Enclosing,
    contract: Contract,
    bind: Callable[..., inspect.BoundArguments],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    try:
        bound = bind(*args, **kwargs)
    except TypeError as error:  # raised as Python does, and recorded
        given = dict(zip(contract.json_schema.get("properties", ()), args, strict=False))
        more = {f"*{index}": each for index, each in enumerate(args) if index >= len(given)}
        given |= {**more, **kwargs}
        session.refused(contract, given, reason=str(error), code=ArgumentsInvalid.code)
        raise
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    return named


def _check_facades(contract: Contract) -> None:
    """Refuse a tool that an open session does not give: a thread may have led around the facade.

    Raises:
        Blocked: the tool does not run.
    """
    for session in list(open_sessions.values()):
        facade = session.facade
        refused = None if facade is None else facade.check(contract, contract.function)
        if refused is not None:
            raise Blocked(
                f"{refused.reason}; it was called in a thread or task that knows no session, while "
                f"one with a facade is open",
                rule=refused.rule,
                code=refused.code,
            )


def _check_unguarded(contract: Contract) -> None:
    """Refuse a tool while a session is open that lets none run unguarded.

    Raises:
        Blocked: the tool does not run.
    """
    for session in list(open_sessions.values()):
        if session.unguarded == "refuse":
            reason = (
                f"{contract.name} was called in a thread or task that knows no session, while one "
                f"is open that lets no tool run unguarded: start the thread with "
                f"contextvars.copy_context().run, or call through the session. If such calls may "
                f'run, open it with unguarded="warn"'
            )
            session.refused(contract, {}, reason=reason, code="unguarded")
            raise Blocked(reason, rule="", code="unguarded")


def _session_here(contract: Contract) -> Enclosing | None:
    scope = around.get()
    if scope is not None and scope.calls.nesting.left:
        scope = here()
    if scope is not None:
        return scope.calls
    if open_sessions:
        _check_facades(contract)
        _check_unguarded(contract)
        warnings.warn(
            f"{contract.name} was called in a thread or task that knows no session, while sessions "
            f"are open in this process: it runs unguarded. Start the thread with "
            f"contextvars.copy_context().run, or call through the session",
            UnguardedCallWarning,
            stacklevel=4,
        )
    return None
