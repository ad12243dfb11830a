"""Plans as tools: what a server offers, and a client calls."""

from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from rollcage import Session
from rollcage.errors import Blocked
from rollcage_governance import Facade, Registry
from rollcage_workflow import Checked, check
from rollcage_workflow.errors import InputsInvalid, WorkflowError
from rollcage_workflow.served import orders
from workers import Crew
from worlds import World

PLAN: dict[str, Any] = {
    "name": "plan",
    "inputs": {"what": {"type": "string"}},
    "steps": {"a": {"call": "put", "args": {"what": "=inputs.what"}}},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def checked(world: World, **more: Any) -> Checked:
    return check({**PLAN, **more}, world.tools)


async def test_a_call_starts_an_execution_once_and_tells_its_id(
    world: World, tmp_path: Path
) -> None:
    crew = Crew(world, PLAN)
    (start,) = orders([checked(world)], crew.store, by="carl")
    contract: Any = vars(start)["__rollcage_contract__"]
    assert contract.name == "start.plan"
    assert contract.parameters["properties"]["inputs"]["required"] == ["what"]
    with pytest.raises(WorkflowError, match="give an id"):
        start({"what": "x"})
    calls = tmp_path / "calls"
    async with Session("client", store=calls) as session:
        told = await session.acall(start, inputs={"what": "x"})
        again = await session.acall(start, inputs={"what": "y"}, id=told["id"])
        with pytest.raises(InputsInvalid, match="what: is missing"):
            await session.acall(start, inputs={})
    assert (told["started"], again["started"]) == (True, False)
    assert told["look"] == f"rollcage workflow show {told['id']}"
    trace = next((calls / "logs").iterdir())
    lines = trace.read_bytes().splitlines(keepends=True)
    behind = next(n for n, line in enumerate(lines, 1) if b'{"event":"step"' in line)
    cut_log(trace, behind)  # the server died before it could tell
    async with Session("client", store=calls, replay="continue") as session:
        once_more = await session.acall(start, inputs={"what": "x"})
    assert (once_more["id"], once_more["started"]) == (told["id"], False)
    await crew.work()
    assert world.standing == {"x": 1}
    assert crew.job(told["id"]).status == "completed"
    started = crew.commands.started(told["id"])
    assert started is not None
    assert started.by == "carl"


async def test_a_facade_gives_the_plan_that_was_approved_and_no_other(world: World) -> None:
    crew = Crew(world, PLAN)
    (start,) = orders([checked(world)], crew.store, by="carl")
    (other,) = orders([checked(world, description="another")], crew.store, by="carl")
    registry = Registry(world.store)
    contract: Any = vars(start)["__rollcage_contract__"]
    registry.propose(contract, by="ann")
    registry.approve(contract.name, by="bob")
    registry.activate(contract.name, "pack", by="bob")
    registry.define_facade("ops", ["pack"], by="bob")
    async with Session("client", store=world.store, gate=[Facade("ops")]) as session:
        with pytest.raises(Blocked, match="not what was approved"):
            await session.acall(other, inputs={"what": "x"}, id="other")
        assert (await session.acall(start, inputs={"what": "x"}, id="job"))["started"]
    assert [crew.commands.started(each) is not None for each in ("other", "job")] == [False, True]


async def test_a_worker_that_has_another_plan_of_the_name_refuses(world: World) -> None:
    crew = Crew(world, {**PLAN, "description": "another"})
    (start,) = orders([checked(world)], crew.store, by="carl")
    start({"what": "x"}, "job")
    await crew.work()
    begun = crew.commands.started("job")
    assert begun is not None
    result = crew.result(begun.key)
    assert result.outcome == "refused"
    assert "digest" in result.detail
    assert not world.deeds
