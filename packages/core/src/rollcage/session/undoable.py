"""A session undoes what was done, and finishes what an earlier one had begun to undo."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final, Self

from rollcage.errors import SessionError, UndoIncomplete
from rollcage.replay.path import Entry
from rollcage.replay.recording import load
from rollcage.session.opened import Opened
from rollcage.session.scope import scope_of
from rollcage.step.requests import Flow, Returned
from rollcage.step.undoing import Order, undo_steps
from rollcage.store.jobs import store_option
from rollcage.undo.undo import InDoubt, UndoReport

__all__ = ["Undoable"]


_log: Final = logging.getLogger("rollcage")


class Undoable(Opened):
    """A session that can undo what it did; see `Session`."""

    def __enter__(self) -> Self:
        half_undone = self._enter()
        if half_undone:
            try:
                self._finished_undo(self._active().run(self._rest_of_undo(half_undone)))
            except BaseException as error:
                self._leave(error)
                raise
        return self

    async def __aenter__(self) -> Self:
        half_undone = self._enter()
        if half_undone:
            try:
                flow = self._rest_of_undo(half_undone, is_async=True)
                self._finished_undo(await self._active().arun(flow, is_async=True))
            except BaseException as error:
                self._leave(error)
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if (memory := self._asked_at_end(error)) is not None:
                self._take_pause(await memory.awaits())
        except BaseException as instead:
            self._leave(instead)
            raise
        self._leave(error)

    def _rest_of_undo(self, half_undone: tuple[Entry, ...], *, is_async: bool = False) -> Flow:
        """Go on with an undo of the source that was cut off: it holds neither half nor whole."""
        _log.warning(
            "an undo of run %s was interrupted: its %d steps are finished first",
            half_undone[0].run,
            len(half_undone),
        )
        order = Order(self.run_id, only=half_undone, is_async=is_async)
        assert self._setting is not None
        return undo_steps(order, self._setting, self)

    def _finished_undo(self, report: UndoReport) -> None:
        """Follow what is recorded as it holds behind that undo."""
        run = self._opened()
        driver, found = self._active(), run.source
        assert found is not None
        if not report.complete:
            at = store_option(self.store)
            raise UndoIncomplete(
                f"an undo was interrupted, and can't be finished: {report}\nSee what is left: "
                f"rollcage undo {self.run_id}{at} --plan. Then accept its steps as performed, with "
                f'on_divergence="warn", or start over: rollcage abandon {self.run_id}{at}'
            )
        recording = load(run.traces(), offline=False, retry_failed=self._retry_failed)
        with driver.lock:
            driver.ledger = self._ledger(found.mode, recording, driver.ledger.counted)

    # --- undo ------------------------------------------------------------------------------------

    def undo(self, to: int | None = None, *, in_doubt: InDoubt = "list") -> UndoReport:
        """Undo what this run did behind step `to`, the newest effect first.

        Effects of its source are included, whether they were replayed by now or not. Everything is
        looked at before anything is changed: where somebody else changed a state since, nothing is.

        Args:
            to: the last step that stays; None takes everything back.
            in_doubt: what is done with a step whose outcome is unknown:
                `"list"` it, or `"restore"` what was before, where its plan was made by then.

        Raises:
            ToolMissing: a tool that is needed is not here, or is another version.
            SessionError: it can't be done here; nothing was changed.
        """
        report: UndoReport = self._active().run(
            self._undo(Order(self.run_id, to, in_doubt=in_doubt))
        )
        return report

    async def aundo(self, to: int | None = None, *, in_doubt: InDoubt = "list") -> UndoReport:
        """`undo` for async tools, or sync ones in threads."""
        order = Order(self.run_id, to, in_doubt=in_doubt, is_async=True)
        report: UndoReport = await self._active().arun(self._undo(order), is_async=True)
        return report

    def undo_branch(self, name: str) -> UndoReport:
        """Undo what was done in the branch of this full name, and below. See `undo`."""
        report: UndoReport = self._active().run(self._undo(Order(self.run_id, branch=name)))
        return report

    async def aundo_branch(self, name: str) -> UndoReport:
        """`undo_branch` for async tools."""
        order = Order(self.run_id, branch=name, is_async=True)
        report: UndoReport = await self._active().arun(self._undo(order), is_async=True)
        return report

    def _undo(self, order: Order) -> Flow:
        assert self._setting is not None
        source = self._opened().source
        if source is not None and source.mode in ("offline", "verify"):
            if self._active().ledger.is_taken_back(order.branch):
                return _nothing_left(order)
            raise SessionError(f"replay={self._replay!r} runs nothing, so there is nothing to undo")
        scope = scope_of(self._guard)
        if not order.branch and scope.step is not None:
            raise SessionError(f"{scope.step.call.contract.name} can't undo the run that it is in")
        return undo_steps(order, self._setting, self)


def _nothing_left(order: Order) -> Flow:
    """What is replayed was undone when it ran."""
    yield from ()
    return Returned(UndoReport(run=order.run, to=order.to, steps=(), left=()))
