"""Plans under governance: what nobody approved does not start where a facade asks for it."""

from pathlib import Path
from typing import Any

import pytest
from rollcage.errors import Blocked, ToolRefused
from rollcage_governance import Facade, Registry
from rollcage_workflow import Plan, plan_contract
from workers import Crew
from worlds import World

STEPS = {
    "a": {"call": "put", "args": {"what": "a"}},
    "each": {
        "each": {"over": "=[1, 2]", "steps": {"b": {"call": "put", "args": {"what": "b"}}}},
        "after": ["a"],
    },
}
PLAN = Plan.model_validate({"name": "plan", "steps": STEPS})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def approve(world: World, *things: Any) -> Registry:
    registry = Registry(world.store)
    for each in things:
        name = getattr(each, "name", "") or each.__rollcage_contract__.name
        registry.propose(each, by="ann")
        registry.approve(name, by="bob")
        registry.activate(name, "pack", by="bob")
    registry.define_facade("ops", ["pack"], by="bob")
    return registry


async def test_a_plan_that_was_approved_runs(world: World) -> None:
    registry = approve(world, world.tools[1], plan_contract(PLAN))
    found = await world.attempt(PLAN, gate=[Facade("ops")])
    assert found.status == "completed"
    assert world.standing == {"a": 1, "b": 2}
    registry.freeze("plan.plan", by="bob", why="no more of it")
    with pytest.raises(ToolRefused, match=r"plan\.plan is frozen"):
        await world.attempt(PLAN, id="next", gate=[Facade("ops")])


async def test_a_plan_that_nobody_approved_does_not_start(world: World) -> None:
    approve(world, world.tools[1])
    with pytest.raises(ToolRefused, match=r"plan\.plan is not approved"):
        await world.attempt(PLAN, gate=[Facade("ops")])
    crew = Crew(world, PLAN, session={"gate": [Facade("ops")]})
    crew.start()
    await crew.work()
    assert not world.runs()
    started = crew.commands.started("job")
    assert started is not None
    assert crew.result(started.key).outcome == "refused"
    assert "not approved" in crew.result(started.key).detail


async def test_a_plan_that_was_changed_since_is_another_one(world: World) -> None:
    approve(world, world.tools[1], plan_contract(PLAN))
    other = {**STEPS, "c": {"call": "put", "args": {"what": "c"}}}
    with pytest.raises(ToolRefused, match="other version"):
        await world.attempt({"name": "plan", "steps": other}, gate=[Facade("ops")])
    assert not world.runs()


async def test_a_plan_inside_another_has_to_be_approved_too(world: World) -> None:
    outer = {"name": "outer", "steps": {"inner": {"workflow": "plan"}}}
    registry = approve(world, world.tools[1], plan_contract(Plan.model_validate(outer)))
    with pytest.raises(ToolRefused, match=r"plan\.plan is not approved"):
        await world.attempt(outer, workflows={"plan": PLAN}, gate=[Facade("ops")])
    registry.propose(plan_contract(PLAN), by="ann")
    registry.approve("plan.plan", by="bob")
    registry.activate("plan.plan", "pack", by="bob")
    await world.attempt(outer, workflows={"plan": PLAN}, gate=[Facade("ops")])
    assert world.standing == {"a": 1, "b": 2}


async def test_a_plan_gives_no_tool_that_the_facade_does_not(world: World) -> None:
    approve(world, plan_contract(PLAN))
    with pytest.raises(Blocked, match="put is not approved"):
        await world.attempt(PLAN, gate=[Facade("ops")])
    assert not world.deeds


async def test_what_it_did_is_undone_under_a_facade(world: World) -> None:
    steps = {**STEPS, "no": {"call": "look", "args": {"fails": True}, "after": ["each"]}}
    plan = Plan.model_validate({"name": "plan", "steps": steps, "on_failure": "rollback"})
    approve(world, *world.tools[:3], plan_contract(plan))
    with pytest.raises(ValueError, match="no "):
        await world.attempt(plan, gate=[Facade("ops")])
    assert not world.standing
    assert len(world.deeds) == 6
