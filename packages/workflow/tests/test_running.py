"""What each kind of step does, and how an execution ends."""

import asyncio
import datetime as dt
import gc
import re
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequired,
    Blocked,
    Diverged,
    RollcageError,
    RunInUse,
    RunStopped,
    Session,
    StepView,
    UndoIncomplete,
    Verdict,
    compensate,
    open_store,
    tool,
)
from rollcage.store import StopOrder
from rollcage_workflow import Execution, PlanInvalid, check, execution, executions, run, running
from rollcage_workflow.errors import (
    ExecutionFailed,
    ExpressionFailed,
    InputsInvalid,
    StepFailed,
    WorkflowError,
)
from rollcage_workflow.outline import outline_of
from rollcage_workflow.picture import picture
from rollcage_workflow.signals import Signals
from rollcage_workflow.state import StepState
from worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def steps(**given: Any) -> dict[str, Any]:
    return {"name": "plan", "steps": given}


def put(what: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, **more}


async def test_a_completed_one_is_not_run_again(world: World) -> None:
    plan = steps(a=put("a"), b={"value": {"got": "=size(a)", "text": "==plain"}})
    first = await world.attempt(plan)
    again = await world.attempt(plan)
    assert first.status == again.status == "completed"
    assert first.output == again.output
    assert first.output["text"] == "=plain"
    assert world.standing == {"a": 1}
    assert len(world.runs()) == 1


async def test_two_ids_are_two_executions(world: World) -> None:
    plan = steps(a=put("a"))
    await world.attempt(plan, id="one")
    await world.attempt(plan, id="two")
    assert world.standing == {"a": 2}


async def test_steps_run_at_once_where_nothing_orders_them(world: World) -> None:
    here: list[str] = []
    both = asyncio.Event()

    @tool(effect="read", name="meets")
    async def meets(who: str) -> str:
        here.append(who)
        if len(here) == 2:
            both.set()
        await both.wait()
        return who

    plan = steps(
        a={"call": "meets", "args": {"who": "a"}}, b={"call": "meets", "args": {"who": "b"}}
    )
    found = await run(plan, id="x", store=world.store, tools=[meets])
    assert found.status == "completed"


async def test_a_step_starts_when_its_own_inputs_are_there(world: World) -> None:
    """Not when all that stands before it in some layer is done."""
    late = asyncio.Event()

    @tool(effect="read", name="slow")
    async def slow() -> str:
        await late.wait()
        return "slow"

    @tool(effect="read", name="sets")
    async def sets(after: str) -> str:
        late.set()
        return after

    @tool(effect="read", name="quick")
    async def quick() -> str:
        return "quick"

    plan = steps(
        slow={"call": "slow"},
        quick={"call": "quick"},
        then={"call": "sets", "args": {"after": "=quick"}},
        end={"value": "=slow + then"},
    )
    found = await run(plan, id="x", store=world.store, tools=[slow, sets, quick])
    assert found.output == "slowquick"


async def test_a_skipped_step_is_null(world: World) -> None:
    plan = steps(
        n={"value": 1},
        a=put("a", when="=n > 2"),
        b={"value": "=a == null"},
        c=put("c", when="=b"),
    )
    await world.attempt(plan)
    assert world.standing == {"c": 1}


async def test_a_failure_begins_nothing_else_and_ends_what_was_begun(world: World) -> None:
    plan = steps(
        bad={"call": "look", "args": {"what": "x", "fails": True}},
        a=put("a"),
        after=put("after", after=["bad"]),
        later=put("later", after=["a"]),
    )
    with pytest.raises(ValueError, match="no x") as raised:
        await world.attempt(plan)
    assert raised.value.__notes__ == ["in step bad of the plan"]
    assert set(world.standing) <= {"a"}
    state = execution_of(world)
    assert state.status == "failed"
    assert state.error == {"step": "bad", "type": "ValueError", "message": "no x"}


def execution_of(world: World, name: str = "job") -> Any:
    return execution(open_store(world.store), name)


async def test_one_that_failed_is_run_again_only_where_that_is_said(world: World) -> None:
    fails = [True]

    @tool(effect="read", name="flaky")
    async def flaky() -> str:
        if fails:
            raise ValueError("not yet")
        return "fine"

    plan = steps(a=put("a"), b={"call": "flaky", "after": ["a"]}, c=put("c", after=["b"]))
    how: dict[str, Any] = {"id": "x", "store": world.store, "tools": [*world.tools, flaky]}
    with pytest.raises(ValueError, match="not yet"):
        await run(plan, **how)
    fails.clear()
    with pytest.raises(ExecutionFailed, match=r"failed before, in step b: ValueError: not yet"):
        await run(plan, **how)
    assert (await run(plan, again=True, **how)).status == "completed"
    assert world.standing == {"a": 1, "c": 1}


async def test_a_rollback_undoes_all_of_it_newest_first(world: World) -> None:
    plan = steps(
        a=put("a"),
        b=put("b", after=["a"]),
        c={"call": "put", "args": {"what": "c", "fails": True}, "after": ["b"]},
    )
    with pytest.raises(ValueError, match="c failed"):
        await world.attempt({**plan, "on_failure": "rollback"})
    assert [(deed.label, deed.sign) for deed in world.deeds] == [
        ("a", 1), ("b", 1), ("b", -1), ("a", -1)
    ]  # fmt: skip
    assert execution_of(world).status == "rolled_back"
    with pytest.raises(ExecutionFailed):
        await world.attempt({**plan, "on_failure": "rollback"})
    assert world.standing == {}


async def test_a_step_may_roll_back_where_the_plan_does_not(world: World) -> None:
    bad = {"call": "put", "args": {"what": "c", "fails": True}, "after": ["a"]}
    with pytest.raises(ValueError, match="c failed"):
        await world.attempt(steps(a=put("a"), c={**bad, "on_failure": "rollback"}))
    assert execution_of(world).status == "rolled_back"


async def test_what_could_not_be_undone_is_said(world: World) -> None:
    @tool(effect="write", name="refuses")
    async def refuses(token: str) -> None:
        raise ValueError("somebody holds it")

    @tool(effect="write", name="stuck", undo=lambda result: [compensate(refuses, token=result)])
    async def stuck() -> str:
        return "here"

    plan = steps(a={"call": "stuck"}, b={"call": "look", "args": {"fails": True}, "after": ["a"]})
    with pytest.raises(UndoIncomplete, match="could not be rolled back") as raised:
        await run(
            {**plan, "on_failure": "rollback"},
            id="x",
            store=world.store,
            tools=[*world.tools, stuck, refuses],
        )
    assert any("ValueError: no " in note for note in raised.value.__notes__)
    assert execution_of(world, "x").status == "failed"


async def test_another_attempt_is_made_only_of_what_failed(world: World) -> None:
    tries: list[int] = []

    @tool(effect="write", name="unsteady", raises=[ConnectionError])
    async def unsteady() -> int:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("down")
        return len(tries)

    plan = steps(a={"call": "unsteady", "retry": {"attempts": 3, "on": ["ConnectionError"]}})
    found = await run(plan, id="x", store=world.store, tools=[unsteady])
    assert found.output == 3


async def test_an_unknown_outcome_is_never_tried_again(world: World) -> None:
    tries: list[int] = []

    @tool(effect="write", name="lost")
    async def lost() -> None:
        tries.append(1)
        raise TimeoutError

    plan = steps(a={"call": "lost", "retry": {"attempts": 5}})
    how: dict[str, Any] = {"id": "x", "store": world.store, "tools": [lost]}
    with pytest.raises(Exception, match="rollcage resolve"):
        await run(plan, **how)
    with pytest.raises(Exception, match="rollcage resolve"):
        await run(plan, **how)
    assert len(tries) == 1
    assert execution_of(world, "x").status == "halted"


async def test_a_race_undoes_what_came_too_late(world: World) -> None:
    gate = asyncio.Event()

    @tool(effect="read", name="held")
    async def held() -> str:
        await gate.wait()
        return "held"

    plan = steps(
        race={
            "team": {
                "mode": "race",
                "members": {
                    "quick": put("quick"),
                    "slow": {
                        "repeat": {
                            "steps": {
                                "a": put("slow"),
                                "b": {"call": "held", "after": ["a"]},
                                "c": put("never", after=["b"]),
                            },
                            "until": "=true",
                            "most": 1,
                        }
                    },
                },
            }
        }
    )
    found = await run(plan, id="x", store=world.store, tools=[*world.tools, held])
    assert found.output["winner"] == "quick"
    assert world.standing == {"quick": 1}
    assert found.status == "completed"


async def test_a_quorum_takes_the_first_so_many(world: World) -> None:
    members = {name: put(name) for name in "abc"}
    plan = steps(votes={"team": {"mode": "quorum", "quorum": 2, "members": members}})
    found = await world.attempt(plan)
    assert len(found.output) == 2
    assert set(world.standing) == set(found.output)


async def test_a_team_is_done_with_what_it_has_where_too_few_end_well(world: World) -> None:
    bad = {"call": "look", "args": {"what": "y", "fails": True}}
    plan = steps(
        votes={"team": {"mode": "quorum", "quorum": 2, "members": {"a": put("a"), "b": bad}}}
    )
    with pytest.raises(ValueError, match="no y"):
        await world.attempt(plan)


async def test_a_list_is_done_in_pieces_of_a_size(world: World) -> None:
    plan = steps(
        each={
            "each": {
                "over": "=[1, 2, 3, 4, 5]",
                "size": 2,
                "steps": {"n": {"value": "=size(item)"}},
            }
        }
    )
    assert (await world.attempt(plan)).output == [2, 2, 1]


async def test_no_more_go_on_at_once_than_is_said(world: World) -> None:
    now: list[int] = []
    most: list[int] = []

    @tool(effect="read", name="counted")
    async def counted(n: int) -> int:
        now.append(n)
        most.append(len(now))
        await asyncio.sleep(0)
        now.remove(n)
        return n

    inner = {"c": {"call": "counted", "args": {"n": "=item"}}}
    plan = steps(each={"each": {"over": "=[1,2,3,4,5,6]", "max_concurrent": 2, "steps": inner}})
    found = await run(plan, id="x", store=world.store, tools=[counted])
    assert found.output == [1, 2, 3, 4, 5, 6]
    assert max(most) == 2


async def test_a_loop_that_does_not_end_fails(world: World) -> None:
    inner = {"n": {"value": "=round"}}
    plan = steps(r={"repeat": {"steps": inner, "until": "=last > 9", "most": 3}})
    with pytest.raises(StepFailed, match="was not true after any of 3 rounds"):
        await world.attempt(plan)
    plan["steps"]["r"]["repeat"]["then"] = "go_on"
    assert (await world.attempt(plan, id="other")).output == 3


async def test_a_jump_hands_on_the_last_result_and_is_bounded(world: World) -> None:
    plan = steps(
        draft=put("draft"),
        review={
            "value": "=last == null ? 1 : last + 1",
            "after": ["draft"],
            "next": {"to": "draft", "when": "=review < 3", "most": 5},
        },
        end={"value": "=review"},
    )
    assert (await world.attempt(plan)).output == 3
    assert world.standing == {"draft": 3}
    plan["steps"]["review"]["next"]["most"] = 1
    with pytest.raises(StepFailed, match="would go back to draft once more"):
        await world.attempt(plan, id="short")


async def test_a_plan_in_a_plan(world: World) -> None:
    inner = {
        "name": "inner",
        "inputs": {"what": {"type": "string"}, "often": {"type": "integer", "default": 2}},
        "steps": {"a": put("=inputs.what")},
        "output": "=inputs.often",
    }
    plan = steps(sub={"workflow": "inner", "inputs": {"what": "deep"}})
    assert (await world.attempt(plan, workflows={"inner": inner})).output == 2
    assert world.standing == {"deep": 1}


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


async def test_a_signal_that_is_not_accepted_fails_the_step(world: World) -> None:
    world.signal("go", [])
    plan = steps(go={"wait": {"signal": "go", "accepts": {"type": "object"}}})
    with pytest.raises(StepFailed, match="does not accept"):
        await world.attempt(plan)


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


async def test_a_limit_of_all_of_it_counts_from_the_first_attempt(world: World) -> None:
    now = [dt.datetime(2027, 1, 1, tzinfo=dt.UTC)]

    def clock() -> int:
        return int(now[0].timestamp() * 1e9)

    plan = {**steps(go={"wait": {"signal": "go"}}), "time_limit": 60}
    assert (await world.attempt(plan, clock=clock)).status == "waiting"
    now[0] += dt.timedelta(minutes=2)
    with pytest.raises(StepFailed, match="the execution took longer than 60 s"):
        await world.attempt(plan, clock=clock)


async def test_a_read_that_takes_too_long_fails(world: World) -> None:
    @tool(effect="read", name="endless")
    async def endless() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StepFailed, match=r"a: took longer than 0\.01 s"):
        await run(
            steps(a={"call": "endless", "timeout": 0.01}),
            id="x",
            store=world.store,
            tools=[endless],
        )


async def test_an_expression_without_a_value_fails_its_step(world: World) -> None:
    plan = steps(a={"call": "look"}, b={"value": "=a[7]"})
    with pytest.raises(ExpressionFailed, match=r"=a\[7\]"):
        await world.attempt(plan)


async def test_inputs_are_checked_before_anything_happens(world: World) -> None:
    plan = {**steps(a=put("a")), "inputs": {"n": {"type": "integer"}}}
    for given in ({}, {"n": "3"}, {"n": 1, "m": 2}):
        with pytest.raises(InputsInvalid):
            await world.attempt(plan, given)
    assert not world.store.exists()


async def test_only_one_attempt_goes_on_at_a_time(world: World) -> None:
    here, go = asyncio.Event(), asyncio.Event()

    @tool(effect="read", name="pauses")
    async def pauses() -> None:
        here.set()
        await go.wait()

    plan = steps(a={"call": "pauses"}, b=put("b", after=["a"]))
    how: dict[str, Any] = {"id": "x", "store": world.store, "tools": [*world.tools, pauses]}
    first = asyncio.create_task(run(plan, **how))
    await here.wait()
    assert execution_of(world, "x").status == "running"
    with pytest.raises(RunInUse):
        await run(plan, **how)
    go.set()
    assert (await first).status == "completed"
    assert world.standing == {"b": 1}


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


async def test_a_write_put_between_done_ones_halts_before_it_runs(world: World) -> None:
    plan = steps(a=put("a"), b=put("b", after=["a"]), go={"wait": {"signal": "go"}, "after": ["b"]})
    await world.attempt(plan)
    world.signal("go", 1)
    plan["steps"]["between"] = put("between", after=["a"])
    plan["steps"]["b"] = put("changed", after=["between"])
    with pytest.raises(Diverged, match="put"):
        await world.attempt(plan)
    assert world.standing == {"a": 1, "b": 1}


async def test_another_plan_under_the_same_id_is_refused(world: World) -> None:
    await world.attempt(steps(a=put("a")))
    with pytest.raises(Exception, match="is an execution of the plan 'plan'"):
        await world.attempt({**steps(b=put("b")), "name": "other"})


async def test_nothing_runs_of_a_plan_with_mistakes(world: World) -> None:
    with pytest.raises(PlanInvalid):
        await world.attempt(steps(a=put("a"), b=put("b", after=["nothing"])))
    assert not world.store.exists()


async def test_it_runs_in_a_store_in_a_database(world: World, tmp_path: Path) -> None:
    plan = steps(a={"call": "look"}, go={"wait": {"signal": "go"}}, b={"value": "=size(a)"})
    how: dict[str, Any] = {
        "id": "x",
        "store": f"sqlite:///{tmp_path}/runs.db",
        "tools": world.tools,
    }
    assert (await run(plan, **how)).status == "waiting"
    assert Signals(open_store(how["store"]), "x").send("go", 1, by="me")
    found = await run(plan, **how)
    assert (found.status, found.output) == ("completed", 3)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def own_threads() -> int:
    """Those of no pool."""
    pools = ("asyncio_", "rollcage-wait")
    return sum(1 for each in threading.enumerate() if not each.name.startswith(pools))


def pooled_threads() -> set[int | None]:
    """Those of pools: one of them has as many as were busy at once, and no more than it may."""
    return {each.ident for each in threading.enumerate()} - {threading.main_thread().ident}


async def test_two_hundred_at_once_leave_nothing_behind(world: World) -> None:
    plan = steps(
        a={"call": "look"},
        e={"each": {"over": "=a", "steps": {"p": put("=item")}}},
        g={"wait": {"signal": "never"}, "when": "=false || size(a) == 0"},
    )

    async def all_of_them(name: str) -> list[Execution]:
        return await asyncio.gather(
            *(world.attempt(plan, id=f"{name} {number}") for number in range(100))
        )

    others = pooled_threads()
    await all_of_them("first")
    files = open_files()
    before = len(asyncio.all_tasks()), own_threads()
    found = await all_of_them("second")
    assert {each.status for each in found} == {"completed"}
    assert len(asyncio.all_tasks()) == before[0]
    assert own_threads() <= before[1]
    assert len(pooled_threads() - others) <= 48
    gc.collect()
    assert open_files() <= files


async def test_a_session_of_the_same_store_is_no_execution(world: World) -> None:
    with Session("plain", store=world.store):
        pass
    await world.attempt(steps(a=put("a")))
    assert [each.id for each in executions(open_store(world.store))] == ["job"]


async def test_what_an_earlier_attempt_did_in_a_list_is_rolled_back_too(world: World) -> None:
    """The last attempt was given the list as one hit: its own trace holds none of the writes."""
    plan = {
        **steps(
            each={"each": {"over": "=[1, 2]", "steps": {"p": put("='p' + string(item)")}}},
            go={"wait": {"signal": "go"}, "after": ["each"]},
            bad={"call": "look", "args": {"fails": True}, "after": ["go"]},
        ),
        "on_failure": "rollback",
    }
    assert (await world.attempt(plan)).status == "waiting"
    world.signal("go", 1)
    with pytest.raises(ValueError, match="no "):
        await world.attempt(plan)
    assert world.standing == {}
    assert execution_of(world).status == "rolled_back"


async def test_other_inputs_than_before_are_refused(world: World) -> None:
    plan = {
        **steps(a=put("=inputs.what"), go={"wait": {"signal": "go"}, "after": ["a"]}),
        "inputs": {"what": {"type": "string"}},
    }
    await world.attempt(plan, {"what": "one"})
    with pytest.raises(InputsInvalid, match="was given other inputs before"):
        await world.attempt(plan, {"what": "two"})
    plan["inputs"]["more"] = {"type": "integer", "default": 1}
    world.signal("go", 1)
    assert (await world.attempt(plan, {"what": "one"})).status == "completed"
    assert world.standing == {"one": 1}


@pytest.mark.parametrize("step", [{"value": "=a[7]"}, {"value": 1, "when": "=a[7] == 1"}])
async def test_an_expression_may_fail_and_be_kept(step: dict[str, Any], world: World) -> None:
    plan = steps(a={"call": "look"}, b={**step, "on_failure": "keep"}, c={"value": "=b.error.type"})
    assert (await world.attempt(plan)).output == "ExpressionFailed"


async def test_a_condition_that_fails_names_its_step_and_rolls_back(world: World) -> None:
    bad = put("b", when="=l[7] == 1", on_failure="rollback", after=["a"])
    with pytest.raises(ExpressionFailed):
        await world.attempt(steps(a=put("a"), l={"call": "look"}, b=bad))
    assert execution_of(world).error["step"] == "b"
    assert execution_of(world).status == "rolled_back"


async def test_a_failure_that_is_kept_says_nothing_of_a_later_one(world: World) -> None:
    bad = {"call": "look", "args": {"fails": True}}
    team = {"team": {"members": {"m": {**bad, "on_failure": "rollback"}}}, "on_failure": "keep"}
    with pytest.raises(ValueError, match="no "):
        await world.attempt(
            steps(a=put("a"), t={**team, "after": ["a"]}, x={**bad, "after": ["t"]})
        )
    assert world.standing == {"a": 1}
    assert execution_of(world).status == "failed"


async def test_a_plan_in_a_plan_says_what_its_failure_does(world: World) -> None:
    bad = {"call": "look", "args": {"fails": True}, "after": ["a"]}
    inner = {**steps(a=put("a"), b=bad), "name": "inner", "on_failure": "rollback"}
    with pytest.raises(ValueError, match="no "):
        await world.attempt(steps(s={"workflow": "inner"}), workflows={"inner": inner})
    assert world.standing == {}
    assert execution_of(world).status == "rolled_back"


async def test_a_race_is_decided_while_another_member_sleeps(world: World) -> None:
    members = {"sleeps": {"wait": {"seconds": 50}}, "quick": put("quick")}
    plan = steps(race={"team": {"mode": "race", "members": members}})
    found = await asyncio.wait_for(world.attempt(plan), 20)
    assert found.output["winner"] == "quick"


async def test_a_plan_in_a_plan_has_its_own_limit(world: World) -> None:
    inner = {"name": "inner", "steps": {"w": {"wait": {"seconds": 50}}}, "time_limit": 0.05}
    with pytest.raises(StepFailed, match=r"s took longer than 0\.05 s"):
        await world.attempt(steps(s={"workflow": "inner"}), workflows={"inner": inner})


async def test_a_race_waits_while_one_may_still_end_well(world: World) -> None:
    members = {"bad": {"call": "look", "args": {"fails": True}}, "w": {"wait": {"signal": "go"}}}
    plan = steps(race={"team": {"mode": "race", "members": members}})
    assert (await world.attempt(plan)).status == "waiting"
    world.signal("go", 3)
    assert (await world.attempt(plan)).output == {"winner": "w", "value": 3}


async def test_a_plan_without_what_is_done_says_so(world: World) -> None:
    plan = steps(a=put("a"), x=put("x"), go={"wait": {"signal": "go"}, "after": ["a", "x"]})
    await world.attempt(plan)
    world.signal("go", 1)
    del plan["steps"]["x"]
    plan["steps"]["go"]["after"] = ["a"]
    for _ in range(2):
        with pytest.raises(WorkflowError, match="put back the steps that were removed"):
            await world.attempt(plan)
    assert execution_of(world).status == "halted"
    plan["steps"]["x"] = put("x")
    plan["steps"]["go"]["after"] = ["a", "x"]
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1, "x": 1}


async def test_a_trace_that_is_damaged_hides_no_other_execution(world: World) -> None:
    await world.attempt(steps(a=put("a")), id="one")
    await world.attempt(steps(a=put("a")), id="two")
    trace = world.store / "runs" / f"{world.runs()[0]}.jsonl"
    trace.write_bytes(b"damaged\n" + trace.read_bytes())
    found = {each.id: each.status for each in executions(open_store(world.store))}
    assert found == {"one": "halted", "two": "completed"}


async def test_a_result_that_is_no_json_is_told(world: World) -> None:
    @tool(effect="read", name="odd")
    async def odd() -> object:
        return {1, object}

    with pytest.raises(StepFailed, match="odd gave what has no JSON"):
        await run(steps(a={"call": "odd"}), id="x", store=world.store, tools=[odd])
    assert execution_of(world, "x").waits == ""


def test_a_picture_uses_no_word_of_mermaid_as_a_name(world: World) -> None:
    drawn = picture(outline_of(check(steps(end=put("a"), b=put("b", after=["end"])), world.tools)))
    assert '  end_["end: put"]' in drawn
    assert "end_ --> b" in drawn


async def test_a_picture_shows_the_states_of_steps_in_blocks(world: World) -> None:
    sent = {"send": put("=item"), "more": put("=item", after=["send"])}
    fails = {"call": "odd_or", "args": {"what": "=item"}}
    inner = {"deep": {"each": {"over": "=[1]", "steps": {"fails": fails}}}}
    plan = steps(
        mails={"each": {"over": "=['a', 'b']", "steps": sent}},
        rounds={"repeat": {"steps": {"try": put("x")}, "until": "=round == 2", "most": 3},
                "after": ["mails"]},
        both={"team": {"members": {"one": put("1"), "two": put("2")}}, "after": ["rounds"]},
        fail={"each": {"over": "=[1, 2]", "steps": inner}, "after": ["both"]},
        never=put("n", after=["fail"]),
    )  # fmt: skip

    @tool(effect="write", name="odd_or")
    async def odd_or(what: int) -> int:
        raise KeyError(what)

    checked = check(plan, [*world.tools, odd_or])
    assert "class" not in picture(outline_of(checked))
    with pytest.raises(KeyError):
        await run(checked, id="x", store=world.store)
    drawn = picture(outline_of(checked), execution_of(world, "x"))
    shown = dict(re.findall(r"class (\w+) (\w+)\n", drawn))
    completed = ["mails", "mails__send", "mails__more", "rounds", "rounds__try"]
    completed += ["both", "both__one", "both__two"]
    failed = ["fail", "fail__deep", "fail__deep__fails"]
    assert shown == dict.fromkeys(completed, "completed") | dict.fromkeys(failed, "failed")


def test_of_several_states_the_one_that_tells_most_is_shown(world: World) -> None:
    sent = {"send": put("=item")}
    plan = steps(
        mails={"each": {"over": "=['a', 'b', 'c']", "steps": sent}},
        rounds={"repeat": {"steps": {"try": put("x")}, "until": "=round == 2", "most": 3}},
    )
    checked = check(plan, world.tools)

    def shown(**states: str) -> list[str]:
        found = tuple(StepState(path, state, "put", None) for path, state in states.items())
        execution = Execution("x", _steps=lambda: found)
        return re.findall(r"class \w+__\w+ (\w+)\n", picture(outline_of(checked), execution))

    def mails(*states: str) -> list[str]:
        return shown(**{f"mails/{n}/send": state for n, state in enumerate(states)})

    assert mails("completed", "running") == ["running"]
    assert mails("completed", "failed", "running") == ["failed"]
    assert mails("unknown", "failed", "undone") == ["unknown"]
    assert mails("undone", "completed") == ["completed"]
    assert mails("undone", "undone", "undone") == ["undone"]
    assert shown(**{"rounds/1/try": "completed", "rounds/2/try": "running"}) == ["running"]
    assert shown(**{"rounds/1/try": "failed", "rounds/2/try": "completed"}) == ["completed"]


def test_who_has_no_expression_imports_no_cel() -> None:
    program = (
        "import sys, rollcage, rollcage_workflow as w\n"
        "@rollcage.tool(effect='read', name='look')\n"
        "def look() -> int: return 1\n"
        "w.check({'name': 'p', 'steps': {'a': {'call': 'look'}}}, [look])\n"
        "assert not {'cel', 'prompt_toolkit'} & set(sys.modules)\n"
        "w.check({'name': 'p', 'steps': {'a': {'value': '=1 + 1'}}}, [look])\n"
        "assert 'cel' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_signal_is_json(world: World) -> None:
    for data in (float("nan"), [{"a": float("inf")}], {1: 2}, 2**70):
        with pytest.raises(WorkflowError, match="is no JSON"):
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
        await world.attempt(plan, rules=[asks])
    found = execution_of(world)
    assert (found.status, found.waits) == ("waiting", "put requires approval: sure?")
    yes = Approval(approved=True, by="ann")
    assert (await world.attempt(plan, rules=[asks], approver=lambda _: yes)).status == "completed"
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
    store.stop(StopOrder(run=world.runs()[0], by="ann", reason="lunch", time=1))
    with pytest.raises(RunStopped):
        await first
    assert execution_of(world, "x").status == "paused"
    assert world.standing == {"a": 1}


async def test_one_that_somebody_else_has_completed_meanwhile_is_not_begun_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at how it stands and the session, another process may have finished it."""
    plan = steps(a=put("a"))
    looked: list[str] = []

    def late(store: Any, name: str) -> Execution:
        looked.append(name)
        return Execution(name) if len(looked) == 1 else execution(store, name)

    await world.attempt(plan)
    monkeypatch.setattr(running, "execution", late)
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1}


@pytest.mark.parametrize("how", [{"replay": "offline"}, {"replay": "off"}, {"input": "other"}])
async def test_other_sessions_of_its_name_are_no_attempts(world: World, how: Any) -> None:
    plan = steps(a=put("a"))
    await world.attempt(plan)
    source: Any = {"source": world.runs()[-1]} if "offline" in how.values() else {}
    async with Session("job", store=world.store, **how, **source):
        pass
    found = await world.attempt(plan)
    assert (found.status, found.attempts) == ("completed", 1)
    assert world.standing == {"a": 1}


async def test_a_pruned_execution_is_not_begun_anew(world: World) -> None:
    plan = steps(a=put("a"))
    await world.attempt(plan)
    store = open_store(world.store)
    (info,) = store.runs()
    store.prune(info.run, by="ann", time=1)
    with pytest.raises(RollcageError):
        await world.attempt(plan)
    assert world.standing == {"a": 1}


async def test_a_rule_that_denies_by_default_has_to_allow_what_goes_on_record(
    world: World,
) -> None:
    plan = steps(a=put("a"))

    def only(*names: str) -> Any:
        def rule(view: Any) -> Verdict:
            fine = view.contract.name in names or view.contract.name.startswith("workflow.")
            return Verdict.allow() if fine and names else Verdict.deny("not on the list")

        return rule

    with pytest.raises(Blocked, match="not on the list"):
        await world.attempt(plan, rules=[only()])
    assert world.standing == {}
    assert (await world.attempt(plan, again=True, rules=[only("put")])).status == "completed"
    assert world.standing == {"a": 1}


async def test_large_inputs_and_outputs_lie_beside_the_trace(world: World) -> None:
    plan = {
        **steps(a=put("a"), b={"value": "=inputs.text", "after": ["a"]}),
        "inputs": {"text": {"type": "string"}},
    }
    for _ in range(2):
        found = await world.attempt(plan, {"text": "x" * 70_000})
        assert (found.status, found.output) == ("completed", "x" * 70_000)
    assert world.standing == {"a": 1}


async def test_inputs_that_hold_a_secret_are_given_again(world: World) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    plan = {
        **steps(a=put("=string(size(inputs.token))"), go={"wait": {"signal": "go"}}, b=put("b")),
        "inputs": {"token": {"type": "string"}, "n": {"type": "integer", "default": 1}},
    }
    how: Any = {"secrets": "detected"}
    found = await world.attempt(plan, {"token": token}, **how)
    assert (found.status, found.sealed) == ("waiting", ("token",))
    assert token not in str(found)
    with pytest.raises(InputsInvalid, match=r"given secrets \(token\)"):
        await world.attempt(plan, **how)
    with pytest.raises(InputsInvalid, match=r"other inputs before \(n\)"):
        await world.attempt(plan, {"token": token, "n": 2}, **how)
    with pytest.raises(InputsInvalid, match=r"other inputs before \(token\)"):
        await world.attempt(plan, {"token": "another"}, **how)
    world.signal("go", 1)
    assert (await world.attempt(plan, {"token": token}, **how)).status == "completed"
    assert world.standing == {"40": 1, "b": 1}


@pytest.mark.parametrize(
    "more", [{}, {"q": put("q")}], ids=["one after the other", "with branches"]
)
async def test_what_a_loop_holds_does_not_grow_with_its_rounds(world: World, more: Any) -> None:
    held: dict[int, int] = {}
    rounds = 900

    def told(path: str, state: str) -> None:
        if state == "running" and path in ("r[301].p", f"r[{rounds}].p"):
            gc.collect()
            held[len(held)] = tracemalloc.get_traced_memory()[0]

    inner = {"p": {"call": "look", "args": {"what": "same"}}, **more}
    if more:
        inner["q"] = {"call": "look", "args": {"what": "other"}}
    plan = steps(r={"repeat": {"steps": inner, "until": f"=round >= {rounds}", "most": rounds}})
    tracemalloc.start()
    try:
        await world.attempt(plan, on_step=told)
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < (rounds - 301) * 700


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


async def test_the_newest_executions_are_listed_without_a_look_at_older_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        async with Session(f"plain {number}", store=world.store):
            pass
        await world.attempt(steps(a={"call": "look"}), id=f"job {number}")
    await world.attempt(steps(a={"call": "look"}, g={"wait": {"signal": "go"}}), id="job 0a")
    store = open_store(world.store)
    looked: list[str] = []
    read = store.read

    def reading(run: str) -> Any:
        looked.append(run)
        return read(run)

    monkeypatch.setattr(type(store), "read", lambda _, run: reading(run))
    found = executions(store, limit=3)
    assert [each.id for each in found] == ["job 4", "job 5", "job 0a"]
    assert [each.status for each in found] == ["completed", "completed", "waiting"]
    assert len(looked) <= 5
    assert [step.path for step in found[0].steps] == ["a"]
    assert len(executions(store)) == 7
    assert not [run for run in looked if store.info(run).name.startswith("plain")]


def starting() -> dict[str, Any]:
    return steps(
        a={"call": "look"},
        n={"value": "=size(a)"},
        b=put("b", after=["a"]),
        c=put("='c' + string(n)", after=["b"]),
        d=put("d", after=["c"]),
        beside=put("beside"),
    )


@pytest.mark.parametrize("row", [True, False], ids=["one after the other", "with branches"])
async def test_an_execution_starts_at_a_chosen_step(world: World, *, row: bool) -> None:
    plan = starting()
    if row:
        del plan["steps"]["beside"]
    plan["steps"]["go"] = {"wait": {"signal": "go"}, "after": ["d"]}
    given = {"a": ["x", "y"], "b": "somebody else's"}
    found = await world.attempt(plan, start="c", given=given)
    expected = {"c2": 1, "d": 1} | ({} if row else {"beside": 1})
    assert (found.status, world.standing, world.reads) == ("waiting", expected, [])
    assert {"a", "b"} == {step.path for step in found.steps if step.state == "given"}
    world.signal("go", 1)
    assert (await world.attempt(plan)).status == "completed"  # it is known where it started
    assert world.standing == expected


async def test_what_is_given_has_to_be_what_comes_before(world: World) -> None:
    plan = starting()
    wrong: list[tuple[str, Any, str]] = [
        ("x", {}, "has no step 'x'"),
        ("c", {"a": [], "d": 1}, "b: c comes after it.*d: c does not come after"),
        ("c", {"a": "text", "b": "b"}, "a: 'text' is not of type 'array'"),
        ("", {"a": []}, "no step to start at"),
    ]
    for start, given, why in wrong:
        with pytest.raises(InputsInvalid, match=why):
            await world.attempt(plan, start=start, given=given)
    assert not world.store.exists()
    await world.attempt(plan)
    with pytest.raises(InputsInvalid, match="started with its first step"):
        await world.attempt(plan, start="c", given={"a": [], "b": "b"})


async def test_other_results_than_before_are_refused(world: World) -> None:
    plan = starting()
    plan["steps"]["go"] = {"wait": {"signal": "go"}, "after": ["d"]}
    await world.attempt(plan, start="c", given={"a": [], "b": "b"})
    with pytest.raises(InputsInvalid, match=r"other inputs before \(result of a\)"):
        await world.attempt(plan, start="c", given={"a": ["x"], "b": "b"})


async def test_a_jump_that_is_given_is_not_taken_again(world: World) -> None:
    review = {
        "value": "=1",
        "after": ["draft"],
        "next": {"to": "draft", "when": "=true", "most": 2},
    }
    plan = steps(
        draft=put("draft"),
        review={**review, "value": "=2"},
        end=put("end", after=["review"]),
    )
    found = await world.attempt(plan, start="end", given={"draft": "given", "review": 7})
    assert (found.status, world.standing) == ("completed", {"end": 1})


async def test_what_was_given_is_not_rolled_back(world: World) -> None:
    bad = {"call": "look", "args": {"fails": True}, "after": ["d"]}
    plan = {**starting(), "on_failure": "rollback"}
    plan["steps"]["bad"] = bad
    with pytest.raises(ValueError, match="no "):
        await world.attempt(plan, start="d", given={"a": [], "b": "b", "c": "c"})
    assert world.standing == {}
    assert {deed.label for deed in world.deeds} == {"d", "beside"}


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
        await world.attempt(plan, rules=[asks])
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing["p"] == 1
