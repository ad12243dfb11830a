"""Where a call comes from: what it finds around it in its context."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar, Token
from typing import Any, Protocol, TypeVar, overload

from rollcage.contract import Contract
from rollcage.fingerprint import idempotency_key
from rollcage.step import Step
from rollcage.world import Turn

__all__ = ["Branch", "CurrentStep", "Guard", "Scope", "TurnHandle", "around", "current_step"]

R = TypeVar("R")


class Guard(Protocol):
    """What scopes and declared tools need of their session."""

    root: str

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

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """See `Session.call`."""
        ...

    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """See `Session.acall`."""
        ...


@dataclasses.dataclass(slots=True, eq=False)  # frozen, it would take four times as long to make
class Scope:
    """What a call finds around it: its session, branch, turn, and the step whose body it is in."""

    session: Guard
    branch: str = ""
    turn: Turn | None = None
    slot: int | None = None
    agent: str = ""
    call_id: str = ""
    step: Step | None = None


around: ContextVar[Scope | None] = ContextVar("rollcage_scope", default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step whose body is running.

    Attributes:
        run: the run's id.
        number: its number in the run's trace.
        name: the tool's name.
        idempotency_key: the same whenever this step is run again in a resume of the run (64 hex
            digits); hand it to the service that the tool calls.
    """

    run: str
    number: int
    name: str
    idempotency_key: str


def current_step() -> CurrentStep | None:
    """The step whose body is running in this context; None outside of one."""
    scope = around.get()
    if scope is None or scope.step is None:
        return None
    step = scope.step
    return CurrentStep(
        step.run,
        step.number,
        step.call.contract.name,
        idempotency_key(scope.session.root, step.branch.name, step.fingerprint.hex()),
    )


def enter_body(session: Guard, step: Step) -> Token[Scope | None]:
    """Make `step` the one whose body is running in its session; `around.reset` ends that."""
    return around.set(Scope(session, agent=step.call.agent, branch=step.branch.name, step=step))


@contextlib.contextmanager
def in_scope(scope: Scope) -> Generator[None]:
    """Let the calls inside come from `scope`."""
    token = around.set(scope)
    try:
        yield
    finally:
        around.reset(token)


class TurnHandle:
    """A turn that is stated explicitly; its calls were issued together.

    Calls get their slots in order of arrival. Where they arrive in any order (threads), say
    `with turn.slot(i):` around each, in the thread itself.
    """

    def __init__(self, scope: Scope) -> None:
        self._at = scope

    @contextlib.contextmanager
    def slot(self, index: int) -> Generator[None]:
        """The next call in this context is the turn's `index`-th (from 0)."""
        with in_scope(dataclasses.replace(self._at, slot=index)):
            yield


class Branch:
    """A branch of a session: a world of its own, for an agent or a thread with dependent writes."""

    def __init__(self, scope: Scope) -> None:
        self._at = scope

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """Like `Session.call`, in this branch, from whichever thread."""
        with in_scope(self._at):
            return self._at.session.call(tool, **arguments)

    @overload
    async def acall(
        self, tool: Callable[..., Coroutine[Any, Any, R]], /, **arguments: Any
    ) -> R: ...
    @overload
    async def acall(self, tool: Callable[..., R], /, **arguments: Any) -> R: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Like `Session.acall`, in this branch, from whichever task."""
        with in_scope(self._at):
            return await self._at.session.acall(tool, **arguments)
