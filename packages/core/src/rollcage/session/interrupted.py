"""An undo of the source that was interrupted: it is finished before the session begins."""

from __future__ import annotations

import logging
from typing import Final

from rollcage.errors import UndoIncomplete
from rollcage.replay.path import Entry
from rollcage.replay.recording import load
from rollcage.session.calls import Calls
from rollcage.session.leaving import aleave, leave
from rollcage.session.opening import Opening
from rollcage.step.requests import Flow
from rollcage.step.undo_checks import UndoRequest
from rollcage.step.undoing import undo_steps
from rollcage.store.jobs import store_option
from rollcage.undo.report import UndoReport

__all__ = ["afinish_undo", "finish_undo"]

_log: Final = logging.getLogger("rollcage")


def finish_undo(opening: Opening, calls: Calls, steps: tuple[Entry, ...]) -> None:
    """Undo the steps that an interrupted undo of the source left, then follow what still holds.

    If that fails, the session is left again.

    Raises:
        UndoIncomplete: not all of them can be undone.
    """
    if not steps:
        return
    try:
        _follow(opening, calls, calls.driver.run(_rest(calls, steps)))
    except BaseException as error:
        leave(calls, error)
        raise


async def afinish_undo(opening: Opening, calls: Calls, steps: tuple[Entry, ...]) -> None:
    """`finish_undo` for async tools, or sync ones in threads."""
    if not steps:
        return
    try:
        rest = _rest(calls, steps, is_async=True)
        _follow(opening, calls, await calls.driver.arun(rest, is_async=True))
    except BaseException as error:
        await aleave(calls, error)
        raise


def _rest(calls: Calls, steps: tuple[Entry, ...], *, is_async: bool = False) -> Flow:
    """The flow of the rest of that undo."""
    _log.warning(
        "an undo of run %s was interrupted: its %d steps are finished first",
        steps[0].run,
        len(steps),
    )
    request = UndoRequest(run=calls.run_id, only=steps, is_async=is_async)
    return undo_steps(request, calls.setting, calls)


def _follow(opening: Opening, calls: Calls, report: UndoReport) -> None:
    """Replay what is recorded as it holds after that undo."""
    run, driver = calls.opened, calls.driver
    assert run.source is not None
    if not report.complete:
        at = store_option(opening.store)
        raise UndoIncomplete(
            f"an undo was interrupted, and can't be finished: {report}\nSee what is left: "
            f"rollcage undo {run.id}{at} --plan\nThen accept its steps as performed, with "
            f'on_divergence="warn", or start over: rollcage abandon {run.id}{at}'
        )
    recording = load(run.traces(), offline=False, retry_failed=opening.options.retry_failed)
    with driver.lock:
        ledger = opening.ledger(run.id, run.source.mode, recording, driver.ledger.counted)
        driver.ledger = ledger
        opening.gate.counted_by(ledger.stats)
