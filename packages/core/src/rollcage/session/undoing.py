"""What a session undoes of its own run: by a step that stays, or a whole branch."""

from __future__ import annotations

import dataclasses

from rollcage.errors import SessionError
from rollcage.session.calls import Calls
from rollcage.step.requests import Flow, Returned
from rollcage.step.undo_checks import UndoRequest
from rollcage.step.undoing import undo_steps
from rollcage.undo.report import UndoReport

__all__ = ["undo_of"]


def undo_of(calls: Calls, request: UndoRequest) -> Flow:
    """The flow of an undo in the run of these calls.

    Raises:
        SessionError: it can't be undone here.
    """
    source = calls.opened.source
    if source is not None and source.mode in ("offline", "verify"):
        if calls.driver.ledger.is_taken_back(request.branch):
            return _nothing_left(request)
        raise SessionError(f'replay="{source.mode}" runs nothing, so there is nothing to undo')
    scope = calls.here()
    if not request.branch and scope.step is not None:
        raise SessionError(f"{scope.step.call.contract.name} can't undo the run that it is in")
    if request.branch and calls.driver.ledger.halted is not None:
        if calls.driver.ledger.replays_undone(request.branch):
            return _nothing_left(request)
        request = dataclasses.replace(request, again=True)
    return undo_steps(request, calls.setting, calls)


def _nothing_left(request: UndoRequest) -> Flow:
    """What is replayed was undone when it ran."""
    yield from ()
    return Returned(UndoReport(run=request.run, to=request.to, steps=(), left=()))
