"""Long lists and loops: told by what is on record, not by time."""

import asyncio
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from rollcage import tool
from worlds import World

SIZES = (60, 120)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def plan(kind: str, size: int, *, fails: bool = False) -> dict[str, Any]:
    """So many passes, each with one write, and a step behind them that may fail."""
    name = "item" if kind == "each" else "round"
    step = {"p": {"call": "put", "args": {"what": f"='p' + string({name})"}}}
    block: dict[str, Any] = {
        "each": {"each": {"over": "=inputs.all", "max_concurrent": 5, "steps": step}},
        "repeat": {"repeat": {"steps": step, "until": f"=round >= {size}", "most": size}},
    }[kind]
    end = {"call": "look", "args": {"what": "end", "fails": fails}, "after": ["all"]}
    numbers = {"all": {"default": [*range(1, size + 1)]}}
    both = {"all": block, "end": end}
    return {"name": "plan", "inputs": numbers, "on_failure": "rollback", "steps": both}


def wanted(size: int) -> dict[str, int]:
    return {f"p{n}": 1 for n in range(1, size + 1)}


def lines(world: World, run: str) -> list[bytes]:
    return (world.store / "logs" / f"{run}.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("kind", ["each", "repeat"])
async def test_a_pass_leaves_as_many_lines_however_many_there_are(kind: str, world: World) -> None:
    many: dict[int, int] = {}
    for size in SIZES:
        found = await world.attempt(plan(kind, size), id=f"job-{size}")
        assert found.status == "completed"
        many[size] = len(lines(world, found.run))
    assert many[120] - many[60] <= 4 * 60


async def test_only_passes_that_run_are_tasks(world: World) -> None:
    most: list[int] = []

    @tool(effect="read", name="large.count")
    async def count() -> None:
        most.append(len(asyncio.all_tasks()))

    world.tools.append(count)
    passes = plan("each", 300)
    passes["steps"]["all"]["each"]["steps"] = {"p": {"call": "large.count"}}
    assert (await world.attempt(passes)).status == "completed"
    assert (len(most), max(most) < 20) == (300, True)


async def test_a_pass_sees_nothing_that_another_has_set_in_its_context(world: World) -> None:
    here: ContextVar[int] = ContextVar("here", default=0)
    seen: list[int] = []

    @tool(effect="scope", name="large.sets")
    async def sets(number: int) -> None:
        seen.append(here.get())
        here.set(number)

    world.tools.append(sets)
    passes = plan("each", 30)
    passes["steps"]["all"]["each"]["steps"] = {
        "p": {"agent": "large.sets", "args": {"number": "=item"}}
    }
    assert (await world.attempt(passes)).status == "completed"
    assert seen == [0] * 30


async def test_a_failed_pass_ends_those_that_have_not_begun(world: World) -> None:
    began: list[int] = []

    @tool(effect="read", name="large.fails")
    async def fails(number: int) -> None:
        began.append(number)
        if number == 7:
            raise ValueError("the seventh")

    world.tools.append(fails)
    passes = plan("each", 100)
    passes["steps"]["all"]["each"]["steps"] = {
        "p": {"call": "large.fails", "args": {"number": "=item"}}
    }
    with pytest.raises(ValueError, match="the seventh"):
        await world.attempt(passes)
    assert 7 in began
    assert len(began) < 20


@pytest.mark.parametrize("kind", ["each", "repeat"])
async def test_cut_off_in_the_middle_it_does_the_rest(kind: str, world: World) -> None:
    size = SIZES[0]
    found = await world.attempt(plan(kind, size))
    trace = world.store / "logs" / f"{found.run}.jsonl"
    known = lines(world, found.run)
    cut_log(trace, len(known) // 2)
    for index in world.store.glob("index*"):
        index.unlink()
    world.deeds = [deed for deed in world.deeds if deed.line < len(known) // 2]
    before = len(world.deeds)
    assert before < size
    again = await world.attempt(plan(kind, size))
    assert (again.status, world.standing) == ("completed", wanted(size))
    assert len(world.deeds) == size, "what was done is not done again"


@pytest.mark.parametrize("kind", ["each", "repeat"])
async def test_all_of_it_is_rolled_back_newest_first(kind: str, world: World) -> None:
    size = SIZES[0]
    with pytest.raises(ValueError, match="no end"):
        await world.attempt(plan(kind, size, fails=True))
    done = [deed.label for deed in world.deeds if deed.sign > 0]
    back = [deed.label for deed in world.deeds if deed.sign < 0]
    assert not world.standing
    assert sorted(done) == sorted(back) == sorted(wanted(size))
    if kind == "repeat":
        assert back == done[::-1]
