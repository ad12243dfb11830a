"""The directory store: its index, its blobs, its locks, and names that come from outside."""

import logging
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import (
    NotReplayable,
    RunInUse,
    RunNotFound,
    SessionHalted,
    StoreError,
    TraceCorrupt,
    tool,
)
from rollcage.session.session import Session
from rollcage.store import JsonlStore, Store, TraceFile, is_run_id, open_trace

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]

MODES: tuple[Literal["resume", "offline"], ...] = ("resume", "offline")
LARGE = 10 * 1024 * 1024


@tool(effect="write")
def write(number: int) -> str:
    return f"wrote {number}"


@tool(effect="write")
def keep(text: str) -> str:
    return text


def record(store: JsonlStore, *, name: str = "job") -> str:
    with Session(name, store=store) as session:
        write(1)
    return session.run_id


def files(store: JsonlStore, pattern: str) -> list[Path]:
    return [path for path in store.root.rglob(pattern) if path.is_file()]


def test_the_directory_store_follows_the_protocol(store: JsonlStore) -> None:
    assert isinstance(store, Store)


# --- the index -----------------------------------------------------------------------------------


def test_the_index_knows_every_run(store: JsonlStore) -> None:
    assert store.runs() == []
    first = record(store)
    with pytest.raises(KeyError), Session("job", store=store) as failed:
        raise KeyError
    with Session("job", store=store) as live:
        known = store.runs()
    assert [info.run for info in known] == [first, failed.run_id, live.run_id]
    assert [info.status for info in known] == ["ok", "error", None]
    assert [info.status for info in store.runs()] == ["ok", "error", "ok"]
    assert store.runs()[0].count == 4


def test_a_torn_index_line_is_no_run_and_gives_way(store: JsonlStore) -> None:
    first = record(store)
    with (store.root / "index.jsonl").open("ab") as index:
        index.write(b'{"run":"01')  # as a kill leaves it, before its run began
    assert [info.run for info in store.runs()] == [first]
    second = record(store)
    assert [info.run for info in store.runs()] == [first, second]


@pytest.mark.parametrize("begun", [b"", b'{"event":"run.started","na'])
def test_a_run_whose_writer_was_killed_while_it_began_is_none(
    store: JsonlStore, begun: bytes
) -> None:
    first = record(store)
    path = store.root / "runs" / "01890000-0000-7000-8000-000000000000.jsonl"
    path.write_bytes(begun)
    assert [info.run for info in store.runs()] == [first]
    second = record(store)
    assert [info.run for info in store.runs()] == [first, second]


@pytest.mark.parametrize("lost", ["the newest line", "all"])
def test_a_run_that_the_index_lost_is_still_known(store: JsonlStore, lost: str) -> None:
    """A power cut may take the index's last lines: the work must not be done again."""
    run = record(store)
    with pytest.raises(KeyError), Session("job", store=store) as unfinished:
        write(2)
        raise KeyError
    index = store.root / "index.jsonl"
    if lost == "all":
        index.unlink()
    else:
        index.write_bytes(b"".join(index.read_bytes().splitlines(keepends=True)[:2]))
    assert [info.run for info in store.runs()] == [run, unfinished.run_id]
    with Session("job", store=store) as session:
        assert write(2) == "wrote 2"
    assert session.stats.hits == 1


@pytest.mark.parametrize(
    "line", [b"not json\n", b"[]\n", b'{"name":"job"}\n', b'{"run":"unheard of","status":"ok"}\n']
)
def test_a_damaged_index_stops_nobody(
    store: JsonlStore, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first = record(store)
    index = store.root / "index.jsonl"
    index.write_bytes(line + index.read_bytes())
    assert [info.run for info in store.runs()] == [first]
    assert "rollcage repair" in caplog.text
    second = record(store)
    assert [info.run for info in store.runs()] == [first, second]
    assert line not in index.read_bytes()


def test_jobs_of_other_names_are_left_alone(store: JsonlStore) -> None:
    record(store, name="other")
    with Session("job", store=store) as session:
        write(1)
    assert session.stats.misses == 1


# --- names from outside --------------------------------------------------------------------------

hostile = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\0b", "con"]),
    st.uuids().map(lambda each: f"../{each}"),
    st.uuids().map(lambda each: f"{each}\n"),
    st.uuids().map(lambda each: str(each).upper().replace("1", "A")),
).filter(lambda text: not is_run_id(text))


@given(hostile)
def test_what_is_no_run_id_never_becomes_a_path(text: str) -> None:
    store = JsonlStore("/nonexistent/store")
    for use in (store.read, store.lock, store.reopen):
        with pytest.raises(RunNotFound):
            use(text)


@given(st.one_of(hostile, st.text(alphabet="0123456789abcdef", max_size=63)))
def test_what_is_no_digest_never_becomes_a_path(text: str) -> None:
    with pytest.raises(StoreError):
        JsonlStore("/nonexistent/store").get_blob(text)


def test_a_source_that_is_no_run_is_refused(store: JsonlStore, tmp_path: Path) -> None:
    record(store)
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    for source in ("../../etc/passwd", "01", str(folder), folder, tmp_path / "nothing.jsonl"):
        with pytest.raises(StoreError), Session("job", store=store, source=source):
            pytest.fail(f"a session over {source} was entered")


def test_a_name_may_be_anything_and_stays_inside(store: JsonlStore, events: Events) -> None:
    name = "../../weekly report\0: Zoë/\n"
    with Session(name, store=store) as session:
        write(1)
    assert events(session.run_id)[0]["name"] == name
    assert store.runs()[0].name == name
    assert {path.parent.name for path in files(store, "*.jsonl")} == {"store", "runs"}


# --- large values --------------------------------------------------------------------------------


def test_large_values_round_trip_through_blobs(store: JsonlStore, events: Events) -> None:
    text = "é" * (LARGE // 2)
    with Session("job", store=store) as session:
        assert keep(text) == text
    trace = (store.root / "runs" / f"{session.run_id}.jsonl").stat()
    assert trace.st_size < 4096
    (blob,) = files(store, "blobs/*/*")  # its arguments and its result are one value
    assert blob.name == sha256(blob.read_bytes()).hexdigest()
    started = next(e for e in events(session.run_id) if e["event"] == "step.started")
    assert started["args"]["text"]["sha256"] == blob.name
    with Session("job", store=store, replay="offline") as again:
        assert keep(text) == text
    assert again.stats.hits == 1


def test_a_blob_that_was_cut_short_is_written_anew(store: JsonlStore) -> None:
    data = b'"a large value"'
    digest = sha256(data).hexdigest()
    store.put_blob(digest, data)
    (blob,) = files(store, "blobs/*/*")
    for damaged in (b"", data[:5], data + b" "):
        blob.write_bytes(damaged)
        with pytest.raises(TraceCorrupt, match="not what its name says"):
            store.get_blob(digest)
        store.put_blob(digest, data)
        assert store.get_blob(digest) == data
        assert files(store, "blobs/*/*") == [blob]  # and nothing beside it


@pytest.mark.parametrize("size", [64 * 1024 - 200, 64 * 1024 - 2, 64 * 1024, 64 * 1024 + 1])
def test_values_about_as_large_as_a_blob_round_trip(store: JsonlStore, size: int) -> None:
    with Session("job", store=store):
        assert keep("x" * size) == "x" * size
    with Session("job", store=store, replay="offline"):
        assert keep("x" * size) == "x" * size
    assert bool(files(store, "blobs/*/*")) == (size + 2 >= 64 * 1024)


def test_large_typed_values_come_back_as_their_types(store: JsonlStore) -> None:
    value = {"raw": b"\0\xff" * 100_000, "numbers": list(range(20_000)), "pair": (1, 2.0)}

    @tool(effect="write")
    def fetch() -> object:
        return value

    with Session("job", store=store):
        assert fetch() == value
    with Session("job", store=store, replay="offline"):
        assert fetch() == value


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_blob_halts_and_runs_nothing(store: JsonlStore, damage: str) -> None:
    ran = []

    @tool(effect="write")
    def fetch(number: int) -> str:
        ran.append(number)
        return f"{number}" * 100_000

    with Session("job", store=store):
        fetch(1)
        fetch(2)
    for blob in files(store, "blobs/*/*"):
        if damage == "gone":
            blob.unlink()
        else:
            blob.write_bytes(blob.read_bytes().replace(b"1", b"3").replace(b"2", b"3"))
    for mode in MODES:
        session = Session("job", store=store, replay=mode, source=store.runs()[0].run)
        with pytest.raises((StoreError, NotReplayable), match="blob"), session:
            with pytest.raises((StoreError, NotReplayable), match="blob"):
                fetch(1)
            with pytest.raises(SessionHalted):  # who swallows the error gets no further
                fetch(2)
    assert ran == [1, 2]


# --- the key -------------------------------------------------------------------------------------


def test_the_key_is_for_its_owner_alone(store: JsonlStore) -> None:
    key = store.secret_key()
    assert len(key) == 32
    assert store.secret_key() == key
    assert JsonlStore(store.root).secret_key() == key
    assert stat.S_IMODE((store.root / "key").stat().st_mode) == 0o600


# --- reading and locking -------------------------------------------------------------------------


def test_a_lock_keeps_others_out_until_it_is_released(store: JsonlStore) -> None:
    run = record(store)
    lock = store.lock(run)
    for other in (store.lock, store.reopen, JsonlStore(store.root).lock):
        with pytest.raises(RunInUse, match=run):
            other(run)
    lock.release()
    lock.release()  # once more is no harm
    store.lock(run).release()


def test_a_missing_run_is_not_found(store: JsonlStore) -> None:
    run = record(store)
    gone = run[:-1] + ("0" if run[-1] != "0" else "1")
    for use in (store.read, store.lock, store.reopen, TraceFile(store.root / "runs").read):
        with pytest.raises(RunNotFound, match=gone):
            use(gone)


def test_a_trace_that_cannot_be_read_says_so(store: JsonlStore) -> None:
    run = record(store)
    path = store.root / "runs" / f"{run}.jsonl"
    path.rename(path.with_suffix(".kept"))
    path.mkdir()
    with pytest.raises(StoreError, match="can't be read"):
        store.read(run)
    with pytest.raises(StoreError, match="can't be opened"):
        store.lock(run)
    path.rmdir()


def test_a_trace_is_opened_by_its_path(store: JsonlStore) -> None:
    run = record(store)
    folder, found = open_trace(store.root / "runs" / f"{run}.jsonl")
    assert found == run
    assert isinstance(folder, JsonlStore)
    assert folder.read(run) == store.read(run)


def test_many_processes_share_a_store(store: JsonlStore, python: Python) -> None:
    code = """
        import sys
        from rollcage import tool
        from rollcage.session.session import Session

        write = tool(effect="write", name="write")(lambda number: number)
        for job in sys.argv[1:]:
            with Session(job, store="store"):
                for number in range(10):
                    write(number=number)
    """
    jobs = [[f"job {p}.{n}" for n in range(8)] for p in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for child in pool.map(lambda names: python(code, *names), jobs):
            assert child.returncode == 0, child.stderr
    assert {info.name for info in store.runs()} == {name for names in jobs for name in names}
    assert len(store.runs()) == 32
    assert {(info.status, info.count) for info in store.runs()} == {("ok", 22)}


def test_the_writers_own_torn_line_is_set_aside_on_reopen(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    run = record(store)
    path = store.root / "runs" / f"{run}.jsonl"
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"torn")
    with caplog.at_level(logging.WARNING, "rollcage"):
        store.reopen(run).close()
    assert path.read_bytes() == whole
    assert path.with_suffix(".torn").read_bytes() == b"torn\n"
    assert any("torn" in message for message in caplog.messages)


def test_every_line_is_one_event_and_ends_with_its_hash(store: JsonlStore) -> None:
    run = record(store)
    for line in (store.root / "runs" / f"{run}.jsonl").read_bytes().splitlines():
        assert list(orjson.loads(line))[-1] == "hash"
        assert line.isascii() or line.decode()
    assert [path.stem for path in files(store, "runs/*")] == [run]
