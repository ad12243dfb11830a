"""Workers that share jobs in one store, killed at any moment: nothing is lost, nothing twice."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from postgres import new_store
from rollcage import UnknownOutcome, tool
from rollcage.errors import RollcageError, RunInUse
from rollcage.session.session import Session
from rollcage.store import Store, check_attested
from rollcage.store.url import open_store
from rollcage.trace import check_events, step_resolved

KILLS = int(os.environ.get("ROLLCAGE_FAULTS", "6")) * 5 // 3 + 1  # of each store
WORKERS = 3
WRITES = 6


@pytest.fixture(params=["folder", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with new_store() as url:
            yield url
    else:
        place = {"folder": str(tmp_path / "store"), "sqlite": f"sqlite:///{tmp_path / 'runs.db'}"}
        yield place[request.param]


class Yard:
    """Jobs that any worker may take up, and a file that says which of their writes happened."""

    def __init__(self, url: str, effects: Path) -> None:
        self.url = url
        self.effects = effects
        effects.touch()

    def happened(self) -> list[str]:
        return self.effects.read_text().split()

    def happens(self, name: str, number: int) -> int:
        with self.effects.open("a") as file:
            file.write(f"{name}:{number}\n")
        return number

    def job(self, name: str) -> None:
        @tool(effect="write", name="kills.write")
        def write(number: int) -> int:
            return self.happens(name, number)

        with Session(name, store=self.url, replay="continue"):
            for number in range(WRITES):
                write(number)

    async def task(self, name: str) -> None:
        @tool(effect="write", name="kills.write")
        async def write(number: int) -> int:
            return self.happens(name, number)

        with contextlib.suppress(RunInUse, UnknownOutcome):
            async with Session(name, store=self.url, replay="continue"):
                for number in range(WRITES):
                    await write(number)

    async def tasks(self, *names: str) -> None:
        await asyncio.gather(*map(self.task, names))

    def work(self, names: list[str], seed: int) -> None:
        """Take up one job after the other, until killed; what is in use or unknown is passed.

        Some workers take up two at once, as tasks.
        """
        chance = random.Random(seed)  # noqa: S311 - a test
        while seed % 3 == 0:
            asyncio.run(self.tasks(*chance.sample(names, min(2, len(names)))))
        while True:
            with contextlib.suppress(RunInUse, UnknownOutcome):
                self.job(chance.choice(names))

    def finish(self, store: Store, name: str) -> int:
        """Do a job to its end; how many of its writes were reported unknown."""
        unknown = 0
        while True:
            try:
                self.job(name)
            except UnknownOutcome as error:
                unknown += 1
                self.resolve(store, name, error)
            else:
                return unknown

    def resolve(self, store: Store, name: str, error: UnknownOutcome) -> None:
        """Say of a write what the effects tell."""
        trace = store.read(error.run)
        (step,) = (
            event
            for event in check_events(trace.data, trace.where)
            if event["event"] == "step.started" and event["step"] == error.step
        )
        number = step["args"]["number"]
        done = f"{name}:{number}" in self.happened()
        outcome: dict[str, Any] = {"status": "not_started"}
        if done:
            outcome = {"status": "ok", "value": number}
        writer = store.reopen(error.run)
        try:
            digest = sha256(orjson.dumps(outcome)).hexdigest()
            writer.append(
                step_resolved(
                    time=0, step=error.step, by="operator", outcome=outcome, digest=digest
                )
            )
            writer.sync()
            if trace.info is not None and trace.info.status is not None:
                writer.attest(trace.info.status)
        finally:
            writer.close()


def start(yard: Yard, names: list[str], seed: int) -> int:
    """A worker, forked off: it opens the store by itself."""
    child = os.fork()
    if not child:
        try:
            yard.work(names, seed)
        except RollcageError as error:
            print(error, flush=True)
        finally:
            os._exit(7)
    return child


def test_killed_workers_lose_and_double_nothing(url: str, tmp_path: Path) -> None:
    yard = Yard(url, tmp_path / "effects")
    chance = random.Random(KILLS)  # noqa: S311 - a test
    names = [f"job{number}" for number in range(max(KILLS // 3, 3))]
    workers: list[int] = []
    try:
        for kill in range(KILLS):
            while len(workers) < WORKERS:
                at = kill * len(names) // KILLS
                workers.append(start(yard, names[at : at + 3], chance.randrange(2**32)))
            more = yard.effects.stat().st_size + chance.randrange(40)
            deadline = time.monotonic() + 0.2
            while yard.effects.stat().st_size < more and time.monotonic() < deadline:
                time.sleep(chance.random() / 500)
            victim = workers.pop(chance.randrange(WORKERS))
            os.kill(victim, signal.SIGKILL)
            assert os.waitpid(victim, 0)[1] == signal.SIGKILL, "it ended by itself"
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    store = open_store(url)
    unknown = sum(yard.finish(store, name) for name in names)
    counted = Counter(yard.happened())
    assert counted == {f"{name}:{number}": 1 for name in names for number in range(WRITES)}
    listed = {info.run for info in store.runs()}
    for info in store.runs():
        trace = store.read(info.run)
        if trace.data:
            started = check_events(trace.data, trace.where)[0]
            assert started["source"] is None or started["source"] in listed
        check_attested(trace)
    if not url.count("://"):
        traces = Path(url, "runs").glob("*.jsonl")  # one without a line never began
        assert listed == {path.stem for path in traces if b"\n" in path.read_bytes()}
    print(f"{KILLS} killed, {len(listed)} runs, {unknown} unknown")
