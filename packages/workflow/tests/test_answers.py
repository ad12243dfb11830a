"""What people answer: signals that are not accepted, rejections, requests that run out."""

import time
from typing import Any

import pytest
from order_plans import asked, put, steps
from parts import execution_of, requests_in
from rollcage import Approval, ApprovalQueue, open_store
from rollcage.errors import ApprovalInvalid
from rollcage_workflow import Plan, check
from rollcage_workflow.errors import ExecutionFailed, StepFailed, WorkflowError
from rollcage_workflow.signals import Signals
from workers import Crew
from worlds import World

OBJECT: dict[str, Any] = {"type": "object", "required": ["by"]}


def accepting(schema: dict[str, Any] = OBJECT) -> dict[str, Any]:
    go = {"wait": {"signal": "go", "accepts": schema}, "after": ["a"]}
    return steps(a=put("a"), go=go, b=put("b", "go"))


async def test_a_signal_that_is_not_accepted_is_an_answer_to_its_sender(world: World) -> None:
    plan = accepting()
    await world.attempt(plan)
    with pytest.raises(WorkflowError, match="'plan' does not accept this signal go: 'by' is a req"):
        world.signal("go", {})
    with pytest.raises(WorkflowError, match=r"takes a signal 'gone'; did you mean 'go'\?"):
        world.signal("gone", {"by": "ann"})
    assert (await world.attempt(plan)).status == "waiting"
    world.signal("go", {"by": "ann"})
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1, "b": 1}


async def test_a_signal_of_a_plan_inside_a_plan_is_known(world: World) -> None:
    inner = {**accepting(), "name": "inner"}
    outer = steps(s={"workflow": "inner"})
    await world.attempt(outer, workflows={"inner": inner})
    with pytest.raises(WorkflowError, match="does not accept this signal go"):
        world.signal("go", [])
    world.signal("go", {"by": "ann"})
    assert (await world.attempt(outer, workflows={"inner": inner})).status == "completed"


async def test_an_early_signal_that_no_wait_accepts_is_left_where_it_is(world: World) -> None:
    """Nobody knows the plan before the first attempt, so such a signal is kept."""
    early: tuple[Any, ...] = ([], {"by": "ann"}, 7)
    for data in early:
        world.signal("go", data)
    plan = accepting()
    plan["steps"]["number"] = {"wait": {"signal": "go", "accepts": {"type": "integer"}}}
    found = await world.attempt(plan)
    assert found.status == "completed"
    signals = Signals(open_store(world.store), "job")
    left = signals.take("go", "elsewhere")
    assert left is not None
    assert left["data"] == []


async def test_waits_of_one_name_take_what_each_accepts(world: World) -> None:
    text = {"wait": {"signal": "go", "accepts": {"type": "string"}}}
    number = {"wait": {"signal": "go", "accepts": {"type": "integer"}}}
    plan = steps(text=text, number=number, a=put("='a' + text", "text"))
    plan["steps"]["b"] = put("='b' + string(number)", "number")
    await world.attempt(plan)
    world.signal("go", 7)
    assert (await world.attempt(plan)).status == "waiting"
    assert world.standing == {"b7": 1}
    world.signal("go", "x")
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"ax": 1, "b7": 1}


async def test_what_was_sent_under_a_key_is_told_so_even_if_it_is_no_longer_accepted(
    world: World,
) -> None:
    signals = Signals(open_store(world.store), "job")
    assert signals.send("go", [], by="ann", once="mail 1")
    await world.attempt(accepting())
    assert not signals.send("go", [], by="ann", once="mail 1")
    with pytest.raises(WorkflowError, match="does not accept"):
        signals.send("go", [], by="ann", once="mail 2")


async def test_a_signal_that_an_edited_plan_no_longer_accepts_fails_the_step(world: World) -> None:
    nap = {"wait": {"signal": "nap"}, "after": ["b"]}
    plan = accepting()
    plan["steps"]["nap"] = nap
    await world.attempt(plan)
    world.signal("go", {"by": "ann"})
    assert (await world.attempt(plan)).status == "waiting"
    edited = accepting({"type": "string"})
    edited["steps"]["nap"] = nap
    with pytest.raises(StepFailed, match="was taken under another plan; this one does not accept"):
        await world.attempt(edited)
    assert world.standing == {"a": 1, "b": 1}


# --- approvals ------------------------------------------------------------------------------------


def approving(**more: Any) -> dict[str, Any]:
    return steps(
        a=put("a"),
        ask={"wait": {"approval": "ship?", **more}, "after": ["a"]},
        ship=put("ship", "ask"),
    )


async def test_one_that_was_rejected_asks_anew_when_it_is_run_once_more(world: World) -> None:
    """The old answer stays on record, and counts for no other request."""
    crew = Crew(world, approving())
    queue, known = ApprovalQueue(crew.store), [await asked(crew)]
    for _ in range(3):
        queue.decide(known[-1], Approval.reject("no", by="ann"))
        await crew.work()
        assert crew.job().status == "failed"
        assert f"ann rejected {known[-1]}: no" in crew.job().error["message"]
        assert requests_in(crew.store) == []
        crew.commands.resume("job", by="bob", again=True)
        await crew.work()
        assert crew.job().status == "waiting"
        (new,) = requests_in(crew.store)
        assert new not in known
        known.append(new)
        await crew.work()  # a resume that nobody asked to repeat anything
        assert crew.job().status == "waiting"
    queue.decide(known[-1], Approval(True, by="ann"))
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "ship": 1}
    told = [step.path for step in crew.job().steps if step.name == "workflow.approval"]
    assert told == ["ask", "ask~2", "ask~3", "ask~4"]


async def test_a_rejection_stays_one_until_it_is_run_once_more(world: World) -> None:
    plan = approving()
    crew = Crew(world, plan)
    ApprovalQueue(crew.store).decide(await asked(crew), Approval.reject(by="ann"))
    await crew.work()
    for _ in range(2):
        with pytest.raises(ExecutionFailed, match="ann rejected"):
            await world.attempt(plan)
    assert requests_in(crew.store) == []


async def test_people_are_asked_again_where_the_plan_says_so(world: World) -> None:
    crew = Crew(world, approving(on_rejected="ask_again"))
    queue, known = ApprovalQueue(crew.store), [await asked(crew)]
    for _ in range(2):
        queue.decide(known[-1], Approval.reject("not yet", by="ann"))
        await crew.work()
        assert crew.job().status == "waiting"
        (new,) = requests_in(crew.store)
        assert new not in known
        known.append(new)
        with pytest.raises(ApprovalInvalid, match="no request"):
            queue.decide(known[-2], Approval(True, by="ann"))
    queue.decide(known[-1], Approval(True, by="ann"))
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "ship": 1}


@pytest.mark.parametrize("again", [False, True])
async def test_a_request_that_ran_out_fails_or_is_asked_again(world: World, again: bool) -> None:
    plan = approving(expires=60.0, **({"on_rejected": "ask_again"} if again else {}))
    crew = Crew(world, plan)
    first = await asked(crew)
    late: Any = {"session": {"clock": lambda: time.time_ns() + 61 * 10**9}, "later": 61.0}
    await Crew(world, plan, **late).work()
    if not again:
        assert f"nobody approved {first} in time" in crew.job().error["message"]
        crew.commands.resume("job", by="bob", again=True)
        await Crew(world, plan, **late).work()
    assert crew.job().status == "waiting"
    (new,) = requests_in(crew.store)
    assert new != first
    ApprovalQueue(crew.store).decide(new, Approval(True, by="ann"), now=_now(61))
    await Crew(world, plan, **late).work()
    assert crew.job().status == "completed"


def _now(later: int) -> int:
    return time.time_ns() // 1000 + later * 1_000_000


async def test_a_decision_of_somebody_who_may_not_decide_fails_nothing(world: World) -> None:
    """The queue refuses it. If somebody writes it past the queue, it is removed."""
    crew = Crew(world, approving(approvers=["ann"]))
    name = await asked(crew)
    queue = ApprovalQueue(crew.store)
    with pytest.raises(ApprovalInvalid, match="bob is not one of the approvers"):
        queue.decide(name, Approval(True, by="bob"))
    request = queue.get(name)
    assert request is not None
    assert queue.put(request, Approval(True, by="bob"), request.at)
    await crew.work()
    assert (crew.job().status, world.standing) == ("waiting", {"a": 1})
    assert queue.decision(request) is None
    queue.decide(name, Approval(True, by="ann"))
    await crew.work()
    assert crew.job().status == "completed"


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
async def test_no_request_is_left_when_the_execution_has_ended(world: World, ends: str) -> None:
    race = {"team": {"mode": "race", "members": {
        "late": {"wait": {"seconds": 3600}}, "ask": {"wait": {"approval": "now?"}}}}}  # fmt: skip
    end = {"call": "look", "args": {"fails": ends == "failed"}, "after": ["race"]}
    crew = Crew(world, steps(race=race, end=end))
    await asked(crew)
    if ends == "cancelled":
        crew.commands.cancel("job", by="ann")
    else:
        late: Any = {"session": {"clock": lambda: time.time_ns() + 3601 * 10**9}}
        await Crew(world, steps(race=race, end=end), later=3601.0, **late).work()
    assert crew.job().status == ends
    assert requests_in(crew.store) == []


async def test_a_request_is_asked_again_after_an_undo_and_a_rejection(world: World) -> None:
    """What an undo covers is another request, whatever was answered before."""
    plan = {**approving(), "on_failure": "rollback"}
    crew = Crew(world, plan)
    first = await asked(crew)
    queue = ApprovalQueue(crew.store)
    queue.decide(first, Approval.reject(by="ann"))
    await crew.work()
    assert (crew.job().status, world.standing) == ("rolled_back", {})
    crew.commands.resume("job", by="bob", again=True)
    await crew.work()
    (new,) = requests_in(crew.store)
    assert new != first
    queue.decide(new, Approval(True, by="ann"))
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "ship": 1}


def test_what_a_rejection_does_is_said_of_an_approval_only(world: World) -> None:
    with pytest.raises(ValueError, match="on_rejected: are for an approval"):
        Plan.model_validate(steps(w={"wait": {"signal": "go", "on_rejected": "fail"}}))
    check(approving(on_rejected="fail"), world.tools)


async def test_a_request_of_a_waiting_member_is_kept_over_attempts(world: World) -> None:
    members = {"late": {"wait": {"seconds": 3600}}, "ask": {"wait": {"approval": "now?"}}}
    crew = Crew(world, steps(race={"team": {"mode": "race", "members": members}}))
    name = await asked(crew)
    for _ in range(3):
        crew.commands.resume("job", by="bob")
        await crew.work()
        assert requests_in(crew.store) == [name]
    ApprovalQueue(crew.store).decide(name, Approval(True, by="ann"))
    await crew.work()
    assert execution_of(world).output["winner"] == "ask"
