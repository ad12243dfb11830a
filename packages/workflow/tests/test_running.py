"""How an execution runs and ends: order, failures, retries, rollback, limits."""

import asyncio
import datetime as dt
import functools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import Blocked, UndoIncomplete, Verdict, compensate, open_store, tool
from rollcage_workflow import PlanInvalid, run
from rollcage_workflow.errors import (
    ExecutionFailed,
    ExpressionFailed,
    InputsInvalid,
    StepFailed,
    WorkflowError,
)
from rollcage_workflow.signals import Signals
from worlds import World


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


async def test_what_could_not_be_undone_is_reported(world: World) -> None:
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


@pytest.mark.parametrize("step", [{"value": "=a[7]"}, {"value": 1, "when": "=a[7] == 1"}])
async def test_an_expression_may_fail_and_be_kept(step: dict[str, Any], world: World) -> None:
    kept = {"value": "=b == null ? 'skipped' : b.error.type"}
    plan = steps(a={"call": "look"}, b={**step, "on_failure": "keep"}, c=kept)
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


async def test_a_plan_without_what_is_done_says_so(world: World) -> None:
    plan = steps(a=put("a"), x=put("x"), go={"wait": {"signal": "go"}, "after": ["a", "x"]})
    await world.attempt(plan)
    world.signal("go", 1)
    del plan["steps"]["x"]
    plan["steps"]["go"]["after"] = ["a"]
    for _ in range(2):
        with pytest.raises(WorkflowError, match="put back the removed steps"):
            await world.attempt(plan)
    assert execution_of(world).status == "halted"
    plan["steps"]["x"] = put("x")
    plan["steps"]["go"]["after"] = ["a", "x"]
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1, "x": 1}


async def test_a_result_that_is_no_json_is_told(world: World) -> None:
    @tool(effect="read", name="odd")
    async def odd() -> object:
        return {1, object}

    with pytest.raises(StepFailed, match="odd returned a value without a JSON form"):
        await run(steps(a={"call": "odd"}), id="x", store=world.store, tools=[odd])
    assert execution_of(world, "x").waits == ""


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
        await world.attempt(plan, gate=[only()])
    assert world.standing == {}
    assert (await world.attempt(plan, again=True, gate=[only("put")])).status == "completed"
    assert world.standing == {"a": 1}


async def test_what_is_wrapped_around_a_declared_tool_runs(world: World) -> None:
    around: list[str] = []
    declared = world.tools[1]

    @functools.wraps(declared)
    async def put_loudly(**given: Any) -> Any:
        around.append(given["what"])
        return await declared(**given)

    tools = [put_loudly, *world.tools[2:]]
    plan = steps(a=put("a"), b=put("b", after=["a"]))
    assert (await run(plan, id="x", store=world.store, tools=tools)).status == "completed"
    assert (around, world.standing) == (["a", "b"], {"a": 1, "b": 1})


async def test_a_sync_tool_runs_in_a_thread(world: World) -> None:
    here: list[bool] = []

    @tool(effect="read", name="sync")
    def sync(n: int) -> int:
        here.append(threading.current_thread() is threading.main_thread())
        return n + 1

    plan = steps(a={"call": "sync", "args": {"n": 1}}, b={"call": "sync", "args": {"n": "=a"}})
    found = await run(plan, id="x", store=world.store, tools=[sync])
    assert (found.output, here) == (3, [False, False])
