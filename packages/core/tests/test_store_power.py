"""What is on the disk when the power goes, and what a disk that fails leaves: by system calls.

`tests/simulation` has found each of these; here they stand alone.
"""

import contextvars
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from rollcage import Halt, SessionHalted, TraceUnwritable, UnknownOutcome, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore, RunInfo, StopOrder, system
from rollcage.store.writer import JsonlWriter

done: list[int] = []


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    done.clear()


@tool(effect="write", name="power.send")
def send(number: int) -> int:
    done.append(number)
    return number


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and folders that were waited for, in order."""
    names: list[str] = []

    def note(descriptor: int) -> None:
        names.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, note)
    return names


def test_the_folders_of_a_new_store_are_on_the_disk_before_a_body_runs(
    tmp_path: Path, synced: list[str]
) -> None:
    store = JsonlStore(tmp_path / "above" / "store")
    with Session("job", store=store, durability="disk") as session:
        send(1)
        before = list(synced)
    trace = str(store.root / "runs" / f"{session.run_id}.jsonl")
    folders = [tmp_path, tmp_path / "above", store.root, store.root / "runs"]
    assert {trace, *map(str, folders)} <= set(before)


def test_so_are_those_that_somebody_else_has_just_made(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "store" / "runs").mkdir(parents=True)
    with Session("job", store=tmp_path / "store", durability="disk"):
        send(1)
    assert {str(tmp_path), str(tmp_path / "store"), str(tmp_path / "store" / "runs")} <= {*synced}


def test_an_order_to_stop_is_on_the_disk_by_its_name_too(tmp_path: Path, synced: list[str]) -> None:
    store = JsonlStore(tmp_path)
    with Session("job", store=store) as session:
        pass
    synced.clear()
    store.stop(StopOrder(session.run_id, "ann", "enough", 1))
    page = str(tmp_path / "runs" / f"{session.run_id}.control")
    assert synced[:2] == [page, str(tmp_path / "runs")]


def test_a_trace_that_the_disk_failed_to_write_is_not_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk says once that it failed; what it was to write is gone, and its reader sees it."""
    store = JsonlStore(tmp_path)
    session = Session("job", store=store, durability="disk")
    trace, fdatasync = store.root / "runs", os.fdatasync
    told: list[bytes] = []

    def fail_once(descriptor: int) -> None:
        if not told:
            told.append(trace.joinpath(f"{session.run_id}.jsonl").read_bytes())
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fdatasync(descriptor)

    with pytest.raises(TraceUnwritable, match="EIO"), session:
        send(1)
        monkeypatch.setattr(os, "fdatasync", fail_once)
        with pytest.raises(TraceUnwritable, match="EIO"):
            send(2)
        with pytest.raises(SessionHalted):
            send(3)
    assert done == [1]
    assert trace.joinpath(f"{session.run_id}.jsonl").read_bytes() == told[0]
    assert store.runs()[0].count is None, "nothing attests what may not be there"
    with (
        pytest.raises(UnknownOutcome) as unknown,
        Session("job", store=store, durability="disk") as again,
    ):
        assert [send(number) for number in (1, 2)] == [1, 2]
    assert (unknown.value.step, done, again.stats.hits) == (2, [1], 1)


def test_nobody_takes_a_disk_that_failed_for_one_that_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two calls that wait for the disk at once, one is told that it failed; neither runs."""
    store, fdatasync = JsonlStore(tmp_path), os.fdatasync
    failed, both = threading.Event(), threading.Barrier(2)
    refused: list[BaseException] = []

    def fail_once(descriptor: int) -> None:
        if not failed.is_set():
            both.wait(10)  # until the other one's intent is written, too
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fdatasync(descriptor)

    sync = JsonlWriter.sync

    def together(self: JsonlWriter) -> None:
        if threading.current_thread() is other and not failed.is_set():
            both.wait(10)
            failed.wait(10)
        sync(self)

    def send_too() -> None:
        try:
            send(2)
        except Halt as error:
            refused.append(error)

    with pytest.raises(TraceUnwritable), Session("job", store=store, durability="disk"):
        other = threading.Thread(target=contextvars.copy_context().run, args=(send_too,))
        monkeypatch.setattr(os, "fdatasync", fail_once)
        monkeypatch.setattr(JsonlWriter, "sync", together)
        other.start()
        try:
            send(1)
        finally:
            other.join(10)
    assert done == []
    assert [type(error) for error in refused] == [TraceUnwritable]


def test_an_index_made_anew_lists_only_runs_that_are_on_the_disk(
    tmp_path: Path, synced: list[str]
) -> None:
    """Their writer may have been killed as it waited for that: the power may go as well."""
    store = JsonlStore(tmp_path)
    with Session("job", store=store) as session:
        send(1)
    (tmp_path / "index.jsonl").unlink()  # as its writer died between the trace and the index
    synced.clear()
    assert JsonlStore(tmp_path).repair().lost
    trace = tmp_path / "runs" / f"{session.run_id}.jsonl"
    first = [str(each) for each in (trace, tmp_path / "runs", tmp_path / "index.jsonl.part")]
    assert synced[:3] == first


def test_a_run_that_another_one_builds_on_is_on_the_disk_before_that_begins(
    tmp_path: Path, synced: list[str]
) -> None:
    store = JsonlStore(tmp_path)
    with pytest.raises(KeyError), Session("job", store=store) as source:
        send(1)
        raise KeyError
    synced.clear()
    with Session("job", store=store, durability="disk") as session:
        before = [Path(name).stem for name in synced if name.endswith(".jsonl")]
        assert send(1) == 1
    assert before[:2] == [source.run_id, session.run_id]
    assert done == [1]


def test_nothing_builds_on_a_run_that_the_disk_fails_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonlStore(tmp_path)
    with pytest.raises(KeyError), Session("job", store=store) as source:
        send(1)
        raise KeyError

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().stem == source.run_id:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with (
            pytest.raises(TraceUnwritable, match=source.run_id),
            Session("job", store=store, durability="disk"),
        ):
            send(2)
    assert done == [1]
    assert [info.run for info in store.runs()] == [source.run_id]


def test_a_run_that_could_not_be_noted_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line may be in the index already: the next session must not look for what is gone."""
    store = JsonlStore(tmp_path)
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == store.root / "index.jsonl":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(TraceUnwritable), Session("job", store=store, durability="disk"):
            send(1)
    assert done == []
    with Session("job", store=store, durability="disk"):
        send(1)
    assert done == [1]
    assert {info.run for info in store.runs()} == {p.stem for p in store.root.glob("runs/*.jsonl")}


@pytest.mark.parametrize("look", [lambda s: s.newest("job", None), lambda s: s.runs()[-1]])
def test_an_index_that_is_cut_while_it_is_read_hides_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Any
) -> None:
    store = JsonlStore(tmp_path)
    with Session("other", store=store):  # the first of a store, whose index is whole by the next
        send(1)
    with Session("job", store=store) as session:
        send(1)
    opened = system.files.open

    def cut_then_open(path: Any, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == "index.jsonl":
            os.truncate(path, 0)
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", cut_then_open)
    found: RunInfo = look(store)
    assert found.run == session.run_id


def test_an_index_that_is_cut_while_it_is_noted_in_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonlStore(tmp_path)
    with Session("first", store=store):
        send(1)
    write = os.write

    def cut_then_write(descriptor: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == store.root / "index.jsonl":
            os.truncate(descriptor, 0)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", cut_then_write)
    with Session("second", store=store):
        send(2)
    monkeypatch.setattr(os, "write", write)
    with Session("first", store=store, replay="continue") as session:
        send(1)
    assert (done, session.stats.hits) == ([1, 2], 1)
