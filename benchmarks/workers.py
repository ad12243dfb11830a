"""Measure workers beside DBOS alone and embedded runs: `python -m benchmarks --workers`.

Each figure is taken in a process of its own, which is worker, sender and observer at once. CPU is
that process's and the PostgreSQL server's together, with those of its processes that have ended.
Compared cases take turns; a figure is the median of the rounds, a ratio that of the rounds' own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from unittest.mock import patch

from benchmarks.stores import postgres
from benchmarks.workflow import AT_ONCE, ROOT, STEPS, Found, bare, table

__all__ = ["main", "measure"]

T = TypeVar("T")

_CASE: Final = "ROLLCAGE_BENCH_CASE"
_BEGINNING: Final = 300.0  # seconds after which an execution that has not begun never will
_SETTLED: Final = 3.0  # seconds after which a worker does what it does from then on
_LATER: Final = 10 * 365 * 86_400.0
_CLIENTS: Final = """SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""


class _Case(NamedTuple):
    """Hold what a child process is to measure.

    Attributes:
        do: its name in `_CASES`.
        store: the URL or folder of the store.
        engine: the URL of the engine's database; empty without one.
        server: the URL of the PostgreSQL whose CPU counts too; empty without one.
        number: how many executions, or open commands.
        seconds: for how long a worker is watched.
        name: begins the ids of its executions.
    """

    do: str
    store: str
    engine: str = ""
    server: str = ""
    number: int = AT_ONCE
    seconds: float = 0.0
    name: str = "timed"


# --- the measures, each in a process of its own ---------------------------------------------------


class _Meter:
    """The CPU of this process and of a PostgreSQL server on this machine (s)."""

    def __init__(self, url: str) -> None:
        self._postmaster = _postmaster(url) if url else 0

    def __call__(self) -> float:
        return time.process_time() + (self._server() if self._postmaster else 0.0)

    def _server(self) -> float:
        at = Path("/proc", str(self._postmaster))
        children = (at / "task" / str(self._postmaster) / "children").read_text().split()
        live = sum(_ran(each) for each in children)
        fields = (at / "stat").read_text().rpartition(")")[2].split()
        ticks = sum(int(each) for each in fields[11:15])  # its own, and those of ended children
        return live + ticks / os.sysconf("SC_CLK_TCK")


def _postmaster(url: str) -> int:
    import psycopg

    with psycopg.connect(url) as db:
        row = db.execute("SHOW data_directory").fetchone()
    assert row is not None
    return int(Path(row[0], "postmaster.pid").read_text().splitlines()[0])


def _ran(process: str) -> float:
    try:
        return int(Path("/proc", process, "schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):  # it has ended: its parent has its time
        return 0.0


class _Begun:
    """The tool of the plan's steps, which knows when it was called first."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.at = 0.0

    def tool(self) -> Any:
        from rollcage import tool

        @tool(effect="write", idempotent=True, name="bench.workers.write")
        async def write(number: int) -> int:
            if not self.first.is_set():
                self.at = time.perf_counter()
                self.first.set()
            return number

        return write

    def after(self, since: float) -> float:
        """Return after how many seconds it was called; the limit if that is too long."""
        self.first.wait(_BEGINNING)
        return self.at - since if self.first.is_set() else _BEGINNING


def _plan() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in range(STEPS):
        step: dict[str, Any] = {"call": "bench.workers.write", "args": {"number": number}}
        found[f"s{number}"] = step | ({"after": [f"s{number - 1}"]} if number else {})
    return {"name": "four", "steps": found}


class _Worker:
    """A worker in this process, and a thread that asks it for executions."""

    def __init__(self, case: _Case) -> None:
        from rollcage_workflow.engine import Engine

        self.begun = _Begun()
        self.engine = Engine(
            case.engine or None,
            store=case.store,
            plans=[_plan()],
            tools=[self.begun.tool()],
            concurrency=AT_ONCE,
        )
        self.meter = _Meter(case.server)

    def while_it_serves(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, which is called while the worker serves."""
        stop = threading.Event()

        def asked() -> T:
            try:
                return ask()
            finally:
                stop.set()

        with concurrent.futures.ThreadPoolExecutor(1) as side:
            found = side.submit(asked)
            self.engine.serve(stop, grace=5)
            return found.result()

    def start(self, name: str) -> None:
        self.begun.first.clear()
        assert self.engine.start("four", id=name, by="bench")

    def run(self, number: int, name: str, look: Callable[[], object] = int) -> None:
        """Have executions run, and wait for their results."""
        there = self._results() + number
        for each in range(number):
            self.start(f"{name} {each}")
        until = time.monotonic() + _BEGINNING
        while self._results() < there:
            assert time.monotonic() < until, f"{name}: {there - self._results()} have no result"
            look()
            time.sleep(0.1)

    def a_second(self, seconds: float) -> float:
        """Return the CPU of a second in which nothing is due (s)."""
        before, at = self.meter(), time.perf_counter()
        time.sleep(seconds)
        return (self.meter() - before) / (time.perf_counter() - at)

    def _results(self) -> int:
        return len(self.engine.store.keys("results", limit=100_000))


def embedded(case: _Case) -> dict[str, float]:
    """Measure executions at once, in this process and without commands (CPU of one, ms)."""
    from rollcage import open_store
    from rollcage_workflow import check, run

    checked, store = check(_plan(), [_Begun().tool()]), open_store(case.store)
    meter = _Meter(case.server)

    async def together(name: str, number: int) -> None:
        for first in range(0, number, AT_ONCE):
            ids = [f"{name} {each}" for each in range(first, min(first + AT_ONCE, number))]
            await asyncio.gather(*(run(checked, id=id_, store=store) for id_ in ids))

    async def twice() -> float:
        await together("warm-up", AT_ONCE)
        before = meter()
        await together(case.name, case.number)
        return (meter() - before) / case.number * 1000

    return {"one": asyncio.run(twice())}


def worker(case: _Case) -> dict[str, float]:
    """Measure executions that are asked for by command and run by one worker (CPU of one, ms)."""
    works = _Worker(case)

    def ask() -> float:
        works.run(5, "warm-up")
        before = works.meter()
        works.run(case.number, case.name)
        return (works.meter() - before) / case.number * 1000

    return {"one": works.while_it_serves(ask)}


def dbos(case: _Case) -> dict[str, float]:
    """Measure the same four steps as a workflow of DBOS, enqueued and run (CPU of one, ms)."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": case.server or case.engine,
            "dbos_system_schema": case.name,
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    async def write(number: int) -> int:
        return number

    @DBOS.workflow()
    async def four() -> int:
        for number in range(STEPS):
            await write(number)
        return STEPS

    def run(number: int) -> None:
        asked = [DBOS.enqueue_workflow("four", four) for _ in range(number)]
        assert [each.get_result() for each in asked]

    meter = _Meter(case.server)
    DBOS.launch()
    DBOS.register_queue("four", worker_concurrency=AT_ONCE, polling_interval_sec=1.0)
    try:
        run(5)
        before = meter()
        run(case.number)
        return {"one": (meter() - before) / case.number * 1000}
    finally:
        DBOS.destroy()


def fill(case: _Case) -> dict[str, float]:
    """Give a store commands that are not due for years; or due ones, of a plan that no one has."""
    from rollcage import open_store
    from rollcage_workflow.orders import Commands

    commands = Commands(open_store(case.store))
    plan, at = ("four", time.time() + _LATER) if case.name == "later" else ("foreign", 0.0)
    for number in range(case.number):
        assert commands.start(plan, id=f"{case.name} {number}", by="bench", at=at)
    return {}


def waiting(case: _Case) -> dict[str, float]:
    """Measure a worker among the commands of the store: its beginning, its looks, a start."""
    if case.engine:
        import rollcage_workflow.engine.transact  # noqa: F401 - loading it is no part of serving
    works = _Worker(case)
    works.start(f"{case.name} at first")
    began = time.perf_counter()

    def ask() -> dict[str, float]:
        up = works.begun.after(began)
        time.sleep(_SETTLED)
        look = works.a_second(case.seconds)
        later: list[float] = []
        for number in range(5):
            time.sleep(0.37)  # not in step with its looks
            since = time.perf_counter()
            works.start(f"{case.name} {number}")
            later.append(works.begun.after(since))
        return {"up": up, "look": look * 1000, "later": statistics.median(later)}

    return works.while_it_serves(ask)


def foreign(case: _Case) -> dict[str, float]:
    """Measure a worker among the commands of a plan that it lacks: takes, and CPU, of a minute."""
    from rollcage_workflow.engine.worker import Worker

    works, take, keys = _Worker(case), Worker.take, list[str]()

    async def counted(self: Worker, key: str) -> str:
        keys.append(key)
        return await take(self, key)

    def ask() -> dict[str, float]:
        time.sleep(max(case.seconds, _SETTLED))  # an engine takes its time to come up
        before = len(keys)
        cpu = works.a_second(case.seconds)
        return {"takes": (len(keys) - before) / case.seconds * 60, "cpu": cpu * 60}

    with patch.object(Worker, "take", counted):
        return works.while_it_serves(ask)


def connections(case: _Case) -> dict[str, float]:
    """Measure how many connections to the server a worker has, at rest and at work."""
    import psycopg

    works, most = _Worker(case), 0
    with psycopg.connect(case.server, autocommit=True) as db:

        def look() -> int:
            nonlocal most
            row = db.execute(_CLIENTS).fetchone()
            assert row is not None
            most = max(most, row[0])
            return int(row[0])

        def looks(stop: threading.Event) -> None:
            while not stop.wait(0.01):
                look()

        def ask() -> dict[str, float]:
            works.run(5, "warm-up")
            time.sleep(_SETTLED)
            idle, stop = look(), threading.Event()
            with concurrent.futures.ThreadPoolExecutor(1) as side:
                done = side.submit(looks, stop)
                works.run(case.number, case.name)
                stop.set()
                done.result()
            return {"idle": idle, "busy": most}

        return works.while_it_serves(ask)


def recorded(case: _Case) -> dict[str, float]:
    """Measure as many recorded writes as an execution has steps (CPU, ms)."""
    return {"one": bare(case.number * STEPS, case.store)["step"] * STEPS / 1000}


def floor(case: _Case) -> dict[str, float]:
    """Measure the floor of as many writes, each four brought to the disk together (CPU, ms)."""
    from benchmarks.floor import Floor
    from benchmarks.workload import mail

    log = Floor(Path(f"{case.store}.jsonl"))
    given = [mail(number) for number in range(case.number * STEPS)]
    before = time.process_time()
    for first in range(0, len(given), STEPS):
        for each in given[first : first + STEPS]:
            log.write(each)
        log.sync()
    return {"one": (time.process_time() - before) / case.number * 1000}


_CASES: Final[Mapping[str, Callable[[_Case], dict[str, float]]]] = {
    each.__name__: each
    for each in (
        embedded, worker, dbos, fill, waiting, foreign, connections, recorded, floor,
    )
}  # fmt: skip


# --- the figures ----------------------------------------------------------------------------------

_Rounds = Mapping[str, Sequence[Mapping[str, float]]]


class _Places:
    """Make new stores and databases in a folder and on a server."""

    def __init__(self, folder: Path, new: Callable[[], str]) -> None:
        self._folder, self._new, self._number = folder, new, 0
        self.server = new().partition("&schema=")[0]

    def store(self, kind: str) -> str:
        self._number += 1
        at = self._folder / f"store{self._number}"
        return {"files": str(at), "SQLite": f"sqlite:///{at}.db"}.get(kind) or self._new()

    def engine(self, kind: str) -> str:
        self._number += 1
        if kind == "SQLite":
            return f"sqlite:///{self._folder}/engine{self._number}.db"
        return f"{self.server}&schema=engine{self._number}"

    def schema(self) -> str:
        self._number += 1
        return f"alone{self._number}"


def measure(*, quick: bool = False) -> list[Found]:
    """Measure all figures; `quick` only shows that they can be measured."""
    rounds, number, lots, many, seconds = (
        (1, 2, 20, 20, 1.0) if quick else (3, 60, 10_000, 400, 10.0)
    )
    took: dict[str, list[dict[str, float]]] = {}
    # the folders are kept until the end: see `workflow.measure`
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path()) as at, postgres() as new:
        places = _Places(Path(at).absolute(), new)

        def take(what: str, case: _Case) -> None:
            print(f"round {round_ + 1}/{rounds}: {what}", file=sys.stderr)
            took.setdefault(what, []).append(_child(case))

        round_, full = 0, {}
        for kind in ("files", "PostgreSQL"):
            for name, count in (("later", lots), ("foreign", many)):
                full[kind, name] = places.store(kind)
                take("fill", _Case("fill", full[kind, name], number=count, name=name))
        for round_ in range(rounds):
            take("recorded", _Case("recorded", places.store("files"), number=number))
            take("floor", _Case("floor", places.store("files"), number=number))
            for kind in ("files", "SQLite", "PostgreSQL"):
                server = places.server if kind == "PostgreSQL" else ""
                one = _Case("embedded", places.store(kind), server=server, number=number)
                take(f"embedded, {kind}", one)
                one = _Case("worker", places.store(kind), server=server, number=number)
                take(f"worker, {kind}", one)
                if kind != "files":
                    one = one._replace(store=places.store(kind), engine=places.engine(kind))
                    take(f"engine, {kind}", one)
            alone = _Case("dbos", "", server=places.server, number=number, name=places.schema())
            take("DBOS", alone)
            for kind in ("files", "PostgreSQL"):
                for what, do, store in (
                    ("none", "waiting", places.store(kind)),
                    ("lots", "waiting", full[kind, "later"]),
                    ("no foreign", "foreign", places.store(kind)),
                    ("foreign", "foreign", full[kind, "foreign"]),
                ):
                    one = _Case(do, store, seconds=seconds, name=f"due {round_}")
                    if kind != "files":
                        one = one._replace(engine=places.engine(kind), server=places.server)
                    take(f"{what}, {kind}", one)
            place = places.store("PostgreSQL"), places.engine("PostgreSQL"), places.server
            take("connections", _Case("connections", *place))
    return _figures(took, lots, many)


def _figures(took: _Rounds, lots: int, many: int) -> list[Found]:
    def each(name: str, measure: str = "one") -> list[float]:
        return [found[measure] for found in took[name]]

    def figure(name: str, measure: str = "one") -> float:
        return statistics.median(each(name, measure))

    def ratio(name: str, to: str, measure: str = "one") -> float:
        pairs = zip(each(name, measure), each(to, measure), strict=True)
        return statistics.median(one / other for one, other in pairs)

    found = [Found("CPU of four steps: DBOS alone, PostgreSQL", figure("DBOS"), "ms")]
    for kind in ("files", "SQLite", "PostgreSQL"):
        what = f"CPU of four steps: embedded, {kind}"
        found.append(Found(what, figure(f"embedded, {kind}"), "ms"))
        names = {f"worker, {kind}": f"a worker, {kind}"}
        if kind != "files":
            names[f"engine, {kind}"] = f"a worker with an engine, {kind}"
        for name, said in names.items():
            what = f"CPU of four steps: {said}"
            found.append(Found(what, figure(name), "ms"))
            bound = None if kind == "PostgreSQL" else 3
            to = ratio(name, f"embedded, {kind}")
            found.append(Found(f"{what}, to embedded", to, "x", bound))
    name = "engine, PostgreSQL"
    what = "CPU of four steps: a worker with an engine, PostgreSQL, to DBOS alone"
    found.append(Found(what, ratio(name, "DBOS"), "x", 0.5))
    for kind in ("files", "PostgreSQL"):
        for case, said, is_bound in (("none", "nothing", False), ("lots", f"{lots:,}", True)):
            what, name = f"{said} open, {kind}", f"{case}, {kind}"
            for measure, told, unit, bound in (
                ("look", "CPU of one look", "ms", 5),
                ("up", "a worker comes up: its first execution begins after", "s", 1),
                ("later", "a worker is up: an execution begins after", "s", 1),
            ):
                to_reach = bound if is_bound else None
                found.append(Found(f"{what}: {told}", figure(name, measure), unit, to_reach))
    for kind in ("files", "PostgreSQL"):
        what, name = f"{many} open of a plan that the worker lacks, {kind}", f"foreign, {kind}"
        found += [
            Found(f"{what}: takes a minute", figure(name, "takes"), "", 0),
            Found(f"{what}: CPU a minute", figure(name, "cpu") * 1000, "ms"),
            Found(f"{what}: CPU, to none", ratio(name, f"no {name}", "cpu"), "x", 1.1),
        ]
    found += [
        Found("connections of a worker at rest", figure("connections", "idle"), "", 5),
        Found(f"connections of a worker, {AT_ONCE} attempts", figure("connections", "busy"), "", 5),
    ]
    what, name = f"{AT_ONCE} executions at once, CPU of one", "embedded, files"
    return [
        *found,
        Found(f"{what}, to {STEPS} bare writes, brought to the disk", ratio(name, "floor"), "x", 4),
        Found(f"{what}, to {STEPS} recorded writes", ratio(name, "recorded"), "x"),
    ]


def _child(case: _Case) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.workers"]
    told = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "PYTHONHASHSEED": "0"}
    env = {**os.environ, **told, _CASE: json.dumps(case._asdict())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


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
    asked = _Case(**json.loads(os.environ[_CASE]))
    print(json.dumps(_CASES[asked.do](asked)))
