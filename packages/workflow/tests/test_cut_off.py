"""An attempt that is cancelled, as by Ctrl-C or a worker that ends, is cut off, and goes on."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import tool
from rollcage_workflow.engine import Engine
from worlds import World


class Slow:
    """Tools that take long in the first attempt."""

    def __init__(self) -> None:
        self.is_slow = True
        self.began = threading.Event()
        slow = self

        @tool(effect="read", name="sleeps")
        async def sleeps() -> str:
            if slow.is_slow:
                slow.began.set()
                await asyncio.sleep(60)
            return "slept"

        @tool(effect="read", name="blocks")
        def blocks() -> str:
            if slow.is_slow:
                slow.began.set()
                slow.goes_on.wait(60)
            return "slept"

        @tool(effect="scope", name="asks")
        async def asks(task: str) -> str:
            return str(await sleeps()) + task

        self.goes_on = threading.Event()
        self.tools: list[Any] = [sleeps, blocks, asks]


CALLS: dict[str, dict[str, Any]] = {
    "sleeps": {"call": "sleeps"},
    "blocks": {"call": "blocks"},
    "asks": {"agent": "asks", "args": {"task": "t"}},
}


def plans(call: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The call behind a write, in every kind of block."""
    inside = {"x": put("x"), "s": {**call, "after": ["x"]}, "y": put("y", after=["s"])}
    block: dict[str, Any] = {"steps": inside, "until": "=true", "most": 1}
    members = {"m": {"repeat": block}, "w": {"wait": {"signal": "go"}}}
    return {
        "a row": steps(**inside),
        "side by side": steps(**inside, z=put("z")),
        "each": steps(e={"each": {"over": "=[1]", "steps": inside}}),
        "undone": steps(e={"each": {"over": "=[1]", "steps": inside}, "on_failure": "rollback"}),
        "race": steps(r={"team": {"mode": "race", "members": members}}),
        "timed": steps(r={"team": {"members": {"m": {"repeat": block}}, "time_limit": 600}}),
        "limit": {**steps(**inside), "time_limit": 600},
        "timeout": steps(**{**inside, "s": {**inside["s"], "timeout": 600}}),
    }


KINDS = [*plans(CALLS["sleeps"])]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_cancelled_is_no_failure(world: World, kind: str, call: str) -> None:
    slow, plan = Slow(), plans(CALLS[call])[kind]
    world.tools += slow.tools
    attempt = asyncio.create_task(world.attempt(plan))
    await asyncio.to_thread(slow.began.wait)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    slow.goes_on.set()
    assert execution_of(world).status == "interrupted"
    assert world.standing["x"] == 1
    slow.is_slow = False
    assert (await world.attempt(plan)).status == "completed"
    assert [deed.sign for deed in world.deeds] == [1] * len(world.deeds)
    assert set(world.standing.values()) == {1}
    assert {"x", "y"} <= world.standing.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_ends_undoes_nothing_and_fails_nothing(tmp_path: Path, kind: str) -> None:
    world, slow = World(tmp_path / "store"), Slow()
    world.tools += slow.tools
    plan = plans(CALLS["sleeps"])[kind]
    engine = Engine(None, store=world.store, plans=[plan], tools=world.tools, every=0.05)
    engine.start("plan", id="job", by="carl")
    stop = threading.Event()
    serving = threading.Thread(target=lambda: engine.serve(stop, grace=0.05))
    serving.start()
    slow.began.wait()
    stop.set()
    serving.join()
    assert execution_of(world).status == "interrupted"
    slow.is_slow = False
    engine.serve(threading.Event(), once=True)
    assert execution_of(world).status == "completed"
    assert [deed.sign for deed in world.deeds] == [1] * len(world.deeds)


async def test_a_race_beside_what_was_cut_off_first_is_no_failure(world: World) -> None:
    """The step beside it ends first, so that no other begins: that interrupts no call."""
    slow, reads = Slow(), threading.Semaphore(0)

    @tool(effect="read", name="second")
    async def second() -> None:
        if slow.is_slow:
            reads.release()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)  # it ends later than the other one
                raise

    world.tools += [*slow.tools, second]
    members = {"m": {"call": "second"}, "w": {"wait": {"signal": "go"}}}
    plan = steps(
        first={"call": "sleeps"},
        race={"team": {"mode": "race", "members": members}},
        end=put("end", after=["first", "race"]),
    )
    attempt = asyncio.create_task(world.attempt(plan))
    await asyncio.to_thread(slow.began.wait)
    await asyncio.to_thread(reads.acquire)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    slow.is_slow = False
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"end": 1}


async def test_what_the_plan_itself_ends_is_a_failure(world: World) -> None:
    """A time limit, and a race that is decided, end calls as before."""
    slow = Slow()
    world.tools += slow.tools
    inside = {"x": put("x"), "s": {"call": "sleeps", "after": ["x"]}}
    member: dict[str, Any] = {"repeat": {"steps": inside, "until": "=true", "most": 1}}
    plan = steps(
        late={**member, "timeout": 0.2, "on_failure": "keep"},
        race={
            "team": {"mode": "race", "members": {"m": member, "w": {"wait": {"seconds": 0.3}}}},
            "after": ["late"],
        },
    )
    assert (await asyncio.wait_for(world.attempt(plan), 20)).status == "completed"
    assert [deed.sign for deed in world.deeds] == [1, 1, -1]
    assert execution_of(world).output["winner"] == "w"
