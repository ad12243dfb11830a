"""Declare tools: functions with a contract, whose calls a session guards."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, overload

from rollcage.contract.compensation import declared_tools
from rollcage.contract.contract import Contract, Effect, OnMiss, Source, attach_body, plain_body
from rollcage.contract.drift import OnDrift
from rollcage.errors import Blocked, ContractError, UnguardedCallWarning
from rollcage.replay.call import here, open_sessions
from rollcage.undo.plan import plain

if TYPE_CHECKING:
    from rollcage.session.session import Session

__all__ = [
    "CONTRACT", "CurrentStep", "Declared", "contract_of", "current_step", "declaration",
    "declared_contracts", "tool",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True)
class CurrentStep:
    """Describe the step whose body is running.

    Attributes:
        run: the run's id.
        number: the number in the run.
        name: the tool's name.
        idempotency_key: equal whenever this step runs again in a resume of the run (64 hex digits),
            new after an undo; pass it to the service that the tool calls.
        before: the state that the tool's `observe` saw, for its undo; None without `observe`. A
            body that locks its resource can refuse if the state has changed since.
    """

    run: str
    number: int
    name: str
    idempotency_key: str
    before: Mapping[str, Any] | None = None


def current_step() -> CurrentStep | None:
    """Return the step whose body is running in this context; None outside of a body."""
    place = here.get()
    if place is None or place.around is None or place.looks:
        return None
    call, run = place.around, place.attempt.run
    n = call.event["step"]
    step = run.steps.get(n)
    if step is None:  # a read is written when it ends
        from rollcage.trace.run import Step

        step = Step(call.event)
        step.read_rest(call.event)  # its epoch, for one
    before = (call.kept or {}).get("before")
    return CurrentStep(
        run.id, n, call.contract.name, run.idempotency_key(step),
        None if before is None else plain(before),
    )  # fmt: skip


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**declared: Unpack[Declared]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a tool: the function stays, with a contract attached.

    Inside a session, a call of the function is guarded; outside, it runs plainly. `Contract` lists
    everything that can be declared; an undeclared effect is `write`. A generator function is a
    stream.

    Raises:
        ContractError: the declaration can't be used; the error names the parameter or field.
    """
    if function is None:
        return lambda each: _declare(each, declared)
    return _declare(function, declared)


def _declare(function: Callable[..., Any], declared: dict[str, Any]) -> Callable[..., Any]:
    contract = Contract.of(function, **declared)
    wrapper = _guarded(function, contract)
    written = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    declared_tools.setdefault(contract.name, {})[written] = weakref.ref(wrapper)
    return wrapper


def bound_to(session: Session, function: Callable[..., Any] | None, **declared: Any) -> Any:
    """Return a function whose calls always belong to a session; see `Session.tool`."""
    if function is None:
        return lambda each: bound_to(session, _declare(each, declared))
    body, contract = declaration(function)
    return _guarded(body, contract, session)


def _guarded(
    function: Callable[..., Any], contract: Contract, session: Session | None = None
) -> Callable[..., Any]:
    """Guard the calls of a function: by a session, or by the session of the context."""
    bind = inspect.signature(function).bind
    of_call = _session_here if session is None else lambda _: session

    def named(args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any]:
        bound = bind(*args, **words)
        found = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                found |= found.pop(parameter.name, {})
        return found

    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awrapper(*args: Any, **words: Any) -> Any:
            session = of_call(contract)
            if session is None:
                return await function(*args, **words)
            return await session.arun_call(
                contract, named(args, words) if args else words, function
            )

        wrapper = awrapper
    elif contract.streams:
        is_async = inspect.isasyncgenfunction(function)

        @functools.wraps(function)
        def stream_wrapper(*args: Any, **words: Any) -> Any:
            session = of_call(contract)
            if session is None:
                return function(*args, **words)
            stream = session.astream if is_async else session.stream
            return stream(contract, named(args, words) if args else words, function)

        wrapper = stream_wrapper
    else:

        @functools.wraps(function)
        def plain_wrapper(*args: Any, **words: Any) -> Any:
            session = of_call(contract)
            if session is None:
                return function(*args, **words)
            return session.run_call(contract, named(args, words) if args else words, function)

        wrapper = plain_wrapper
    setattr(wrapper, CONTRACT, contract)
    attach_body(wrapper, function)
    return wrapper


def _session_here(contract: Contract) -> Session | None:
    """Return the session that guards a call in this context; None if the call runs plainly.

    Raises:
        Blocked: an open session lets no tool run without a session.
    """
    place = here.get()
    while place is not None and place.session.is_left and place.session.is_over:
        if place.looks:
            break  # a call in flight when its session was left: its tool still only looks
        if not place.session.was_entered_here():
            break  # a task or thread that outlives its session: the call is refused, not unguarded
        place = place.session.entered_at
        here.set(place)
    if place is not None:
        return place.session
    for session in list(open_sessions):
        refused = session.gate.screen(contract, contract.function, "tool")
        if refused is not None:  # even if another session would allow it
            raise Blocked(refused.message, rule=refused.rule, code=refused.code)
        if session.refuses_unguarded:
            raise Blocked(
                f"{contract.name} was called in a thread or task that knows no session, while one "
                f"is open that lets no tool run without it: start the thread with "
                f"contextvars.copy_context().run, or call through the session",
                rule="",
                code="unguarded",
            )
    if open_sessions:
        warnings.warn(
            f"{contract.name} was called in a thread or task that knows no session, while sessions "
            f"are open in this process: it runs unguarded. Start the thread with "
            f"contextvars.copy_context().run, or call through the session",
            UnguardedCallWarning,
            stacklevel=3,
        )
    return None


# --- declarations ---------------------------------------------------------------------------------


CONTRACT: Final = "__rollcage_contract__"
"""The attribute of a declared function that holds its contract."""


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


def contract_of(function: object) -> Contract | None:
    """Return the contract that `@rollcage.tool` attached to a function; None without one."""
    found = getattr(function, CONTRACT, None)
    return found if isinstance(found, Contract) else None


def declared_contracts() -> Iterator[Contract]:
    """Yield the contracts of the tools that this process has declared."""
    for named in list(declared_tools.values()):
        for made in list(named.values()):
            found = contract_of(made())
            if found is not None:
                yield found


@functools.lru_cache(maxsize=4096)
def _undeclared(function: Callable[..., Any]) -> Contract:
    return Contract.of(function)


def declaration(function: Callable[..., Any]) -> tuple[Callable[..., Any], Contract]:
    """Return a tool's body and its contract."""
    contract = getattr(function, CONTRACT, None)
    if contract is not None:
        return plain_body(function), contract
    if not callable(function):
        raise ContractError(f"{function!r} can't be called, so it is not a tool")
    return function, _undeclared(function)
