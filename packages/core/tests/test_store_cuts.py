"""A process that is killed at any byte of anything that the store writes: nothing lost or doubled.

The same program runs in forked children, one for each place at which it can be cut: before each
call of the system that changes a file, and inside of each write. What is left is opened again.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings
from rollcage import GovernanceError, StoreError, UnknownOutcome, compensate, tool
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder, newest_run
from rollcage.trace import check_events
from rollcage_governance import Registry

pytestmark = pytest.mark.slow

CHANGES = ("open", "mkdir", "link", "replace", "rename", "unlink", "ftruncate")
WRITES = ("write", "pwrite")
CUT, ENDED = 17, 0
BLOB = "x" * 70_000

Program = Callable[[JsonlStore], None]

here: list[Path] = []  # the world that the tools change: a folder, with a file for each number


@pytest.fixture(autouse=True)
def world(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "world"
    folder.mkdir()
    here.append(folder)
    yield folder
    here.clear()


def numbers() -> list[int]:
    return sorted(int(path.name) for path in here[0].iterdir())


@tool(effect="write", name="cuts.take")
def take(number: int) -> None:
    builtin.unlink(here[0] / str(number))  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose


@tool(
    effect="write",
    name="cuts.put",
    observe=lambda args: {str(args["number"]): {"there": (here[0] / str(args["number"])).exists()}},
    undo=lambda args: [compensate(take, number=args["number"])],
)
def put(number: int) -> int:
    os.close(builtin.open(here[0] / str(number), os.O_CREAT | os.O_EXCL))  # or it is done twice  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose
    return number


@tool(effect="pure", name="cuts.large")
def large(text: str) -> str:
    return text


@tool(effect="pure", name="cuts.login", secret="password")
def login(password: str) -> int:
    return len(password)


# --- the cut -------------------------------------------------------------------------------------


class _Builtin:
    """The calls of the system as they are, for the world and for the cut itself."""

    open, unlink, write, pwrite = os.open, os.unlink, os.write, os.pwrite


builtin = _Builtin


class Cutter:
    """Counts the places at which this process could be killed, and ends it at one of them."""

    def __init__(self, at: int | None, *, every_byte: bool) -> None:
        self.at = at
        self.places = 0
        self._every_byte = every_byte
        for name in CHANGES:
            setattr(os, name, self._whole(getattr(os, name), opens=name == "open"))
        for name in WRITES:
            setattr(os, name, self._torn(getattr(os, name)))

    def _whole(self, change: Callable[..., Any], *, opens: bool) -> Callable[..., Any]:
        def changed(*args: Any, **words: Any) -> Any:
            if not opens or args[1] & (os.O_CREAT | os.O_TRUNC):
                self._place(lambda: None)
            return change(*args, **words)

        return changed

    def _torn(self, write: Callable[..., int]) -> Callable[..., int]:
        def written(descriptor: int, data: bytes, *offset: int) -> int:
            some = range(len(data)) if self._every_byte and len(data) < 4096 else (
                0, 1, len(data) // 2, len(data) - 1
            )  # fmt: skip
            for size in sorted({each for each in some if 0 <= each < len(data)}):
                self._place(functools.partial(write, descriptor, data[:size], *offset))
            return write(descriptor, data, *offset)

        return written

    def _place(self, last: Callable[[], Any]) -> None:
        if self.places == self.at:
            last()
            os._exit(CUT)
        self.places += 1


def cut(store: JsonlStore, program: Program, at: int | None, *, every_byte: bool) -> int:
    """Run a program in a child that is cut there; how it ended, or how many places there are."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            cutter = Cutter(at, every_byte=every_byte)
            program(store)
            builtin.write(into, str(cutter.places).encode())  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose
            status = ENDED
        finally:
            os._exit(status)
    os.close(into)
    with os.fdopen(out, "rb") as said:
        places = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # A line that holds a time is not always as long: the last place may lie beyond the end.
    assert status == ENDED if at is None else status in (CUT, ENDED), (at, status)
    return int(places or 0)


# --- the programs --------------------------------------------------------------------------------


def job(store: JsonlStore) -> None:
    with Session("job", store=store):
        put(1)
        large(BLOB)
        login("hunter2")
        put(2)


def job_on_disk(store: JsonlStore) -> None:
    with Session("job", store=store, durability="disk"):
        put(1)
        put(2)


def goes_wrong(store: JsonlStore) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        put(1)
        raise KeyError


def torn(store: JsonlStore) -> None:
    goes_wrong(store)
    (path,) = (store.root / "runs").glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"event":"step.st')
    with (store.root / "index.jsonl").open("ab") as file:
        file.write(b'{"run":"0')


def damaged_index(store: JsonlStore) -> None:
    goes_wrong(store)
    with (store.root / "index.jsonl").open("ab") as file:
        file.write(b"garbage\n")


def nothing(store: JsonlStore) -> None:
    """A store that is not there yet."""


def finished(store: JsonlStore) -> bool:
    """Whether the newest run has its last line."""
    newest = newest_run(store.runs(), "job")
    if newest is None:
        return False
    trace = store.read(newest.run)
    return any(event["event"] == "run.finished" for event in check_events(trace.data, trace.where))


def go_on(store: JsonlStore, program: Program) -> None:
    """Open the job again, and say what became of what nobody can tell, until it ends."""
    for _ in range(4):
        try:
            program(store)
        except UnknownOutcome as unknown:
            say(store, unknown)
        else:
            return
    pytest.fail("it never came to an end")


def say(store: JsonlStore, unknown: UnknownOutcome) -> None:
    trace = store.read(unknown.run)
    (started,) = [
        event
        for event in check_events(trace.data, trace.where)
        if event["event"] == "step.started" and event["step"] == unknown.step
    ]
    happened = started["args"]["number"] in numbers()
    outcome: dict[str, Any] = {"status": "not_started"}
    if happened:
        outcome = {"status": "ok", "value": started["args"]["number"]}
    writer = store.reopen(unknown.run)
    try:
        writer.append(
            {
                "event": "step.resolved",
                "time": 0,
                "step": unknown.step,
                "by": "operator",
                "outcome": outcome,
                "digest": sha256(orjson.dumps(outcome)).hexdigest(),
            }
        )
        if trace.info is not None and trace.info.status is not None:
            writer.attest(trace.info.status)
    finally:
        writer.close()


def each_cut(
    tmp_path: Path, before: Program, program: Program, *, every_byte: bool = False
) -> Iterator[JsonlStore]:
    """A store for each place at which a program can be cut, cut there."""
    world = here[0]

    def fresh(name: str) -> JsonlStore:
        here[0] = world / name
        here[0].mkdir()
        store = JsonlStore(tmp_path / name / "store")
        before(store)
        return store

    places = cut(fresh("whole"), program, None, every_byte=every_byte)
    assert places > 10
    step = max(1, places // (2 * settings().max_examples)) if every_byte else 1
    for at in range(0, places, step):
        store = fresh(str(at))
        cut(store, program, at, every_byte=every_byte)
        yield store


JOBS = [
    (nothing, job), (nothing, job_on_disk), (goes_wrong, job), (torn, job), (damaged_index, job),
]  # fmt: skip


@pytest.mark.parametrize(("before", "program"), JOBS)
def test_a_job_is_done_once(tmp_path: Path, before: Program, program: Program) -> None:
    check_jobs(tmp_path, before, program, every_byte=False)


@pytest.mark.law
@pytest.mark.parametrize(("before", "program"), JOBS)
def test_at_every_byte(tmp_path: Path, before: Program, program: Program) -> None:
    """In CI at some hundred of them, evenly spread; at each with `nox -s laws`."""
    check_jobs(tmp_path, before, program, every_byte=True)


def check_jobs(tmp_path: Path, before: Program, program: Program, *, every_byte: bool) -> None:
    for store in each_cut(tmp_path, before, program, every_byte=every_byte):
        status = {info.run: info.status for info in store.runs()}
        if finished(store) and "ok" in status.values():
            assert numbers() == [1, 2]
            with Session("job", store=store, replay="continue") as again:
                put(1)
                put(2)
            assert again.stats.hits == 2
        else:
            assert "ok" not in status.values()
            go_on(store, program)
        assert numbers() == [1, 2]
        assert store.runs()[-1].status == "ok"
        found = store.repair()
        assert (found.damaged, found.lost, found.unreadable) == ((), (), ())


def undone(store: JsonlStore) -> None:
    assert undo_run(store, store.runs()[0].run, to=1, in_doubt="restore").complete


def test_an_undo_takes_back_once(tmp_path: Path) -> None:
    for store in each_cut(tmp_path, job_on_disk, undone):
        undone(store)
        assert numbers() == [1]
        assert store.runs()[0].status == "undone"
        with Session("job", store=store) as session:
            assert [put(1), put(2)] == [1, 2]
        assert (session.stats.hits, session.stats.misses) == (1, 1)


def abandoned(store: JsonlStore) -> None:
    if store.runs()[0].status != "abandoned":
        abandon_run(store, store.runs()[0].run)


def test_a_run_is_set_aside_or_not(tmp_path: Path) -> None:
    for store in each_cut(tmp_path, goes_wrong, abandoned):
        abandoned(store)
        with Session("job", store=store) as session:
            put(2)
        assert (session.stats.hits, session.stats.misses) == (0, 1)


# --- what lies beside the traces -----------------------------------------------------------------


def beside(store: JsonlStore) -> None:
    """All that a store keeps beside its traces, each done where it is not done yet."""
    run = store.runs()[0].run
    key = store.secret_key()
    assert len(key) == 32
    store.put_blob(sha256(b"large").hexdigest(), b"large")
    assert store.get_blob(sha256(b"large").hexdigest()) == b"large"
    store.put_once("approvals", "0123456789abcdef.request", b'{"whole": true}')
    assert store.get("approvals", "0123456789abcdef.request") == b'{"whole": true}'
    registry = Registry(store)
    with contextlib.suppress(GovernanceError):  # it was proposed
        registry.propose(put, by="ann")
    with contextlib.suppress(GovernanceError):  # it was approved
        registry.approve("cuts.put", by="bob")
    assert registry.tool("cuts.put").pin is not None
    store.stop(StopOrder(run, "ann", "enough", 1))
    assert store.stop_order(run) == StopOrder(run, "ann", "enough", 1)
    assert store.lift(run)
    assert store.stop_order(run) is None


def test_what_lies_beside_is_whole_or_not_there(tmp_path: Path) -> None:
    for store in each_cut(tmp_path, goes_wrong, beside):
        order = store.stop_order(store.runs()[0].run)
        assert order is None or order.by == "ann"
        before = (store.root / "key").exists() and store.secret_key()
        beside(store)
        assert before is False or store.secret_key() == before
        go_on(store, job_on_disk)
        assert numbers() == [1, 2]


# --- files that are cut afterwards ---------------------------------------------------------------


def cuts_of(data: bytes) -> list[int]:
    """Where a file is cut: around the end of each line, and here and there between."""
    ends = [at + 1 for at in range(len(data)) if data[at : at + 1] == b"\n"]
    near = {end + by for end in ends for by in (-1, 0, 1)}
    return sorted({0, 1, *range(7, len(data), 41), *near} & {*range(len(data))})


def test_an_index_that_is_cut_anywhere_tells_the_same(store: JsonlStore) -> None:
    job_on_disk(store)
    undone(store)
    here[0] = here[0] / "other"
    here[0].mkdir()
    goes_wrong(JsonlStore(store.root))
    with Session("other", store=store):
        large("small")
    index = store.root / "index.jsonl"
    whole = index.read_bytes()
    told = [(info.run, info.name, info.status) for info in store.runs()]
    assert [status for _, _, status in told] == ["undone", "error", "ok"]
    for size in range(len(whole)):
        index.write_bytes(whole[:size])
        assert [(info.run, info.name, info.status) for info in store.runs()] == told, size


@pytest.mark.damaged
def test_whatever_file_is_cut_the_next_session_is_right_or_says_why_not(
    store: JsonlStore,
) -> None:
    goes_wrong(store)
    beside(store)
    with Session("other", store=store):
        login("hunter2")
    files = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert len(files) >= 8
    cut_off = [(path, size) for path, data in files.items() for size in cuts_of(data)]
    wrong = newest_run(store.runs(), "job")
    assert wrong is not None
    for path, size in cut_off:
        path.write_bytes(files[path][:size])
        try:
            with Session("job", store=store) as session:
                assert put(1) == 1  # never done again: its file would be in the way
                login("hunter2")
            assert session.stats.hits >= 1
        except StoreError as error:
            named = path.name.partition(".")[0] in str(error)
            assert named, (path, size, error)  # noqa: PT017 - or it goes well
        for made in [p for p in store.root.rglob("*") if p.is_file() and p not in files]:
            made.unlink()
        for each, data in files.items():
            each.write_bytes(data)
        assert numbers() == [1]
