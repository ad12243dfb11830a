"""Many executions, long loops, large values: what they take, and what they leave."""

import asyncio
import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from parts import put, steps
from rollcage import Session, open_store, run_info
from rollcage_workflow import Execution, executions
from worlds import World


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def own_threads() -> int:
    """Those of no pool."""
    pools = ("asyncio_", "rollcage-wait")
    return sum(1 for each in threading.enumerate() if not each.name.startswith(pools))


def pooled_threads() -> set[int | None]:
    """Those of pools: one of them has as many as were busy at once, and no more than it may."""
    return {each.ident for each in threading.enumerate()} - {threading.main_thread().ident}


async def test_two_hundred_at_once_leave_nothing_behind(world: World) -> None:
    plan = steps(
        a={"call": "look"},
        e={"each": {"over": "=a", "steps": {"p": put("=item")}}},
        g={"wait": {"signal": "never"}, "when": "=false || size(a) == 0"},
    )

    async def all_of_them(name: str) -> list[Execution]:
        return await asyncio.gather(
            *(world.attempt(plan, id=f"{name} {number}") for number in range(100))
        )

    others = pooled_threads()
    await all_of_them("first")
    files = open_files()
    before = len(asyncio.all_tasks()), own_threads()
    found = await all_of_them("second")
    assert {each.status for each in found} == {"completed"}
    assert len(asyncio.all_tasks()) == before[0]
    assert own_threads() <= before[1]
    assert len(pooled_threads() - others) <= 48
    gc.collect()
    assert open_files() <= files


@pytest.mark.nightly  # coverage would count as held
@pytest.mark.parametrize(
    ("more", "most"),
    [({}, 2_000), ({"q": put("q")}, 13_000)],  # what a table held for growth is in it or not
    ids=["one after the other", "with branches"],
)
async def test_a_loop_holds_the_recorded_steps_of_its_rounds(
    world: World, more: Any, most: int
) -> None:
    """A run is held as the fold of its log; a round with branches has five steps."""
    held: dict[int, int] = {}
    rounds = 900

    def told(path: str, state: str) -> None:
        if state == "running" and path in ("r[301].p", f"r[{rounds}].p"):
            gc.collect()
            held[len(held)] = tracemalloc.get_traced_memory()[0]

    inner = {"p": {"call": "look", "args": {"what": "same"}}, **more}
    if more:
        inner["q"] = {"call": "look", "args": {"what": "other"}}
    plan = steps(r={"repeat": {"steps": inner, "until": f"=round >= {rounds}", "most": rounds}})
    tracemalloc.start()
    try:
        await world.attempt(plan, on_step=told)
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < (rounds - 301) * most


async def test_the_newest_executions_are_listed_without_a_look_at_older_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        async with Session(f"plain {number}", store=world.store):
            pass
        await world.attempt(steps(a={"call": "look"}), id=f"job {number}")
    await world.attempt(steps(a={"call": "look"}, g={"wait": {"signal": "go"}}), id="job 0a")
    store = open_store(world.store)
    looked: list[str] = []
    read = store.read

    def reading(run: str, after: int) -> Any:
        looked.append(run)
        return read(run, after)

    monkeypatch.setattr(type(store), "read", lambda _, run, after=0: reading(run, after))
    found = executions(store, limit=3)
    assert [each.id for each in found] == ["job 4", "job 5", "job 0a"]
    assert [each.status for each in found] == ["completed", "completed", "waiting"]
    assert len(looked) <= 5
    assert [step.path for step in found[0].steps] == ["a"]
    assert len(executions(store)) == 7
    assert not [run for run in looked if run_info(store, run).name.startswith("plain")]
