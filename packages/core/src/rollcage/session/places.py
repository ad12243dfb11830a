"""Where calls are made: in a turn, in a branch, or at the place that a framework's hook names."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from typing import Any, TypeVar, overload

from rollcage.errors import SessionError
from rollcage.gate import Ask
from rollcage.replay.world import Turn
from rollcage.session.calls import Calls
from rollcage.session.scope import InScope, Scope
from rollcage.values.names import writable

__all__ = ["BranchHandle", "Places", "TurnHandle"]

R = TypeVar("R")


class TurnHandle:
    """A turn that is stated explicitly; its calls were issued together.

    Calls get their slots in order of arrival. If they arrive in any order (threads), say
    `with turn.slot(i):` around each, in the thread itself.
    """

    def __init__(self, scope: Scope) -> None:
        self._at = scope

    @contextlib.contextmanager
    def slot(self, index: int) -> Generator[None]:
        """The next call in this context is the turn's `index`-th (from 0)."""
        with InScope(dataclasses.replace(self._at, slot=index)):
            yield


class BranchHandle:
    """A branch of a session: a world of its own, for an agent or a thread with dependent writes."""

    def __init__(self, scope: Scope) -> None:
        self._at = scope

    @property
    def name(self) -> str:
        """Its full name, as the trace has it."""
        return self._at.branch

    @property
    def was_undone(self) -> bool:
        """Whether all that is recorded of it was undone when it ran: it is replayed as it was.

        A call in it that is not recorded halts the session: whatever ended the branch then, such as
        another one that was faster, has to end it again before it makes one.
        """
        return self._at.calls.replays_undone(self._at.branch)

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """Like `Session.call`, in this branch, from whichever thread."""
        with InScope(self._at):
            return self._at.calls.call(tool, **arguments)

    @overload
    async def acall(
        self, tool: Callable[..., Coroutine[Any, Any, R]], /, **arguments: Any
    ) -> R: ...
    @overload
    async def acall(self, tool: Callable[..., R], /, **arguments: Any) -> R: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Like `Session.acall`, in this branch, from whichever task."""
        with InScope(self._at):
            return await self._at.calls.acall(tool, **arguments)


class Places:
    """Places the calls of a session; `Session` says how."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._driver = calls.driver
        self._turns: dict[Any, Turn] = {}

    @contextlib.contextmanager
    def turn(self, opens: Mapping[str, Collection[str]]) -> Generator[TurnHandle]:
        """See `Session.turn`."""
        driver = self._driver
        driver.check_process()
        with driver.lock:
            turn = driver.ledger.branches.new_turn(opens)
        scope = dataclasses.replace(self._calls.here(), turn=turn, slot=None)
        with InScope(scope):
            yield TurnHandle(scope)

    @contextlib.contextmanager
    def branch(self, name: str, after: Iterable[BranchHandle]) -> Generator[BranchHandle]:
        """See `Session.branch`."""
        if not name or set(name) & set("/#"):
            raise SessionError(f"{name!r} can't name a branch: it is empty or holds / or #")
        calls, driver = self._calls, self._driver
        if calls.means.seal.is_quoted_by(name):
            raise SessionError(
                "the name of a branch quotes a declared secret, and names are written to the trace "
                "as they are: use one without the secret"
            )
        wall = calls.means.clock.wall
        here = calls.here()
        driver.check_process()
        calls.following.look_back()  # branches of this name that were seen come before this one
        standing = calls.following.standing()
        with driver.lock:
            parent = driver.ledger.branch_name(here.branch, here.step)
            turn = here.turn or driver.ledger.branches.turn_at(standing, parent)
            now, names = wall() // 1000, list(dict.fromkeys(each.name for each in after))
            full, forked = driver.ledger.branching.fork(parent, name, turn, now, standing, names)
            if not driver.closed and driver.ledger.halted is None:
                driver.append(forked)
        scope = dataclasses.replace(here, branch=full, turn=None, slot=None)
        with InScope(scope):
            yield BranchHandle(scope)
        if driver.writer.forked:
            return  # the child of a fork in here: what joins is the parent's
        calls.following.look_back()  # nobody may have asked for anything in it
        with driver.lock:
            event = driver.ledger.join(parent, full, turn, wall() // 1000)
            if event is not None:
                driver.append(event)

    def place(
        self,
        turn: object,
        slot: int | None,
        agent: str,
        call_id: str,
        conversation: str,
        *,
        once: bool,
        ask: Ask | None,
    ) -> InScope:
        """See `Session.place`."""
        here = self._calls.here()
        placed = here.turn if turn is None else self._turn(here, turn)
        return InScope(
            Scope(
                self._calls,
                here.branch,
                placed,
                slot,
                writable(agent) if agent else here.agent,
                writable(call_id) if call_id else "",
                writable(conversation) if conversation else "",
                here.step,
                None if turn is None or slot is None else once,
                ask,
            )
        )

    def _turn(self, here: Scope, name: object) -> Turn:
        """The turn of this name that a framework has begun here."""
        driver = self._driver
        driver.check_process()
        key = (here.branch, None if here.step is None else here.step.number, name)
        placed = self._turns.get(key)
        if placed is None:
            with driver.lock:
                placed = self._turns.get(key)
                if placed is None:
                    placed = self._turns[key] = driver.ledger.branches.new_turn()
        return placed
