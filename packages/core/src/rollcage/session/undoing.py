"""Undo within an open run: of all that came after a step, or of a whole branch."""

from __future__ import annotations

import dataclasses

from rollcage.errors import SessionError
from rollcage.session.calls import Calls
from rollcage.step.requests import Flow, Returned
from rollcage.step.undo_checks import UndoRequest
from rollcage.step.undoing import undo_steps
from rollcage.undo.report import UndoReport

__all__ = ["aundo", "undo"]


def undo(calls: Calls, request: UndoRequest) -> UndoReport:
    """Undo what was done in the run of these calls.

    Raises:
        SessionError: it can't be undone here.
    """
    report: UndoReport = calls.driver.run(_flow(calls, request))
    return report


async def aundo(calls: Calls, request: UndoRequest) -> UndoReport:
    """`undo` for async tools, or sync ones in threads."""
    report: UndoReport = await calls.driver.arun(_flow(calls, request), is_async=True)
    return report


def _flow(calls: Calls, request: UndoRequest) -> Flow:
    source = calls.opened.source
    if source is not None and source.mode in ("offline", "verify"):
        if calls.driver.ledger.branches.was_undone(request.branch):
            return _nothing_left(request)
        raise SessionError(f'replay="{source.mode}" runs nothing, so there is nothing to undo')
    scope = calls.here()
    if not request.branch and scope.step is not None:
        raise SessionError(f"{scope.step.call.contract.name} can't undo the run that it is in")
    if request.branch and calls.driver.ledger.halted is not None:
        if calls.driver.ledger.branches.replays_undone(request.branch):
            return _nothing_left(request)
        request = dataclasses.replace(request, again=True)
    return undo_steps(request, calls.setting, calls)


def _nothing_left(request: UndoRequest) -> Flow:
    """What is replayed was undone when it ran."""
    yield from ()
    return Returned(UndoReport(run=request.run, to=request.to, steps=(), left=()))
