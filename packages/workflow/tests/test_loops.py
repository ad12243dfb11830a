"""Jumps: beside other steps, over many rounds, through many attempts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rollcage import tool
from worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def loop(rounds: int, *after: str, last: str = "value") -> dict[str, Any]:
    """Two steps, the second of which goes back to the first."""
    steps: dict[str, Any] = {
        "p": {"call": "put", "args": {"what": "='p' + string(last == null ? 0 : last)"},
              "after": list(after)},
        "q": {"value": "=last == null ? 1 : last + 1", "after": ["p"]},
    }  # fmt: skip
    if last == "call":
        steps["q"] = {"call": "count", "args": {"n": "=last == null ? 0 : last"}, "after": ["p"]}
    steps["q"]["next"] = {"to": "p", "when": f"=q < {rounds}", "most": rounds}
    return steps


async def test_a_loop_is_given_back_whatever_ended_before_it_began(world: World) -> None:
    """It began behind what stood beside it; another attempt begins it in front of that."""
    has_ended = asyncio.Event()

    @tool(effect="read")
    async def slow() -> bool:
        return await has_ended.wait()

    def told(path: str, state: str) -> None:
        if (path, state) == ("beside", "completed"):
            has_ended.set()

    far: dict[str, Any] = {
        f"far{n}": {"wait": {"signal": "far"}, "after": [f"far{n - 1}"] if n else []}
        for n in range(20)
    }
    steps = {
        "slow": {"call": "slow"},
        **loop(3, "slow"),
        **far,
        "beside": {"call": "put", "args": {"what": "beside"}, "after": ["far19"]},
        "go": {"wait": {"signal": "next"}, "after": ["q", "beside"]},
        "end": {"call": "put", "args": {"what": "end"}, "after": ["go"]},
    }
    world.tools.append(slow)
    plan = {"name": "plan", "steps": steps}
    for n in range(20):
        world.signal("far", n)
    assert (await world.attempt(plan, on_step=told)).status == "waiting"
    world.signal("next", 1)
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == dict.fromkeys(("p0", "p1", "p2", "beside", "end"), 1)


@pytest.mark.parametrize("last", ["value", "call"])
async def test_a_round_costs_the_same_however_many_came_before(world: World, last: str) -> None:
    @tool(effect="read")
    async def count(n: int) -> int:
        return n + 1

    world.tools.append(count)
    size: dict[int, int] = {}
    for rounds in (60, 120):
        plan = {"name": "plan", "steps": loop(rounds, last=last)}
        found = await world.attempt(plan, id=f"job-{rounds}")
        assert (found.status, found.output) == ("completed", rounds)
        size[rounds] = (world.store / "logs" / f"{found.run}.jsonl").stat().st_size
    assert size[120] < 2.05 * size[60]
