"""A cancellation that races the end, among two workers; a store that goes away and comes back."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from postgres import Network, new_store
from rollcage import (
    DidNotHappen,
    Happened,
    RollcageError,
    compensate,
    current_step,
    open_store,
    tool,
)
from rollcage.trace.folder import Folder
from rollcage.trace.store import Ends
from rollcage_workflow import check, execution, run, running
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.holds import Holds
from rollcage_workflow.orders import Commands
from workers import Crew
from worlds import World

LABELS = ("a", "b", "c")


def put(what: str, *after: str) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, "after": list(after)}


THREE: dict[str, Any] = {
    "name": "plan",
    "steps": {"a": put("a"), "b": put("b", "a"), "c": put("c", "b")},
}


@pytest.mark.parametrize("turns", [*range(0, 60, 5), 80, 120, 200])
async def test_a_cancellation_races_the_end_among_two_workers(tmp_path: Path, turns: int) -> None:
    """It is completed and whole, or rolled back and nothing is left; what was said holds."""
    world = World(tmp_path / "store")
    crews = [Crew(world, THREE), Crew(world, THREE)]
    crews[0].start()

    async def cancel() -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        commands, said = Commands(open_store(world.store)), ""
        with contextlib.suppress(WorkflowError):  # it is over
            said = (await asyncio.to_thread(commands.cancel, "job", by="ann", rollback=True)).status
        return said or crews[0].job().status

    said, *_ = await asyncio.gather(cancel(), *(each.work() for each in crews))
    for _ in range(3):
        await asyncio.gather(*(each.work() for each in crews))
    ended = crews[0].job().status
    assert ended in ("completed", "rolled_back", "cancelled")
    assert world.standing == (dict.fromkeys(LABELS, 1) if ended == "completed" else {})
    assert said != "completed" or ended == "completed"
    assert said != "cancelled" or ended != "completed"
    taken = [each.key for each in world.deeds if each.sign > 0]
    assert len(taken) == len(set(taken)), "nothing was done twice"
    assert not crews[0].commands.open_keys()


async def test_a_cancellation_is_seen_by_an_attempt_that_has_just_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the attempt has looked for it, and before that is told apart from others."""
    world = World(tmp_path / "store")
    crew = Crew(world, THREE)
    crew.start()
    looked = running._Attempt._begun
    said: list[str] = []

    def then_cancelled(attempt: Any) -> Any:
        hold = looked(attempt)
        if not said:
            said.append(crew.commands.cancel("job", by="ann", rollback=True).status)
        return hold

    monkeypatch.setattr(running._Attempt, "_begun", then_cancelled)
    await crew.work()
    assert said == ["running"]
    assert crew.job().status == "cancelled"
    assert not world.deeds
    assert not crew.commands.open_keys()


async def test_an_attempt_that_ends_while_somebody_looks_has_ended(tmp_path: Path) -> None:
    """Whether it is live is asked before its trace is read: else it would seem to be cut off."""
    asked: list[str] = []

    class Ending(Folder):
        """A store in which a run ends just after it was read."""

        def is_live(self, run: str) -> bool:
            asked.append("live")
            return True

        def ends(self, run: str) -> Ends:
            found = super().ends(run)
            return found._replace(last=super().read(run)[-2])

        def read(self, run: str, after: int = 0) -> list[bytes]:
            lines = super().read(run)[:-1]
            asked.append("read")
            return lines[after:]

    world = World(tmp_path / "store")
    await world.attempt(THREE)
    Holds(open_store(world.store), "job").put("cancelled", by="ann")
    assert execution(Ending(world.store), "job").status == "running"
    assert asked[-2:] == ["live", "read"]


async def test_a_folder_that_is_moved_away_ends_the_attempt_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    done: list[str] = []

    def probe(key: str) -> Any:
        return Happened(key) if key in done else DidNotHappen()

    @tool(effect="write", name="meet.put", probe=probe)
    async def put_(what: str) -> str:
        step = current_step()
        assert step is not None
        done.append(step.idempotency_key)
        if what == "b" and len(done) == 2:
            store.rename(away)
        return what

    steps = {name: {"call": "meet.put", "args": {"what": name}, "after": [*"abc"[:at]]}
             for at, name in enumerate("abc")}  # fmt: skip
    plan = check({"name": "plan", "steps": steps}, [put_])
    with pytest.raises(RollcageError):
        await run(plan, id="job", store=store)
    assert len(done) == 2, "nothing begins without its store"
    with contextlib.suppress(RollcageError):
        assert execution(open_store(store), "job").status == "pending"
    if store.exists():
        (left,) = [[*store.rglob("*.jsonl")]]
        assert not [path for path in left if b'"step.' in path.read_bytes()]
        store.rename(tmp_path / "left")
    away.rename(store)
    assert (await run(plan, id="job", store=store)).status == "completed"
    assert len(done) == len(set(done)) == 3


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_database_that_goes_away_and_comes_back(*, comes_back: bool) -> None:
    """Within `store_timeout`, it goes on; after that, the next attempt does, and nothing twice."""
    with new_store() as url:
        network = Network(url)
        done: list[str] = []

        def probe(key: str) -> Any:
            return Happened("b") if key in done else DidNotHappen()

        @tool(effect="write", name="meet.remove", idempotent=True)
        async def remove(what: str) -> None:
            del what

        @tool(
            effect="write",
            name="meet.send",
            probe=probe,
            undo=lambda result: [compensate(remove, what=result)],
        )
        async def send(what: str) -> str:
            step = current_step()
            assert step is not None
            done.append(step.idempotency_key)
            if len(done) == 2:
                network.take_down()
                if comes_back:
                    asyncio.get_running_loop().call_later(0.3, setattr, network, "is_down", False)
            return what

        steps = {name: {"call": "meet.send", "args": {"what": name}, "after": [*"abc"[:at]]}
                 for at, name in enumerate("abc")}  # fmt: skip
        plan = check({"name": "plan", "steps": steps}, [send, remove])
        where = f"{network.url}&store_timeout={20 if comes_back else 0.3}&silence_timeout=1"
        if comes_back:
            assert (await run(plan, id="job", store=where)).status == "completed"
        else:
            with pytest.raises(RollcageError):
                await run(plan, id="job", store=where)
            assert len(done) == 2
            network.is_down = False
            again = f"{url}&silence_timeout=1&application_name=again"
            assert (await run(plan, id="job", store=again)).status == "completed"
        assert len(done) == len(set(done)) == 3
        network.close()


@pytest.mark.parametrize("begun", [False, True])
async def test_one_that_is_cancelled_while_it_is_paused_leaves_nothing_open(
    tmp_path: Path, *, begun: bool
) -> None:
    world = World(tmp_path / "store")
    wait = {"wait": {"signal": "go"}, "after": ["a"]}
    steps = {"a": {"call": "put", "args": {"what": "a"}}, "go": wait}
    crew = Crew(world, {"name": "plan", "steps": steps})
    crew.start()
    if begun:
        await crew.work()
        assert crew.job().status == "waiting"
    crew.commands.pause("job", by="ann")
    crew.commands.wake("job")
    crew.commands.cancel("job", by="bob", rollback=True)
    await crew.work()
    assert (crew.job().status, crew.job().waits) == (
        "rolled_back" if begun else "cancelled",
        "cancelled by bob",
    )
    assert not crew.commands.open_keys()
    assert not world.standing
