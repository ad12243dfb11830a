"""Executions whose processes are killed at any moment: nothing is lost, nothing done twice."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rollcage import open_store
from rollcage_workflow import execution

WORKER = """
import asyncio, os, sys
from pathlib import Path
from rollcage import DidNotHappen, Happened, current_step, tool
from rollcage_workflow import run

world = Path(sys.argv[2])

def probe(key):
    done = world.read_text().split() if world.exists() else []
    return Happened(key) if any(line.startswith(key) for line in done) else DidNotHappen()

@tool(effect="write", probe=probe)
async def mark(what: str) -> str:
    key = current_step().idempotency_key
    with world.open("a") as file:
        file.write(f"{key}:{what}\\n")
    await asyncio.sleep(0.002)
    return key

inner = {"a": {"call": "mark", "args": {"what": "='a' + string(item)"}},
         "b": {"call": "mark", "args": {"what": "='b' + string(item)"}, "after": ["a"]}}
plan = {"name": "kills", "steps": {
    "first": {"call": "mark", "args": {"what": "first"}},
    "each": {"each": {"over": "=[0, 1, 2, 3, 4, 5]", "steps": inner}, "after": ["first"]},
    "beside": {"call": "mark", "args": {"what": "beside"}, "after": ["first"]},
    "end": {"call": "mark", "args": {"what": "end"}, "after": ["each", "beside"]}}}
print("ready", flush=True)
found = asyncio.run(run(plan, id="job", store=sys.argv[1], tools=[mark]))
print(found.status, flush=True)
"""
EXPECTED = sorted(["first", "beside", "end", *(f"{x}{n}" for x in "ab" for n in range(6))])


@pytest.mark.parametrize(
    "url", ["{}/store", pytest.param("sqlite:///{}/runs.db", marks=pytest.mark.nightly)]
)
def test_nothing_is_lost_or_done_twice(url: str, tmp_path: Path) -> None:
    chance = random.Random(url)  # noqa: S311 - reproducible moments
    script, world = tmp_path / "worker.py", tmp_path / "world"
    script.write_text(WORKER)
    store = url.format(tmp_path)
    command = [sys.executable, str(script), store, str(world)]
    kills = 0
    for _ in range(8):
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.12))
        worker.kill()
        said = worker.stdout.read()
        worker.stdout.close()
        worker.wait()
        kills += worker.returncode == -9
        if said:
            break
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "completed"
    marks = [line.partition(":") for line in world.read_text().splitlines()]
    assert sorted(mark[2] for mark in marks) == EXPECTED
    assert len({mark[0] for mark in marks}) == len(marks)
    assert execution(open_store(store), "job").status == "completed"
    assert kills
