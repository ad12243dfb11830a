"""A fork of an execution: the plan runs again with one thing changed, and nothing else happens."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from parts import requests_in
from rollcage import ApprovalQueue, ForkEnded, compensate, list_runs, open_store, tool
from rollcage.trace.chain import parse
from rollcage_fork import Fork
from rollcage_workflow import Execution, execution, run
from rollcage_workflow.engine import Engine
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.signals import Signals

done: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


@tool(effect="read")
async def pieces(shop: str) -> int:
    return 3


@tool(effect="write")
async def release(count: int) -> None:
    done.remove(f"reserve {count}")


@tool(
    effect="write",
    observe=lambda args: {"held": f"reserve {args['count']}" in done},
    undo=lambda args: [compensate(release, **args)],
)
async def reserve(count: int) -> str:
    done.append(f"reserve {count}")
    return f"r{count}"


@tool(effect="write")
async def mail(text: str) -> str:
    done.append(f"mail {text}")
    return "sent"


TOOLS: list[Any] = [pieces, reserve, release, mail]


def attempt(
    store: Path,
    steps: dict[str, Any],
    *,
    name: str = "monday",
    fork: Fork | None = None,
    later: float = 0.0,
    **more: Any,
) -> Execution:
    given: dict[str, Any] = {} if fork is None else {"fork": fork}
    given["clock"] = lambda: time.time_ns() + int(later * 1e9)
    plan = {"name": "orders", "steps": steps, **more}
    return asyncio.run(run(plan, id=name, store=store, tools=TOOLS, patience=0.0, **given))


ORDER: dict[str, Any] = {
    "count": {"call": "pieces", "args": {"shop": "a"}},
    "held": {"call": "reserve", "args": {"count": "=count"}},
    "told": {"call": "mail", "args": {"text": "=held"}},
}


def instead(run: str, step: int, result: Any, *, live: bool = False) -> Fork:
    """A fork in which a step gave something else."""
    return Fork(run, step, {"outcome": {"status": "ok", "value": result}}, live=live)


def kept(store: Path) -> list[str]:
    """The runs that are no forks."""
    return [info.run for info in list_runs(store) if not info.fork]


def test_a_completed_execution_is_forked(tmp_path: Path) -> None:
    origin = attempt(tmp_path, ORDER)
    with pytest.raises(ForkEnded, match="reserve"):
        attempt(tmp_path, ORDER, fork=instead(origin.run, 2, 7))
    assert done == ["reserve 3", "mail r3"]
    live = attempt(tmp_path, ORDER, fork=instead(origin.run, 2, 7, live=True))
    assert (live.status, live.output) == ("completed", "sent")
    assert [each.state for each in live.steps] == ["given", "completed", "completed"]
    assert done == ["reserve 3", "mail r3", "reserve 7", "mail r7"]
    assert kept(tmp_path) == [origin.run]
    assert execution(open_store(tmp_path), "monday") == origin


@pytest.mark.parametrize("of", ["a store", "a file"])
def test_an_execution_that_is_elsewhere_is_forked(tmp_path: Path, of: str) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    origin = attempt(there, ORDER)
    copy = tmp_path / "taken.jsonl"
    copy.write_bytes(b"".join(open_store(there).read(origin.run)))
    fork = dataclasses.replace(
        instead(origin.run, 2, 7, live=True), run=(there, origin.run) if of == "a store" else copy
    )
    live = attempt(here, ORDER, fork=fork)
    assert (live.status, live.output) == ("completed", "sent")
    assert done == ["reserve 3", "mail r3", "reserve 7", "mail r7"]
    assert kept(there) == [origin.run]
    assert kept(here) == []


def test_the_plan_is_another_one_by_now(tmp_path: Path) -> None:
    origin = attempt(tmp_path, ORDER)
    other = ORDER | {"told": {"call": "mail", "args": {"text": "='dear ' + held"}}}
    with pytest.raises(ForkEnded, match="mail"):
        attempt(tmp_path, other, fork=Fork(origin.run))
    assert done == ["reserve 3", "mail r3"]


def test_a_process_that_is_a_fork_runs_no_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(tmp_path, ORDER)
    monkeypatch.setenv("ROLLCAGE_STAGE", f"fork:{tmp_path / 'fork.json'}")
    with pytest.raises(WorkflowError, match="ROLLCAGE_STAGE"):
        attempt(tmp_path, ORDER)
    with pytest.raises(WorkflowError, match="a worker can't be a fork"):
        Engine(None, store=tmp_path).serve(threading.Event(), once=True)
    assert done == ["reserve 3", "mail r3"]


def test_a_signal_stays_for_the_execution_itself(tmp_path: Path) -> None:
    """A fork that came by another way would take the signal in another wait's name."""
    steps = {
        "count": {"call": "pieces", "args": {"shop": "a"}},
        "early": {"wait": {"signal": "go"}, "when": "=count > 5"},
        "late": {"wait": {"signal": "go"}, "after": ["early"]},
    }
    origin = attempt(tmp_path, steps)
    assert origin.status == "waiting"
    forked = attempt(tmp_path, steps, fork=instead(origin.run, 2, 7))
    assert (forked.status, forked.waits) == ("waiting", "waits for the signal go")
    Signals(open_store(tmp_path), "monday").send("go", "now", by="ann")
    forked = attempt(tmp_path, steps, fork=instead(origin.run, 2, 7))
    assert forked.status == "waiting"  # its second wait has none
    there = attempt(tmp_path, steps)
    assert (there.status, there.output) == ("completed", "now")


def test_nobody_is_asked_by_a_fork(tmp_path: Path) -> None:
    steps = {
        "count": {"call": "pieces", "args": {"shop": "a"}},
        "asked": {"wait": {"approval": "='Ship ' + string(count) + '?'"}},
        "told": {"call": "mail", "args": {"text": "=asked.by"}},
    }
    origin = attempt(tmp_path, steps)
    queue = ApprovalQueue(open_store(tmp_path))
    (asked,) = requests_in(queue.store)
    forked = attempt(tmp_path, steps, fork=instead(origin.run, 2, 7))
    assert (forked.status, forked.waits) == ("waiting", "would ask: Ship 7?")
    assert requests_in(queue.store) == [asked]
    assert execution(open_store(tmp_path), "monday").status == "waiting"
    assert done == []


def test_a_fork_that_fails_undoes_nothing_of_the_execution(tmp_path: Path) -> None:
    steps = {
        "held": {"call": "reserve", "args": {"count": 3}},
        "count": {"call": "pieces", "args": {"shop": "a"}, "after": ["held"]},
    }
    origin = attempt(tmp_path, steps, on_failure="rollback")
    fork = Fork(
        origin.run,
        3,
        {
            "outcome": {
                "status": "error",
                "error": {"type": "RuntimeError", "args": ["no shop"], "message": "no shop"},
            }
        },
    )
    with pytest.raises(RuntimeError, match="no shop"):
        attempt(tmp_path, steps, fork=fork, on_failure="rollback")
    assert done == ["reserve 3"]
    assert execution(open_store(tmp_path), "monday").status == "completed"


def test_a_time_limit_counts_from_the_fork_on(tmp_path: Path) -> None:
    steps = {"count": {"call": "pieces", "args": {"shop": "a"}}}
    origin = attempt(tmp_path, steps, time_limit=60)
    fork = instead(origin.run, 3, 7)
    forked = attempt(tmp_path, steps, fork=fork, later=3600, time_limit=60)
    assert (forked.status, forked.output) == ("completed", 7)


def test_the_time_of_a_team_counts_from_the_fork_on(tmp_path: Path) -> None:
    members = {
        "count": {"call": "pieces", "args": {"shop": "a"}},
        "slow": {"wait": {"signal": "go"}},
    }
    plan: dict[str, Any] = {
        "team": {"team": {"members": members, "time_limit": 60}},
        "told": {"call": "mail", "args": {"text": "=string(team.count)"}},
    }
    assert attempt(tmp_path, plan).status == "waiting"
    origin = attempt(tmp_path, plan, later=61)
    assert (origin.status, done) == ("completed", ["mail 3"])
    counted = next(
        event["step"]
        for event in parse(open_store(tmp_path).read(origin.run), origin.run)
        if event.get("name") == "pieces"
    )
    forked = attempt(tmp_path, plan, fork=instead(origin.run, counted, 7), later=3600)
    assert (forked.status, forked.waits) == ("waiting", "waits for the signal go")
    assert done == ["mail 3"]


def test_a_run_that_is_no_attempt_is_refused(tmp_path: Path) -> None:
    origin = attempt(tmp_path, ORDER)
    with pytest.raises(WorkflowError, match=f"run {origin.run} is not an attempt at the execution"):
        attempt(tmp_path, ORDER, name="tuesday", fork=Fork(origin.run))


def test_a_round_of_a_loop_is_another_one(tmp_path: Path) -> None:
    rounds = {"held": {"call": "reserve", "args": {"count": "=round"}}}
    repeat = {"steps": rounds, "result": "=held", "until": "=round >= 3", "most": 3}
    plan: dict[str, Any] = {
        "rounds": {"repeat": repeat},
        "told": {"call": "mail", "args": {"text": "=rounds"}},
    }
    origin = attempt(tmp_path, plan)
    assert done == ["reserve 1", "reserve 2", "reserve 3", "mail r3"]
    third = next(
        event["step"]
        for event in parse(open_store(tmp_path).read(origin.run), origin.run)
        if event.get("args") == {"count": 3}
    )
    with pytest.raises(ForkEnded, match="mail"):
        attempt(tmp_path, plan, fork=instead(origin.run, third, "other"))
    assert len(done) == 4
    found = attempt(tmp_path, plan, fork=instead(origin.run, third, "other", live=True))
    assert (found.status, found.output) == ("completed", "sent")
    assert done[4:] == ["mail other"]
