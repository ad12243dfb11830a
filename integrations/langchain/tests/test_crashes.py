"""A graph with a checkpointer is killed at any point, and goes on by itself: nothing twice."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage.store import JsonlStore, check_attested
from rollcage.trace import check_events

CRASHING = Path(__file__).with_name("crashing.py")
KILLED = -9

Play = Callable[..., int]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Let a graph go on in a process of its own, to be killed at a point; its exit code."""
    # What is killed leaves no figures of its coverage: it is not measured.
    environment = {n: v for n, v in os.environ.items() if n != "COVERAGE_PROCESS_CONFIG"}
    with subprocess.Popen(
        [sys.executable, str(CRASHING)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as nursery:

        def one(root: Path, deadly: int, **job: Any) -> int:
            assert nursery.stdin is not None
            assert nursery.stdout is not None
            root.mkdir(exist_ok=True)
            nursery.stdin.write(json.dumps({"root": str(root), "deadly": deadly, **job}) + "\n")
            return int(nursery.stdout.readline())

        yield one
        assert nursery.stdin is not None
        nursery.stdin.close()


def outcome(root: Path) -> tuple[list[str], Any]:
    """What was done outside, and what the graph gave in the end."""
    world = (root / "world").read_text().split()
    return sorted(world), json.loads((root / "result").read_text())["result"]


def why(root: Path) -> str:
    error = root / "error"
    return error.read_text()[-2000:] if error.exists() else "no error"


WAYS = [
    ("agent", "sync", False),
    ("agent", "async", False),
    ("agent", "exit", False),
    ("agent", "sync", True),
    ("agent", "async", True),
    ("graph", "sync", False),
    ("graph", "sync", True),
    ("branches", "async", False),
    ("branches", "async", True),
    ("workflow", "sync", False),
    ("asking", "sync", False),
    ("asking", "async", True),
]


@pytest.mark.parametrize(("graph", "durability", "asynchronous"), WAYS)
def test_killed_at_any_point_a_graph_goes_on_by_itself(
    play: Play, tmp_path: Path, graph: str, durability: str, asynchronous: bool
) -> None:
    job: dict[str, Any] = {
        "graph": graph, "durability": durability, "asynchronous": asynchronous,
    }  # fmt: skip
    whole = tmp_path / "whole"
    assert play(whole, 0, **job) == 0, why(whole)
    points = json.loads((whole / "result").read_text())["points"]
    assert points > 15
    expected = outcome(whole)
    assert len(set(expected[0])) == len(expected[0])
    for point in range(2 + WAYS.index((graph, durability, asynchronous)) % 3, points + 1, 9):
        root = tmp_path / str(point)
        # Killed once more, elsewhere, on its way; then it goes to its end.
        codes = [play(root, point, **job)]
        if codes[-1] == KILLED and point % 2:
            codes.append(play(root, 1 + points // 4, **job))
        if codes[-1] == KILLED:
            codes.append(play(root, 0, **job))
        assert codes[-1] == 0, (point, codes, why(root))
        assert outcome(root) == expected, (point, codes)
        events = [_events(root, run.run) for run in JsonlStore(root / "store").runs()]
        assert all(each[0]["event"] == "run.started" for each in events)
        ended = {each[-1]["status"] for each in events if each[-1]["event"] == "run.finished"}
        assert ended <= {"ok", "partial"} | ({"paused"} if graph == "asking" else set())
        assert len({each[0]["root"] for each in events}) == 1  # one job, whoever was asked


def _events(root: Path, run: str) -> list[dict[str, Any]]:
    trace = JsonlStore(root / "store").read(run)
    check_attested(trace)
    return check_events(trace.data, trace.where)
