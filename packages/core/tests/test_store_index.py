"""The index is derived: lost, cut, damaged or behind, it stops nobody and makes nothing twice."""

import dataclasses
import functools
import logging
import os
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import RunInUse, StoreError, TraceCorrupt, compensate, tool
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store import (
    JsonlStore,
    RunInfo,
    at_once,
    disk,
    index_lines,
    index_reader,
    newest_run,
    places,
    system,
)
from rollcage.store.index import Index
from rollcage.store.index_reader import IndexReader
from rollcage.store.mark import Mark, Marked
from rollcage.trace.reader import ended

box: set[int] = set()


@tool(effect="write", name="index.take")
def take(number: int) -> None:
    box.discard(number)


@tool(
    effect="write",
    name="index.put",
    observe=lambda args: {"box": sorted(box)},
    undo=lambda args: [compensate(take, number=args["number"])],
)
def put(number: int) -> int:
    assert number not in box, "it was done twice"
    box.add(number)
    return number


@tool(effect="write", name="index.send")
def send(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def empty_box() -> None:
    box.clear()


@pytest.fixture(autouse=True)
def _remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has read of an index, it does not read again: here, from the first look on."""
    monkeypatch.setattr(places, "_FEW", 0)


def index(store: JsonlStore) -> Path:
    return store.root / "index.jsonl"


def lines(store: JsonlStore) -> list[bytes]:
    return index(store).read_bytes().splitlines(keepends=True)


def finished(store: JsonlStore, *numbers: int, name: str = "job") -> str:
    with Session(name, store=store) as session:
        for number in numbers:
            put(number)
    return session.run_id


def broken_off(store: JsonlStore, *numbers: int, name: str = "job") -> str:
    with pytest.raises(KeyError), Session(name, store=store) as session:
        for number in numbers:
            put(number)
        raise KeyError
    return session.run_id


def lose(store: JsonlStore, run: str) -> None:
    index(store).unlink()


def cut(store: JsonlStore, run: str) -> None:
    index(store).write_bytes(lines(store)[0][:-10])


def unattest(store: JsonlStore, run: str) -> None:
    """As a kill between run.finished and the index leaves it."""
    index(store).write_bytes(b"".join(li for li in lines(store) if b'"status"' not in li))


def garble(store: JsonlStore, run: str) -> None:
    """A sector of zeros over each line of the run."""
    mine = run.encode()
    index(store).write_bytes(
        b"".join(b"\0" * (len(li) - 1) + b"\n" if mine in li else li for li in lines(store))
    )


HARMS = [lose, cut, unattest, garble]
Harm = Callable[[JsonlStore, str], None]


@pytest.mark.parametrize("harm", HARMS)
def test_a_job_that_had_ended_well_is_not_resumed(store: JsonlStore, harm: Harm) -> None:
    first = finished(store, 1)
    harm(store, first)
    with Session("job", store=store) as session:
        box.clear()  # another day, the same work
        put(1)
    assert (session.stats.hits, session.stats.misses) == (0, 1)
    assert [(info.run, info.status) for info in store.runs()] == [
        (first, "ok"),
        (session.run_id, "ok"),
    ]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("way", ["error", "killed"])
def test_one_that_had_not_is_resumed(store: JsonlStore, harm: Harm, way: str) -> None:
    finished(store, 5)
    first = broken_off(store, 1, 2)
    if way == "killed":
        path = store.root / "runs" / f"{first}.jsonl"
        whole = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(whole[:-1]))
        unattest(store, first)
    harm(store, first)
    with Session("job", store=store) as session:
        assert [put(1), put(2), put(3)] == [1, 2, 3]
    assert (session.stats.hits, session.stats.misses) == (2, 1)


@pytest.mark.parametrize("harm", HARMS)
def test_one_that_was_undone_is_resumed(store: JsonlStore, harm: Harm) -> None:
    run = finished(store, 1, 2)
    assert undo_run(store, run, to=1).complete
    assert store.runs()[0].status == "undone"
    harm(store, run)
    assert [info.status for info in store.runs()] == ["undone"]
    assert box == {1}
    with Session("job", store=store) as session:
        assert [put(1), put(2)] == [1, 2]
    assert (session.stats.hits, session.stats.misses) == (1, 1)


def test_an_undo_whose_attestation_is_missing_counts(store: JsonlStore) -> None:
    """Killed between the last line of the undo and the index."""
    run = finished(store, 1)
    before = index(store).read_bytes()
    assert undo_run(store, run).complete
    index(store).write_bytes(before)
    assert store.runs()[0].status == "undone"


def test_an_undo_that_left_something_is_one_to_go_on_with(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        send(1)  # which nothing undoes
        put(2)
    assert not undo_run(store, session.run_id).complete
    status = store.runs()[0].status
    index(store).unlink()
    assert store.runs()[0].status == status == "undone", (
        "the next session goes on with what is left"
    )


def test_one_damaged_line_costs_only_itself(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [finished(store, number, name=f"job {number}") for number in range(4)]
    attested = {info.run: (info.count, info.head) for info in store.runs()}
    for number in (2, 3):  # of the second job: how it began, how it ended
        box.clear()
        kept = lines(store)
        index(store).write_bytes(b"".join([*kept[:number], b'{"run": 3}\n', *kept[number + 1 :]]))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "rollcage"):
            again = finished(store, 1, name="job 1")  # it had ended: recorded as a new run
        assert len(caplog.messages) == 1
        assert "made again from the traces" in caplog.messages[0]
        assert [info.run for info in store.runs()] == [*runs, again]
        for info in store.runs()[:-1]:
            assert info.status == "ok"
            if info.run != runs[1] or number == 2:
                assert (info.count, info.head) == attested[info.run]
        with caplog.at_level(logging.WARNING, "rollcage"):
            store.runs()
        assert len(caplog.messages) == 1, "it is mended, and said once"
        runs.append(again)
        attested |= {info.run: (info.count, info.head) for info in store.runs()}


def test_whoever_only_reads_mends_nothing(store: JsonlStore) -> None:
    finished(store, 1)
    damaged = b"[]\n" + index(store).read_bytes() + b"torn"
    index(store).write_bytes(damaged)
    assert [info.status for info in store.runs()] == ["ok"]
    assert index(store).read_bytes() == damaged


def test_a_count_that_is_lost_is_not_made_up(store: JsonlStore) -> None:
    """It would attest a trace that was cut by then."""
    run = finished(store, 1)
    index(store).unlink()
    for _ in range(2):
        found = store.repair()
        assert found.unattested == (run,)
        info = store.runs()[0]
        assert (info.status, info.count, info.head) == ("ok", None, None)


def test_a_cut_trace_shows_while_the_index_is_whole(store: JsonlStore) -> None:
    run = broken_off(store, 1, 2)
    path = store.root / "runs" / f"{run}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    store.repair()
    with pytest.raises(TraceCorrupt, match="this is another end"), Session("job", store=store):
        pytest.fail("a cut trace was resumed")
    path.write_bytes(whole)


def test_repair_says_what_it_found(store: JsonlStore) -> None:
    runs = [finished(store, 1), broken_off(store, 2), finished(store, 3, name="other")]
    kept = lines(store)
    index(store).write_bytes(b"".join([kept[0], b"{}\n", *kept[2:4], b"\xff\n", kept[5]]))
    found = store.repair()
    assert (found.runs, found.damaged, found.lost) == (3, (2, 5), (runs[2],))
    assert found.unattested == (runs[0],)
    assert [info.run for info in store.runs()] == runs
    assert [info.status for info in store.runs()] == ["ok", "error", "ok"]
    again = store.repair()
    assert (again.runs, again.damaged, again.lost) == (3, (), ())


@pytest.mark.damaged
def test_a_lost_run_whose_first_line_is_damaged_is_nobodys_to_guess(store: JsonlStore) -> None:
    run = broken_off(store, 1)
    path = store.root / "runs" / f"{run}.jsonl"
    with Session("other", store=store):
        path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(TraceCorrupt), Session("job", store=store):  # it knows its run
        pytest.fail("a damaged trace was taken for an absent one")
    index(store).unlink()
    with pytest.raises(TraceCorrupt, match="which job it belongs to"), Session("new", store=store):
        pytest.fail("it may have been this job's")
    assert store.repair().unreadable
    path.rename(store.root / path.name)  # as the error says
    with Session("new", store=store):
        put(2)


def test_runs_stand_behind_those_they_build_on(store: JsonlStore) -> None:
    """Though the clock was wrong: of what the index lost, only the lineage tells the order."""
    runs = []
    for ahead in (0, -3600, -7200):
        now = (9_000_000 + ahead) * 1_000_000_000
        ticking = Clock(wall=functools.partial(int, now))
        with pytest.raises(KeyError), Session("job", store=store, clock=ticking) as session:
            raise KeyError
        runs.append(session.run_id)
    assert [info.run for info in store.runs()] == runs
    index(store).unlink()
    sources = {info.run: info.source for info in store.runs()}
    order = [info.run for info in store.runs()]
    for run, source in sources.items():
        assert source is None or order.index(source) < order.index(run)


def test_many_repair_at_once(store: JsonlStore, python: Any) -> None:
    finished(store, 1)
    index(store).write_bytes(b"garbage\n")
    code = """
        from rollcage.session.session import Session
        from rollcage.store import JsonlStore
        for number in range(5):
            with Session(f"job {number} {__import__('os').getpid()}", store="store"):
                JsonlStore("store").repair()
    """
    with ThreadPoolExecutor(3) as pool:
        for child in pool.map(lambda _: python(code), range(3)):
            assert child.returncode == 0, child.stderr
    infos = store.runs()
    assert len(infos) == 16
    assert {info.status for info in infos} == {"ok"}
    assert sum(info.count is None for info in infos) == 1, "no attestation is lost to a repair"


def test_a_live_run_is_in_use_whatever_became_of_the_index(store: JsonlStore) -> None:
    with Session("job", store=store):
        put(1)
        index(store).unlink()
        with pytest.raises(RunInUse), Session("job", store=store):
            pytest.fail("two write one job")


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", None), (b"garbage\n", None), (b'x\n{"event":"run.finished","status":"ok"}\n', None)],
)
def test_a_damaged_end_is_none(data: bytes, status: str | None) -> None:
    assert ended(data) == status


def test_an_index_that_can_not_be_read_says_so(store: JsonlStore) -> None:
    finished(store, 1)
    index(store).unlink()
    index(store).mkdir()
    with pytest.raises(StoreError, match="EISDIR"), Session("job", store=store):
        pytest.fail("it was entered")
    index(store).rmdir()


# --- the newest run of a job, without a look at the others ---------------------------------------


def test_opening_a_session_looks_at_no_other_job(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store, 1, name="other")
    broken_off(store, 2)
    finished(store, 3, name="another")  # by now the index was looked through

    def looked(*_: Any, **__: Any) -> Any:
        raise AssertionError("it looked through all runs")

    for name in ("runs", "look", "_whole"):
        monkeypatch.setattr(Index, name, looked)
    with Session("job", store=store) as resumed:
        assert put(2) == 2
    with Session("new", store=store) as first:
        put(4)
    with Session("other", store=store) as again:
        put(5)
    assert (resumed.stats.hits, first.stats.hits, again.stats.hits) == (1, 0, 0)


names = st.sampled_from(["job", "other", 'a "name":"job"', "jo", "b\\", "Zoë", "Zoe\u0308", ""])
began = st.tuples(
    names,
    st.sampled_from(["record", "resume", "offline"]),
    st.sampled_from([None, "ab" * 32]),
    st.sampled_from([None, "ok", "error"]),
)


@given(st.lists(began, max_size=8))
def test_it_is_the_newest_of_all(runs: list[tuple[str, str, str | None, str | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = JsonlStore(folder)
        of_job: dict[tuple[str, str | None], str] = {}
        for number, (name, mode, of, status) in enumerate(runs):
            run = f"01890000-0000-7000-8000-{number:012x}"
            source = of_job.get((name, of)) if mode == "resume" else None
            started = {
                "event": "run.started", "run": run, "name": name, "mode": mode, "source": source,
                "time": 1000 - number,
            }  # fmt: skip
            with store.opening():
                writer = store.create(started | ({"input": {"digest": of}} if of else {}))
            if status:
                writer.append({"event": "run.finished", "time": 1, "status": status, "steps": 0})
                writer.attest(status)
            writer.close()
            of_job[name, of] = run
        with store.opening():
            for name in ("job", "other", 'a "name":"job"', "jo", "b\\", "Zoë", "", "none"):
                for of in (None, "ab" * 32):
                    assert store.newest(name, of) == newest_run(store.runs(), name, of)


def add_a_line(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"garbage\n")


def overwrite(path: Path) -> None:
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\0" * (len(data) - 1))


def lose_the_mark(path: Path) -> None:
    path.with_suffix(".mark").unlink()
    overwrite(path)


@pytest.mark.parametrize("change", [add_a_line, overwrite, Path.unlink, lose_the_mark])
def test_whoever_else_changes_the_index_is_noticed(
    store: JsonlStore, change: Callable[[Path], None]
) -> None:
    broken_off(store, 1)
    finished(store, 2, name="other")
    change(index(store))
    with Session("job", store=store) as session:
        assert put(1) == 1
    assert session.stats.hits == 1


def test_an_index_that_is_cut_as_it_is_made_again_is_not_taken_for_whole(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(store, 1)
    lose(store, "")
    make = disk.replace

    def replace(path: Path, data: bytes, *, part: Path) -> None:
        make(path, data, part=part)
        path.write_bytes(data[:60])

    monkeypatch.setattr(disk, "replace", replace)
    with Session("job", store=store) as session:
        assert put(1) == 1
    assert session.stats.hits == 1


def test_after_a_power_cut_it_is_looked_through(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may hold an older index, and an older mark that fits it."""
    finished(store, 2, name="other")
    older = {p: p.read_bytes() for p in (index(store), index(store).with_suffix(".mark"))}
    broken_off(store, 1)
    for path, data in older.items():
        path.write_bytes(data)
    mark = Mark(index(store))
    mark.set(Marked(False, zlib.crc32(index(store).read_bytes()), mark.now()))
    monkeypatch.setattr("rollcage.store.mark._start_of", lambda _: b"another start")
    with Session("job", store=store) as session:
        assert put(1) == 1
    assert session.stats.hits == 1


def test_a_trace_that_was_put_there_by_hand_is_found_by_repair(
    store: JsonlStore, tmp_path: Path
) -> None:
    elsewhere = JsonlStore(tmp_path / "elsewhere")
    run = broken_off(elsewhere, 1)
    finished(store, 2, name="other")
    path = elsewhere.root / "runs" / f"{run}.jsonl"
    path.rename(store.root / "runs" / path.name)
    assert store.repair().lost == (run,)
    with Session("job", store=store) as session:
        assert put(1) == 1
    assert session.stats.hits == 1


# --- lines that are not what was written ---------------------------------------------------------


def test_a_bit_that_is_flipped_hides_no_run_and_makes_no_other_of_it(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is, and though nobody wrote to the file."""
    finished(store, 1, name="job")
    runs = [broken_off(store, 2), finished(store, 3, name="jof")]
    whole, status = index(store).read_bytes(), index(store).stat()
    before = [dataclasses.replace(info, count=None, head=None) for info in store.runs()]

    def told(infos: list[RunInfo]) -> list[RunInfo]:
        return [dataclasses.replace(info, count=None, head=None) for info in infos]

    for at in (len(whole) - 1, *range(0, len(whole) - 1, 3)):
        rotten = bytearray(whole)
        rotten[at] ^= 1 << at % 8
        index(store).write_bytes(rotten)
        os.utime(index(store), ns=(status.st_atime_ns, status.st_mtime_ns))
        assert Mark(index(store)).fits(), "it was not touched, by what the system says"
        places.places_of(index(store))._forget()
        again = JsonlStore(store.root)
        assert told(again.runs()) == before, at
        for _ in range(2):
            found = (again.newest("job", None), again.newest("jof", None))
            assert [info and info.run for info in found] == runs, at
        assert [info.run for info in again.runs(source=runs[0])] == [], at
        check = again.check()
        assert check.damaged or check.outdated, at
    assert "`rollcage repair` writes them anew" in caplog.text
    assert store.repair().damaged
    assert not store.check().damaged
    assert told(store.runs()) == before


def test_an_index_whose_lines_have_no_check_is_taken_over(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    """One that an older version wrote: nothing that it attests is lost."""
    finished(store, 1, name="other")
    first = broken_off(store, 2)
    before = store.runs()
    old = [{k: v for k, v in orjson.loads(li).items() if k != "check"} for li in lines(store)]
    index(store).write_bytes(b"".join(orjson.dumps(said) + b"\n" for said in old))
    index(store).with_suffix(".mark").write_bytes(f"{system.files} 1 2 3 4".ljust(160).encode())
    assert store.runs() == before
    assert not store.check().damaged
    with Session("job", store=store) as session:
        assert put(2) == 2
    assert session.stats.hits == 1
    assert caplog.text == ""
    assert store.runs()[:2] == before
    assert store.runs()[0].count
    assert all(b',"check":"' in line for line in lines(store))
    assert store.runs()[2].source == first


def test_a_line_without_its_check_is_no_old_one(store: JsonlStore) -> None:
    run = finished(store, 1)
    data = index(store).read_bytes()
    index(store).write_bytes(data.replace(b'"check"', b'"chuck"', 1))
    assert store.repair().lost == (run,)


# --- many at once --------------------------------------------------------------------------------


def test_a_run_that_ends_while_another_begins_costs_nobody_a_look_through(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store, 1, name="first")
    began, fits = Index.began, []
    other = Session("other", store=store)
    other.__enter__()

    def late(self: Index, *given: Any, **how: Any) -> None:
        other.__exit__(None, None, None)
        fits.append(Mark(self.path).fits())
        began(self, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Index, "began", late)
        with Session("job", store=store):
            assert Mark(index(store)).fits()
    assert fits == [False], "nobody takes it for all that there is before the run is in it"
    assert Mark(index(store)).fits()


def test_nor_does_one_that_ends_while_it_is_looked_through(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store, 1, name="first")
    look, others = Index.look, [Session("other", store=store)]
    others[0].__enter__()
    lose_the_mark(index(store))

    def late(self: Index, **how: Any) -> Any:
        found = look(self, **how)
        while others:
            others.pop().__exit__(None, None, None)
        return found

    monkeypatch.setattr(Index, "look", late)
    store.repair()
    assert Mark(index(store)).fits()
    assert [info.status for info in JsonlStore(store.root).runs()] == ["ok", "ok"]


def test_a_run_whose_writer_is_killed_before_it_is_noted_is_found(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another one ends by then."""
    finished(store, 1, name="first")
    other = Session("other", store=store)
    other.__enter__()

    def killed(*_: Any, **__: Any) -> None:
        other.__exit__(None, None, None)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Index, "began", killed)
        with pytest.raises(KeyboardInterrupt):
            Session("job", store=store).__enter__()
    finished(store, 2, name="last")
    assert {info.run for info in store.runs()} == {p.stem for p in store.root.glob("runs/*.jsonl")}
    assert len(lines(store)) >= 7


@pytest.fixture
def looks_through(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each look through all of an index."""
    looks: list[str] = []
    data = IndexReader._data

    def looked(self: IndexReader) -> bytes:
        looks.append(str(self.path))
        return data(self)

    monkeypatch.setattr(IndexReader, "_data", looked)
    return looks


def ask(store: JsonlStore) -> list[Any]:
    again = JsonlStore(store.root)
    newest = again.newest("job", None)
    assert newest is not None
    return [newest, again.runs(name="job"), again.runs(status="ok"), again.runs(limit=1)[-1]]


@pytest.mark.parametrize("when", ["ends", "begins"])
def test_whoever_looks_while_another_writes_waits_for_that_and_looks_nothing_through(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, looks_through: list[str], when: str
) -> None:
    run = finished(store, 1)
    for _ in range(4):
        ask(store)  # by now, the process knows the index
    writing, go_on = threading.Event(), threading.Event()
    real: dict[str, Any] = {"begins": Index.began, "ends": Mark.set}
    now: list[str] = ["begins"]

    def slow(self: Any, *given: Any, **how: Any) -> None:
        if now == [when]:
            now.clear()
            writing.set()
            assert go_on.wait(30)
        real[when](self, *given, **how)

    def work() -> None:
        with Session("other", store=store):
            now[:] = ["ends"]

    monkeypatch.setattr(Index if when == "begins" else Mark, real[when].__name__, slow)
    monkeypatch.setattr(index_reader, "_LOOKS", 100_000)
    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(work)
        assert writing.wait(30)
        looks_through.clear()
        with pytest.raises(at_once.WouldWait), at_once.at_once():
            store.newest("job", None)
        asked = pool.submit(ask, store)
        with pytest.raises(TimeoutError):
            asked.result(0.05)
        go_on.set()
        newest, named, *_ = asked.result(30)
        working.result(30)
    assert (newest.run, [info.run for info in named]) == (run, [run])
    assert not looks_through


def test_whoever_died_as_it_began_is_not_waited_for(
    store: JsonlStore, looks_through: list[str]
) -> None:
    run = finished(store, 1)
    for _ in range(4):
        ask(store)
    mark = Mark(index(store))
    marked = mark.read()
    assert marked is not None
    mark.set(marked._replace(suspended=True))
    looks_through.clear()
    assert [info.run for info in JsonlStore(store.root).runs()] == [run]
    assert looks_through  # for a run that it had begun


# --- many runs -----------------------------------------------------------------------------------


def test_the_newest_of_many_cost_no_more_than_those_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, parse = [0], index_lines.parse

    def counting(data: bytes) -> Any:
        parsed[0] += data.count(b"\n")
        return parse(data)

    monkeypatch.setattr(index_reader, "parse", counting)
    costs: dict[str, list[int]] = {}
    for count in (20, 200):
        store = JsonlStore(tmp_path / f"{count}")
        runs = [finished(store, name=f"job {number}") for number in range(count)]
        asks: list[dict[str, Any]] = [{}, {"status": "ok"}, {"since": 0}]
        for asked in asks:
            parsed[0] = 0
            found = JsonlStore(store.root).runs(limit=20, **asked)
            assert [info.run for info in found] == runs[-20:]
            costs.setdefault(str(asked), []).append(parsed[0])
    assert all(many <= 2 * few for few, many in costs.values()), costs


class Counting:
    """The system's calls; what they read is counted."""

    def __init__(self) -> None:
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pread(self, fd: int, length: int, at: int) -> bytes:
        data = os.pread(fd, length, at)
        self.read += len(data)
        return data


def test_a_job_costs_the_same_beside_many_and_beside_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []
    for count in (20, 200):
        store = JsonlStore(tmp_path / f"{count}")
        first = finished(store, name="first")
        for number in range(count):
            finished(store, name=f"job {number}")
        with monkeypatch.context() as patch:
            files = Counting()
            patch.setattr(system, "files", files)
            again = JsonlStore(store.root)
            assert again.newest("first", None) is not None  # all is read once
            files.read = 0
            for name, run in (("first", first), ("never", None)):
                found = JsonlStore(store.root).newest(name, None)
                assert (found and found.run) == run
                named = JsonlStore(store.root).runs(name=name)
                assert [info.run for info in named] == ([run] if run else [])
            assert JsonlStore(store.root).info(first).status == "ok"
            costs.append(files.read)
    assert costs[1] <= 1.2 * costs[0], costs


def test_what_others_add_and_what_is_made_again_is_seen(
    store: JsonlStore,
) -> None:
    def newest(name: str) -> str:
        again = JsonlStore(store.root)
        assert again.runs(name=name) == [info for info in again.runs() if info.name == name]
        found = again.newest(name, None)
        return "" if found is None else f"{found.run} {found.status}"

    first = finished(store, 1)
    assert newest("job") == f"{first} ok"
    box.clear()
    code = (
        "import sys; from rollcage import Session\n"
        "with Session('other', store=sys.argv[1]) as session: print(session.run_id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, store.root], capture_output=True, text=True, check=True
    )
    other = done.stdout.strip()
    assert newest("other") == f"{other} ok"
    lose(store, first)
    last = finished(store, 2)
    assert newest("job") == f"{last} ok"
    assert newest("other") == f"{other} ok"
    undo_run(store, last)
    assert newest("job") == f"{last} undone"
    store.prune(last, by="ann", time=1)
    pruned = JsonlStore(store.root).newest("job", None)
    assert pruned is not None
    assert pruned.pruned is not None
    if not (child := os.fork()):
        os._exit(int(newest("job") != f"{last} undone"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
