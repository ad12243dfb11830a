"""Measure Mission Control: the cost of a long run's pages and of viewers, and a step's delay.

A target is a ratio, or a time that a person notices; each is printed beside its measure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from rollcage import Session, tool
from rollcage_server import Authority, Role, create_app
from rollcage_server.tokens import TokenFile

__all__ = ["main"]

_WAIT = 60.0


@tool(name="bench_put", effect="write")
def put(number: int, text: str) -> dict[str, Any]:
    return {"number": number, "text": text}


def main(*, quick: bool, to: Path | None) -> None:
    """Measure and print; the JSON goes to `to`."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measured(Path(folder), quick=quick))
    for what, (value, target) in found.items():
        print(f"{what:<58} {value:>10}   target {target}")
    if to is not None:
        to.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


async def _measured(folder: Path, *, quick: bool) -> dict[str, tuple[str, str]]:
    long, rounds = (2_000, 5) if quick else (10_000, 20)
    viewers, runs, seconds = (40, 4, 4.0) if quick else (200, 20, 15.0)
    store = str(folder / "store")
    tokens = TokenFile(folder / "tokens.json")
    _, token = tokens.create("bench", [Role.VIEWER], 3600)
    app = create_app(store, Authority(tokens=tokens))
    found: dict[str, tuple[str, str]] = {}
    short_run, long_run = _recorded(store, 100), _recorded(store, long)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://localhost", headers=headers
    ) as client:
        costs = {
            steps: await _page(client, run, rounds)
            for steps, run in ((100, short_run), (long, long_run))
        }
    found[f"first page of {long:,} steps : of 100 steps, CPU"] = (
        f"{costs[long] / costs[100]:.1f}x", "≤ 3 x",
    )  # fmt: skip
    found["first page of 100 steps, CPU"] = (f"{1e3 * costs[100]:.1f} ms", "-")
    with _serving(app) as address:
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=_WAIT) as client:
            late = await _lateness(client, store, 5 if quick else 20)
            found["a step on an open page, slowest of them"] = (f"{max(late):.2f} s", "≤ 1 s")
            found["a step on an open page, median"] = (f"{statistics.median(late):.2f} s", "-")
    cores = await _viewed(store, tokens.path, headers, viewers, runs, seconds)
    found[f"{viewers} viewers of {runs} live runs, CPU of the server"] = (
        f"{cores:.2f} cores", "≤ 1 core",
    )  # fmt: skip
    return found


def _recorded(store: str, steps: int) -> str:
    with Session(f"of {steps}", store=store) as session:
        for number in range(steps):
            put(number, "x" * 200)
        return session.run_id


async def _page(client: httpx.AsyncClient, run: str, rounds: int) -> float:
    """Return the seconds of CPU of one page, the median."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        answer = await client.get(f"/runs/{run}")
        took.append(time.process_time() - began)
        answer.raise_for_status()
    return statistics.median(took)


async def _lateness(client: httpx.AsyncClient, store: str, steps: int) -> list[float]:
    late = []
    with Session("watched", store=store) as session:
        async with client.stream("GET", f"/runs/{session.run_id}/live") as answer:
            lines = answer.aiter_lines()
            for number in range(steps):
                await asyncio.to_thread(put, number, "x")
                began = time.monotonic()
                async with asyncio.timeout(_WAIT):
                    while f'id="step-{number + 1}"' not in await anext(lines):
                        pass
                late.append(time.monotonic() - began)
    return late


async def _viewed(
    store: str, tokens: Path, headers: dict[str, str], viewers: int, runs: int, seconds: float
) -> float:
    """Return the part of a core that a server in a process of its own needs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollcage", "serve", "--store", store, "--tokens", str(tokens),
        "--port", "0", stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said = (await process.stderr.readline()).decode()
    address = said.partition("Mission Control: ")[2].strip().rstrip("/")
    ids: queue.SimpleQueue[str] = queue.SimpleQueue()
    over, seen = threading.Event(), Counter[str]()
    writers = [threading.Thread(target=_live, args=(store, n, ids, over)) for n in range(runs)]
    try:
        for writer in writers:
            writer.start()
        live = [await asyncio.to_thread(ids.get) for _ in writers]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=address, headers=headers, timeout=_WAIT, limits=limits
        ) as client:
            at = [live[n % runs] for n in range(viewers)]
            watching = [asyncio.create_task(_watch(client, run, seen)) for run in at]
            await asyncio.sleep(3)
            seen.clear()
            before, began = _cpu(process.pid), time.monotonic()
            await asyncio.sleep(seconds)
            used = (_cpu(process.pid) - before) / (time.monotonic() - began)
            # Two steps a second, and whoever is told of one is told within half a second.
            assert sum(seen.values()) > viewers * seconds, "somebody was not told of all steps"
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            return used
    finally:
        over.set()
        for writer in writers:
            writer.join()
        process.terminate()
        await process.wait()


def _live(store: str, number: int, ids: queue.SimpleQueue[str], over: threading.Event) -> None:
    """Make a run with two steps a second."""
    with Session(f"live {number}", store=store) as session:
        ids.put(session.run_id)
        while not over.wait(0.5):
            put(number, "x")


async def _watch(client: httpx.AsyncClient, run: str, seen: Counter[str]) -> None:
    async with client.stream("GET", f"/runs/{run}/live") as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                seen[run] += 1


def _cpu(process: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _serving(app: Any) -> Iterator[str]:
    config = uvicorn.Config(app, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
