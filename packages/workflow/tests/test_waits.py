"""Signals, times, approvals and stop orders: what an execution waits for."""

import asyncio
import datetime as dt
from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import (
    Approval,
    ApprovalRequired,
    RunStopped,
    StepView,
    Verdict,
    open_store,
    stop_run,
    tool,
)
from rollcage_workflow import run
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.signals import Signals
from worlds import World

ROUNDS: dict[str, Any] = {
    "repeat": {
        "steps": {
            "go": {"wait": {"signal": "go"}},
            "p": put("='p' + string(go)", after=["go"]),
        },
        "until": "=round >= 3",
        "most": 3,
    }
}


async def test_a_signal_may_come_before_and_after(world: World) -> None:
    plan = steps(
        a=put("a"),
        go={"wait": {"signal": "go", "accepts": {"type": "object", "required": ["by"]}}},
        b=put("b", after=["go"]),
    )
    found = await world.attempt(plan)
    assert (found.status, found.waits) == ("waiting", "waits for the signal go")
    assert world.standing == {"a": 1}  # beside the wait, all else went on
    world.signal("go", {"by": "ann"})
    world.signal("go", {"by": "too late"})
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1, "b": 1}


async def test_a_wait_inside_of_a_list_holds_up_that_pass_alone(world: World) -> None:
    inner = {
        "wait": {"wait": {"signal": "go"}, "when": "=item == 2"},
        "p": put("='p' + string(item)", after=["wait"]),
    }
    plan = steps(
        each={"each": {"over": "=[1, 2, 3]", "steps": inner}}, end=put("end", after=["each"])
    )
    assert (await world.attempt(plan)).status == "waiting"
    assert world.standing == {"p1": 1, "p3": 1}
    world.signal("go", None)
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"p1": 1, "p2": 1, "p3": 1, "end": 1}


async def test_a_time_that_is_far_off_ends_the_attempt(world: World) -> None:
    now = [dt.datetime(2027, 1, 1, tzinfo=dt.UTC)]

    def clock() -> int:
        return int(now[0].timestamp() * 1e9)

    plan = steps(a={"wait": {"seconds": 3600}}, b=put("b", after=["a"]))
    assert (await world.attempt(plan, clock=clock)).status == "waiting"
    now[0] += dt.timedelta(minutes=30)
    assert (await world.attempt(plan, clock=clock)).status == "waiting"
    now[0] += dt.timedelta(minutes=31)
    assert (await world.attempt(plan, clock=clock)).status == "completed"


async def test_a_plan_edited_while_it_waits_goes_on_as_far_as_it_holds(world: World) -> None:
    plan = steps(
        a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]}, b=put("b", after=["go"])
    )
    await world.attempt(plan)
    world.signal("go", 1)
    plan["steps"]["read"] = {"call": "look", "args": {"what": "added"}}
    plan["steps"]["c"] = put("c", after=["b"])
    found = await world.attempt(plan)
    assert found.status == "completed"
    assert world.standing == {"a": 1, "b": 1, "c": 1}


def test_a_signal_is_json(world: World) -> None:
    for data in (float("nan"), [{"a": float("inf")}], {1: 2}, 2**70):
        with pytest.raises(WorkflowError, match="is not JSON"):
            world.signal("go", data)


async def test_nobody_sleeps_on_where_another_step_failed(world: World) -> None:
    bad = {"call": "look", "args": {"fails": True}}
    plan = steps(
        tries={**bad, "retry": {"attempts": 2, "wait": 3600}},
        sleeps={"wait": {"seconds": 50}},
        fails={**bad, "after": ["first"]},
        first={"call": "look"},
    )
    with pytest.raises(ValueError, match="no "):
        await asyncio.wait_for(world.attempt(plan), 20)


async def test_a_call_that_has_to_be_approved_waits(world: World) -> None:
    def asks(step: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if step.name == "put" else None

    plan = {**steps(a=put("a"), b=put("b", after=["a"])), "on_failure": "rollback"}
    with pytest.raises(ApprovalRequired):
        await world.attempt(plan, gate=[asks])
    found = execution_of(world)
    assert found.status == "waiting"
    assert "put needs an approval (sure?)" in found.waits
    yes = Approval(approved=True, by="ann")
    assert (await world.attempt(plan, gate=[asks], approver=lambda _: yes)).status == "completed"
    assert world.standing == {"a": 1, "b": 1}


async def test_a_stop_order_pauses(world: World) -> None:
    here = asyncio.Event()

    @tool(effect="read", name="slow")
    async def slow() -> None:
        here.set()
        await asyncio.sleep(0.05)

    plan = {**steps(a=put("a"), s={"call": "slow", "after": ["a"]}, b=put("b", after=["s"]))}
    how: dict[str, Any] = {"id": "x", "store": world.store, "tools": [*world.tools, slow]}
    first = asyncio.create_task(run({**plan, "on_failure": "rollback"}, **how))
    await here.wait()
    store = open_store(world.store)
    stop_run(store, world.runs()[0], by="ann", reason="lunch")
    with pytest.raises(RunStopped):
        await first
    assert execution_of(world, "x").status == "paused"
    assert world.standing == {"a": 1}


async def test_each_round_takes_the_next_signal(world: World) -> None:
    plan = steps(r=ROUNDS, end={"value": "=r"})
    world.signal("go", 1)  # before anybody waits
    world.signal("go", 2)
    assert (await world.attempt(plan)).status == "waiting"
    assert world.standing == {"p1": 1, "p2": 1}
    world.signal("go", 3)
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"p1": 1, "p2": 1, "p3": 1}


async def test_a_signal_is_sent_once_under_one_key(world: World) -> None:
    signals = Signals(open_store(world.store), "job")
    sent = [signals.send("go", n, by="me", once=f"mail {n}") for n in (1, 1, 2, 1, 2)]
    assert sent == [True, False, True, False, False]
    assert (await world.attempt(steps(r=ROUNDS))).status == "waiting"
    assert world.standing == {"p1": 1, "p2": 1}


async def test_one_that_is_over_takes_no_signal(world: World) -> None:
    plan = steps(go={"wait": {"signal": "go"}}, fails={"call": "look", "after": ["go"]})
    signals = Signals(open_store(world.store), "job")
    assert signals.send("go", 1, by="ann", once="k")
    plan["steps"]["fails"]["args"] = {"fails": True}
    with pytest.raises(ValueError, match="no "):
        await world.attempt(plan)
    assert signals.send("go", 2, by="ann")  # it may be run once more
    plan["steps"]["fails"]["args"] = {}
    assert (await world.attempt(plan, again=True)).status == "completed"
    with pytest.raises(WorkflowError, match="'job' is over: it is completed, and takes no signal"):
        signals.send("go", 3, by="ann")
    assert not signals.send("go", 1, by="ann", once="k")


async def test_many_that_send_at_once_leave_no_gap(world: World) -> None:
    await world.attempt(steps(r=ROUNDS))
    one_store = open_store(world.store)

    def send(n: int) -> bool:
        return Signals(one_store, "job").send("go", n, by="me")

    assert all(await asyncio.gather(*(asyncio.to_thread(send, n) for n in range(20))))
    signals = Signals(one_store, "job")
    found = [signals.take("go", f"place {n}") for n in range(21)]
    assert found[20] is None
    assert sorted(each["data"] for each in found if each) == list(range(20))
    again = Signals(one_store, "job")
    assert [again.take("go", f"place {n}") for n in range(20)] == found[:20]


async def test_waits_at_once_take_each_their_own(world: World) -> None:
    inner = {"go": {"wait": {"signal": "go"}}, "p": put("='p' + string(go)", after=["go"])}
    plan = steps(e={"each": {"over": "=[1, 2, 3]", "steps": inner}})
    world.signal("go", 1)
    world.signal("go", 2)
    assert (await world.attempt(plan)).status == "waiting"
    assert world.standing == {"p1": 1, "p2": 1}
    world.signal("go", 3)
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"p1": 1, "p2": 1, "p3": 1}


@pytest.mark.parametrize(
    "beside",
    [
        {"l": {"call": "late"}, "q": put("q", after=["l"])},
        {"l": {"call": "late", "args": {"fails": True}, "on_failure": "keep"}},
    ],
    ids=["not reached", "kept"],
)
async def test_what_an_approval_breaks_off_beside_is_no_failure(world: World, beside: Any) -> None:
    """While somebody is asked, the next attempt is the one to say how the rest ends."""

    def asks(step: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if step.name == "put" else None

    @tool(effect="read", name="late")
    async def late(*, fails: bool = False) -> None:
        await asyncio.sleep(0.05)
        if fails:
            raise ValueError("late")

    world.tools.append(late)
    first = {"look": {"call": "look"}, "p": put("p", after=["look"])}
    plan = steps(
        a={"repeat": {"steps": first, "until": "=true", "most": 1}},
        b={"repeat": {"steps": beside, "until": "=true", "most": 1}},
    )
    with pytest.raises(ApprovalRequired):
        await world.attempt(plan, gate=[asks])
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing["p"] == 1
