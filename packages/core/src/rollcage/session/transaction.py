"""A block whose effects are undone when it raises.

A session that was halted undoes nothing: a resume goes on in the middle of the block, and what
raised there comes out as `SessionHalted`, as it does if not everything could be undone. One that
has an order to stop, or may have one, does undo: whoever stops a run wants no half of a
transaction. A block that had ended well before, and is only replayed, is not undone: what came
after it builds on it. In a task that was forgotten (nobody refers to it any more) nothing can be
waited for: nothing is undone then either, and a resume goes on in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from rollcage.errors import (
    ControlLost,
    Halt,
    RollcageError,
    RunStopped,
    SessionHalted,
    UndoIncomplete,
)
from rollcage.session.places import BranchHandle
from rollcage.store.jobs import store_option
from rollcage.store.protocol import Store
from rollcage.undo.report import UndoReport

__all__ = ["Transacting", "Transaction"]


class Transacting(Protocol):
    """What a transaction needs of its session."""

    run_id: str
    store: Store

    @property
    def halted(self) -> BaseException | None:
        """See `Session.halted`."""
        ...

    def halt(self, error: Exception) -> None:
        """See `Session.halt`."""
        ...

    def branch(self, name: str) -> AbstractContextManager[BranchHandle]:
        """See `Session.branch`."""
        ...

    def undo_branch(self, name: str) -> UndoReport:
        """Undo what was done in a branch, and below."""
        ...

    async def aundo_branch(self, name: str) -> UndoReport:
        """`undo_branch` for async tools."""
        ...


class Transaction:
    """What `Session.transaction` gives: a branch that is joined as a whole, or undone.

    Args:
        session: in which it is.
        name: of the branch.
        was_joined: whether a branch is only replayed, and was joined when it ran.
    """

    def __init__(self, session: Transacting, name: str, was_joined: Callable[[str], bool]) -> None:
        self._session = session
        self._was_joined = was_joined
        self._manager = session.branch(name)
        self._branch: BranchHandle | None = None

    def __enter__(self) -> BranchHandle:
        self._branch = self._manager.__enter__()
        return self._branch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended(kind, error, traceback) and error is not None:
            try:
                report = self._session.undo_branch(self._name)
            except Exception as failed:  # noqa: BLE001 - reported, and the session is halted
                self._report(error, failed)
            else:
                self._report(error, report)

    async def __aenter__(self) -> BranchHandle:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended(kind, error, traceback) and error is not None:
            if kind is GeneratorExit:  # a forgotten task can't wait: it ends here
                await asyncio.sleep(0)
            try:
                report = await self._session.aundo_branch(self._name)
            except Exception as failed:  # noqa: BLE001 - reported, and the session is halted
                self._report(error, failed)
            else:
                self._report(error, report)

    @property
    def _name(self) -> str:
        assert self._branch is not None
        return self._branch.name

    def _ended(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Leave the branch; whether it is to be undone now."""
        try:
            self._manager.__exit__(kind, error, traceback)
        except BaseException as raised:
            if raised is not error:
                raise
        if error is None:
            return False
        halted = self._session.halted
        if halted is None:
            return True
        is_stop = isinstance(halted, (ControlLost, RunStopped))
        if is_stop and not self._was_joined(self._name):
            return True
        why = "it had ended well before the run was resumed"
        if not is_stop:  # the run is to be resumed: what was done stays until then
            why = "the session was halted, and the run is to be resumed"
        message = f"the transaction {self._name} is not undone: {why}"
        error.add_note(message)
        self._stop(error, f"{message}: {halted}", halted)
        return False

    def _report(self, error: BaseException, what: UndoReport | Exception) -> None:
        """If something is left, say so in a note on the error, and halt the session."""
        if isinstance(what, UndoReport) and what.complete:
            return
        text = what.code + ": " + str(what) if isinstance(what, RollcageError) else str(what)
        message = f"the transaction {self._name} could not be undone completely: {text}"
        error.add_note(message)
        if self._session.halted is None:
            at = store_option(self._session.store)
            halt = UndoIncomplete(
                f"{message}\nSee what is left: rollcage undo {self._session.run_id}{at} --plan"
            )
            halt.__cause__ = what if isinstance(what, Exception) else error
            self._session.halt(halt)
        self._stop(error, message, self._session.halted)

    @staticmethod
    def _stop(error: BaseException, text: str, halted: BaseException | None) -> None:
        """Whoever swallows the block's own error must not take the block for undone and go on."""
        if isinstance(error, Exception) and not isinstance(error, Halt | SessionHalted):
            raise SessionHalted(text) from halted
