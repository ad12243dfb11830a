"""Commands in the store, and the workers that take them."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Approval, Session, compensate, open_store, tool
from rollcage.errors import ApprovalInvalid, StoreError
from rollcage.gate import ApprovalQueue
from rollcage_workflow import Plan, check, execution, executions, inputs, running
from rollcage_workflow.engine import worker
from rollcage_workflow.engine.reconcile import reconcile
from rollcage_workflow.errors import ExecutionFailed, WorkflowError
from rollcage_workflow.holds import Holds
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals
from workers import Crew
from worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def steps(**given: Any) -> dict[str, Any]:
    return {"name": "plan", "inputs": {"n": {"default": 1}}, "steps": given}


def put(what: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, "after": list(after), **more}


THREE = steps(a=put("a"), b=put("b", "a"), c=put("c", "b"))


def steering(world: World, do: Any) -> dict[str, Any]:
    """A plan whose second step does something to its own execution, from within its body."""

    @tool(effect="write", name="steer", undo=lambda: [compensate(world.tools[0], token="#")])
    async def steer() -> None:
        await asyncio.to_thread(do, Commands(open_store(world.store)))

    world.tools.append(steer)
    return steps(a=put("a"), steer={"call": "steer", "after": ["a"]}, c=put("c", "steer"))


# --- start ---------------------------------------------------------------------------------------


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
    with pytest.raises(WorkflowError, match="no JSON"):
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
    crew.store.drop("commands", key)
    crew.store.put_once("commands", key, orjson.dumps(data))
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
        patch.setattr(crew.store, "drop", lambda *_: None)
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


# --- waits ---------------------------------------------------------------------------------------


async def test_a_signal_and_a_time_have_the_next_attempt_made(world: World) -> None:
    plan = steps(
        a=put("a"),
        go={"wait": {"signal": "go"}, "after": ["a"]},
        nap={"wait": {"seconds": 3600}, "after": ["go"]},
        b=put("b", "nap"),
    )
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    assert crew.job().waits == "waits for the signal go"
    assert not crew.commands.open_keys()
    world.signal("go", 1)
    await crew.work()
    await crew.work()
    assert "nap waits until" in crew.job().waits
    assert len(crew.commands.open_keys()) == 1
    assert crew.job().attempts == 2
    later = Crew(world, plan, later=3601, session={"clock": lambda: time.time_ns() + 3601 * 10**9})
    later.worker._patience = 3601.0
    assert later.due() == crew.commands.open_keys()


async def test_a_signal_that_comes_while_an_attempt_ends_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = steps(go={"wait": {"signal": "go"}}, b=put("b", "go"))
    crew = Crew(world, plan)
    crew.start()
    (key,) = crew.due()
    waits = crew.worker._waits

    async def and_then(*given: Any) -> Any:
        world.signal("go", 1)
        return await waits(*given)

    monkeypatch.setattr(crew.worker, "_waits", and_then)
    await crew.worker.take(key)
    assert crew.job().status == "waiting"
    await crew.work()
    assert crew.job().status == "completed"


@pytest.mark.parametrize("is_inside", [False, True])
async def test_a_time_limit_ends_what_waits_for_a_signal(world: World, is_inside: bool) -> None:
    waits = {"a": put("a"), "go": {"wait": {"signal": "go"}, "after": ["a"]}}
    inner = Plan.model_validate({"name": "inner", "steps": waits, "time_limit": 600})
    plan = steps(s={"workflow": "inner"}) if is_inside else {**inner.data(), "name": "plan"}
    checked = check({**plan, "on_failure": "rollback"}, world.tools, {"inner": inner})
    crew = Crew(world, checked)
    crew.start()
    await crew.work()
    assert (crew.job().status, world.standing, crew.due()) == ("waiting", {"a": 1}, [])
    clock = {"clock": lambda: time.time_ns() + 601 * 10**9}
    await Crew(world, checked, later=599).work()
    assert crew.job().attempts == 1
    await Crew(world, checked, later=601, session=clock).work()
    assert crew.job().status == "rolled_back"
    assert "took longer than 600 s" in crew.job().error["message"]
    assert not world.standing


APPROVED = steps(
    ask={"wait": {"approval": "='ship ' + string(inputs.n) + '?'"}},
    ship=put("ship", "ask"),
)


async def asked(crew: Crew) -> str:
    crew.start(inputs={"n": 3})
    await crew.work()
    assert crew.job().status == "waiting"
    (name,) = ApprovalQueue(crew.store).ids()
    assert f"rollcage approve {name}" in crew.job().waits
    return name


async def test_an_approval_holds_no_process_and_lets_it_go_on(world: World) -> None:
    crew = Crew(world, APPROVED)
    name = await asked(crew)
    queue = ApprovalQueue(crew.store)
    queued = queue.get(name)
    assert queued is not None
    assert queued.request.args["question"] == "ship 3?"
    await crew.work()
    assert crew.job().attempts == 1  # nobody decided: no attempt is made
    with pytest.raises(ApprovalInvalid, match="another person"):
        queue.decide(name, Approval(True, by="Carl"))  # who asked for the execution
    queue.decide(name, Approval(True, by="ann"))
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"ship": 1}
    used = queue.get(name)
    assert used is not None
    assert used.use == "used"


async def test_a_rejection_takes_the_way_of_failures(world: World) -> None:
    plan = steps(
        a=put("a"),
        ask={"wait": {"approval": "ship?"}, "after": ["a"], "on_failure": "keep"},
        ship=put("ship", "ask", when="=ask.ok"),
        told={"value": "=ask.ok ? '' : ask.error.message", "after": ["ship"]},
    )
    crew = Crew(world, plan)
    name = await asked(crew)
    ApprovalQueue(crew.store).decide(name, Approval.reject("not now", by="ann"))
    await crew.work()
    assert crew.job().status == "completed"
    assert crew.job().output == f"ann rejected {name}: not now"
    assert world.standing == {"a": 1}


async def test_a_rejection_rolls_back_where_the_plan_says_so(world: World) -> None:
    plan = steps(a=put("a"), ask={"wait": {"approval": "ship?"}, "after": ["a"]})
    crew = Crew(world, {**plan, "on_failure": "rollback"})
    name = await asked(crew)
    ApprovalQueue(crew.store).decide(name, Approval.reject("no", by="ann"))
    await crew.work()
    assert crew.job().status == "rolled_back"
    assert not world.standing


async def test_what_is_run_once_more_is_so_once_though_the_worker_dies_as_it_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = steps(a=put("a"), b={"call": "look", "args": {"fails": True}, "after": ["a"]})
    crew = Crew(world, {**plan, "on_failure": "rollback"})
    crew.start()
    await crew.work()
    assert (crew.job().status, len(world.deeds), len(world.reads)) == ("rolled_back", 2, 1)
    key = crew.commands.resume("job", by="ann", again=True)

    def dies(*_: Any, **__: Any) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(crew.commands.__class__, "done", dies)
        await crew.worker.take(key)
    assert (crew.job().status, len(world.deeds), len(world.reads)) == ("rolled_back", 4, 2)
    await crew.work()
    assert not crew.due()
    assert (crew.job().status, len(world.deeds), len(world.reads)) == ("rolled_back", 4, 2)
    crew.commands.resume("job", by="ann", again=True)
    await crew.work()
    assert (crew.job().status, len(world.deeds), len(world.reads)) == ("rolled_back", 6, 3)


async def test_what_is_run_again_after_a_rollback_is_approved_again(world: World) -> None:
    plan = steps(
        a=put("a"),
        ask={"wait": {"approval": "ship?"}, "after": ["a"]},
        b={"call": "look", "args": {"fails": True}, "after": ["ask"]},
    )
    crew = Crew(world, {**plan, "on_failure": "rollback"})
    first = await asked(crew)
    queue = ApprovalQueue(crew.store)
    queue.decide(first, Approval(True, by="ann"))
    await crew.work()
    assert (crew.job().status, +world.standing) == ("rolled_back", {})
    known = {first}
    for _ in range(2):
        crew.commands.resume("job", by="bob", again=True)
        await crew.work()
        assert (crew.job().status, world.standing) == ("waiting", {"a": 1})
        (new,) = {*queue.ids()} - known
        assert f"rollcage approve {new}" in crew.job().waits
        known.add(new)
        queue.decide(new, Approval(True, by="ann"))
        await crew.work()
        assert (crew.job().status, {*queue.ids()}) == (
            "rolled_back",
            known,
        )  # nobody is asked twice
        assert not world.standing


async def test_an_approval_is_of_one_plan(world: World) -> None:
    crew = Crew(world, APPROVED)
    first = await asked(crew)
    ApprovalQueue(crew.store).decide(first, Approval(True, by="ann"))
    other = steps(ask=APPROVED["steps"]["ask"], ship=put("more", "ask"))
    changed = Crew(world, other)
    await changed.work()
    assert changed.job().status == "waiting"
    assert len(ApprovalQueue(crew.store).ids()) == 2
    assert not world.standing


async def test_only_the_approvers_of_the_plan_may_approve(world: World) -> None:
    plan = steps(
        ask={"wait": {"approval": "ship?", "approvers": ["ann"], "expires": 60.0}},
        ship=put("ship", "ask"),
    )
    crew = Crew(world, plan)
    name = await asked(crew)
    ApprovalQueue(crew.store).decide(name, Approval(True, by="bob"))
    await crew.work()
    assert crew.job().status == "failed"
    assert "bob is not one of the approvers" in crew.job().error["message"]
    assert not world.standing


async def test_other_steps_go_on_while_somebody_is_asked(world: World) -> None:
    plan = steps(ask={"wait": {"approval": "ship?"}}, a=put("a"), b=put("b", "a", "ask"))
    crew = Crew(world, plan)
    name = await asked(crew)
    assert world.standing == {"a": 1}
    ApprovalQueue(crew.store).decide(name, Approval.respond("tomorrow", by="ann"))
    await crew.work()
    assert world.standing == {"a": 1, "b": 1}


# --- pause and cancel ----------------------------------------------------------------------------


async def test_a_pause_ends_the_attempt_at_the_next_call(world: World) -> None:
    crew = Crew(world, steering(world, lambda own: own.pause("job", by="ann", reason="lunch")))
    crew.start()
    await crew.work()
    assert (crew.job().status, crew.job().waits) == ("paused", "paused by ann: lunch")
    assert world.standing == {"a": 1}
    await crew.work()
    assert world.standing == {"a": 1}
    assert not crew.due()


async def test_what_was_paused_goes_on_where_it_was(world: World) -> None:
    plan = steering(world, lambda own: own.pause("job", by="ann") if not world.reads else None)
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    assert crew.job().status == "paused"
    key = crew.commands.resume("job", by="bob")
    await crew.work()
    assert crew.job().status == "completed"
    assert crew.result(key).outcome == "completed"
    assert world.standing == {"a": 1, "c": 1}


async def test_one_that_is_paused_before_it_begins_does_not(world: World) -> None:
    crew = Crew(world, THREE)
    crew.start()
    assert crew.commands.pause("job", by="ann").status == "paused"
    await crew.work()
    assert not world.runs()
    assert [each.status for each in executions(crew.store)] == []
    crew.commands.resume("job", by="ann")
    await crew.work()
    assert crew.job().status == "completed"
    assert world.most == 1


@pytest.mark.parametrize("late", [False, True], ids=["not opened", "opened"])
async def test_one_that_is_paused_as_a_worker_takes_it_begins_when_it_is_resumed(
    late: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the worker has looked: its start stays open, for nothing else has its inputs."""
    crew = Crew(world, steps(a=put("='a' + string(inputs.n)")))
    crew.start(inputs={"n": 3})
    where, name = (running, "keep_outline") if late else (worker, "run")
    real: Any = getattr(where, name)

    def paused_by_now(*args: Any, **how: Any) -> Any:
        Holds(crew.store, "job").put("paused", by="ann")
        return real(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, paused_by_now)
        await crew.work()
    assert crew.job().status == "paused"
    assert not world.standing
    crew.commands.resume("job", by="ann")
    await crew.work()
    assert (crew.job().status, world.standing) == ("completed", {"a3": 1})
    assert crew.due() == []


async def test_one_that_is_stopped_as_it_begins_and_resumed_by_then_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause has stopped its run, and is over before the attempt looks what it was for."""
    crew = Crew(world, steps(a=put("='a' + string(inputs.n)")))
    crew.start(inputs={"n": 3})
    real: Any = vars(running)["keep_outline"]

    def paused_and_resumed(*args: Any) -> None:
        holds = Holds(crew.store, "job")
        holds.put("paused", by="ann")
        hold = holds.read()
        assert hold is not None
        holds.stop(crew.store.runs()[-1].run, hold)
        holds.lift()
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(running, "keep_outline", paused_and_resumed)
        await crew.work()
    assert (crew.job().status, len(crew.due())) == ("pending", 1)
    await crew.work()
    assert (crew.job().status, world.standing) == ("completed", {"a3": 1})
    assert crew.due() == []


@pytest.mark.parametrize("kind", ["paused", "cancelled"])
async def test_a_hold_that_comes_while_the_session_opens_is_seen(
    world: World, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs.given_inputs

    def and_then(*said: Any) -> Any:
        Holds(crew.store, "job").put(kind, by="ann")
        return given(*said)

    crew = Crew(world, THREE)
    crew.store.secret_key()
    monkeypatch.setattr("rollcage_workflow.running.given_inputs", and_then)
    found = await world.attempt(THREE)
    assert found.status == kind
    assert not world.deeds


async def test_a_cancelled_one_is_undone_by_a_worker(world: World) -> None:
    crew = Crew(world, steering(world, lambda own: own.cancel("job", by="ann", rollback=True)))
    crew.start()
    await crew.work()
    assert crew.job().status == "rolled_back"
    assert crew.job().waits == "cancelled by ann"
    assert not world.standing
    assert len(world.deeds) == 2
    with pytest.raises(ExecutionFailed, match="cancelled by ann"):
        await world.attempt(THREE)
    with pytest.raises(WorkflowError, match="is over"):
        crew.commands.resume("job", by="ann", again=True)


async def test_a_cancelled_one_keeps_what_it_did_where_nothing_else_is_asked_for(
    world: World,
) -> None:
    plan = steps(a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]}, b=put("b", "go"))
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    world.signal("go", 1)
    assert crew.commands.cancel("job", by="ann", reason="enough").status == "cancelled"
    with pytest.raises(WorkflowError, match="it is cancelled, and takes no signal"):
        world.signal("go", 2)
    await crew.work()
    assert crew.job().status == "cancelled"
    assert world.standing == {"a": 1}
    crew.commands.cancel("job", by="ann", rollback=True)  # on second thought
    await crew.work()
    assert crew.job().status == "rolled_back"
    assert not world.standing


async def test_one_that_is_completed_is_not_cancelled(world: World) -> None:
    crew = Crew(world, THREE)
    crew.start()
    await crew.work()
    with pytest.raises(WorkflowError, match="it is completed"):
        crew.commands.cancel("job", by="ann", rollback=True)
    Holds(crew.store, "job").put("cancelled", by="ann", rollback=True)  # as if it ended just then
    assert crew.job().status == "completed"
    with pytest.raises(WorkflowError, match="no execution 'nobody'"):
        crew.commands.pause("nobody", by="ann")


async def test_a_failed_one_is_run_once_more_where_somebody_says_so(world: World) -> None:
    broken = [True]

    @tool(effect="read", name="carrier")
    async def carrier() -> str:
        if broken:
            raise ConnectionError("no answer")
        return "fine"

    world.tools.append(carrier)
    plan = steps(a=put("a"), ask={"call": "carrier", "after": ["a"]}, b=put("b", "ask"))
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    assert crew.job().status == "failed"
    broken.clear()
    with pytest.raises(WorkflowError, match="resume --again"):
        crew.commands.resume("job", by="ann")
    crew.commands.resume("job", by="ann", again=True)
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "b": 1}


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
    command = [sys.executable, "-m", "rollcage", "copy", "--from", str(world.store), "--to"]
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
    there = world.store.with_name("copied")
    command = [sys.executable, "-m", "rollcage", "copy", "--from", str(world.store), "--to"]
    await asyncio.to_thread(subprocess.run, [*command, str(there)], check=True, capture_output=True)
    copied = World(there)
    moved = Crew(copied, plan)
    started = moved.commands.started("job")
    assert started == crew.commands.started("job")
    assert started is not None
    with pytest.raises(ApprovalInvalid):  # who started it is known there, too
        ApprovalQueue(moved.store).decide(request, Approval(True, by=started.by))
    ApprovalQueue(moved.store).decide(request, Approval(True, by="ann"))
    await moved.work()
    assert (moved.job().status, copied.standing) == ("completed", {"ship": 1})
    assert (moved.job("later").status, moved.job("later").inputs) == ("waiting", {"n": 2})
    assert not moved.start(id="later")
