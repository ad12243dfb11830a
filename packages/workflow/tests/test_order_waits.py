"""Workers make the next attempt when a signal, a time or an approval is there."""

import time
from typing import Any

import pytest
from order_plans import APPROVED, asked, put, steps
from parts import requests_in
from rollcage import Approval, ApprovalQueue
from rollcage.errors import ApprovalInvalid, StoreError
from rollcage_workflow import Plan, check
from workers import Crew
from worlds import World


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


async def test_an_approval_holds_no_process_and_lets_it_go_on(world: World) -> None:
    crew = Crew(world, APPROVED)
    name = await asked(crew)
    queue = ApprovalQueue(crew.store)
    queued = queue.get(name)
    assert queued is not None
    assert queued.args["question"] == "ship 3?"
    await crew.work()
    assert crew.job().attempts == 1  # nobody decided: no attempt is made
    with pytest.raises(ApprovalInvalid, match="another person"):
        queue.decide(name, Approval(True, by="Carl"))  # who asked for the execution
    queue.decide(name, Approval(True, by="ann"))
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"ship": 1}
    assert queue.get(name) is None  # what was decided is on record


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
        (new,) = requests_in(queue.store)
        assert new not in known
        assert f"rollcage approve {new}" in crew.job().waits
        known.add(new)
        queue.decide(new, Approval(True, by="ann"))
        await crew.work()
        # nobody is asked twice, and what was decided is on record
        assert (crew.job().status, requests_in(queue.store)) == ("rolled_back", [])
        assert not world.standing


async def test_an_approval_is_of_one_plan(world: World) -> None:
    crew = Crew(world, APPROVED)
    first = await asked(crew)
    ApprovalQueue(crew.store).decide(first, Approval(True, by="ann"))
    other = steps(ask=APPROVED["steps"]["ask"], ship=put("more", "ask"))
    changed = Crew(world, other)
    await changed.work()
    assert changed.job().status == "waiting"
    assert len(requests_in(crew.store)) == 2
    assert not world.standing


async def test_other_steps_go_on_while_somebody_is_asked(world: World) -> None:
    plan = steps(ask={"wait": {"approval": "ship?"}}, a=put("a"), b=put("b", "a", "ask"))
    crew = Crew(world, plan)
    name = await asked(crew)
    assert world.standing == {"a": 1}
    ApprovalQueue(crew.store).decide(name, Approval.respond("tomorrow", by="ann"))
    await crew.work()
    assert world.standing == {"a": 1, "b": 1}
