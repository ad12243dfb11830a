"""An execution that somebody took back, and one whose name is written in two ways."""

from __future__ import annotations

import asyncio
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from rollcage import Approval, ApprovalQueue, aundo_run, compensate, open_store, tool
from rollcage.trace.chain import parse
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


async def test_a_completed_execution_was_undone_to_a_step_in_a_loop(tmp_path: Path) -> None:
    """What came after that step is done again, when somebody asks for another attempt."""
    put: list[str] = []

    @tool(effect="write")
    async def take(what: str) -> None:
        put.remove(what)

    @tool(effect="write", undo=lambda args: [compensate(take, **args)])
    async def place(what: str) -> str:
        put.append(what)
        return what

    one = {"one": {"call": "place", "args": {"what": "='round ' + string(round)"}}}
    steps = {
        "rounds": {"repeat": {"steps": one, "result": "=round", "until": "=round >= 3", "most": 3}},
        "final": {"call": "place", "args": {"what": "last"}, "after": ["rounds"]},
    }
    plan, tools = {"name": "rounds", "steps": steps}, [place, take]
    first = await run(plan, id="monday", store=tmp_path, tools=tools)
    second = next(
        event["step"]
        for event in parse(open_store(tmp_path).read(first.run), first.run)
        if event.get("args") == {"what": "round 2"}
    )
    report = await aundo_run(tmp_path, first.run, to=second, tools=tools)
    assert report.complete
    assert put == ["round 1", "round 2", "round 3"], "a loop that has ended is kept as a whole"
    now = execution(open_store(tmp_path), "monday")
    assert (now.status, now.output) == ("halted", None)
    assert f"undone to step {second}" in now.waits
    again = await run(plan, id="monday", store=tmp_path, tools=tools)
    assert (again.status, again.output) == ("completed", first.output)
    assert put == ["round 1", "round 2", "round 3", "last"]
    assert (await run(plan, id="monday", store=tmp_path, tools=tools)).run == again.run


async def test_what_was_approved_before_an_undo_to_a_step_is_asked_again(tmp_path: Path) -> None:
    sent: list[str] = []

    @tool(effect="write")
    async def take(what: str) -> None:
        sent.remove(what)

    @tool(effect="write", undo=lambda args: [compensate(take, **args)])
    async def send(what: str) -> None:
        sent.append(what)

    def step(what: str, **more: Any) -> dict[str, Any]:
        return {"call": "send", "args": {"what": what}, **more}

    steps = {
        "a": step("a"),
        "ask": {"wait": {"approval": "Shall b go?"}, "after": ["a"]},
        "b": step("b", after=["ask"]),
    }

    async def attempt() -> Execution:
        plan = {"name": "approved", "steps": steps}
        return await run(plan, id="monday", store=tmp_path, tools=[send, take])

    queue = ApprovalQueue(tmp_path)
    known: set[str] = set()
    for _ in range(3):
        assert (await attempt()).status == "waiting"
        assert sent == ["a"]
        (asked,) = [each for each in queue.waiting() if each.id not in known]
        known.add(asked.id)
        queue.decide(asked.id, Approval(True, by="ann"))
        done = await attempt()
        assert (done.status, sent) == ("completed", ["a", "b"])
        first = next(
            event["step"]
            for event in parse(open_store(tmp_path).read(done.run), done.run)
            if event.get("args") == {"what": "a"}
        )
        await aundo_run(tmp_path, done.run, to=first, tools=[send, take])
        assert sent == ["a"]


@pytest.mark.parametrize("again", [False, True], ids=["at once", "by the next attempt"])
async def test_what_undoes_a_step_need_not_be_given(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps' tools come first; a function that was not declared is in no undo's way."""
    held: list[int] = []
    others: list[int] = []

    @tool(effect="write", name="needed.release", idempotent=True)
    async def release(count: int) -> None:
        if again and not others:
            others.append(count)
            raise KeyboardInterrupt
        held.remove(count)

    @tool(effect="write", name="needed.hold", undo=lambda args: [compensate(release, **args)])
    async def hold(count: int) -> None:
        held.append(count)

    def declare_another() -> Any:
        @tool(effect="write", name="needed.hold")
        async def another(count: int) -> None:
            pytest.fail("the one that was given counts")

        return another

    @tool(effect="read", name="needed.fails")
    async def fails() -> None:
        raise ValueError(3)

    def undeclared(count: int) -> None:
        pytest.fail(f"no step calls it with {count}")

    same_name = declare_another()
    plan = {
        "name": "held",
        "on_failure": "rollback",
        "steps": {
            "hold": {"call": "needed.hold", "args": {"count": 3}},
            "fails": {"call": "needed.fails", "after": ["hold"]},
        },
    }
    tools: list[Any] = [hold, fails, undeclared]

    async def attempt() -> None:
        with pytest.raises(ValueError, match="3"):
            await run(plan, id="monday", store=tmp_path, tools=tools)

    if again:
        with pytest.raises(KeyboardInterrupt):
            await run(plan, id="monday", store=tmp_path, tools=tools)
        assert held == [3]
        with pytest.raises(ExecutionFailed, match="failed before"):
            await run(plan, id="monday", store=tmp_path, tools=tools)
    else:
        await attempt()
    assert held == []
    assert execution(open_store(tmp_path), "monday").status == "rolled_back"
    del same_name
