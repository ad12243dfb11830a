"""Open and leave blocks: turns, branches and transactions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rollcage.calls.branches import go_otherwise, last_worlds, leave_block, open_block
from rollcage.calls.driver import Flow, adrive, drive
from rollcage.errors import Halt, SessionError, SessionHalted
from rollcage.fingerprint.identity import jcs, key_digest
from rollcage.replay.call import Place, at, check_acts
from rollcage.replay.walk import Branch, Turn
from rollcage.trace.run import Event
from rollcage.undo.program import take_back
from rollcage.values.hiding import hidden

if TYPE_CHECKING:
    from types import TracebackType

    from rollcage.session.session import Session

T = TypeVar("T")

__all__ = ["BranchHandle", "Transaction", "TurnHandle", "begin_block", "open_branch", "turn"]


class TurnHandle:
    """Give calls their slots in a stated turn."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def slot(self, slot: int) -> AbstractContextManager[Place]:
        """Put the next call in the block at this slot of the turn.

        Args:
            slot: the call's place in the model's message, from 0.

        Raises:
            SessionError: the slot is negative.
        """
        if slot < 0:
            raise SessionError(f"a slot is a place in a turn, from 0: not {slot}")
        return at(dataclasses.replace(self._place, slot=slot))


class BranchHandle:
    """Make calls in a branch, from threads without its context as well."""

    def __init__(self, place: Place, branch: Branch) -> None:
        self.place, self.branch = place, branch

    @property
    def name(self) -> str:
        """Return the name as given."""
        assert self.branch.opening is not None
        return self.branch.opening.name

    @property
    def was_undone(self) -> bool:
        """Tell whether the effects of an earlier attempt in the branch were taken back."""
        run = self.place.attempt.run
        return self.branch.name in run.rolled or self.branch.name in run.epochs

    @property
    def had_ended(self) -> bool:
        """Tell whether an earlier attempt left the block without an error."""
        opening = self.branch.opening
        assert opening is not None
        return self.branch.was == "whole" and opening.status == "ok" and not self.was_undone

    def call(self, tool: Callable[..., T], /, **arguments: Any) -> T:
        """Call a tool in this branch; see `Session.call`."""
        with at(self.place):
            return self.place.session.call(tool, **arguments)

    @overload
    async def acall(self, tool: Callable[..., Awaitable[T]], /, **arguments: Any) -> T: ...
    @overload
    async def acall(self, tool: Callable[..., T], /, **arguments: Any) -> T: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a tool in this branch; see `Session.acall`."""
        with at(self.place):
            return await self.place.session.acall(tool, **arguments)


@contextmanager
def turn(
    place: Place,
    opens: Mapping[str, Collection[str]] | None = None,
    calls: Sequence[tuple[str, Any]] | None = None,
) -> Iterator[TurnHandle]:
    """Make the calls of a block one turn. `opens` and `calls`: see `Session.turn`."""
    announced = {
        _shown(place, name): frozenset(_shown(place, each) for each in before)
        for name, before in (opens or {}).items()
    }
    stated = Turn(announced)
    stated.calls = calls
    inner = dataclasses.replace(place, turn=stated, slot=None)
    with at(inner):
        yield TurnHandle(inner)


@contextmanager
def open_branch(
    place: Place,
    name: str,
    *,
    kind: str = "branch",
    after: Iterable[BranchHandle] = (),
    given: Any = None,
    session: Session | None = None,
) -> Iterator[BranchHandle]:
    """Open a branch at a place; leaving the block joins it.

    Args:
        place: where the branch is opened.
        name: the name, equal in each attempt.
        kind: `branch`, `transaction` or `session`.
        after: branches on which it depends.
        given: a further distinction: the canonical input of a session.
        session: the session of the calls inside, if it is another session.

    Raises:
        SessionError: `after` names a branch with another parent, or a branch that has not ended.
    """
    attempt = place.attempt
    for arriving in place.session.hooks.arriving:
        work = arriving(place, is_async=False)
        if work is not None:
            drive(work)
    with attempt.lock:
        for where in place.session.hooks.where:
            place = where(None, place) or place
        before = [handle.branch for handle in after]
        outer = attempt.branch(place.branch)
        for each in before:
            if each.outer is not outer or not each.exited or each.running:
                raise SessionError(
                    f"branch {name!r} can only come after branches of the same one whose blocks "
                    f"have ended"
                )
        described = [] if session is None else session.described
        marks = {"gate": described} if described else None
        inner = begin_block(place, name, kind=kind, after=before, given=given, marks=marks)
    here = Place(
        attempt, session or place.session, inner.name, around=place.around, agent=place.agent,
        works=place.works,
    )  # fmt: skip
    ok = False
    try:
        with at(here):
            yield BranchHandle(here, inner)
        ok = True
    finally:
        leave_block(attempt, inner, ok=ok)


def _shown(place: Place, name: str) -> str:
    """Return a name as the log has it, without secrets: it is hashed, and compared on a resume."""
    shown: str = hidden(name, place.attempt.seal).value
    return shown


def begin_block(
    place: Place,
    name: str,
    *,
    kind: str = "branch",
    after: Iterable[Branch] = (),
    given: Any = None,
    marks: Event | None = None,
) -> Branch:
    """Open a branch at a place; `leave_block` leaves it. See `open_branch`."""
    check_acts(place, f"{kind} {name!r} can't be opened")
    name, given = _shown(place, name), hidden(given, place.attempt.seal).value
    before = list(after)
    arguments = {"after": last_worlds(before), "input": given, "name": name}
    known = "branch" if kind == "transaction" else kind  # a transaction is a branch
    key = key_digest(known, name, "", jcs(arguments)).hex()
    return open_block(place.attempt, place, kind, name, before, arguments, key, marks)


class Transaction:
    """Take back the effects of a block that raises; `with` or `async with`.

    A transaction is a branch. A halt or a kill is no failure of the block, because the run is not
    over: a resume goes on inside the block. A cancellation is a failure, because the job may go on
    behind the block; so is closing the generator around it.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._block = open_branch(place, name, kind="transaction")
        self._handle: BranchHandle | None = None

    def __enter__(self) -> BranchHandle:
        if self._place.attempt.run.is_undoing(self._place.branch):
            raise SessionError("a compensating call can't be undone: it opens no transaction")
        self._handle = self._block.__enter__()
        return self._handle

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        drive(self._leave(error, is_async=False))

    async def __aenter__(self) -> BranchHandle:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await adrive(self._leave(error, is_async=True))

    def _leave(self, error: BaseException | None, *, is_async: bool) -> Flow:
        """Roll the block back if it failed, and join it."""
        try:
            if is_async and isinstance(error, GeneratorExit):
                yield lambda: asyncio.sleep(0)  # a destroyed task can't wait: this is its end
            yield from self._left(error, is_async=is_async)
        except BaseException as halt:
            self._block.__exit__(type(halt), halt, halt.__traceback__)
            raise
        traceback = None if error is None else error.__traceback__
        self._block.__exit__(None if error is None else type(error), error, traceback)

    def _left(self, error: BaseException | None, *, is_async: bool) -> Any:
        """Roll a failed block back; a block that was rolled back before is made anew."""
        assert self._handle is not None
        attempt, branch = self._handle.place.attempt, self._handle.branch
        if attempt.halted is not None and not attempt.closed and _is_failure(error):
            # code that swallows the block's own error must not take the block for undone
            raise SessionHalted(
                f"the transaction is not undone, for the session was halted: {attempt.halted}"
            ) from attempt.halted
        if attempt.halted is not None or attempt.closed or not attempt.live or attempt.dry:
            return
        if branch.name in attempt.run.rolled:
            if error is None:
                yield from go_otherwise(attempt, branch, is_async=is_async)
            return
        if _is_failure(error) or isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            held = list(attempt.run.done_in(branch.name))
            if held:
                try:
                    yield from take_back(
                        attempt, held, why="transaction", block=branch.opening, is_async=is_async
                    )
                except Halt as halt:
                    raise halt from error


def _is_failure(error: BaseException | None) -> bool:
    """Tell whether an error means that the block failed, and not that the run is to be resumed."""
    return isinstance(error, Exception) and not isinstance(error, (Halt, SessionHalted))
