"""An engine on DBOS: what is started is run, within limits, at its time, and once."""

import asyncio
import datetime as dt
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from parts import requests_in
from postgres import new_store
from rollcage import Approval, ApprovalQueue, open_store, tool
from rollcage_workflow import execution, executions
from rollcage_workflow.engine import Engine, Limit, Schedule
from rollcage_workflow.errors import InputsInvalid, WorkflowError
from rollcage_workflow.signals import Signals
from worlds import World

PATIENCE = 120.0  # seconds, after which something hangs


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def steps(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "inputs": {"n": {"default": 1}}, "steps": given}


def put(what: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, "after": list(after), **more}


def waits(name: str, **what: Any) -> dict[str, Any]:
    return steps(name, a=put("a"), go={"wait": what, "after": ["a"]}, b=put("b", "go"))


@contextmanager
def serving(engine: Engine) -> Iterator[Engine]:
    stop = threading.Event()
    thread = threading.Thread(target=engine.serve, args=(stop,), kwargs={"grace": 5.0})
    thread.start()
    try:
        yield engine
    finally:
        stop.set()
        thread.join()


def until(what: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)


@pytest.mark.parametrize("place", ["sqlite", "postgres", "none"])
def test_what_is_started_waits_is_woken_and_ends(place: str, world: World, tmp_path: Path) -> None:
    plan = steps(
        "plan",
        a=put("a"),
        go={"wait": {"signal": "go"}, "after": ["a"]},
        nap={"wait": {"seconds": 0.5}, "after": ["go"]},
        ask={"wait": {"approval": "ship?"}, "after": ["nap"]},
        b=put("b", "ask"),
    )
    with new_store() if place == "postgres" else _no_store() as schema:
        url = {"sqlite": f"sqlite:///{tmp_path}/engine.db", "postgres": schema}.get(place)
        made = Engine(url, store=world.store, plans=[plan], tools=world.tools, patience=0.0,
                      every=0.1)  # fmt: skip
        store = made.store
        with serving(made):
            assert made.start("plan", id="job", by="carl")
            assert made.start("plan", id="later", by="carl", at=time.time() + 0.5)
            until(lambda: execution(store, "later").status == "waiting")
            assert not made.start("plan", id="job", by="carl")
            for each in ("job", "later"):
                until(lambda each=each: "signal go" in execution(store, each).waits)  # type: ignore[misc]
                Signals(store, each).send("go", 1, by="ann")
            queue = ApprovalQueue(store)
            until(lambda: len(requests_in(queue.store)) == 2)
            for asked in requests_in(queue.store):
                queue.decide(asked, Approval(True, by="ann"))
            until(lambda: all(each.status == "completed" for each in executions(store)))
            until(lambda: not made.commands.open_keys())
    assert world.standing == {"a": 2, "b": 2}
    assert world.most == 1


@contextmanager
def _no_store() -> Iterator[None]:
    yield None


def test_a_limit_holds_and_a_schedule_starts_executions(world: World, tmp_path: Path) -> None:
    here: set[int] = set()
    most: list[int] = []

    @tool(effect="read", name="stay")
    async def stay(n: int) -> int:
        here.add(n)
        most.append(len(here))
        await asyncio.sleep(0.1)
        here.discard(n)
        return n

    plans = [
        steps("few", a={"call": "stay", "args": {"n": "=inputs.n"}}),
        steps("tick", a=put("tick")),
    ]
    made = Engine(
        f"sqlite:///{tmp_path}/engine.db",
        store=world.store,
        plans=plans,
        tools=[*world.tools, stay],
        every=0.1,
        limits={"few": Limit(2)},
    )
    made.schedule(Schedule("often", "tick", "* * * * * *", by="carl"))
    with serving(made):
        for n in range(8):
            made.start("few", {"n": n}, id=f"few-{n}", by="carl")

        def ticks() -> list[str]:
            return [each.id for each in executions(made.store)
                    if each.plan == "tick" and each.status == "completed"]  # fmt: skip

        until(lambda: len(ticks()) >= 2)
        made.schedules.drop("often")
        few = [f"few-{n}" for n in range(8)]
        until(lambda: all(execution(made.store, id_).status == "completed" for id_ in few))
        until(lambda: not made.commands.open_keys())
    assert max(most) <= 2
    assert all(each.startswith("often@20") for each in ticks())
    assert world.standing["tick"] == len(ticks())


def test_no_more_begin_in_a_time_than_a_limit_says(world: World, tmp_path: Path) -> None:
    """Told by how early the last one can have begun: a machine that is slow only makes it later."""
    plan = steps("plan", a=put("a"))
    made = Engine(
        f"sqlite:///{tmp_path}/engine.db",
        store=world.store,
        plans=[plan],
        tools=world.tools,
        every=0.1,
        limits={"plan": Limit(starts=2, per=1.0)},
    )
    for n in range(5):
        made.start("plan", id=f"job-{n}", by="carl")
    began = time.monotonic()
    with serving(made):
        until(lambda: len(world.deeds) == 5)
    assert time.monotonic() - began > 1.9
    assert world.standing == {"a": 5}


def test_what_an_engine_can_not_do_is_told(world: World, tmp_path: Path) -> None:
    plan = steps("plan", a=put("a"))
    made = Engine(None, store=world.store, plans=[plan], tools=world.tools)
    with pytest.raises(WorkflowError, match="limits over all workers"):
        Engine(None, store=world.store, plans=[plan], tools=world.tools, limits={"plan": Limit(1)})
    with pytest.raises(WorkflowError, match="two plans are called 'plan'"):
        Engine(None, store=world.store, plans=[plan, plan], tools=world.tools)
    with pytest.raises(InputsInvalid, match="no such input"):
        made.start("plan", {"m": 1}, id="job", by="carl")
    with pytest.raises(WorkflowError, match="is not an engine's URL"):
        Engine("mysql://here/db", store=world.store).serve(threading.Event())
    with pytest.raises(WorkflowError, match="not a cron expression"):
        made.schedules.put(Schedule("often", "plan", "often", by="carl"))
    with pytest.raises(WorkflowError, match="not a time zone"):
        made.schedules.put(Schedule("often", "plan", "* * * * *", by="carl", zone="Nowhere/Here"))
    with pytest.raises(WorkflowError, match="1 or more"):
        Limit(0)
    assert not (tmp_path / "engine.db").exists()


CUT_OFF = """
import asyncio, os, sys
from rollcage import tool
from rollcage_workflow import run
@tool(effect="write", name="put")
async def put(what: str, *, fails: bool = False) -> str:
    os._exit(9)
asyncio.run(run({"name": "plan", "inputs": {"n": {"default": 1}}, "steps": {
    "b": {"call": "put", "args": {"what": "b"}}}}, id="cut", store=sys.argv[1], tools=[put]))
"""


def test_a_database_that_was_lost_is_filled_again(world: World, tmp_path: Path) -> None:
    """20 executions in all states; none of them is lost, nothing is done twice."""
    plans = [
        steps("plan", b=put("b")),
        waits("signal", signal="go"),
        waits("time", seconds=2),
        waits("ask", approval="?"),
        steps("fails", a=put("a"), no={"call": "put", "args": {"what": "no", "fails": True},
                                       "after": ["a"]}),
        {**steps("back", a=put("a"), no={"call": "look", "args": {"fails": True}, "after": ["a"]}),
         "on_failure": "rollback"},
    ]  # fmt: skip
    script = tmp_path / "cut.py"
    script.write_text(CUT_OFF)
    cut = subprocess.run([sys.executable, str(script), str(world.store)], check=False)
    assert cut.returncode == 9
    store = open_store(world.store)

    def engine() -> Engine:
        return Engine(f"sqlite:///{tmp_path}/engine.db", store=store, plans=plans,
                      tools=world.tools, patience=0.0, every=0.1)  # fmt: skip

    def states() -> dict[str, str]:
        return {each.id: each.status for each in executions(store)}

    made = engine()
    began = {"plan": 3, "signal": 4, "time": 2, "ask": 2, "fails": 2, "back": 2}
    for plan, count in began.items():
        for n in range(count):
            made.start(plan, id=f"{plan}-{n}", by="carl")
    made.start("plan", id="held", by="carl")
    made.start("plan", id="delayed", by="carl", at=time.time() + 3600)
    made.start("plan", id="soon", by="carl", at=time.time() + 3)
    made.commands.pause("held", by="ann")
    wanted = {"plan": "completed", "signal": "waiting", "time": "waiting", "ask": "waiting",
              "fails": "failed", "back": "rolled_back"}  # fmt: skip
    with serving(made):
        until(lambda: all(states().get(f"{p}-0") in (wanted[p], "completed") for p in began))
        until(lambda: len(states()) >= 16)
        made.commands.pause("signal-1", by="ann")
        made.commands.cancel("signal-2", by="ann")
        made.commands.cancel("signal-3", by="ann", rollback=True)
        until(lambda: states()["signal-3"] == "rolled_back")
    for path in tmp_path.glob("engine.db*"):
        path.unlink()
    before = len(world.deeds)
    made = engine()
    assert "cut" in made.reconcile()
    queue = ApprovalQueue(store)
    with serving(made):
        until(lambda: len(requests_in(queue.store)) == 2)
        for each in requests_in(queue.store):
            queue.decide(each, Approval(True, by="ann"))
        for n in (0, 1):
            Signals(store, f"signal-{n}").send("go", 1, by="ann")
        for n in (2, 3):  # these were cancelled
            with pytest.raises(WorkflowError, match="is over"):
                Signals(store, f"signal-{n}").send("go", 1, by="ann")
            made.commands.wake(f"signal-{n}")
        done = ["cut", "soon", "signal-0", "time-0", "time-1", "ask-0", "ask-1"]
        until(lambda: all(states().get(each) == "completed" for each in done))
        assert states()["signal-1"] == "paused"
        for each in ("signal-1", "held"):
            made.commands.resume(each, by="ann")
        until(lambda: all(states().get(each) == "completed" for each in ("signal-1", "held")))
        until(lambda: len(made.commands.open_keys()) == 1)
    found = states()
    assert found["signal-2"] == "cancelled"
    assert {found[f"{plan}-{n}"] for plan in ("fails", "back") for n in range(2)} == {
        "failed", "rolled_back"}  # fmt: skip
    assert execution(store, "delayed").status == "pending"
    assert world.most == 1
    assert len(world.deeds) > before
    assert world.standing == {
        "b": 3 + 2 + 2 + 2 + 3,  # plan, signal, time, ask; cut, soon, held
        "a": 3 + 2 + 2 + 2,  # signal, time, ask, fails
    }


def test_schedules_go_on_with_another_database_and_what_was_removed_does_not(
    world: World, tmp_path: Path
) -> None:
    """They are in the store: each time starts one execution, whatever becomes of the database."""
    store = open_store(world.store)

    def engine() -> Engine:
        plans = [steps("tick", a=put("tick"))]
        return Engine(f"sqlite:///{tmp_path}/engine.db", store=store, plans=plans,
                      tools=world.tools, every=0.1)  # fmt: skip

    def ended(name: str) -> list[str]:
        return [each.id for each in executions(store)
                if each.id.startswith(f"{name}@") and each.status == "completed"]  # fmt: skip

    made = engine()
    for name in ("often", "removed"):
        made.schedule(Schedule(name, "tick", "* * * * * *", by="carl"))
    with serving(made):
        until(lambda: len(ended("often")) >= 2 and len(ended("removed")) >= 1)
    cut_off = {each.id for each in executions(store) if each.status != "completed"}
    made.schedules.drop("removed")
    for path in tmp_path.glob("engine.db*"):
        path.unlink()
    made, now = engine(), dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with serving(made):
        count = len(ended("often"))
        until(lambda: len(ended("often")) >= count + 2)
        made.schedules.drop("often")
        until(lambda: not made.commands.open_keys())
    assert max(ended("removed")) <= f"removed@{now}"
    assert {each.attempts for each in executions(store) if each.id not in cut_off} == {1}
    assert world.most == 1
    assert len(world.deeds) >= sum(each.status == "completed" for each in executions(store))
    assert world.standing == {"tick": len(executions(store))}


def test_two_hundred_at_once_leak_nothing(world: World, tmp_path: Path) -> None:
    @tool(effect="write", name="put")
    async def put_(what: str) -> str:
        return what

    plan = steps("plan", a=put("a"), b=put("b"), c=put("c", "a", "b"))
    made = Engine(None, store=f"sqlite:///{tmp_path}/runs.db", plans=[plan], tools=[put_],
                  every=0.05, concurrency=200)  # fmt: skip
    held: list[tuple[int, int]] = []
    for batch, count in enumerate((200, 100)):
        for n in range(count):
            made.start("plan", id=f"job-{batch}-{n}", by="carl")
        with serving(made):
            until(lambda: not made.commands.open_keys())
        threads = Counter(each.name for each in threading.enumerate())
        assert threads.pop("rollcage-wait", 0) <= 8, "few, which end when nobody needs them"
        links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        # SQLite closes a database's descriptors itself, later: as many stay as were open at once,
        # of 200 executions and of what serves them, and not of all 300.
        kept = [each for each in links if not each.endswith("/runs.db")]
        assert len(links) - len(kept) <= 250, "they don't grow with the executions"
        held.append((len(kept), threads.total()))
    assert {each.status for each in executions(made.store)} == {"completed"}
    assert held[1][0] <= held[0][0], "the store's connections are kept for the next batch"
    assert held[0][1] == held[1][1]
