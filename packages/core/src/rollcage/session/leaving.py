"""How a session is left: how its run has ended is written; its trace and locks are released."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Generator
from typing import Any, Final, Literal

from rollcage.errors import StoreError, TraceUnwritable
from rollcage.replay.ahead import Memory
from rollcage.replay.path import Entry
from rollcage.session.awaiting import in_loop, perform, perform_in_thread
from rollcage.session.calls import Calls
from rollcage.session.declare import open_sessions
from rollcage.session.ending import cut_off, ending, partial
from rollcage.session.threads import in_threads_of
from rollcage.step.observing import RunEvent, notify
from rollcage.store.jobs import store_option
from rollcage.trace import constructors as make
from rollcage.values.exceptions import encode_exception
from rollcage.values.names import writable

__all__ = ["aleave", "forgotten", "give_up", "leave", "run_event"]

Leaving = Generator[Callable[[], Any], Any, Any]

_log: Final = logging.getLogger("rollcage")


def leave(calls: Calls, error: BaseException | None) -> None:
    """Leave the session that makes these calls, which its block has left with this `error`, if any.

    Raises:
        BaseException: what halted the session, unless an interrupt goes on by itself.
    """
    try:
        if (memory := _asked_at_end(calls, error)) is not None:
            _pause(calls, memory.waits())
    except BaseException as instead:
        perform(_leaving(calls, instead))
        raise
    perform(_leaving(calls, error))


async def aleave(calls: Calls, error: BaseException | None) -> None:
    """`leave`, while the event loop goes on; to its end, also if the task is cancelled.

    If the task is forgotten (nobody refers to it, or its loop is gone), its thread goes on.
    """
    try:
        if (memory := _asked_at_end(calls, error)) is not None:
            _pause(calls, await memory.awaits())
    except BaseException as instead:
        await _aleave(calls, instead)
        raise
    await _aleave(calls, error)


async def _aleave(calls: Calls, error: BaseException | None) -> None:
    where = f"leaves {calls.opened.store.url}"  # not the threads that open runs
    waits = calls.opened.store.waits or calls.means.durable or calls.opened.source is None
    # Whoever is forgotten is collected anywhere, and may wait for no lock of this thread's.
    waits = waits or isinstance(error, GeneratorExit) or not in_loop()
    await perform_in_thread(where, _leaving(calls, error, waits=waits), short=not waits)


def _asked_at_end(calls: Calls, error: BaseException | None) -> Memory | None:
    """The memory of a framework that may wait for something; None if that makes no difference."""
    driver = calls.driver
    ends = error is not None or driver.ledger.halted is not None or driver.writer.forked
    return None if ends else calls.following.memory


def _pause(calls: Calls, waits: str | None) -> None:
    """The run ends paused if the framework waits for something, unless it is paused already."""
    if waits is not None and not calls.driver.ledger.paused:
        calls.driver.pause(writable(waits))


def give_up(opened: tuple[Calls, tuple[Entry, ...]]) -> None:
    """Leave a run in which nothing was done, because nobody waits for its session any more."""
    calls = opened[0]
    perform(_leaving(calls, asyncio.CancelledError(), entered=False))


def forgotten(calls: Calls) -> None:
    """Leave a run in a thread, because all tasks that could make calls in it are gone.

    Such a task can't wait, so what it still had to wait for, such as the undo of a transaction or
    what some other block has to close, kept it from leaving the session itself.
    """
    if calls.driver.writer.forked or sys.is_finalizing():
        return
    work = functools.partial(leave, calls, GeneratorExit("the task was forgotten"))
    with contextlib.suppress(RuntimeError):  # the system has no thread for it
        in_threads_of(f"leaves {calls.opened.store.url}", work)


def _leaving(
    calls: Calls, error: BaseException | None, *, entered: bool = True, waits: bool = False
) -> Leaving:
    """Leave a run; what may wait for the disk, or for a lock, is yielded as work to do.

    Args:
        calls: those of its session.
        error: with which that was left.
        entered: whether it was entered.
        waits: whether all that is written waits, and not only what says so.
    """
    driver, calls.forgotten = calls.driver, None
    if entered:
        calls.nesting.leave()
        open_sessions.pop(id(calls), None)
    halted = driver.ledger.halted
    status = ""
    try:
        if driver.writer.forked:
            _close(calls)
        else:
            ending = _end(calls, error)
            if waits:
                status = yield functools.partial(perform, ending)
            else:
                status = yield from ending
    except (StoreError, TraceUnwritable) as unwritable:
        if error is None and halted is None:
            raise
        _log.warning("the end of run %s is not recorded: %s", calls.run_id, unwritable)
    finally:
        if entered and driver.observing is not None and not driver.writer.forked:
            cause = driver.ledger.halted or error
            named = "" if cause is None else type(cause).__qualname__
            notify(driver.observing.observers, run_event(calls, "closed", status, named))
    halted = driver.ledger.halted
    interrupts = error is not None and not isinstance(error, Exception)
    if halted is not None and error is not halted and not interrupts:
        raise halted


def run_event(
    calls: Calls, what: Literal["opened", "closed"], status: str = "", error: str = ""
) -> RunEvent:
    """The event for instruments about the run."""
    run = calls.opened
    return RunEvent(
        what,
        run.id,
        calls.name,
        "undo" if run.source is None else run.source.mode,
        run.root,
        None if run.source is None else run.source.run,
        calls.means.clock.wall() // 1000,
        status,
        error,
    )


def _end(calls: Calls, error: BaseException | None) -> Leaving:
    """Write the end of the run, and release its trace and locks; its status, if it gets one."""
    try:
        return (yield from _finish(calls, error))
    finally:
        with calls.driver.lock:  # a thread that is left over may be writing a line
            calls.driver.closed = True
        _close(calls)


def _close(calls: Calls) -> None:
    calls.driver.closed = True
    calls.means.gate.close()
    calls.opened.close()


def _finish(calls: Calls, error: BaseException | None) -> Leaving:
    """Write the end of the run; its status, if it gets one."""
    run, driver, ledger = calls.opened, calls.driver, calls.driver.ledger
    if run.source is None:
        yield from run.finish(driver, None, run.status_again)
        return ""
    driver.performing.withdraw()
    cut = [step for step in ledger.in_flight() if step.world_effect]
    if cut and error is None and ledger.halted is None:
        ledger.halted = cut_off(run.id, cut)
    left = ledger.left_behind()
    status = ending(ledger, error, left)
    if status == "partial":
        ledger.stats.orphans += len(left)
        _log.warning(partial(run.id, calls.name, ledger, left, store_option(run.store)))
    cause = ledger.halted or error
    event = make.run_finished(
        time=calls.means.clock.wall() // 1000,
        status=status,
        steps=ledger.stats.calls,
        error=None if cause is None else encode_exception(cause, calls.means.seal),
        reason=ledger.waits if status == "paused" and cause is None else None,
    )
    yield from run.finish(driver, event, status)
    return status
