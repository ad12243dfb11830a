"""Guarded tools: each call is recorded and replayed at the tool's own body, with native values."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import pydantic
import pydantic_core
from autogen_core import CancellationToken
from autogen_core.tools import BaseStreamTool, BaseTool, FunctionTool
from rollcage import Contract, Session
from rollcage.adapter import (
    Declarations,
    Effect,
    Instead,
    Running,
    Validated,
    asking,
    declared_contract,
    fixed,
    gathered,
    guard_each,
    held_by,
    is_model_class,
    step_here,
    swapped,
)
from rollcage.errors import ContractError

from rollcage_autogen.calls import before_question, lister, note_missing, placed
from rollcage_autogen.contracts import AnyTool, contract_for, plain_function
from rollcage_autogen.endings import Answering, instead_of, linked
from rollcage_autogen.values import Piece, last_piece, register_messages

__all__ = ["as_tools", "guard_tools", "guarding"]

T = TypeVar("T", bound=AnyTool)

_GUARD: Final = "__rollcage_guard__"


def guard_tools(
    tools: Sequence[T],
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[T]:
    """AutoGen tools of the same types, whose calls go through the session.

    The originals stay as they are. A tool that this session guards already is given back as it is.
    Whatever ends a call (a refusal, a halted session, a cancellation, an exit) reaches the agent as
    an error result, for it would wait for ever otherwise.

    Args:
        tools: any `BaseTool`: function tools, subclasses, streaming ones, agents and teams as
            tools. Declare an agent as a tool with `effects={"its_name": "scope"}`.
        session: guards the calls; it must be entered before the first one.
        effects: by a tool's name, its effect; a tool that is not named is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it:
            `{"send_mail": {"idempotent": True, "secret": "password"}}`.

    Raises:
        ContractError: a name that no tool has, a declaration that can't be used, something that is
            no tool, or a tool that another session guards.
        ToolRefused: a tool that the session's facade does not give.
    """
    register_messages()
    return guard_each(
        tools,
        session,
        effects,
        contracts,
        framework="AutoGen",
        kinds=BaseTool,
        instead="as_tools makes one of a function declared with @rollcage.tool, "
        "FunctionTool(function, description=...) of any other; a workbench goes into "
        "RollcageWorkbench",
        guarding=guarding,
        guard=lambda tool, effect, declared: _guarded(tool, session, effect, declared),
    )


def as_tools(
    functions: Iterable[Callable[..., Any]], session: Session | None = None
) -> list[FunctionTool]:
    """AutoGen tools for functions declared with `@rollcage.tool`, sync or async.

    Args:
        functions: the declared functions.
        session: guards the calls; by default it is the one that is open around each call.

    Raises:
        ContractError: a function without a declaration.
    """
    tools: list[FunctionTool] = [_DeclaredTool(function) for function in functions]
    return tools if session is None else guard_tools(tools, session)


def guarding(tool: AnyTool) -> Session | None:
    """The session that guards a tool; None if there is none."""
    guard = getattr(type(tool), _GUARD, None)
    return guard.session if isinstance(guard, _Guard) else None


class _DeclaredTool(FunctionTool):
    """A tool for a declared function: the session around a call is around its body, too."""

    component_provider_override = "autogen_core.tools.FunctionTool"

    def __init__(self, function: Callable[..., Any]) -> None:
        contract = declared_contract(function)
        if contract is None or not is_model_class(contract.parameters):
            raise ContractError(f"{function!r} is not declared: decorate it with @rollcage.tool")
        # Not FunctionTool's own: it refuses annotations that the contract has understood.
        base: Any = BaseTool
        base.__init__(
            self, contract.parameters, contract.returns, contract.name, contract.description
        )
        self._func = function
        self._global_imports = ()
        self._signature = inspect.signature(function)
        self._has_cancellation_support = False

    async def run(self, args: Any, cancellation_token: CancellationToken) -> Any:
        call = _function_call(self, args, cancellation_token)
        if inspect.iscoroutinefunction(self._func):
            return await call()
        return await linked(asyncio.to_thread(call), cancellation_token)

    def run_json(
        self, args: Any, cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Any:
        running = self._answered(args, cancellation_token, call_id)
        return Answering(running, self.name, cancellation_token)

    async def _answered(self, args: Any, token: CancellationToken, call_id: str | None) -> Any:
        try:
            return await super().run_json(args, token, call_id)
        except BaseException as error:  # noqa: BLE001 - what must go on as it is, does
            instead = instead_of(error, None, self.name, token)
        raise instead


def _function_call(tool: AnyTool, args: Any, token: CancellationToken) -> functools.partial[Any]:
    """What a `FunctionTool` calls; behind `@rollcage.tool`, where we guard it ourselves."""
    function: Any = plain_function(tool)
    names: Any = getattr(tool, "_signature").parameters  # noqa: B009 - protected, and no other way
    arguments = {name: getattr(args, name) for name in names if hasattr(args, name)}
    arguments |= args.__pydantic_extra__ or {}  # where it takes any further keyword
    if "cancellation_token" in names:
        arguments["cancellation_token"] = token
    if guarding(tool) is not None and declared_contract(function) is not None:
        plain = getattr(function, "__wrapped__", function)
        if declared_contract(plain) is None:  # else it is a user's wrapper around a declared one
            function = plain
    return functools.partial(function, **arguments)


# --- guarding one tool ---------------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False)
class _Call:
    """A call as an agent makes it: by `run_json`, which alone is told its id."""

    guard: _Guard
    id: str
    step: tuple[str, int] | None  # inside of which it is made
    stream: Any = None  # what it opened: AutoGen leaves that open where its own is left early

    async def close(self) -> None:
        if self.stream is not None:
            await self.stream.aclose()


_call: ContextVar[_Call | None] = ContextVar("rollcage_autogen_call", default=None)


class _Guard:
    """What stands between one tool and its body."""

    def __init__(self, session: Session, contract: Contract, name: str) -> None:
        self.session = session
        self.running = Running(_call.get)
        self.name = name
        self.contract = contract
        self.schema: bytes | None = None  # as the framework made it, where it is always the same

    @contextlib.contextmanager
    def call(self, call_id: str | None) -> Generator[_Call]:
        """Around a call by an agent."""
        made = _Call(self, call_id or "", step_here())
        token = _call.set(made)
        try:
            yield made
        finally:
            _call.reset(token)

    @contextlib.contextmanager
    def recorded(self, args: Any) -> Generator[None]:
        """Put a call on record that AutoGen refuses for its arguments, before its body."""
        with asking(args if isinstance(args, Mapping) else None) as asked:  # pyright: ignore[reportUnknownArgumentType] - a framework's own data
            try:
                yield
            except Exception as error:
                if not asked.reached and isinstance(error, (pydantic.ValidationError, TypeError)):
                    given = args if isinstance(args, Mapping) else {"arguments": args}  # pyright: ignore[reportUnknownVariableType] - a framework's own data
                    with self._placed():
                        self.session.refused(self.contract, given, reason=type(error).__name__)  # pyright: ignore[reportUnknownArgumentType] - a framework's own data
                raise

    def _called(self) -> _Call | None:
        """The agent's call that comes to its body here; None where other code runs the body."""
        call = _call.get()
        if call is None or call.guard is not self or call.step != step_here():
            return None
        return call

    def _placed(self) -> contextlib.AbstractContextManager[None]:
        call = self._called()
        return placed(self.session, "" if call is None else call.id)

    async def run(
        self, args: Any, body: Callable[[Any], Any], *, is_async: bool = True, streams: bool = False
    ) -> Any:
        """Guard a body, told the arguments; a sync one runs in a thread."""
        inside = (self._async_body if is_async else self._sync_body)(body)
        instead = Instead(
            gathered(lambda values: inside(_edited(args, values))),
            lambda value: [Piece(value)] if streams else value,
        )
        with self._placed():
            return await self.session.arun(
                self.contract,
                _given(args),
                fixed(inside, args),
                is_async=is_async,
                instead=instead,
            )

    def _async_body(self, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def inside(args: Any) -> Any:
            with self.running.body():
                return await body(args)

        return inside

    def _sync_body(self, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def inside(args: Any) -> Any:
            with self.running.body():
                return body(args)

        return inside

    def stream(self, args: Any, body: Callable[[Any], Any]) -> AsyncIterator[Any]:
        """Guard a body that gives a stream; the call is placed now, not at its first piece."""

        async def inside(args: Any) -> AsyncIterator[Piece]:
            with self.running.body():
                async with contextlib.aclosing(body(args)) as given:
                    async for each in given:
                        yield Piece(each)

        instead = Instead(
            gathered(lambda values: inside(_edited(args, values))), lambda value: [Piece(value)]
        )
        with self._placed():
            pieces = self.session.astream(
                self.contract, _given(args), fixed(inside, args), instead=instead
            )
            stream = _opened(pieces)
        call = self._called()
        if call is not None:
            call.stream = stream
        return stream


def _guarded(tool: T, session: Session, effect: Effect | None, declared: Any) -> T:
    guard = _Guard(session, contract_for(tool, effect, declared), tool.name)
    cls: Any = type(tool)
    members: dict[str, Any] = {_GUARD: guard, "schema": _schema(guard, cls)}
    streams = isinstance(tool, BaseStreamTool)
    if _is_plain_function(tool):
        members["run"] = _function_run(guard)
    else:
        members["run"] = _run(guard, cls.run, streams=streams)
    members["run_json"] = _run_json(guard, cls.run_json, streams=streams)
    if streams:
        members["run_stream"] = _run_stream(guard, cls.run_stream)
        members["run_json_stream"] = _run_json_stream(guard, cls.run_json_stream)
    return swapped(tool, members)


def _is_plain_function(tool: AnyTool) -> bool:
    """Whether its body is a sync function: AutoGen calls it in a thread without its context."""
    if not isinstance(tool, FunctionTool) or type(tool).run not in _FUNCTION_RUNS:
        return False
    return not inspect.iscoroutinefunction(plain_function(tool))


_FUNCTION_RUNS: Final[tuple[Any, ...]] = (FunctionTool.run, _DeclaredTool.run)


def _schema(guard: _Guard, cls: Any) -> property:
    """An agent reads the schemas of its tools before each question to its model and each call.

    AutoGen builds them anew each time; its own only say how the tool was made, so that is kept.
    """
    base: Any = BaseTool
    may_keep = cls.schema is base.schema

    def schema(self: Any) -> Any:
        if lister() == "question":
            before_question(guard.session)
        else:
            note_missing(guard.session, self)
        if guard.schema is not None:
            return pydantic_core.from_json(guard.schema)  # whoever gets it may change it
        made = cls.schema.__get__(self, cls)
        guard.schema = _as_json(made) if may_keep else None
        return made

    return property(schema)


def _as_json(schema: Any) -> bytes | None:
    """A schema as JSON; None where that would not say the same."""
    try:
        text = pydantic_core.to_json(schema)
    except ValueError:  # it refers to itself
        return None
    return text if pydantic_core.from_json(text) == schema else None


# --- the bodies ----------------------------------------------------------------------------------


def _run(guard: _Guard, body: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
    @functools.wraps(body)
    async def run(self: Any, args: Any, cancellation_token: CancellationToken) -> Any:
        if guard.running.here:
            return await body(self, args, cancellation_token)

        async def inside(args: Any) -> Any:
            value = await body(self, args, cancellation_token)
            return [Piece(value)] if streams else value

        return last_piece(await guard.run(args, inside, streams=streams))

    return run


def _function_run(guard: _Guard) -> Callable[..., Any]:
    async def run(self: Any, args: Any, cancellation_token: CancellationToken) -> Any:
        def call(args: Any) -> Any:
            return _function_call(self, args, cancellation_token)()

        guarded = guard.run(args, call, is_async=False)
        if "cancellation_token" in _function_call(self, args, cancellation_token).keywords:
            return await guarded
        return await linked(guarded, cancellation_token)

    return run


def _run_stream(guard: _Guard, body: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(body)
    def run_stream(
        self: Any, args: Any, cancellation_token: CancellationToken
    ) -> AsyncIterator[Any]:
        def inside(args: Any) -> AsyncIterator[Any]:
            stream: AsyncIterator[Any] = body(self, args, cancellation_token)
            return stream

        if guard.running.here:
            return inside(args)
        return guard.stream(args, inside)

    return run_stream


def _given(args: Any) -> Mapping[str, Any]:
    """The arguments by name; a model's were validated by AutoGen."""
    return Validated.of(args) if isinstance(args, pydantic.BaseModel) else args


def _edited(args: Any, values: dict[str, Any]) -> Any:
    """Other arguments in the form of these; they are validated."""
    return held_by(type(args), values) if isinstance(args, pydantic.BaseModel) else values


async def _opened(pieces: Any) -> AsyncIterator[Any]:
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            yield piece.value if isinstance(piece, Piece) else piece


# --- as agents call them -------------------------------------------------------------------------


def _run_json(guard: _Guard, method: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
    base: Any = BaseTool
    # A body of its own, which may not use `run`.
    own = method not in (base.run_json, _DeclaredTool.run_json)

    async def call(self: Any, args: Any, token: CancellationToken, call_id: str | None) -> Any:
        async def inside(args: Any) -> Any:
            value = await method(self, args, token, call_id)
            return [Piece(value)] if streams and own else value

        try:
            with guard.call(call_id), guard.recorded(args):
                if not own:
                    return await inside(args)
                return last_piece(await guard.run(args, inside, streams=streams))
        except BaseException as error:  # noqa: BLE001 - what must go on as it is, does
            instead = instead_of(error, guard.session, guard.name, token)
        raise instead

    @functools.wraps(method)
    def run_json(
        self: Any, args: Any, cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Answering:
        running = call(self, args, cancellation_token, call_id)
        return Answering(running, guard.name, cancellation_token)

    return run_json


def _run_json_stream(guard: _Guard, method: Callable[..., Any]) -> Callable[..., Any]:
    base: Any = BaseStreamTool
    own = method is not base.run_json_stream

    def pieces(self: Any, args: Any, token: CancellationToken, call_id: str | None) -> Any:
        def inside(args: Any) -> Any:
            return method(self, args, token, call_id)

        return guard.stream(args, inside) if own else inside(args)

    @functools.wraps(method)
    async def run_json_stream(
        self: Any, args: Any, cancellation_token: CancellationToken, call_id: str | None = None
    ) -> AsyncIterator[Any]:
        try:
            async with contextlib.AsyncExitStack() as leaving:
                # The consumer has this context, too: no longer than for the first piece.
                with guard.call(call_id) as made, guard.recorded(args):
                    leaving.push_async_callback(made.close)
                    stream = pieces(self, args, cancellation_token, call_id)
                    await leaving.enter_async_context(contextlib.aclosing(stream))
                    first = await anext(stream, _END)
                if first is not _END:
                    yield first
                    async for each in stream:
                        yield each
            return
        except BaseException as error:  # noqa: BLE001 - what must go on as it is, does
            instead = instead_of(error, guard.session, guard.name, cancellation_token)
        raise instead

    return run_json_stream


_END: Final = object()
