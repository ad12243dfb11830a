"""Measure Rollcage itself: the recorded write, read and hit, sync and async; opening a source."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
from rollcage import Session, tool

from benchmarks.timing import WARM_UP, cpu_per_await, cpu_per_call
from benchmarks.workload import asend_mail, mail, send_mail

Body = Callable[..., Any]

CRASHED: Final = 500  # writes of a job before it crashes
TOGETHER: Final = 16  # sessions of one event loop

write_mail: Body = tool(name="send_mail", effect="write")(send_mail)
read_mail: Body = tool(name="send_mail", effect="read")(send_mail)
awrite_mail: Body = tool(name="send_mail", effect="write")(asend_mail)
aread_mail: Body = tool(name="send_mail", effect="read")(asend_mail)


def write(calls: int, folder: Path) -> dict[str, float]:
    """Measure a recorded write."""
    return fresh(write_mail, calls, folder)


def read(calls: int, folder: Path) -> dict[str, float]:
    """Measure a recorded read."""
    return fresh(read_mail, calls, folder)


def awrite(calls: int, folder: Path) -> dict[str, float]:
    """Measure a recorded write of an async tool."""
    return asyncio.run(afresh(awrite_mail, calls, folder))


def aread(calls: int, folder: Path) -> dict[str, float]:
    """Measure a recorded read of an async tool."""
    return asyncio.run(afresh(aread_mail, calls, folder))


def fresh(body: Body, calls: int, folder: Path) -> dict[str, float]:
    """Measure the CPU (µs) and bytes of a recorded call of a tool."""
    with Session("bench", store=folder, replay="off") as session:
        cpu = cpu_per_call(lambda arguments: body(**arguments), calls)
        size = trace(folder, session.run_id).stat().st_size
    return {"cpu_us": cpu, "bytes": size / (WARM_UP + calls)}


async def afresh(body: Body, calls: int, folder: Path) -> dict[str, float]:
    """Measure the CPU (µs) and bytes of a recorded call of an async tool."""
    async with Session("bench", store=folder, replay="off") as session:
        cpu = await cpu_per_await(lambda arguments: body(**arguments), calls)
        size = trace(folder, session.run_id).stat().st_size
    return {"cpu_us": cpu, "bytes": size / (WARM_UP + calls)}


def write_sqlite(calls: int, folder: Path) -> dict[str, float]:
    """Measure a write that is recorded in a SQLite file."""
    with Session("bench", store=f"sqlite:///{folder}/bench.db", replay="off"):
        return {"cpu_us": cpu_per_call(lambda arguments: write_mail(**arguments), calls)}


def awrite_sqlite(calls: int, folder: Path) -> dict[str, float]:
    """Measure a write of an async tool that is recorded in a SQLite file."""

    async def record() -> dict[str, float]:
        async with Session("bench", store=f"sqlite:///{folder}/bench.db", replay="off"):
            cpu = await cpu_per_await(lambda arguments: awrite_mail(**arguments), calls)
        return {"cpu_us": cpu}

    return asyncio.run(record())


def awrite_together(calls: int, folder: Path) -> dict[str, float]:
    """Measure a write in one of sixteen sessions that share an event loop."""

    async def job(number: int) -> float:
        async with Session(f"bench-{number}", store=folder, replay="off"):
            each = calls // TOGETHER
            return await cpu_per_await(lambda arguments: awrite_mail(**arguments), each)

    async def together() -> dict[str, float]:
        # The clock of each runs while all write: over nearly the same time.
        took = await asyncio.gather(*(job(number) for number in range(TOGETHER)))
        return {"cpu_us": sum(took) / TOGETHER**2}

    return asyncio.run(together())


def trace(folder: Path, run: str) -> Path:
    """Return the file of a run in a store."""
    return folder / "logs" / f"{run}.jsonl"


# --- with a recorded run -------------------------------------------------------------------------


def record_source(calls: int, folder: Path) -> dict[str, float]:
    """Record a run of `calls` writes, for the cases below to resume."""
    return write(calls, folder)


def _source(folder: Path) -> Path:
    """Return the run that `record_source` left in the folder."""
    return min(folder.glob("logs/*.jsonl"))  # ids are in order of time


def hit(calls: int, folder: Path) -> dict[str, float]:
    """Measure a write that is answered from the recording."""
    before = _source(folder).stat().st_size
    with Session("bench", store=folder, replay="continue") as session:
        cpu = cpu_per_call(lambda arguments: write_mail(**arguments), calls)
    return _of_hits(session, cpu, calls, _source(folder).stat().st_size - before)


def ahit(calls: int, folder: Path) -> dict[str, float]:
    """Measure an async write that is answered from the recording."""

    async def resume() -> dict[str, float]:
        before = _source(folder).stat().st_size
        async with Session("bench", store=folder, replay="continue") as session:
            cpu = await cpu_per_await(lambda arguments: awrite_mail(**arguments), calls)
        return _of_hits(session, cpu, calls, _source(folder).stat().st_size - before)

    return asyncio.run(resume())


def _of_hits(session: Session, cpu: float, calls: int, size: int) -> dict[str, float]:
    stats = session.stats
    if stats.hits != WARM_UP + calls:
        raise AssertionError(f"not what was to be measured: {stats}")
    return {"cpu_us": cpu, "bytes": size / (WARM_UP + calls)}


def open_source(calls: int, folder: Path) -> dict[str, float]:
    """Measure entering a session that resumes a run: CPU (s), wall time (s) and memory (MiB)."""
    session = Session("bench", store=folder, replay="continue")
    return _opening(session.__enter__, calls)


def begin_again(calls: int, folder: Path) -> dict[str, float]:
    """Entering a session of a job whose newest run, of so many writes, ended `ok`."""
    write(WARM_UP, folder / "other")  # what a process does once
    write(calls, folder)
    session = Session("bench", store=folder)
    return _opening(session.__enter__, calls)


def open_second(calls: int, folder: Path) -> dict[str, float]:
    """Measure entering the second resume of a job that crashes each time."""
    return _open_crashed(2, min(calls, CRASHED), folder)


def open_sixtieth(calls: int, folder: Path) -> dict[str, float]:
    """Measure entering the sixtieth resume of a job that crashes each time."""
    return _open_crashed(60, min(calls, CRASHED), folder)


def _open_crashed(resumes: int, calls: int, folder: Path) -> dict[str, float]:
    for _ in range(resumes):
        with contextlib.suppress(RuntimeError), Session("crashing", store=folder):
            for number in range(calls):
                write_mail(**mail(number))
            raise RuntimeError("power cut")
    session = Session("crashing", store=folder)
    return _opening(session.__enter__, calls)


def parse_source(calls: int, folder: Path) -> dict[str, float]:
    """Measure what every reader of the run pays: each line through orjson, and nothing kept."""
    path = _source(folder)

    def parse() -> None:
        for line in path.read_bytes().splitlines():
            orjson.loads(line)

    return _opening(parse, calls)


def _opening(action: Callable[[], object], calls: int) -> dict[str, float]:
    resident = _peak()
    wall, cpu = time.perf_counter(), time.process_time()
    kept = action()
    found = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "peak_mib": (_peak() - resident) / 1024,
    }
    del kept
    return {**found, "steps": float(calls)}


def _peak() -> int:
    """Return the most memory that this process has had so far (KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
