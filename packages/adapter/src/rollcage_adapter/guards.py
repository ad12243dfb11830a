"""A guarded body: one flow around a framework's body, sync, async and as streams.

An adapter subclasses `GuardedBody` for its tools (`GuardedModel`, for its models) and `GuardedCall`
for one call of them: these hold only the framework's own form of a call.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, TypeVar

from rollcage import Contract, Session
from rollcage.session.adapters import Answer, Instead

from rollcage_adapter.asking import reach
from rollcage_adapter.bodies import fixed
from rollcage_adapter.running import Running

__all__ = [
    "GUARD",
    "BodyForm",
    "GuardedBody",
    "GuardedCall",
    "GuardedTool",
    "guard_of",
    "guarding",
]

R = TypeVar("R")

GUARD: Final = "__rollcage_guard__"
"""The attribute at which a guarded object, or its class, holds its `GuardedBody`."""

BodyForm = Literal["run", "arun", "thread", "stream", "astream"]
"""How a body is called: sync, async, sync in a thread, or for an iterator of either kind."""


_NOTHING: Final = contextlib.nullcontext()


class GuardedCall:
    """One call of a guarded body, in its framework's form. Every method may be replaced.

    Args:
        session: the session that guards it.
        contract: the contract of the tool or model.
        arguments: the model's arguments, by name, without injected values.

    Attributes:
        answered: the errors that `refusal` answers; others go to the caller.
    """

    kind: ClassVar[Literal["tool", "model"]] = "tool"
    answered: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, session: Session, contract: Contract, arguments: Mapping[str, Any]) -> None:
        self.session = session
        self.contract = contract
        self.arguments = arguments

    # --- outside of the step ---------------------------------------------------------------------

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager around the step, where the framework's place is known."""
        return _NOTHING

    def aaround(self) -> contextlib.AbstractContextManager[Any]:
        """Return the same as `around`, for an async call."""
        return self.around()

    def given(self, value: Any) -> Any:
        """Return a step's value for the caller, live or recorded."""
        return value

    def given_piece(self, piece: Any) -> Any:
        """Return one piece of a stream for the caller."""
        return piece

    def refusal(self, error: Exception) -> Any:
        """Return the caller's result of a call that one of the `answered` errors refused."""
        raise error

    # --- the step --------------------------------------------------------------------------------

    def instead(self, inside: Callable[..., Any]) -> Instead | None:  # noqa: ARG002 - to be replaced
        """Return the approver's further options; None: the call can be neither edited nor answered.

        Args:
            inside: its body, which takes arguments in the framework's own form.
        """
        return None

    @property
    def read(self) -> Callable[[Any], Answer] | None:
        """Return a function that reads a model's answer from its step's value; None for a tool."""
        return None

    # --- inside of the step ----------------------------------------------------------------------

    def body(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager around the body itself."""
        return _NOTHING

    def before(self) -> None:
        """Wait until the body may run, for example for a rate limiter."""

    async def abefore(self) -> None:
        """Do the same as `before`, for an async body."""
        self.before()

    def kept(self, value: Any) -> Any:
        """Return the recorded form of the body's result."""
        return value

    def kept_piece(self, piece: Any) -> Any:
        """Return the recorded form of one piece of a stream."""
        return piece


class GuardedBody(abc.ABC):
    """The guard between a body and its caller.

    A body that calls another body of its own continues its step: see `Running`.

    Args:
        session: the session that guards the calls.
        running: shared by the bodies of one object.
    """

    def __init__(self, session: Session, running: Running | None = None) -> None:
        self.session = session
        self.running = Running() if running is None else running

    @abc.abstractmethod
    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardedCall:
        """Return the call with these arguments.

        Args:
            owner: the object whose method the body is; None for a function.
            args: the framework's positional arguments.
            kwargs: the framework's keyword arguments.
        """

    def function(
        self, body: Callable[..., Any], form: BodyForm | None = None
    ) -> Callable[..., Any]:
        """Return a guarded function; by default it has the body's own signature."""
        form = form or ("arun" if inspect.iscoroutinefunction(body) else "run")
        guarded = getattr(self, form)
        return _FORMS[form](functools.partial(guarded, body, None))

    def method(self, body: Callable[..., Any], form: BodyForm) -> Callable[..., Any]:
        """Return a guarded method, for a class."""

        def bound(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return guarded(functools.partial(body, owner), owner, *args, **kwargs)

        guarded = getattr(self, form)
        return functools.wraps(body)(_FORMS[form](bound))

    # --- one flow, in four forms -----------------------------------------------------------------

    def run(self, body: Callable[..., Any], owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a sync body."""
        if self.running.here:
            return body(*args, **kwargs)
        call = self.call(owner, args, kwargs)
        inside = self._sync(call, body)
        try:
            with call.around():
                value = _step(self.session.run_call, call, inside, args, kwargs)
        except call.answered as error:
            return call.refusal(error)
        return call.given(value)

    async def arun(self, body: Callable[..., Any], owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call an async body."""
        if self.running.here:
            return await body(*args, **kwargs)
        call = self.call(owner, args, kwargs)

        async def inside(*args: Any, **kwargs: Any) -> Any:
            with self.running.body(), call.body():
                await call.abefore()
                return call.kept(await body(*args, **kwargs))

        return await self._awaited(call, inside, args, kwargs)

    async def thread(
        self, body: Callable[..., Any], owner: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a sync body in a thread."""
        if self.running.here:
            return body(*args, **kwargs)
        call = self.call(owner, args, kwargs)
        return await self._awaited(call, self._sync(call, body), args, kwargs)

    async def _awaited(
        self,
        call: GuardedCall,
        inside: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            with call.aaround():
                value = await _step(self.session.arun_call, call, inside, args, kwargs)
        except call.answered as error:
            return call.refusal(error)
        return call.given(value)

    def stream(
        self, body: Callable[..., Any], owner: Any, /, *args: Any, **kwargs: Any
    ) -> Iterator[Any]:
        """Call a body that returns an iterator; the call is placed now, not at its first piece."""
        if self.running.here:
            return iter(body(*args, **kwargs))
        call = self.call(owner, args, kwargs)

        def inside(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with self.running.body(), call.body():
                call.before()
                for piece in body(*args, **kwargs):
                    yield call.kept_piece(piece)

        with call.around():
            pieces = _step(self.session.stream, call, inside, args, kwargs)
        return _pieces(call, pieces)

    def astream(
        self, body: Callable[..., Any], owner: Any, /, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Call a body that returns an async iterator; the call is placed now, too."""
        if self.running.here:
            inner: AsyncIterator[Any] = body(*args, **kwargs)
            return inner
        call = self.call(owner, args, kwargs)

        async def inside(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with self.running.body(), call.body():
                await call.abefore()
                async with _closed(body(*args, **kwargs)) as given:
                    async for piece in given:
                        yield call.kept_piece(piece)

        with call.aaround():
            pieces = _step(self.session.astream, call, inside, args, kwargs)
        return _apieces(call, pieces)

    def _sync(self, call: GuardedCall, body: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self.running.body(), call.body():
                call.before()
                return call.kept(body(*args, **kwargs))

        return inside


class GuardedTool(GuardedBody):
    """The guard between a tool and its body.

    It suits bodies that take only their arguments by name; an adapter whose framework calls them
    differently overrides `call`.

    Args:
        session: the session that guards the calls.
        contract: the contract of the tool.
        running: see `GuardedBody`.
    """

    def __init__(
        self, session: Session, contract: Contract, running: Running | None = None
    ) -> None:
        super().__init__(session, running)
        self.contract = contract
        session.tools.add(contract)  # an undo may need it before the tool is called

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardedCall:  # noqa: ARG002 - of other bodies
        """Return the call with these arguments."""
        return _CallByName(self.session, self.contract, kwargs)


class _CallByName(GuardedCall):
    def instead(self, inside: Callable[..., Any]) -> Instead:
        return Instead(inside, lambda value: value)


def guard_of(holder: Any) -> GuardedBody | None:
    """Return the guard of a framework's object, a tool or a model; None without one."""
    for each in (holder, getattr(holder, "func", None), getattr(holder, "coroutine", None)):
        guard = getattr(each, GUARD, None)
        if isinstance(guard, GuardedBody):
            return guard
    return None


def guarding(holder: Any) -> Session | None:
    """The session that guards an object of a framework, or None."""
    guard = guard_of(holder)
    return None if guard is None else guard.session


def _step(
    make: Callable[..., Any],
    call: GuardedCall,
    inside: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Make a call a step of its session, by the session's method for this form of the body."""
    return make(
        call.contract,
        call.arguments,
        fixed(inside, *args, **kwargs),
        kind=call.kind,
        raw=reach(),
        answer=call.read,
        instead=call.instead(inside),
    )


@contextlib.asynccontextmanager
async def _closed(pieces: Any) -> AsyncGenerator[Any]:
    """Close an async iterator after its reader, if it can be closed."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()


def _pieces(call: GuardedCall, pieces: Any) -> Iterator[Any]:
    with contextlib.closing(pieces):
        for piece in pieces:
            yield call.given_piece(piece)


async def _apieces(call: GuardedCall, pieces: Any) -> AsyncIterator[Any]:
    async with _closed(pieces):
        async for piece in pieces:
            yield call.given_piece(piece)


# --- the forms that frameworks distinguish ----------------------------------------------


def _as_function(guarded: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return guarded(*args, **kwargs)

    return function


def _as_coroutine(guarded: Callable[..., Any]) -> Callable[..., Any]:
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return await guarded(*args, **kwargs)

    return coroutine


_FORMS: Final[Mapping[BodyForm, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "run": _as_function,
    "arun": _as_coroutine,
    "thread": _as_coroutine,
    "stream": _as_function,
    "astream": _as_function,
}
