"""Workers that are killed at any moment: `python -m fleet` (`nox -s workers`), and a few in tests.

What is asked each time: is anything lost, is anything done twice, is what failed rolled back whole.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fleet_plans
from parts import requests_in
from postgres import server
from random_plans import Expected, Generator, is_right
from rollcage import Approval, ApprovalQueue, Store, open_store
from rollcage.errors import ApprovalInvalid
from rollcage_workflow import Execution, execution
from rollcage_workflow.engine import Engine, board, transact
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals

LIMIT = 600.0  # seconds, after which something hangs
MIXES = 40  # random plans that each worker has
_PLACES = ("sqlite", "postgres", "files")
_ASKED = 0.3  # seconds between two looks at what is asked
_LINE = 69  # bytes of a line in the world: a sign, a key and a name


def _serve(
    world: Path, store: str, engine: str | None, concurrency: int, is_reckless: bool
) -> None:
    """A worker; in a process that has all that it imports by now.

    One that is reckless takes whatever another worker is at, though that has the run's lock.
    """
    if is_reckless:
        for module, name, value in (  # what an operator could do wrong
            (transact, "_SURE", 0),
            (transact, "is_live", lambda *_: False),
            (board, "is_live", lambda *_: False),
        ):
            setattr(module, name, value)
    fleet_plans.WORLD = world
    mixes = [Generator(number, asks=True).plan() for number in range(MIXES)]
    plans: list[Any] = [
        fleet_plans.kills,
        fleet_plans.blinds,
        fleet_plans.chaos,
        *(mix[0] for mix in mixes),
    ]
    inner = {name: plan for mix in mixes for name, plan in mix[1].items()}
    tools: list[Any] = [
        fleet_plans.mark,
        fleet_plans.blind,
        fleet_plans.breaks,
        fleet_plans.take_back,
    ]
    made = Engine(engine, store=store, plans=plans, workflows=inner, tools=tools, every=0.1,
                  patience=0.1, concurrency=concurrency)  # fmt: skip
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    made.serve(stop, grace=20.0)


Steer = Callable[[], bool]


class Fleet:
    """Workers of one store, each a process.

    Args:
        folder: of the world.
        store: its URL.
        engine: the URL of the scheduler's database; None: without one.
        seed: of when they are killed.
        is_reckless: whether each takes what others are at.
    """

    def __init__(
        self, folder: Path, store: str, engine: str | None, seed: int, *, is_reckless: bool
    ) -> None:
        self.world = folder / "world"
        self.world.mkdir(parents=True)
        self.url = store
        self.store: Store = open_store(store)
        self.commands = Commands(self.store)
        self.engine = engine
        self.is_reckless = is_reckless
        self.chance = random.Random(seed)  # noqa: S311 - reproducible moments
        self.workers: list[BaseProcess] = []
        self.kills = 0

    def worker(self) -> BaseProcess:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fleet_plans", "rollcage_workflow.engine.transact"])
        given = (self.world, self.url, self.engine, 10, self.is_reckless)
        started = context.Process(target=_serve, args=given)
        with patch.dict(os.environ):
            # Not measured, which takes twice as long: what is forked tells nothing of its lines.
            os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
            started.start()
        self.workers.append(started)
        return started

    def done(self) -> int:
        """How many lines stand in the world, by their bytes."""
        return sum(path.stat().st_size for path in self.world.iterdir()) // _LINE

    def start(self, plan: str, count: int, **inputs: object) -> list[str]:
        ids = [f"{plan}-{n}" for n in range(count)]
        for n, each in enumerate(ids):
            given = {name: value(n) if callable(value) else value for name, value in inputs.items()}
            self.commands.start(plan, {"where": each, **given}, id=each, by="carl")
        return ids

    def kill_until_done(self, *, kills: int, every: int, steer: Steer = lambda: False) -> None:
        """SIGKILL a worker after about so many effects, a new one for each, until all is over.

        `steer` is called again and again in between; all is not over while it gives true.
        """
        began, wanted, next_ = time.monotonic(), len(self.workers), self.chance.randint(1, every)
        looked = began
        while steer() or self.commands.open_keys():
            assert time.monotonic() - began < LIMIT, f"these hang: {self.commands.open_keys()}"
            time.sleep(0.01)
            if time.monotonic() - looked > _ASKED:
                looked = time.monotonic()
                self.approve()
            if self.kills < kills and self.done() >= next_:
                victim = self.workers.pop(self.chance.randrange(len(self.workers)))
                victim.kill()
                victim.join()
                self.kills += 1
                next_ = self.done() + self.chance.randint(1, 2 * every)
            while len(self.workers) < wanted:
                self.worker()

    def approve(self) -> None:
        """Say yes to all that is asked."""
        queue = ApprovalQueue(self.store)
        for each in requests_in(queue.store):
            found = queue.get(each)
            if found is not None and queue.decision(found) is None:
                with contextlib.suppress(ApprovalInvalid):  # it was cancelled meanwhile
                    queue.decide(each, Approval(True, by="bob"))

    def job(self, id_: str) -> Execution:
        return execution(self.store, id_)

    def close(self) -> None:
        for each in self.workers:
            each.terminate()
        for each in self.workers:
            each.join(60)
            if each.is_alive():
                each.kill()
                each.join()

    def standing(self, where: str) -> Counter[str]:
        """What stands in the world of an execution, by what it is, and how often."""
        path = self.world / where
        found = Counter[str]()
        for line in path.read_text().splitlines() if path.exists() else ():
            found[line.rpartition(":")[2]] += 1 if line[0] == "+" else -1
        return found


@contextlib.contextmanager
def fleet(
    folder: Path,
    *,
    seed: int,
    workers: int,
    postgres: str | None,
    in_files: bool = False,
    is_reckless: bool = False,
) -> Iterator[Fleet]:
    """Workers in a folder, on SQLite, on a PostgreSQL server (its URL), or on files of JSON."""
    name = f"fleet_{seed}_{os.getpid()}"
    join = "&" if postgres and "?" in postgres else "?"
    store = f"sqlite:///{folder}/runs.db" if postgres is None else f"{postgres}{join}schema={name}"
    url: str | None = f"sqlite:///{folder}/engine.db"
    if postgres is not None:
        url = f"{postgres}{join}schema={name}_engine"
    if in_files:
        store, url = f"{folder}/store", None
    made = Fleet(folder, store, url, seed, is_reckless=is_reckless)
    try:
        for _ in range(workers):
            made.worker()
        yield made
    finally:
        made.close()


def check_kills(made: Fleet, ids: list[str], steps: int) -> int:
    """Each step's effect stands once; how many there are."""
    effects = 0
    for each in ids:
        assert made.job(each).status == "completed", made.job(each)
        standing = made.standing(each)
        assert standing == {f"s{n}": 1 for n in range(steps)}, (each, standing)
        effects += standing.total()
    return effects


def check_blinds(made: Fleet, ids: list[str]) -> tuple[int, int]:
    """Nothing stands twice; how many effects there are, and how many executions halted."""
    halted = 0
    effects = 0
    for each in ids:
        found = made.job(each)
        assert found.status in ("completed", "halted"), found
        halted += found.status == "halted"
        standing = made.standing(each)
        assert max(standing.values(), default=0) <= 1, (each, standing)
        effects += standing.total()
    return effects, halted


def check_chaos(made: Fleet, ids: list[str], steps: int) -> int:
    """Each that failed is rolled back whole, every other one is whole; how many failed."""
    failed = 0
    for n, each in enumerate(ids):
        found, standing = made.job(each), +made.standing(each)
        if n % 2:
            failed += 1
            assert found.status == "rolled_back", found
            assert not standing, (each, standing)
        else:
            assert found.status == "completed", found
            assert standing == {f"s{n}": 1 for n in range(steps)}, (each, standing)
    return failed


def mix(n: int) -> tuple[str, dict[str, Any], Expected]:
    """The plan of the `n`-th execution, where it starts, and what stands when it has ended well."""
    made = Generator(n // 2 % MIXES, asks=True)
    plan, _, expected = made.plan()
    start, rest = made.start(plan, expected)
    return plan["name"], *((start, rest) if n % 3 == 0 else ({}, expected))


def start_mixed(made: Fleet, count: int) -> list[str]:
    """Executions of random plans, of which every other one fails; with the signals they want.

    Every third one starts at a step.
    """
    ids = [f"mixed-{n}" for n in range(count)]
    for n, each in enumerate(ids):
        for _ in range(20):
            Signals(made.store, each).send("go", n, by="carl")
        inputs = {"where": each, "fails": bool(n % 2)}
        plan, start, _ = mix(n)
        made.commands.start(plan, inputs, id=each, by="carl", **start)
    return ids


class Steering:
    """Pauses and resumes executions at random, and cancels some, which are then undone.

    Args:
        made: whose executions.
        ids: of those.
        most: how often, at the most.
    """

    def __init__(self, made: Fleet, ids: list[str], *, most: int) -> None:
        self._made = made
        self._ids = ids
        self._left = most
        self._next = 0.0
        self._paused: dict[str, float] = {}
        self.pauses = 0
        self.cancelled: set[str] = set()

    def __call__(self) -> bool:
        """Do something, if it is time; whether one is paused that is to be resumed."""
        now, commands, chance = time.monotonic(), self._made.commands, self._made.chance
        for each in [each for each, until in self._paused.items() if now >= until]:
            del self._paused[each]
            with contextlib.suppress(WorkflowError):  # it was over
                commands.resume(each, by="ann")
        if self._left and now >= self._next and commands.open_keys():
            self._left -= 1
            self._next = now + chance.uniform(0.05, 0.3)
            each = chance.choice(self._ids)
            with contextlib.suppress(WorkflowError):
                if chance.random() < 0.15:
                    commands.cancel(each, by="ann", rollback=True)
                    self.cancelled.add(each)
                elif each not in self._paused:
                    commands.pause(each, by="ann")
                    self._paused[each] = now + chance.uniform(0.0, 1.5)
                    self.pauses += 1
        return bool(self._paused)


def check_mixed(made: Fleet, ids: list[str], cancelled: Collection[str] = ()) -> tuple[int, int]:
    """Each that failed is rolled back whole, of the others stands what their plans leave.

    One that was `cancelled` is rolled back, too, unless it was over, or had not begun.

    Returns:
        How many effects there are, and how many executions failed.
    """
    effects = failed = 0
    for n, each in enumerate(ids):
        found, standing = made.job(each), made.standing(each)
        assert min(standing.values(), default=0) >= 0, (each, standing)
        if each in cancelled and found.status in ("rolled_back", "cancelled"):
            assert found.status == "rolled_back" or not found.run, (each, found)
            assert not +standing, (each, standing)
        elif n % 2:
            failed += 1
            assert found.status == "rolled_back", (each, found)
            assert not +standing, (each, standing)
        else:
            assert found.status == "completed", (each, found)
            expected = mix(n)[2]
            assert is_right(expected, +standing), (each, standing, expected)
        effects += (+standing).total()
    return effects, failed


def _one(what: str, made: Fleet, count: int, kills: int, every: int) -> str:
    """One kind of plan, with kills, and what came of it."""
    if what in ("mixed", "steered"):
        ids = start_mixed(made, count)
        steering = Steering(made, ids, most=200 if what == "steered" else 0)
        made.kill_until_done(kills=kills, every=every, steer=steering)
        effects, failed = check_mixed(made, ids, steering.cancelled)
        right = f"{effects} effects right, {failed} of {count} failed and rolled back whole"
        return f"{right}; {steering.pauses} pauses, {len(steering.cancelled)} cancelled"
    more = {"fails": lambda n: bool(n % 2)} if what == "chaos" else {}
    ids = made.start(what, count, **more)
    made.kill_until_done(kills=kills, every=every)
    if what == "kills":
        return f"{check_kills(made, ids, fleet_plans.STEPS)} effects, 0 lost, 0 doubled"
    if what == "chaos":
        failed = check_chaos(made, ids, fleet_plans.STEPS)
        return f"{failed} of {count} rolled back whole, the others whole"
    done, halted = check_blinds(made, ids)
    return f"{done} effects, 0 doubled, {halted} of {count} halted as unknown"


def main() -> None:
    """All of it, on SQLite, on PostgreSQL and on files, which need no engine."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workflows", type=int, default=50)
    parser.add_argument("--kills", type=int, default=12, help="in each")
    parser.add_argument("--every", type=int, default=60, help="effects between two kills")
    parser.add_argument("--only", choices=_PLACES)
    parser.add_argument("--plans", choices=["kills", "blinds", "chaos", "mixed", "steered"])
    given = parser.parse_args()
    counts = {"kills": given.workflows, "blinds": max(given.workflows // 4, 1), "chaos": 100}
    counts |= {"mixed": 2 * MIXES, "steered": 2 * MIXES}
    for place in _PLACES:
        if given.only not in (None, place):
            continue
        url = server() if place == "postgres" else None
        for seed in range(given.seeds):
            for number, (what, count) in enumerate(counts.items()):
                if given.plans not in (None, what):
                    continue
                began = time.monotonic()
                at = seed * 10 + number
                with (
                    tempfile.TemporaryDirectory() as folder,
                    fleet(
                        Path(folder), seed=at, workers=3, postgres=url, in_files=place == "files"
                    ) as made,
                ):
                    said = _one(what, made, count, given.kills, given.every)
                    took = f"{made.kills} kills, {time.monotonic() - began:.0f} s"
                    print(f"{place}, seed {seed}, {what}: {said}; {took}", flush=True)


if __name__ == "__main__":
    main()
