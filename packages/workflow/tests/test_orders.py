"""Commands in the store, and the workers that take them."""

import asyncio
import subprocess
import sys
import time

import orjson
import pytest
from order_plans import THREE, asked, put, steering, steps
from rollcage import Approval, ApprovalQueue, Session, open_store, tool
from rollcage.errors import ApprovalInvalid
from rollcage.trace.store import drop
from rollcage_workflow import execution, orders
from rollcage_workflow.engine.reconcile import reconcile
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.signals import Signals
from workers import Crew
from worlds import World


async def test_an_execution_is_started_once(world: World) -> None:
    crew = Crew(world, THREE)
    assert crew.start(inputs={"n": 7})
    assert not crew.start(inputs={"n": 8})
    assert crew.job().status == "pending"
    await crew.work()
    assert crew.job().status == "completed"
    assert crew.job().inputs == {"n": 7}
    assert world.standing == {"a": 1, "b": 1, "c": 1}
    assert not crew.start(inputs={"n": 7})
    assert not crew.commands.open_keys()
    started = crew.commands.started("job")
    assert started is not None
    result = crew.result(started.key)
    assert (result.outcome, result.worker, result.command.by) == ("completed", "crew", "carl")
    assert not result.command.inputs


async def test_it_starts_when_its_time_has_come(world: World) -> None:
    crew = Crew(world, THREE)
    crew.start(at=time.time() + 3600)
    await crew.work()
    assert crew.job().status == "pending"
    await Crew(world, THREE, later=3601).work()
    assert crew.job().status == "completed"


async def test_what_can_not_be_started_is_told(world: World) -> None:
    crew = Crew(world, THREE)
    with pytest.raises(WorkflowError, match="NaN"):
        crew.start(inputs={"n": [float("nan")]})
    with pytest.raises(WorkflowError, match="not JSON"):
        crew.start(inputs={"n": object()})
    crew.start(id="unknown_input", inputs={"m": 1})
    crew.start(id="other_digest", digest="0" * 64)
    await crew.work()
    for name, said in (("unknown_input", "no such input"), ("other_digest", "digest")):
        started = crew.commands.started(name)
        assert started is not None
        result = crew.result(started.key)
        assert result.outcome == "refused"
        assert said in result.detail
    assert not world.deeds


async def test_a_plan_that_is_elsewhere_is_left_to_a_worker_that_has_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    crew = Crew(world, {**THREE, "name": "another"})
    crew.start()
    await crew.work()
    await crew.work()
    assert caplog.text.count("no plan 'plan' here, but another") == 1
    await Crew(world, THREE).work()
    assert crew.job().status == "completed"


async def test_a_command_that_somebody_wrote_by_hand_is_not_taken(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    crew = Crew(world, THREE)
    crew.start()
    (key,) = crew.commands.open_keys()
    data = orjson.loads(crew.store.get("commands", key) or b"")
    data["content"]["inputs"] = {"n": "another"}
    drop(crew.store, "commands", key)
    crew.store.swap("commands", key, None, orjson.dumps(data))
    await crew.work()
    assert "was changed" in caplog.text
    assert not world.runs()


async def test_two_workers_that_take_one_command_do_it_once(world: World) -> None:
    one, other = Crew(world, THREE), Crew(world, THREE)
    one.start()
    (key,) = one.due()
    await asyncio.gather(one.worker.take(key), other.worker.take(key))
    await other.work()
    assert one.job().status == "completed"
    assert world.standing == {"a": 1, "b": 1, "c": 1}
    assert world.most == 1


async def test_a_worker_that_dies_between_the_result_and_the_command_s_end_did_it_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Crew(world, THREE)
    crew.start()
    with monkeypatch.context() as patch:
        patch.setattr(orders, "drop", lambda *_: None)
        (key,) = crew.due()
        await crew.worker.take(key)
    assert crew.commands.open_keys() == [key]
    runs = world.runs()
    await crew.work()
    assert not crew.commands.open_keys()
    assert world.runs() == runs


async def test_a_worker_that_ends_hands_over_between_two_steps(world: World) -> None:
    crews: list[Crew] = []
    plan = steering(world, lambda _: crews[0].worker.end("the worker ends"))
    crews.append(Crew(world, plan))
    crews[0].start()
    await crews[0].work()
    assert world.standing == {"a": 1}
    assert crews[0].job().status == "waiting"
    assert crews[0].commands.open_keys()
    await Crew(world, plan).work()
    assert crews[0].job().status == "completed"
    assert world.standing == {"a": 1, "c": 1}


# --- undo, reconcile -----------------------------------------------------------------------------


async def test_any_run_is_undone_by_a_worker_that_has_its_tools(world: World) -> None:
    put_ = world.tools[1]
    async with Session("chat", store=world.store) as session:
        await session.acall(put_, what="mail")
    crew = Crew(world)
    key = crew.commands.undo(session.run_id, by="ann")
    await crew.work()
    assert crew.result(key).outcome == "undone"
    assert not world.standing
    again = crew.commands.undo(session.run_id, by="ann")
    await crew.work()
    assert crew.result(again).outcome in ("undone", "refused")
    assert len(world.deeds) == 2


async def test_an_undo_is_left_to_a_worker_that_has_the_tools(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    put_ = world.tools[1]
    async with Session("chat", store=world.store) as session:
        await session.acall(put_, what="mail")
    other = Crew(world, tools=[tool(effect="read", name="orders.other")(lambda: None)])
    planned = other.commands.plan(session.run_id, by="ann")
    undone = other.commands.undo(session.run_id, by="ann")
    await other.work()
    await other.work()
    assert other.commands.result(planned) is None
    assert other.commands.result(undone) is None
    assert caplog.text.count("put") == 2  # once for each
    assert world.standing == {"mail": 1}
    crew = Crew(world)
    await crew.work()
    assert crew.result(planned).outcome == "planned"
    assert crew.result(undone).outcome == "undone"
    assert not world.standing


async def test_what_was_run_without_a_worker_goes_on_with_one(world: World) -> None:
    plan = steps(a=put("a"), nap={"wait": {"seconds": 0.3}, "after": ["a"]}, b=put("b", "nap"))
    found = await world.attempt(plan, patience=0.0)
    assert found.status == "waiting"
    crew = Crew(world, plan)
    await crew.work()
    assert not crew.commands.open_keys()
    assert reconcile(crew.store) == ["job"]
    assert reconcile(crew.store) == []
    await asyncio.sleep(0.3)
    await crew.work()
    assert execution(crew.store, "job").status == "completed"
    assert world.standing == {"a": 1, "b": 1}
    assert reconcile(crew.store) == []


async def test_a_copy_knows_what_was_approved_and_that_it_is_held(world: World) -> None:
    plan = steps(
        ask={"wait": {"approval": "ship?"}},
        go={"wait": {"signal": "go"}, "after": ["ask"]},
        ship=put("ship", "go"),
    )
    crew = Crew(world, plan)
    name = await asked(crew)
    ApprovalQueue(crew.store).decide(name, Approval(True, by="ann"))
    await crew.work()
    crew.commands.pause("job", by="ann")
    there = world.store.with_name("copied")
    command = [
        sys.executable,
        "-m",
        "rollcage",
        "copy",
        "--move",
        "--from",
        str(world.store),
        "--to",
    ]
    await asyncio.to_thread(subprocess.run, [*command, str(there)], check=True, capture_output=True)
    copied = World(there)
    assert execution(open_store(there), "job").status == "paused"
    moved = Crew(copied, plan)
    moved.commands.resume("job", by="ann")
    Signals(moved.store, "job").send("go", 1, by="ann")
    await moved.work()
    assert moved.job().status == "completed"
    assert copied.standing == {"ship": 1}


async def test_what_was_asked_for_is_done_in_the_store_that_it_was_copied_to(world: World) -> None:
    plan = steps(ask={"wait": {"approval": "ship?"}}, ship=put("ship", "ask"))
    crew = Crew(world, plan)
    request = await asked(crew)  # one has begun, by carl
    crew.start(id="later", inputs={"n": 2})  # and one has not
    there, begun = world.store.with_name("copied"), crew.commands.started("job")
    command = [
        sys.executable,
        "-m",
        "rollcage",
        "copy",
        "--move",
        "--from",
        str(world.store),
        "--to",
    ]
    await asyncio.to_thread(subprocess.run, [*command, str(there)], check=True, capture_output=True)
    copied = World(there)
    moved = Crew(copied, plan)
    started = moved.commands.started("job")
    assert started == begun
    assert started is not None
    with pytest.raises(ApprovalInvalid):  # who started it is known there, too
        ApprovalQueue(moved.store).decide(request, Approval(True, by=started.by))
    ApprovalQueue(moved.store).decide(request, Approval(True, by="ann"))
    await moved.work()
    assert (moved.job().status, copied.standing) == ("completed", {"ship": 1})
    assert (moved.job("later").status, moved.job("later").inputs) == ("waiting", {"n": 2})
    assert not moved.start(id="later")
