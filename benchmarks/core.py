"""What the core has to show, row by row: `python -m benchmarks.core [--rows WORD …] [--json FILE]`.

Each row is a figure with the bound that it has to keep. Instructions, calls, files and system calls
are counted (see `benchmarks.counting`), and so are the same on any machine; times are CPU, the best
of some processes each, and given as ratios of what ran in turn with them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.cases import LOOP
from benchmarks.counting import ROOT, instructions, main_thread_calls

__all__ = ["Row", "main"]

ROUNDS: Final = 5  # processes a time, of which the best counts
CALLS: Final = 3_000  # a timed process
STEPS: Final = 100_000  # of the run that is opened
_WAITS: Final = (
    "write", "pwrite64", "writev", "read", "pread64", "openat", "fsync", "fdatasync", "flock",
    "fstat", "newfstatat", "stat", "statx", "rename", "unlink", "mkdir", "poll", "select",
    "connect",
)  # fmt: skip
"""System calls that wait for a disk, a lock of a file or a server, or may."""
_WRITES: Final = ("write", "pwrite64", "writev")


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure and its bound."""

    what: str
    found: float
    bound: float

    @property
    def is_kept(self) -> bool:
        """Whether the figure is within its bound."""
        return self.found <= self.bound


def counted() -> Iterator[Row]:
    """Instructions of a call to those of the floor; what a call enters."""
    names = ["floor", "write", "read", "hit", "open, write, leave"]
    found = instructions([*names, *_BESIDE])
    floor, write = found["floor"]["instructions"], found["write"]
    for name, bound in (("write", 1.8), ("read", 1.25), ("hit", 0.6)):
        yield Row(f"{name}, instructions to the floor", found[name]["instructions"] / floor, bound)
    for name, bound in _BESIDE.items():
        ratio = found[name]["instructions"] / write["instructions"]
        yield Row(f"{name}, instructions to a write", ratio, bound)
    session = found["open, write, leave"]
    yield Row("write, files entered", write["files"], 10)
    yield Row("write, calls", write["calls"], 40)
    yield Row("open, write, leave: files entered", session["files"], 25)
    yield Row("open, write, leave: calls", session["calls"], 150)


_BESIDE: Final = {
    "write, empty stage": 1.02,
    "write, empty guard": 1.03,
    "write, empty policy": 1.08,
    "write, ten rules": 1.25,
}


def traced() -> Iterator[Row]:
    """System calls that a session of one write makes, and those that keep an event loop waiting."""
    found = main_thread_calls(["open, write, leave", "async write"])
    if not found:
        return
    session, loop = found["open, write, leave"], found["async write"]
    yield Row("open, write, leave: writes", sum(session[name] for name in _WRITES), 5)
    yield Row("async write, calls of the loop that may wait", sum(loop[name] for name in _WAITS), 0)


def timed() -> Iterator[Row]:
    """CPU of a call to that of the floor, and of an async write to a sync one."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        _case("record", CALLS + 200, source)
        names = ["floor", "write", "read", "hit", "awrite", *LOOP]
        places = {name: source if name == "hit" else None for name in names}
        best = _best({name: functools.partial(_cpu, name, at) for name, at in places.items()})
    for name, bound in (("write", 2.2), ("read", 1.5), ("hit", 0.8)):
        yield Row(f"{name}, CPU to the floor", best[name] / best["floor"], bound)
    yield Row("async write, CPU to a write", best["awrite"] / best["write"], 2.0)
    sqlite = best["awrite-sqlite"] / best["write-sqlite"]
    yield Row("async write, SQLite, CPU to a write there", sqlite, 2.0)
    yield Row("async write of 16 sessions, CPU to a write", best["awrite-16"] / best["write"], 1.4)


def imported() -> Iterator[Row]:
    """What `from rollcage import Session, tool` loads, and takes."""
    loads = "from rollcage import Session, tool"
    ours = "import sys; print(sum(each.split('.')[0] == 'rollcage' for each in sys.modules))"
    yield Row("import, modules of ours", float(_python(f"{loads}; {ours}")), 50)
    took = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
    best = _best(
        {
            "ours": lambda: float(_python(took.format(loads))),
            "needed": lambda: float(
                _python(took.format("from pydantic import BaseModel; import orjson"))
            ),
        }
    )
    yield Row("import, CPU to pydantic and orjson", best["ours"] / best["needed"], 1.6)


def opened() -> Iterator[Row]:
    """Opening a long run to parsing its lines; one that ended; one that crashed each time."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        run.mkdir()
        _case("record", STEPS, run)
        found: dict[str, dict[str, float]] = {}

        def measure(name: str, measure: str = "cpu_s") -> float:
            taken = _case(name, STEPS, run)
            known = found.setdefault(name, taken)
            found[name] = {each: min(known[each], taken[each]) for each in known}
            return taken[measure]

        best = _best({"open": lambda: measure("open"), "parse": lambda: measure("parse")}, 3)
        yield Row("opening 100,000 steps, to parsing", best["open"] / best["parse"], 2.5)
        yield Row("the same, MiB", found["open"]["peak_mib"], 120)
    began = _best({"begin": lambda: _case("begin", CALLS)["cpu_s"]}, 3)
    yield Row("where it ended ok, ms", 1000 * began["begin"], 1)
    crashed = _best(
        {
            "2": lambda: _case("crash-2", 500)["cpu_s"],
            "60": lambda: _case("crash-60", 500)["cpu_s"],
        },
        3,
    )
    yield Row("opening the 60th attempt to the 2nd", crashed["60"] / crashed["2"], 1.1)


GROUPS: Final[dict[str, Callable[[], Iterator[Row]]]] = {
    "counted": counted,
    "traced": traced,
    "timed": timed,
    "imported": imported,
    "opened": opened,
}


def _best(runs: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """The least that each took, run in turn."""
    taken = [{name: run() for name, run in runs.items()} for _ in range(rounds)]
    return {name: min(each[name] for each in taken) for name in runs}


def _case(name: str, calls: int, folder: Path | None = None) -> dict[str, float]:
    """The measures of a case, from a process of its own; without a folder, in a new one."""
    with tempfile.TemporaryDirectory() as new:
        at = str(folder or new)
        printed = _run(["-m", "benchmarks.worker", name, str(calls), at])
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def _cpu(name: str, folder: Path | None) -> float:
    return _case(name, CALLS, folder)["cpu_us"]


def _python(statement: str) -> str:
    return _run(["-c", statement])


def _run(arguments: list[str]) -> str:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": path}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def table(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""
    head = "| | found | bound | |\n|---|---:|---:|---|\n"
    return head + "\n".join(
        f"| {row.what} | {row.found:,.2f} | {row.bound:,.2f} | {'' if row.is_kept else 'over'} |"
        for row in rows
    )


def main() -> None:
    """Measure what the command line asks for; never fails for being slow."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=list(GROUPS), help="these groups alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    asked = parser.parse_args()
    rows = [row for name in asked.rows or GROUPS for row in GROUPS[name]()]
    print(table(rows))
    if asked.json is not None:
        data = [dataclasses.asdict(row) for row in rows]
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
