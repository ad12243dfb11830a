"""The store in a folder: what every store promises, and what files make of it."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harm import in_folder
from rollcage.errors import (
    Fenced,
    RunNotFound,
    StoreError,
    StoreReadOnly,
    TraceCorrupt,
    TraceUnwritable,
)
from rollcage.trace import folder
from rollcage.trace.folder import Folder
from rollcage_conformance import StoreSuite
from rollcage_conformance.stores.base import FIRST, Other, Tamper, begun, events_of, numbers


class TestFolder(StoreSuite):
    lists_by_name = True

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")

    @pytest.fixture
    def tamper(self, tmp_path: Path) -> Tamper:
        return in_folder(tmp_path / "store")


@pytest.mark.nightly
class TestDurableFolder(TestFolder):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/store?durability=disk"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Folder:
    return Folder(root)


def trace(root: Path, run: str = "r1") -> Path:
    return root / "logs" / f"{run}.jsonl"


class Calls:
    """Functions of `os` that are counted, and fail as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.made: list[str] = []
        self.fails: dict[str, Any] = {}
        for name in names:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            self.made.append(name)
            found = self.fails.get(name)
            return found(call, *given, **named) if found else call(*given, **named)

        return counted


def fail(number: int) -> Any:
    def failing(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return failing


# --- what is made, and by whom it may be read ---


def test_a_store_that_is_not_used_makes_nothing(root: Path) -> None:
    store = Folder(root)
    with pytest.raises(RunNotFound):
        store.read("r1")
    assert (store.get("names", "a"), store.keys("names"), store.bell()) == (None, [], 0)
    assert not root.exists()


def test_a_store_stays_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Folder("store")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    begun(store).close()
    assert trace(tmp_path / "store").exists()


def test_files_are_for_their_owner_alone(root: Path, store: Folder) -> None:
    before = os.umask(0)
    try:
        begun(store).close()
        begun(store, take=True).close()
        hear = begun(store, take=True).log.hear()
        assert store.swap("names", "a", None, b"a")
        assert store.swap("orders", "a", None, b"a")
    finally:
        os.umask(before)
    assert hear is not None
    for path in [root, *root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_name_of_a_durable_store_is_synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = folder._sync_one

    def noted(at: str) -> None:
        synced.append(at)
        real(at)

    monkeypatch.setattr(folder, "_sync_one", noted)
    begun(Folder(root, durability="disk")).close()
    assert synced == [str(root / "logs"), str(root), str(root.parent)]


def test_a_durable_store_may_be_in_a_folder_of_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder._sync_one

    def refused(at: str) -> None:
        if at == str(root.parent):
            raise PermissionError
        real(at)

    monkeypatch.setattr(folder, "_sync_one", refused)
    store = Folder(root, durability="disk")
    begun(store).close()
    assert len(store.read("r1")) == 1


def test_a_run_that_never_began_leaves_no_file(root: Path, store: Folder) -> None:
    store.open("r1").close()
    assert list((root / "logs").iterdir()) == []


@pytest.mark.damaged
@pytest.mark.parametrize("name", ["logs/r1.jsonl", "docs/names/a", "docs/names/.lock", "bell"])
def test_a_link_is_refused(root: Path, store: Folder, tmp_path: Path, name: str) -> None:
    (tmp_path / "aim").write_bytes(b"mine")
    (root / "docs" / "names").mkdir(parents=True)
    (root / "logs").mkdir()
    (root / name).symlink_to(tmp_path / "aim")
    with pytest.raises(StoreError, match="link"):
        begun(store)
        store.swap("orders", "a", None, b"a")
        store.swap("names", "a", None, b"a")
    assert (tmp_path / "aim").read_bytes() == b"mine"


@pytest.mark.damaged
@pytest.mark.parametrize("name", ["logs/r1.jsonl", "docs/names/a"])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused(root: Path, store: Folder, name: str, kind: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(StoreError):
        store.open("r1").close() if "logs" in name else store.get("names", "a")
    with pytest.raises(StoreError):
        store.read("r1") if "logs" in name else store.swap("names", "a", None, b"b")


def test_a_folder_that_may_not_be_written_says_so(
    root: Path, store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, "open", "mkdir")
    calls.fails["open"] = fail(errno.EROFS)
    with pytest.raises(StoreReadOnly, match="EROFS"):
        store.open("r1")
    with pytest.raises(StoreReadOnly, match="EROFS"):
        store.swap("names", "a", None, b"a")


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = Folder(tmp_path / "file" / "store")
    with pytest.raises(StoreError):
        store.open("r1")
    assert store.get("names", "a") is None


# --- torn and damaged ---


@pytest.mark.parametrize("torn", [b"{", b'{"event":"step"', b"\0" * 5000, b"\xff", b"\x18"])
def test_a_torn_tail_is_cut_off(root: Path, store: Folder, torn: bytes) -> None:
    chain = begun(store)
    chain.append({"n": 1})
    chain.close()
    whole = trace(root).read_bytes()
    trace(root).write_bytes(whole + torn)
    assert numbers(store) == [1]
    assert store.read("r1", -1) == whole.splitlines(keepends=True)[-1:]
    assert trace(root).read_bytes() == whole + torn  # who reads changes nothing
    chain = begun(store)
    assert trace(root).read_bytes() == whole
    chain.append({"n": 2})
    chain.close()
    assert numbers(store) == [1, 2]


def test_a_log_that_is_cut_anywhere_is_gone_on_with(root: Path, store: Folder) -> None:
    chain = begun(store)
    for n in range(3):
        chain.append({"n": n})
    chain.close()
    whole = trace(root).read_bytes()
    for cut in range(len(whole)):
        trace(root).write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        chain = begun(store)
        chain.append({"n": 9})
        chain.close()
        assert numbers(store) == [*range(max(lines - 1, 0)), 9]


@pytest.mark.damaged
@pytest.mark.parametrize("gap", [b"\0" * 4096, b"\n", b"x\n"])
def test_damage_between_lines_is_found(root: Path, store: Folder, gap: bytes) -> None:
    chain = begun(store)
    chain.append({"n": 1})
    chain.append({"n": 2})
    chain.close()
    lines = trace(root).read_bytes().splitlines(keepends=True)
    trace(root).write_bytes(lines[0] + gap + b"".join(lines[1:]))
    with pytest.raises(TraceCorrupt, match=r"r1\.jsonl, line 2: "):
        begun(store)


@pytest.mark.parametrize(
    "damage", [b"", b"x", b"\0" * 100, b'{"key":"b","sha256":"' + b"0" * 64 + b'"}\na']
)
def test_a_damaged_value_is_not_taken_for_one(root: Path, store: Folder, damage: bytes) -> None:
    """A power cut may leave an empty file: that is not a job that never ran."""
    assert store.swap("names", "a", None, b"r1")
    (root / "docs" / "names" / "a").write_bytes(damage)
    with pytest.raises(StoreError, match="damaged"):
        store.get("names", "a")
    with pytest.raises(StoreError, match="damaged"):
        store.swap("names", "a", None, b"r2")


def test_files_of_others_are_no_keys(root: Path, store: Folder) -> None:
    assert store.swap("names", "a", None, b"a")
    assert store.swap("names", "k" * 999, None, b"a")
    for name in ("B", "a b", "%6a", "%zz", "~" + "0" * 64, ".DS_Store", "~"):
        (root / "docs" / "names" / name).write_bytes(b"x")
    assert store.keys("names") == ["a", "k" * 999]


def test_files_of_others_are_no_runs(root: Path, store: Folder) -> None:
    begun(store).close()
    for name in ("r1.saved", "r2", ".DS_Store", "r2.jsonl.bak"):
        (root / "logs" / name).write_bytes(trace(root).read_bytes())
    assert [each.run for each in store.runs()] == ["r1"]


# --- disks that are full or fail ---


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_full_disk_leaves_nothing_half_written(
    root: Path, store: Folder, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    chain = begun(store)
    chain.append({"n": 1})
    whole = trace(root).read_bytes()

    def full(write: Any, file: int, line: bytes) -> int:
        if not kept or trace(root).stat().st_size > len(whole):
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(write(file, line[:kept]))

    with monkeypatch.context() as patch:
        Calls(patch, "write").fails["write"] = full
        for _ in range(2):
            with pytest.raises(TraceUnwritable, match="ENOSPC"):
                chain.append({"n": 2})
    assert trace(root).read_bytes() == whole
    chain.append({"n": 3})  # there is room again
    chain.close()
    assert numbers(store) == [1, 3]


def test_a_real_full_disk(tmp_path: Path) -> None:
    """Where a file may grow no more, the line is taken back."""
    code = """
        import resource, sys
        from rollcage.errors import TraceUnwritable
        from rollcage.trace.chain import Chain
        from rollcage.trace.store import open_store
        chain = Chain(open_store(sys.argv[1]).open("r1"))
        chain.append({"event": "run", "format": "rollcage/2"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            for n in range(1000):
                chain.append({"n": n})
        except TraceUnwritable as error:
            assert "EFBIG" in str(error), error
            print(n)
        chain.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines()), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert numbers(Folder(tmp_path)) == list(range(int(done.stdout)))
    assert trace(tmp_path).read_bytes().endswith(b"\n")


@pytest.mark.parametrize("call", ["write", "fstat", "fdatasync"])
def test_a_log_that_the_disk_failed_is_not_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = Folder(tmp_path, durability="disk")
    chain = begun(store)
    chain.wait()
    with monkeypatch.context() as patch:
        name = "_sync_data" if call == "fdatasync" else call
        where = folder if call == "fdatasync" else os
        patch.setattr(where, name, fail(errno.EIO))
        with pytest.raises(TraceUnwritable, match="EIO"):
            chain.append({"n": 1})
            chain.wait()
    for _ in range(2):
        with pytest.raises(TraceUnwritable, match="EIO"):
            chain.append({"n": 2})
            chain.wait()


# --- interrupted, frozen, taken over ---


@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_ctrl_c_while_a_line_is_written(
    store: Folder, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    chain = begun(store)

    def interrupted(write: Any, file: int, line: bytes) -> int:
        if when != "before":
            write(file, line if when == "after" else line[:9])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        Calls(patch, "write").fails["write"] = interrupted
        with pytest.raises(KeyboardInterrupt):
            chain.append({"n": 1})
    if when == "within":  # which no system does; nothing is appended to it
        with pytest.raises(Fenced):
            chain.append({"n": 2})
    else:
        chain.append({"n": 2})
        chain.close()
        assert numbers(store) == ([2] if when == "before" else [1, 2])


@pytest.mark.parametrize("call", ["write", "fstat"])
def test_a_writer_that_was_frozen_within_its_write_is_refused(
    store: Folder, tmp_path: Path, call: str
) -> None:
    """Before its line or behind it: either who took over has read it, or it does not count."""
    begun(store).close()
    other = Other(str(tmp_path / "store"))
    try:
        assert other.do("open", run="r1") == 1
        assert other.do("write", n=1) is None
        other.do("stop_at", name=call)
        other.ask("write", n=2)
        other.until_frozen()
        new = begun(store, take=True)
        new.append({"n": 3})
        new.wait()
        other.wake()
        assert other.answer() == "Fenced"
        new.append({"n": 4})
        new.close()
    finally:
        other.end()
    assert numbers(store) == ([1, 3, 4] if call == "write" else [1, 2, 3, 4])


@pytest.mark.parametrize("at", ["write", "lseek", "pread", "replace", "close"])
def test_who_is_killed_while_taking_over_leaves_a_run_to_go_on_with(
    store: Folder, tmp_path: Path, at: str
) -> None:
    old = begun(store)
    old.append({"n": 1})
    old.wait()
    other = Other(str(tmp_path / "store"))
    try:
        other.do("stop_at", name=at)
        other.ask("open", run="r1", take=True)
        other.until_frozen()
        other.kill()
    finally:
        other.end()
    try:  # the old writer has been marked by then, or not
        old.append({"n": 2})
        old.wait()
        expected = [1, 2, 3]
    except Fenced:
        expected = [1, 3]
    new = begun(store, take=True)
    new.append({"n": 3})
    new.close()
    assert numbers(store) == expected


def test_a_mark_that_a_full_disk_took_back_is_set_again(
    store: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = begun(store)
    old.wait()
    other = Other(str(tmp_path / "store"))
    try:
        other.do("stop_at", name="replace")
        other.ask("open", run="r1", take=True)
        other.until_frozen()  # its mark is set, its copy made

        def full(write: Any, file: int, line: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            Calls(patch, "write").fails["write"] = full
            with pytest.raises(TraceUnwritable, match="ENOSPC"):
                old.append({"n": 0})
        old.append({"n": 1})  # the mark is gone, and the name not yet another's
        old.wait()
        other.wake()
        assert other.answer() == 2
        assert other.do("write", n=2) is None
        old.append({"n": 3})
        with pytest.raises(Fenced):
            old.wait()
        assert other.do("close") is None
    finally:
        other.end()
    assert numbers(store) == [1, 2]


@pytest.mark.parametrize("how", ["removed", "replaced", "cut", "emptied", "added to"])
@pytest.mark.damaged
def test_who_changes_a_live_log_ends_its_session(root: Path, store: Folder, how: str) -> None:
    chain = begun(store)
    chain.append({"n": 1})
    chain.wait()
    path = trace(root)
    data = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "replaced":
        (root / "new").write_bytes(data)
        (root / "new").rename(path)
    else:
        path.write_bytes({"cut": data[:-1], "emptied": b"", "added to": data + b"x"}[how])
    chain.append({"n": 2})
    with pytest.raises(Fenced):
        chain.wait()


def test_who_stopped_while_swapping_is_named(
    store: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other(str(tmp_path / "store"))
    try:
        other.do("stop_at", name="replace")
        other.ask("swap", kind="names", key="a", was=None, new="x")
        other.until_frozen()
        monkeypatch.setattr(folder, "_PATIENCE", 0)
        with pytest.raises(StoreError, match=r"names/\.lock is locked"):
            store.swap("names", "a", None, b"y")
        assert store.swap("once", "a", None, b"y")  # each kind has a lock of its own
        other.wake()
        assert other.answer() is True
    finally:
        other.end()
    assert store.get("names", "a") == b"x"


@pytest.mark.parametrize("at", ["open", "write", "replace", "close"])
def test_who_is_killed_while_swapping_leaves_a_whole_value(
    store: Folder, tmp_path: Path, at: str
) -> None:
    assert store.swap("names", "a", None, b"old")
    for nth in range(1, 5):
        other = Other(str(tmp_path / "store"))
        try:
            other.do("stop_at", name=at, nth=nth)
            other.ask("swap", kind="names", key="a", was="old", new="new")
            other.ask("freeze")  # where it came through
            other.until_frozen()
            other.kill()
        finally:
            other.end()
        assert store.get("names", "a") in (b"old", b"new")
        store.swap("names", "a", b"new", b"old")
        assert store.get("names", "a") == b"old"


# --- power cuts ---


def test_what_is_durable_is_on_the_disk_before_it_has_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Folder(root, durability="disk")
    calls = Calls(monkeypatch, "write", "fsync", "replace", "unlink")
    assert store.swap("names", "a", None, b"a")
    assert calls.made == ["write", "fsync", "replace", *["fsync"] * 4]  # of the store, once
    calls.made.clear()
    assert store.swap("names", "a", b"a", None)
    assert calls.made == ["unlink", "fsync", "fsync", "fsync"]


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_log_that_is_replaced_is_on_the_disk_before_it_has_its_name(
    root: Path, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(Folder(root, durability=durability)).log
    calls = Calls(monkeypatch, "write", "fsync", "replace")
    log.replace([b"{}\n"])
    syncs = ["fsync"] if durability == "disk" else []
    assert calls.made == ["write", *syncs, "replace", *syncs]
    assert trace(root).read_bytes() == b"{}\n"
    log.close()


def test_an_intent_is_on_the_disk_once_it_was_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Folder(root, durability="disk")
    calls = Calls(monkeypatch, "write", "fsync")
    synced: list[int] = []
    sync = folder._sync_data

    def counted(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        sync(file)

    monkeypatch.setattr(folder, "_sync_data", counted)
    chain = begun(store)
    assert calls.made == ["fsync", "fsync", "fsync", "write"]  # its name, its folder's, the store's
    for n in range(3):
        chain.append({"n": n})
        chain.append({"n": n})
        chain.wait()
        chain.wait()
        assert synced[n:] == [trace(root).stat().st_size]  # lines of one wait together
    chain.append({"n": 3})
    chain.close()
    assert synced[3:] == [trace(root).stat().st_size]


# --- what it costs ---


def test_a_write_is_two_writes_and_one_look(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = begun(store)
    chain.wait()
    calls = Calls(monkeypatch, "open", "write", "fstat", "stat", "fsync", "lseek", "close")
    chain.append({"event": "step"})
    chain.wait()
    chain.append({"event": "outcome"})
    assert calls.made == ["write", "fstat", "write"]


def test_a_thousand_runs_beside_do_not_change_the_cost(
    root: Path, store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(
        monkeypatch, "open", "write", "fstat", "stat", "listdir", "scandir", "replace", "read",
        "close", "unlink", "mkdir",
    )  # fmt: skip

    def session() -> list[str]:
        calls.made.clear()
        seen = store.get("names", "job")
        if seen:
            store.read(seen.decode(), -1)
        chain = begun(store, "again")
        assert store.swap("names", "job", seen, b"again")
        chain.append({"n": 1})
        chain.wait()
        store.bell()
        chain.close()
        return list(calls.made)

    session()
    alone = session()
    for n in range(1000):
        chain = begun(store, f"run-{n}")
        chain.close()
        assert store.swap("names", f"job-{n}", None, b"run")
    beside = session()
    assert beside == alone
    assert "listdir" not in beside
    assert beside.count("write") <= 3


def test_opening_a_run_that_has_ended_reads_its_last_line_only(
    root: Path, store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = begun(store)
    for n in range(20_000):
        chain.append({"n": n})
    chain.append({"event": "ended", "status": "ok"})
    chain.close()
    read: list[int] = []
    pread = os.pread

    def counted(file: int, length: int, at: int) -> bytes:
        read.append(length)
        return pread(file, length, at)

    monkeypatch.setattr(os, "pread", counted)
    assert b'"ended"' in store.read("r1", -1)[0]
    assert sum(read) <= 1 << 16
    assert events_of(store)[0]["event"] == FIRST["event"]
