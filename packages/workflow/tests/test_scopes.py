"""What a failure undoes: a block, a plan inside a plan, a member; whatever stands around it."""

from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import UndoIncomplete, compensate, tool
from rollcage_workflow.errors import PlanInvalid
from worlds import World

BAD: dict[str, Any] = {"call": "put", "args": {"what": "bad", "fails": True}}


def block(kind: str, *, says: str = "rollback") -> dict[str, Any]:
    """A step with a write and then a failure inside it."""
    inside = {"x": put("x"), "bad": {**BAD, "after": ["x"]}}
    of_kind: dict[str, Any] = {
        "each": {"each": {"over": "=[1]", "steps": inside}},
        "repeat": {"repeat": {"steps": inside, "until": "=true", "most": 1}},
        "team": {"team": {"members": {"x": {"repeat": {
            "steps": inside, "until": "=true", "most": 1}}}}},
        "workflow": {"workflow": "child"},
        "agent": {"agent": "fails_late", "args": {"task": "t"}},
    }  # fmt: skip
    return {**of_kind[kind], "on_failure": says}


KINDS = ("each", "repeat", "team", "workflow", "agent")


async def attempt(world: World, plan: dict[str, Any], **how: Any) -> Any:
    child = {**steps(x=put("x"), bad={**BAD, "after": ["x"]}), "name": "child"}
    if not any(getattr(each, "__name__", "") == "fails_late" for each in world.tools):
        world.tools.append(_failing(world))
    return await world.attempt(plan, workflows={"child": how.pop("child", child)}, **how)


def _failing(world: World) -> Any:
    write = next(each for each in world.tools if each.__name__ == "put")

    @tool(effect="scope", name="fails_late")
    async def fails_late(task: str) -> str:
        await write(what="x")
        raise ValueError("bad failed")

    return fails_late


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_row", [True, False], ids=["in a row", "side by side"])
async def test_a_block_is_undone_and_what_is_around_it_stays(
    world: World, kind: str, is_row: bool
) -> None:
    plan = steps(a=put("a"), s={**block(kind), "after": ["a"]})
    if not is_row:
        plan["steps"]["beside"] = put("beside", after=["a"])
    with pytest.raises(ValueError, match="bad failed"):
        await attempt(world, plan)
    assert world.standing["x"] == 0
    assert world.standing["a"] == 1
    assert execution_of(world).status == "failed"
    assert execution_of(world).error["step"].startswith("s")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_plan_that_rolls_back_undoes_the_rest_too(world: World, kind: str) -> None:
    plan = {**steps(a=put("a"), s={**block(kind), "after": ["a"]}), "on_failure": "rollback"}
    with pytest.raises(ValueError, match="bad failed"):
        await attempt(world, plan)
    assert world.standing == {}
    assert execution_of(world).status == "rolled_back"
    taken = [deed.key for deed in world.deeds if deed.sign < 0]
    assert len(taken) == len(set(taken)) == 2


async def test_a_plan_inside_is_undone_where_the_step_is_kept(world: World) -> None:
    child = {**steps(x=put("x"), bad={**BAD, "after": ["x"]}), "name": "child"}
    child["on_failure"] = "rollback"
    plan = steps(
        a=put("a"),
        s={"workflow": "child", "on_failure": "keep", "after": ["a"]},
        b=put("b", after=["s"], when="=!s.ok"),
    )
    found = await attempt(world, plan, child=child)
    assert found.status == "completed"
    assert world.standing == {"a": 1, "b": 1}
    assert [(each.label, each.sign) for each in world.deeds] == [
        ("a", 1), ("x", 1), ("x", -1), ("b", 1)
    ]  # fmt: skip


async def test_a_plan_inside_that_does_not_roll_back_keeps_what_it_did(world: World) -> None:
    plan = steps(a=put("a"), s={"workflow": "child", "on_failure": "keep", "after": ["a"]})
    assert (await attempt(world, plan)).status == "completed"
    assert world.standing == {"a": 1, "x": 1}


async def test_a_call_undoes_the_pass_that_it_stands_in(world: World) -> None:
    inside = {
        "x": put("='x' + string(item)"),
        "y": {
            "call": "put",
            "args": {"what": "='y' + string(item)", "fails": "=item == 2"},
            "after": ["x"],
            "on_failure": "rollback",
        },
    }
    plan = steps(e={"each": {"over": "=[1, 2, 3]", "steps": inside}, "on_failure": "keep"})
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"x1": 1, "y1": 1, "x3": 1, "y3": 1}


async def test_a_call_undoes_the_round_that_it_stands_in(world: World) -> None:
    inside = {
        "x": put("='x' + string(round)"),
        "y": {
            "call": "put",
            "args": {"what": "='y' + string(round)", "fails": "=round == 2"},
            "after": ["x"],
            "on_failure": "rollback",
        },
    }
    plan = steps(r={"repeat": {"steps": inside, "until": "=false", "most": 3}})
    with pytest.raises(ValueError, match="y2 failed"):
        await world.attempt(plan)
    assert world.standing == {"x1": 1, "y1": 1}
    assert execution_of(world).status == "failed"


async def test_a_member_that_calls_undoes_its_team(world: World) -> None:
    members = {"x": put("x"), "bad": {**BAD, "on_failure": "rollback"}}
    plan = steps(a=put("a"), t={"team": {"members": members}, "on_failure": "keep", "after": ["a"]})
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"a": 1}


async def test_a_call_of_a_plan_inside_undoes_that_plan(world: World) -> None:
    child = {**steps(x=put("x"), bad={**BAD, "after": ["x"], "on_failure": "rollback"})}
    child["name"] = "child"
    plan = steps(a=put("a"), s={"workflow": "child", "after": ["a"]})
    with pytest.raises(ValueError, match="bad failed"):
        await attempt(world, plan, child=child)
    assert world.standing == {"a": 1}
    assert execution_of(world).status == "failed"


async def test_a_step_that_stops_is_undone_with_the_block_around_it(world: World) -> None:
    inside = {"x": put("x"), "bad": {**BAD, "after": ["x"], "on_failure": "stop"}}
    each = {"each": {"over": "=[1]", "steps": inside}, "on_failure": "rollback", "after": ["a"]}
    with pytest.raises(ValueError, match="bad failed"):
        await world.attempt(steps(a=put("a"), e=each))
    assert world.standing == {"a": 1}


async def test_what_waits_in_a_block_that_rolls_back_stays_until_it_fails(world: World) -> None:
    inside = {
        "x": put("x"),
        "go": {"wait": {"signal": "go"}, "after": ["x"]},
        "bad": {**BAD, "args": {"what": "bad", "fails": "=go"}, "after": ["go"]},
    }
    each = {"each": {"over": "=[1]", "steps": inside}, "on_failure": "rollback", "after": ["a"]}
    plan = steps(a=put("a"), e=each)
    for _ in range(3):
        assert (await world.attempt(plan)).status == "waiting"
        assert [deed.label for deed in world.deeds] == ["a", "x"]
    world.signal("go", True)
    with pytest.raises(ValueError, match="bad failed"):
        await world.attempt(plan)
    assert world.standing == {"a": 1}


async def test_one_that_is_run_once_more_does_the_undone_block_again(world: World) -> None:
    fails = [True]

    @tool(effect="read", name="may_fail")
    async def may_fail() -> None:
        if fails[0]:
            raise ValueError("not now")

    world.tools.append(may_fail)
    inside = {"x": put("x"), "bad": {"call": "may_fail", "after": ["x"]}}
    each = {"each": {"over": "=[1]", "steps": inside}, "on_failure": "rollback", "after": ["a"]}
    plan = steps(a=put("a"), e=each, b=put("b", after=["e"]))
    with pytest.raises(ValueError, match="not now"):
        await world.attempt(plan)
    assert world.standing == {"a": 1}
    fails[0] = False
    assert (await world.attempt(plan, again=True)).status == "completed"
    assert world.standing == {"a": 1, "x": 1, "b": 1}


async def test_a_block_that_could_not_be_undone_is_not_kept(world: World) -> None:
    @tool(effect="write", name="refuses")
    async def refuses(token: str) -> None:
        raise ValueError("somebody holds it")

    @tool(effect="write", name="stuck", undo=lambda result: [compensate(refuses, token=result)])
    async def stuck() -> str:
        return "here"

    world.tools += [stuck, refuses]
    child = {**steps(s={"call": "stuck"}, bad={**BAD, "after": ["s"]}), "name": "child"}
    child["on_failure"] = "rollback"
    plan = steps(a=put("a"), c={"workflow": "child", "on_failure": "keep", "after": ["a"]})
    with pytest.raises(UndoIncomplete):
        await attempt(world, plan, child=child)
    assert execution_of(world).status == "halted"


def test_a_block_that_rolls_back_needs_an_undo_inside_only(world: World) -> None:
    from rollcage_workflow import check

    @tool(effect="write", name="sends")
    def sends() -> None:
        raise AssertionError

    tools = [*world.tools, sends]
    rolls = {"each": {"over": "=[1]", "steps": {"x": put("x")}}, "on_failure": "rollback"}
    check(steps(s={"call": "sends"}, e={**rolls, "after": ["s"]}), tools)
    rolls["each"]["steps"]["y"] = {"call": "sends"}  # type: ignore[index]
    with pytest.raises(PlanInvalid, match=r"sends can't be undone .* and e rolls back"):
        check(steps(e=rolls), tools)
