"""Measure undo: what undoing adds to a write, and what undoing writes costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcage import Compensation, Session, UndoReport, compensate, tool, undo_run

from benchmarks.ours import afresh, fresh, trace
from benchmarks.timing import WARM_UP
from benchmarks.workload import RESULT, mail

_sent: set[int] = set()  # all of the world that the tools here change


def _observe(args: Mapping[str, Any]) -> dict[str, Any]:
    number = args["priority"]
    return {f"mail:{number}": {"sent": number in _sent}}


async def _aobserve(args: Mapping[str, Any]) -> dict[str, Any]:
    return _observe(args)


@tool(name="unsend_mail", effect="write", idempotent=True)
def unsend_mail(priority: int) -> None:
    """Undo it."""
    _sent.discard(priority)


def _undo(args: Mapping[str, Any]) -> list[Compensation]:
    return [compensate(unsend_mail, priority=args["priority"])]


def _send(to: str, subject: str, body: str, priority: int = 1, urgent: bool = False) -> str:  # noqa: FBT002 - a tool is called by name
    """Send nothing, and note its number."""
    _sent.add(priority)
    return RESULT


async def _asend(to: str, subject: str, body: str, priority: int = 1, urgent: bool = False) -> str:  # noqa: FBT002 - a tool is called by name
    """Send nothing, later, and note its number."""
    _sent.add(priority)
    return RESULT


send_mail: Callable[..., Any] = tool(
    name="send_mail", effect="write", observe=_observe, undo=_undo
)(_send)
asend_mail: Callable[..., Any] = tool(
    name="send_mail", effect="write", observe=_aobserve, undo=_undo
)(_asend)


def write(calls: int, folder: Path) -> dict[str, float]:
    """Measure a recorded write that observes before and after, and whose undo is planned."""
    return fresh(send_mail, calls, folder)


def awrite(calls: int, folder: Path) -> dict[str, float]:
    """Measure an async write that observes before and after, and whose undo is planned."""
    return asyncio.run(afresh(asend_mail, calls, folder))


def live(calls: int, folder: Path) -> dict[str, float]:
    """Measure `session.undo()` of a run of `calls` writes, each verified."""

    def session_undo(steps: int) -> dict[str, float]:
        with Session("bench", store=folder, replay="off") as session:
            _fill(steps)
            path = trace(folder, session.run_id)
            return _timed(session.undo, steps, path)

    session_undo(WARM_UP)
    return session_undo(calls)


def finished(calls: int, folder: Path) -> dict[str, float]:
    """Measure `undo_run` of a finished run of `calls` writes, read from its log first."""

    def run_undo(steps: int) -> dict[str, float]:
        with Session("bench", store=folder, replay="off") as session:
            _fill(steps)
        run = session.run_id
        tools = [send_mail, unsend_mail]
        return _timed(lambda: undo_run(folder, run, tools=tools), steps, trace(folder, run))

    run_undo(WARM_UP)
    return run_undo(calls)


def _fill(steps: int) -> None:
    for number in range(steps):
        send_mail(**mail(number))


def _timed(undo: Callable[[], UndoReport], steps: int, path: Path) -> dict[str, float]:
    size, start = path.stat().st_size, time.process_time_ns()
    report = undo()
    cpu = (time.process_time_ns() - start) / steps / 1000
    verified = sum(step.status == "verified" for step in report.steps)
    if verified != steps or _sent:
        raise AssertionError(f"not what was to be measured: {report}")
    return {"cpu_us": cpu, "bytes": (path.stat().st_size - size) / steps}
