"""The guards of one tool: one for the calls that agents make, one around its own body."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import pydantic
import pydantic_core
from autogen_core import CancellationToken
from autogen_core.tools import BaseStreamTool, BaseTool, FunctionTool
from rollcage import Contract, Session
from rollcage_adapter import (
    GUARD,
    Effect,
    GuardedCall,
    GuardedTool,
    Instead,
    Running,
    Signature,
    Validated,
    as_object,
    as_written,
    asking,
    gathered,
    held_by,
    refuse,
    step_here,
    swapped,
)

from rollcage_autogen.bare import before_question
from rollcage_autogen.contracts import AnyTool, contract_for
from rollcage_autogen.declared import DeclaredTool, function_call
from rollcage_autogen.endings import Answering, instead_of, linked
from rollcage_autogen.mcp_values import is_mcp_tool, protocol_blocks
from rollcage_autogen.private import function_of, listing
from rollcage_autogen.turns import note_missing, placed
from rollcage_autogen.values import Piece, last_piece

__all__ = ["guarded"]

T = TypeVar("T", bound=AnyTool)


@dataclasses.dataclass(slots=True, eq=False)
class _Asked:
    """A call by an agent: with `run_json`, the only method that gets the call's id."""

    guard: _Guard
    id: str
    step: tuple[str, int] | None  # the step inside of which it is made
    stream: Any = None  # its open stream, which AutoGen leaves open if its own is left early

    async def close(self) -> None:
        if self.stream is not None:
            await self.stream.aclose()


_asked: ContextVar[_Asked | None] = ContextVar("rollcage_autogen_call", default=None)


_TAKEN: Final = Signature(("args", "cancellation_token", "call_id"))
"""How AutoGen calls each body of a tool."""


class _Call(GuardedCall):
    """A call of a body, which gets its arguments as one object, and further ones."""

    def __init__(self, guard: _Guard, given: Any, *rest: Any) -> None:
        validated = isinstance(given, pydantic.BaseModel)  # by AutoGen
        arguments = Validated.of(given) if validated else given
        super().__init__(guard.session, guard.contract, arguments)
        self._guard = guard
        self._type: Any = type(given) if validated else None
        self._rest = rest

    def around(self) -> contextlib.AbstractContextManager[Any]:
        return self._guard.placed()

    def instead(self, inside: Callable[..., Any]) -> Instead:
        """Return the forms for edits and answers; edited arguments are validated."""

        def edited(values: dict[str, Any]) -> Any:
            given = values if self._type is None else held_by(self._type, values)
            return inside(given, *self._rest)

        return Instead(gathered(edited), self.kept)

    def kept(self, value: Any) -> Any:
        return [Piece(value)] if self._guard.streams else value

    def given(self, value: Any) -> Any:
        value = last_piece(value)
        return protocol_blocks(value) if self._guard.is_mcp else value

    def kept_piece(self, piece: Any) -> Piece:
        return Piece(piece)

    def given_piece(self, piece: Any) -> Any:
        return piece.value if isinstance(piece, Piece) else piece


class _Guard(GuardedTool):
    def __init__(self, session: Session, contract: Contract, tool: AnyTool) -> None:
        super().__init__(session, contract, Running(_asked.get))
        self.name = tool.name
        self.streams = isinstance(tool, BaseStreamTool)
        self.is_mcp = is_mcp_tool(tool)
        self.schema: bytes | None = None  # the framework's schema, if it is always the same

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:  # noqa: ARG002 - a tool's bodies are its own
        """Return a call of one of its bodies."""
        named = _TAKEN.named(args, kwargs)
        return _Call(self, *(named[name] for name in _TAKEN.positional if name in named))

    def astream(self, body: Any, owner: Any, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        stream = super().astream(body, owner, *args, **kwargs)
        asked = self._asked()
        if asked is not None:
            asked.stream = stream
        return stream

    @contextlib.contextmanager
    def asked(self, call_id: str | None, args: Any) -> Generator[_Asked]:
        """Mark a call by an agent; record a call whose arguments AutoGen refuses."""
        made = _Asked(self, call_id or "", step_here())
        token = _asked.set(made)
        try:
            with asking(as_object(args)) as asked:
                try:
                    yield made
                except (pydantic.ValidationError, TypeError) as error:
                    if not asked.reached:
                        with self.placed():
                            reason = type(error).__name__
                            refuse(self.session, self.contract, as_written(args), reason=reason)
                    raise
        finally:
            _asked.reset(token)

    def _asked(self) -> _Asked | None:
        """Return the agent's call that reaches its body here; None if other code runs the body."""
        asked = _asked.get()
        if asked is None or asked.guard is not self or asked.step != step_here():
            return None
        return asked

    def placed(self) -> contextlib.AbstractContextManager[Any]:
        """Set the place of that call: its turn, slot and agent."""
        asked = self._asked()
        return placed(self.session, "" if asked is None else asked.id)


def guarded(tool: T, session: Session, effect: Effect | None, declared: Any) -> T:
    """Return a tool of the same type, guarded around agents' calls and around its body."""
    guard = _Guard(session, contract_for(tool, effect, declared), tool)
    cls: Any = type(tool)
    members: dict[str, Any] = {GUARD: guard, "schema": _schema(guard, cls)}
    members["run"] = (
        _function_run(guard) if _is_plain_function(tool) else guard.method(cls.run, "arun")
    )
    members["run_json"] = _run_json(guard, cls.run_json)
    if guard.streams:
        members["run_stream"] = guard.method(cls.run_stream, "astream")
        members["run_json_stream"] = _run_json_stream(guard, cls.run_json_stream)
    return swapped(tool, members)


def _is_plain_function(tool: AnyTool) -> bool:
    """Return whether its body is a sync function.

    AutoGen calls such a body in a thread without its context.
    """
    if not isinstance(tool, FunctionTool):
        return False
    if type(tool).run not in (FunctionTool.run, DeclaredTool.run):
        return False
    return not inspect.iscoroutinefunction(function_of(tool))


def _schema(guard: _Guard, cls: Any) -> property:
    """Return a property that caches a tool's schema.

    An agent reads the schemas of its tools before each request to its model and before each call,
    and AutoGen builds them again each time. Its own schemas only depend on how the tool was made.
    """
    base: Any = BaseTool
    may_keep = cls.schema is base.schema

    def schema(self: Any) -> Any:
        if listing()[0] == "question":
            before_question(guard.session)
        else:
            note_missing(guard.session, self)
        if guard.schema is not None:
            return pydantic_core.from_json(guard.schema)  # the caller may change it
        made = cls.schema.__get__(self, cls)
        guard.schema = _as_json(made) if may_keep else None
        return made

    return property(schema)


def _as_json(schema: Any) -> bytes | None:
    """Return a schema as JSON; None if JSON would change its meaning."""
    try:
        text = pydantic_core.to_json(schema)
    except ValueError:  # it refers to itself
        return None
    return text if pydantic_core.from_json(text) == schema else None


# --- the bodies ----------------------------------------------------------------------------------


def _function_run(guard: _Guard) -> Callable[..., Any]:
    def body(self: Any, args: Any, token: CancellationToken) -> Any:
        return function_call(self, args, token)()

    guarded = guard.method(body, "thread")

    async def run(self: Any, args: Any, cancellation_token: CancellationToken) -> Any:
        running = guarded(self, args, cancellation_token)
        if "cancellation_token" in function_call(self, args, cancellation_token).keywords:
            return await running
        return await linked(running, cancellation_token)

    return run


# --- agents' calls -------------------------------------------------------------------------------


def _run_json(guard: _Guard, method: Callable[..., Any]) -> Callable[..., Any]:
    base: Any = BaseTool
    # A body of its own may not use `run`.
    own = method not in (base.run_json, DeclaredTool.run_json)
    body = guard.method(method, "arun") if own else method

    async def call(self: Any, args: Any, token: CancellationToken, call_id: str | None) -> Any:
        with guard.asked(call_id, args):
            return await body(self, args, token, call_id)

    @functools.wraps(method)
    def run_json(
        self: Any, args: Any, cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Answering:
        running = call(self, args, cancellation_token, call_id)
        return Answering(running, guard.session, guard.name, cancellation_token)

    return run_json


def _run_json_stream(guard: _Guard, method: Callable[..., Any]) -> Callable[..., Any]:
    base: Any = BaseStreamTool
    body = method if method is base.run_json_stream else guard.method(method, "astream")

    @functools.wraps(method)
    async def run_json_stream(
        self: Any, args: Any, cancellation_token: CancellationToken, call_id: str | None = None
    ) -> AsyncIterator[Any]:
        try:
            async with contextlib.AsyncExitStack() as leaving:
                # The consumer has this context, too: no longer than for the first piece.
                with guard.asked(call_id, args) as made:
                    leaving.push_async_callback(made.close)
                    stream = body(self, args, cancellation_token, call_id)
                    await leaving.enter_async_context(contextlib.aclosing(stream))
                    first = await anext(stream, _END)
                if first is not _END:
                    yield first
                    async for each in stream:
                        yield each
            return
        except BaseException as error:  # noqa: BLE001 - raised again
            instead = instead_of(error, guard.session, guard.name, cancellation_token)
        raise instead

    return run_json_stream


_END: Final = object()
