"""An attempt that ends before it says which plan it has: the one before it tells how all stands."""

from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from rollcage import open_store
from rollcage_workflow import execution, inputs
from rollcage_workflow.engine.reconcile import reconcile
from rollcage_workflow.holds import Holds
from workers import Crew
from worlds import World

PLAN: dict[str, Any] = {
    "name": "plan",
    "steps": {
        "a": {"call": "put", "args": {"what": "a"}},
        "b": {"call": "look", "args": {"what": "b"}, "after": ["a"]},
        "go": {"wait": {"signal": "go"}, "after": ["b"]},
        "end": {"call": "put", "args": {"what": "end"}, "after": ["go"]},
    },
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


async def cut_off(world: World, **how: Any) -> None:
    """An execution that waits, and an attempt whose process dies as its session has opened."""
    assert (await world.attempt(PLAN, **how)).status == "waiting"
    world.signal("go", 1)
    last = (await world.attempt(PLAN, **how)).run
    trace = world.store / "logs" / f"{last}.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    begun = [n for n, line in enumerate(lines, 1) if line.startswith(b'{"event":"attempt"')]
    cut_log(trace, begun[-1])
    world.deeds = [deed for deed in world.deeds if deed.line <= begun[-1]]
    assert execution(open_store(world.store), "job").run == last


async def test_a_worker_goes_on_with_it(world: World) -> None:
    await cut_off(world)
    crew = Crew(world, PLAN)
    assert (crew.job().status, crew.job().plan, crew.job().attempts) == ("interrupted", "plan", 2)
    assert [each.path for each in crew.job().steps][:2] == ["a", "b"]
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "end": 1}


async def test_it_goes_on_where_it_was_started(world: World) -> None:
    await cut_off(world, start="b", given={"a": "given"})
    found = await world.attempt(PLAN)
    assert (found.status, found.start) == ("completed", "b")
    assert world.standing == {"end": 1}


async def test_a_pause_that_it_meets_is_lifted_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt opens its run, sees the pause, and ends with nothing else on record."""
    assert (await world.attempt(PLAN)).status == "waiting"
    world.signal("go", 1)
    crew = Crew(world, PLAN)
    given = inputs.given_inputs

    def and_then(*said: Any) -> Any:
        Holds(crew.store, "job").put("paused", by="ann")
        return given(*said)

    with monkeypatch.context() as patch:
        patch.setattr("rollcage_workflow.running.given_inputs", and_then)
        await crew.work()
    assert (crew.job().status, crew.job().attempts) == ("paused", 2)
    crew.commands.resume("job", by="ann")
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "end": 1}


async def test_a_cancellation_takes_back_what_the_one_before_did(world: World) -> None:
    await cut_off(world)
    crew = Crew(world, PLAN)
    crew.commands.cancel("job", by="ann", rollback=True)
    await crew.work()
    assert crew.job().status == "rolled_back"
    assert not world.standing


@pytest.mark.parametrize("lines", [1, 2, 3])
async def test_a_first_attempt_that_was_cut_off_goes_on(world: World, lines: int) -> None:
    """Behind its first line its inputs are not on record yet: only who gave them has them."""
    plan = {**PLAN, "inputs": {"n": {"type": "integer"}}}
    run = (await world.attempt(plan, {"n": 1})).run
    cut_behind(world, run, lines)
    crew = Crew(world, plan)
    assert reconcile(crew.store) == (["job"] if lines == 3 else [])
    await crew.work()
    assert crew.job().status == ("waiting" if lines == 3 else "pending")
    world.signal("go", 1)
    assert (await world.attempt(plan, {"n": 1})).status == "completed"
    assert world.standing == {"a": 1, "end": 1}


async def test_one_that_a_command_started_and_was_cut_off_at_once_goes_on(world: World) -> None:
    plan = {**PLAN, "inputs": {"n": {"type": "integer"}}}
    crew = Crew(world, plan)
    crew.start(inputs={"n": 1})
    command = crew.commands.get(crew.due()[0])
    assert command is not None
    world.signal("go", 1)
    cut_behind(world, (await world.attempt(plan, {"n": 1})).run, 1)
    crew = Crew(world, plan)
    assert crew.commands.get(command.key) == command, "it is open until its attempt has ended"
    await crew.work()
    assert (crew.job().status, world.standing) == ("completed", {"a": 1, "end": 1})


def cut_behind(world: World, run: str, lines: int) -> None:
    """As if the process of an execution's first attempt had died before it did anything."""
    trace = world.store / "logs" / f"{run}.jsonl"
    cut_log(trace, lines)
    world.deeds.clear()
