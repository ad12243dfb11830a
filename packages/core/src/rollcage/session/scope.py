"""The context of a call: its session, branch, turn, and the step whose body makes it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Protocol, TypeVar

from rollcage.contract.contract import Contract
from rollcage.contract.permissions import Enforce
from rollcage.gate import Ask, FacadeGuard, Sealing
from rollcage.replay.steps import Origin
from rollcage.replay.world import Turn
from rollcage.step.call import OpenStep
from rollcage.step.driver import Driver
from rollcage.step.gating import Above, Unguarded
from rollcage.values.registered import Types

__all__ = [
    "Asked", "Enclosing", "InScope", "Lent", "Nesting", "Scope", "Unguarded", "around", "asked",
    "asking", "call_id_here", "facade_here", "here", "looking_under", "scope_of",
]  # fmt: skip

R = TypeVar("R")


class Enclosing(Protocol):
    """What scopes and declared tools need of the calls that they are among: see `Calls`."""

    root: str
    nesting: Nesting

    @property
    def unguarded(self) -> Unguarded:
        """See `Session.unguarded`."""
        ...

    @property
    def session(self) -> object:
        """The session whose calls they are; None: of the undo of a finished run."""
        ...

    @property
    def facade(self) -> FacadeGuard | None:
        """See `Session.facade`."""
        ...

    def replays_undone(self, branch: str) -> bool:
        """See `BranchHandle.was_undone`."""
        ...

    def lend(self, scope: Scope) -> Lent:
        """What a session that is entered at this place of this one takes over."""
        ...

    def run(
        self, contract: Contract, arguments: Mapping[str, Any], body: Callable[..., Any]
    ) -> Any:
        """See `Session.run`."""
        ...

    async def arun(
        self, contract: Contract, arguments: Mapping[str, Any], body: Callable[..., Any]
    ) -> Any:
        """See `Session.arun`."""
        ...

    def stream(
        self, contract: Contract, arguments: Mapping[str, Any], body: Callable[..., Any]
    ) -> Iterator[Any]:
        """See `Session.stream`."""
        ...

    def astream(
        self, contract: Contract, arguments: Mapping[str, Any], body: Callable[..., Any]
    ) -> AsyncIterator[Any]:
        """See `Session.astream`."""
        ...

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """See `Session.call`."""
        ...

    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """See `Session.acall`."""
        ...

    def refused(
        self,
        tool: Contract | str,
        arguments: Mapping[str, Any],
        *,
        reason: str = "",
        code: str = "",
    ) -> None:
        """See `Session.refused`."""
        ...


class Lent(NamedTuple):
    """What a session takes over from the one around it: it may add to that, and loosen nothing.

    Attributes:
        above: what decides on each call, too.
        driver: whose halt, and whose orders to stop, hold as well.
        seal: what is declared a secret in one is hidden in the other; credentials are detected in
            both.
        types: values of these come back as themselves, too.
        enforce: bodies are held to their permissions at least this strictly.
    """

    above: Above
    driver: Driver
    seal: Sealing
    types: Types
    enforce: Enforce


@dataclasses.dataclass(slots=True, eq=False)  # frozen, it would take four times as long to make
class Scope:
    """The context of a call: its session, branch, turn, and the step in whose body it is made."""

    calls: Enclosing
    branch: str = ""
    turn: Turn | None = None
    slot: int | None = None
    agent: str = ""
    call_id: str = ""
    conversation: str = ""
    step: OpenStep | None = None
    once: bool | None = None  # turn and slot say which call it is; True: a failed one included
    ask: Ask | None = None
    inside: Lent | None = None  # of the innermost session around the call that is in this one

    @property
    def undoes(self) -> Origin | None:
        """The step that is being undone here."""
        return None if self.step is None else self.step.call.undoes


around: ContextVar[Scope | None] = ContextVar("rollcage_scope", default=None)


@dataclasses.dataclass(slots=True, eq=False)
class Asked:
    """A call that a framework is about to make, and whether it has reached a session yet.

    One that has not was refused by the framework: `Session.refused` records it.

    Attributes:
        raw: the arguments as the model wrote them, before the framework's own validation.
        reached: whether it has, to be made or to be recorded as refused.
    """

    raw: Mapping[str, Any] | None = None
    reached: bool = False


asked: ContextVar[Asked | None] = ContextVar("rollcage_asked", default=None)


@contextlib.contextmanager
def asking(raw: Mapping[str, Any] | None = None) -> Generator[Asked]:
    """Around a call that a framework makes, to see whether it reaches a session.

    `raw` are its arguments as the model wrote them, if the framework validates them itself.
    """
    call = Asked(raw)
    token = asked.set(call)
    try:
        yield call
    finally:
        with contextlib.suppress(ValueError):  # a stream that is closed in another context
            asked.reset(token)


_looking: ContextVar[FacadeGuard | None] = ContextVar("rollcage_looking", default=None)


@contextlib.contextmanager
def looking_under(facade: FacadeGuard | None) -> Generator[None]:
    """Around the inspection of a run without a session: what was approved for that run counts."""
    token = _looking.set(facade)
    try:
        yield
    finally:
        _looking.reset(token)


def facade_here() -> FacadeGuard | None:
    """The facade of the calls around this context, an undo's too; None if there is none."""
    scope = here()
    return _looking.get() or (None if scope is None else scope.calls.facade)


class Nesting:
    """Where a session was entered: in which context, and inside of which other session.

    Sessions may be left in any order, and in another context than they were entered in (fixtures).

    Attributes:
        outer: what was around the session where it was entered.
        left: whether it was left.
    """

    __slots__ = ("_token", "left", "outer")

    def __init__(self) -> None:
        self.outer: Scope | None = None
        self.left = False
        self._token: Token[Scope | None] | None = None

    def enter(self, session: Enclosing) -> None:
        """Let the calls of this context come from `session`."""
        self.outer = here()
        self._token = around.set(Scope(session))

    def leave(self) -> None:
        """End that; a session that was entered later goes on to guard its own calls."""
        self.left = True
        scope = around.get()
        if scope is not None and scope.calls.nesting is self:
            around.set(_not_left(self.outer))
        else:
            here()

    def is_here(self) -> bool:
        """Whether the session was entered in this context itself, not in one it was copied from."""
        if self._token is None:
            return False
        try:
            around.reset(self._token)  # only its own context takes a token back ...
        except ValueError:
            return False
        self._token = around.set(None)  # ... and once; the caller sets what is around
        return True


def here() -> Scope | None:
    """What is around this context. Sessions that were entered in it and left since are not.

    A task that outlives its session still finds it: its calls are refused, not unguarded.
    """
    scope = around.get()
    if scope is None or not scope.calls.nesting.left:
        return scope
    found = _not_left(scope)
    if found is not scope:
        around.set(found)
    return found


def _not_left(scope: Scope | None) -> Scope | None:
    while scope is not None:
        nesting = scope.calls.nesting
        if not (nesting.left and nesting.is_here()):
            return scope
        scope = nesting.outer
    return None


def scope_of(session: Enclosing) -> Scope:
    """The place of a call of `session` in this context.

    One that is made in a session inside of it has the place at which the inner one was entered, and
    the inner one decides on it, too.
    """
    scope = around.get()
    if scope is not None and scope.calls is session and not session.nesting.left:
        return scope
    scope, inside = here(), None
    if scope is not None and scope.calls is session:
        return scope
    while scope is not None and scope.calls is not session:
        inside = inside or scope.inside or scope.calls.lend(scope)
        scope = scope.calls.nesting.outer
    if scope is None:
        return Scope(session)
    if scope.once is not None:  # turn and slot are those of another call
        return Scope(session, scope.branch, agent=scope.agent, step=scope.step, inside=inside)
    return dataclasses.replace(scope, call_id="", inside=inside)


def call_id_here() -> str:
    """The framework's id of the call that is placed here (see `Session.place`); else empty."""
    scope = around.get()
    return "" if scope is None else scope.call_id


class InScope:
    """Let the calls inside come from a scope; may be entered once."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = around.set(self._scope)

    def __exit__(self, *_: object) -> None:
        try:  # noqa: SIM105 - around each call: what suppresses would take as long as the rest
            around.reset(self._token)
        except ValueError:  # of a task that was forgotten, in another context
            pass
