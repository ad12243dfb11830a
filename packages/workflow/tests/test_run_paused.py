"""The run under an execution is paused: its calls wait, and no step takes too long by that."""

import asyncio
import time
from typing import Any

import pytest
from rollcage import lift_order, list_runs, open_store, pause_run, tool
from rollcage_workflow import run
from rollcage_workflow.timing import within
from workers import Crew
from worlds import World


@pytest.fixture
def world(tmp_path: Any) -> World:
    return World(tmp_path / "store")


def pausing(world: World, **more: Any) -> dict[str, Any]:
    """A plan whose first step pauses its own run, from within its body."""

    @tool(effect="read", name="pause.own")
    async def hold() -> None:
        store = open_store(world.store)
        pause_run(store, list_runs(store)[0].run, by="ann", reason="a look")

    world.tools.append(hold)
    put = {"call": "put", "args": {"what": "b"}, "after": ["a"], **more}
    return {"name": "plan", "steps": {"a": {"call": "pause.own"}, "b": put}}


def held(world: World) -> str:
    """The run, once its next call waits."""
    store = open_store(world.store)
    while not (runs := list_runs(store)) or not any(
        b'{"event":"ordered"' in line for line in store.read(runs[0].run)
    ):
        time.sleep(0.01)
    return runs[0].run


async def test_the_next_step_waits_and_goes_on(world: World) -> None:
    plan = pausing(world, timeout=60)
    working = asyncio.create_task(run(plan, id="job", store=world.store, tools=world.tools))
    paused = await asyncio.to_thread(held, world)
    assert not world.standing
    crew = Crew(world)
    assert crew.job().status == "running"
    assert crew.job().waits.startswith("its run was paused by ann: a look. Let it go on: rollcage")
    lift_order(crew.store, paused, kind="pause")
    ended = await working
    assert (ended.status, world.standing) == ("completed", {"b": 1})


async def test_a_pause_of_the_execution_ends_what_waits(
    world: World,
) -> None:
    crew = Crew(world, pausing(world))
    crew.start()
    working = asyncio.create_task(crew.work())
    paused = await asyncio.to_thread(held, world)
    crew.commands.pause("job", by="bob")
    await working
    assert (crew.job().status, crew.job().waits) == ("paused", "paused by bob")
    assert not lift_order(crew.store, paused, kind="pause")  # bob's stop is in its place
    assert not world.standing


MEMBERS: dict[str, dict[str, Any]] = {
    "a team": {"team": {"members": {n: {"call": "put", "args": {"what": n}} for n in "bcd"}}},
    "a race": {
        "team": {
            "mode": "race",
            "members": {n: {"call": "put", "args": {"what": n}} for n in "bcd"},
        }
    },
    "a list": {
        "each": {
            "over": "=['b', 'c', 'd']",
            "steps": {"it": {"call": "put", "args": {"what": "=item"}}},
        }
    },
}


@pytest.mark.parametrize("members", MEMBERS.values(), ids=MEMBERS)
async def test_members_at_once_wait_all_and_go_on(world: World, members: dict[str, Any]) -> None:
    plan = pausing(world)
    plan["steps"]["b"] = {**members, "after": ["a"]}
    working = asyncio.create_task(run(plan, id="job", store=world.store, tools=world.tools))
    paused = await asyncio.to_thread(held, world)
    assert not world.standing
    lift_order(open_store(world.store), paused, kind="pause")
    assert (await working).status == "completed"
    if "race" in str(members):
        assert sum(world.standing.values()) == 1
    else:
        assert world.standing == {"b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("rollback", [False, True])
async def test_a_cancellation_ends_what_waits_and_takes_back_what_was_done(
    world: World, *, rollback: bool
) -> None:
    plan = pausing(world)
    plan["steps"] = {
        "first": {"call": "put", "args": {"what": "first"}},
        **plan["steps"],
        "a": {"call": "pause.own", "after": ["first"]},
    }
    crew = Crew(world, plan)
    crew.start()
    working = asyncio.create_task(crew.work())
    await asyncio.to_thread(held, world)
    assert world.standing == {"first": 1}
    crew.commands.cancel("job", by="bob", rollback=rollback)
    await working
    await crew.work()
    assert crew.job().status == ("rolled_back" if rollback else "cancelled")
    assert world.standing == ({} if rollback else {"first": 1})


async def test_what_is_resumed_goes_on_though_its_run_was_paused_before(world: World) -> None:
    """The execution is paused while its run is: to resume it lets the next attempt go on."""
    crew = Crew(world, pausing(world))
    crew.start()
    working = asyncio.create_task(crew.work())
    await asyncio.to_thread(held, world)
    crew.commands.pause("job", by="bob")
    await working
    assert crew.job().status == "paused"
    crew.commands.resume("job", by="bob")
    await asyncio.wait_for(crew.work(), 60)
    assert (crew.job().status, world.standing) == ("completed", {"b": 1})


async def test_the_time_in_which_it_was_paused_does_not_count() -> None:
    class Paused:
        held = 0.0

    session: Any = Paused()
    with pytest.raises(TimeoutError):
        async with within(session, 0.05):
            await asyncio.sleep(60)
    async with within(session, 0.05) as timeout:
        session.held = 3600.0
        await asyncio.sleep(0.2)
    assert not timeout.expired()
