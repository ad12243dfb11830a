"""One id, one execution: edited plans, other inputs, other attempts and sessions of its name."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import Diverged, RollcageError, RunInUse, Session, list_runs, open_store, tool
from rollcage_policy import DetectedSecrets
from rollcage_stores.prune import prune_run
from rollcage_workflow import Execution, execution, executions, run, running
from rollcage_workflow.errors import (
    InputsInvalid,
)
from worlds import World


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


async def test_a_write_put_between_done_ones_halts_before_it_runs(world: World) -> None:
    plan = steps(a=put("a"), b=put("b", after=["a"]), go={"wait": {"signal": "go"}, "after": ["b"]})
    await world.attempt(plan)
    world.signal("go", 1)
    plan["steps"]["between"] = put("between", after=["a"])
    plan["steps"]["b"] = put("changed", after=["between"])
    with pytest.raises(Diverged, match="put"):
        await world.attempt(plan)
    assert world.standing == {"a": 1, "b": 1}


TRIED = {"retry": {"attempts": 3, "wait": 0.0}}
GOES_BACK = {"next": {"to": "a", "when": "=false", "most": 1}}


@pytest.mark.parametrize("more", [TRIED, GOES_BACK, {"on_failure": "keep"}])
async def test_what_a_done_step_gains_does_not_do_it_again(world: World, more: Any) -> None:
    wait = {"wait": {"signal": "go"}, "after": ["b"]}
    plan = steps(a=put("a"), b=put("b", after=["a"]), go=wait, c=put("c", after=["go"]))
    await world.attempt(plan)
    world.signal("go", 1)
    plan["steps"]["b"] |= more
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1, "b": 1, "c": 1}


async def test_a_write_that_may_be_tried_again_halts_between_done_ones_too(world: World) -> None:
    wait = {"wait": {"signal": "go"}, "after": ["b"]}
    plan = steps(a=put("a"), b=put("b", after=["a"]), go=wait)
    await world.attempt(plan)
    world.signal("go", 1)
    edited = steps(a=put("a"), new=put("new", after=["a"]) | TRIED, b=put("b", after=["new"]))
    with pytest.raises(Diverged, match="put"):
        await world.attempt({**edited, "steps": {**edited["steps"], "go": wait}})
    assert world.standing == {"a": 1, "b": 1}
    assert (await world.attempt(plan)).status == "completed"


async def test_steps_in_a_row_gain_a_jump_and_attempts_wherever_it_was_cut_off(
    world: World, tmp_path: Path
) -> None:
    fails: list[str] = []

    @tool(effect="read", name="flaky")
    async def flaky() -> str:
        fails.append("")
        if len(fails) % 2:
            raise ConnectionError
        return "fine"

    world.tools.append(flaky)
    wait = {"wait": {"signal": "go"}, "after": ["b"]}
    plan = steps(a=put("a"), b=put("b", after=["a"]), go=wait)
    await world.attempt(plan)
    world.signal("go", 1)
    plan["steps"] |= {
        "c": put("='c' + (last == null ? '1' : string(last))", after=["go"]),
        "look": {"call": "flaky", "after": ["c"]} | TRIED,
        "n": {"value": "=last == null ? 2 : int(last) + 1", "after": ["look"]},
        "d": put("d", after=["n"]),
    }
    plan["steps"]["n"]["next"] = {"to": "c", "when": "=n < 4", "most": 5}
    ended = {"a": 1, "b": 1, "c1": 1, "c2": 1, "c3": 1, "d": 1}
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == ended
    attempt, chance = world.runs()[-1], random.Random(1)  # noqa: S311 - reproducible
    for run_of, line in [each for each in world.moments() if each[0] == attempt]:
        cut = world.back(run_of, line, tmp_path / "cut", chance)
        cut.tools.append(flaky)
        found = await cut.attempt(plan)
        assert (found.status, cut.standing) == ("completed", ended), line


async def test_another_plan_under_the_same_id_is_refused(world: World) -> None:
    await world.attempt(steps(a=put("a")))
    with pytest.raises(Exception, match="is an execution of the plan 'plan'"):
        await world.attempt({**steps(b=put("b")), "name": "other"})


async def test_a_session_of_the_same_store_is_no_execution(world: World) -> None:
    with Session("plain", store=world.store):
        pass
    await world.attempt(steps(a=put("a")))
    assert [each.id for each in executions(open_store(world.store))] == ["job"]


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
    (info,) = list_runs(store)
    prune_run(store, info.run, by="ann")
    with pytest.raises(RollcageError):
        await world.attempt(plan)
    assert world.standing == {"a": 1}


async def test_inputs_that_hold_a_secret_are_given_again(world: World) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    plan = {
        **steps(a=put("=string(size(inputs.token))"), go={"wait": {"signal": "go"}}, b=put("b")),
        "inputs": {"token": {"type": "string"}, "n": {"type": "integer", "default": 1}},
    }
    how: Any = {"stages": lambda: [DetectedSecrets()]}
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
