"""An execution that somebody took back, and one whose name is written in two ways."""

from __future__ import annotations

import asyncio
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from rollcage import aundo_run, compensate, open_store, tool
from rollcage_workflow import Execution, execution, run
from rollcage_workflow.errors import ExecutionFailed
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals

PLAN = {"name": "held", "steps": {"held": {"call": "hold", "args": {"count": 3}}}}
WAITS = {"name": "waits", "steps": {"go": {"wait": {"signal": "go"}}}}


async def test_a_completed_execution_was_undone(tmp_path: Path) -> None:
    """Its output is not given for what is there no more."""
    held: list[int] = []

    @tool(effect="write")
    async def release(count: int) -> None:
        held.remove(count)

    @tool(effect="write", undo=lambda args: [compensate(release, **args)])
    async def hold(count: int) -> None:
        held.append(count)

    tools: list[Any] = [hold, release]
    found = await run(PLAN, id="monday", store=tmp_path, tools=tools)
    report = await aundo_run(tmp_path, found.run, tools=tools)
    assert report.complete
    assert execution(open_store(tmp_path), "monday").status == "rolled_back"
    with pytest.raises(ExecutionFailed, match="'monday' was undone; start one of another id"):
        await run(PLAN, id="monday", store=tmp_path, tools=tools)
    assert held == []


def test_a_name_is_one_however_it_is_typed(tmp_path: Path) -> None:
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))

    def attempt() -> Execution:
        return asyncio.run(run(WAITS, id=composed, store=tmp_path))

    assert attempt().status == "waiting"
    commands = Commands(open_store(tmp_path))
    commands.pause(apart, by="ann")
    assert attempt().status == "paused"
    commands.resume(apart, by="ann")
    Signals(open_store(tmp_path), apart).send("go", "now", by="ann")
    assert attempt().output == "now"
