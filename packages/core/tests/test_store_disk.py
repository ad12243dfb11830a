"""What the file system gives and refuses: modes, locks, a full disk, a store that is read-only."""

import errno
import fcntl
import logging
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunInUse, StoreError, StoreReadOnly, TraceUnwritable, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder
from rollcage_governance import Registry

Python = Callable[..., subprocess.CompletedProcess[str]]


@tool(effect="write", name="disk.keep")
def keep(text: str) -> str:
    return text


@tool(effect="write", name="disk.login", secret="password")
def login(user: str, password: str) -> str:
    return user


def record(store: JsonlStore | Path, **how: Any) -> str:
    with Session("job", store=store, **how) as session:
        keep("x" * 100_000)
        login("ann", "hunter2")
    return session.run_id


# --- modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o377])
def test_all_of_it_is_for_its_owner_alone(store: JsonlStore, umask: int) -> None:
    before = os.umask(umask)
    try:
        run = record(store, durability="disk")
        store.stop(StopOrder(run, "ann", "enough", 1))
        registry = Registry(store)
        registry.propose(keep, by="ann")
        registry.approve("disk.keep", by="bob")
        assert store.put_once("approvals", "0123456789abcdef.request", b"{}")
        path = store.root / "runs" / f"{run}.jsonl"
        with path.open("ab") as file:
            file.write(b"torn")
        store.reopen(run).close()
        (store.root / "index.jsonl").write_bytes(b"")
        store.repair()
        with Session("job", store=store, replay="off"):
            pages = list((store.root / "runs").glob("*.control"))
            assert len(pages) == 1
            modes = {p.relative_to(store.root): p.stat().st_mode for p in store.root.rglob("*")}
    finally:
        os.umask(before)
    assert len(modes) >= 14
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    for name, mode in modes.items():
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), name


def test_a_store_that_is_there_keeps_its_modes(store: JsonlStore) -> None:
    store.root.mkdir(mode=0o755)
    (store.root / "runs").mkdir(mode=0o755)
    for path in (store.root, store.root / "runs"):
        path.chmod(0o755)
    record(store)
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o755
    assert stat.S_IMODE((store.root / "runs").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o604, 0o606, 0o666])
def test_a_key_that_everybody_may_have_is_refused(store: JsonlStore, mode: int) -> None:
    record(store)
    (store.root / "key").chmod(mode)
    with Session("job", store=store, replay="off"), pytest.raises(StoreError, match="chmod 600"):
        login("ann", "hunter2")
    (store.root / "key").chmod(0o600)
    record(store, replay="off")


def test_one_that_a_group_may_have_is_told_of(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    record(store)
    (store.root / "key").chmod(0o640)
    with caplog.at_level(logging.WARNING, "rollcage"):
        record(store, replay="off")
    assert [m for m in caplog.messages if "mode 0640" in m]


# --- locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_lock_that_fails_is_not_taken_for_somebody_elses(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run = record(store)

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for use in (
        lambda: store.lock(run),
        lambda: store.reopen(run),
        lambda: store.stop(StopOrder(run, "ann", "enough", 1)),
        lambda: Session("job", store=store).__enter__(),
        lambda: Registry(store).propose(keep, by="ann"),
    ):
        with pytest.raises(StoreError, match=errno.errorcode[number]) as caught:
            use()
        assert not isinstance(caught.value, RunInUse)
        assert "local disk" in str(caught.value) or number == errno.EIO


# --- a full disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_what_helps(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write = os.write
    full = False

    def refuse(descriptor: int, data: bytes) -> int:
        if full:
            raise OSError(number, os.strerror(number))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)
    said = f"({errno.errorcode[number]}): free some"
    with pytest.raises(TraceUnwritable) as caught, Session("job", store=store):
        full = True
        keep("short")
    assert said in str(caught.value)
    with pytest.raises((StoreError, TraceUnwritable)) as refused, Session("job", store=store):
        pytest.fail("it began on a full disk")
    assert said in str(refused.value)
    with pytest.raises((StoreError, TraceUnwritable)) as refused:
        store.put_blob("ab" * 32, b"x")
    assert said in str(refused.value)
    with pytest.raises(StoreError) as refused:
        store.put_once("approvals", "0123456789abcdef.request", b"{}")
    assert said in str(refused.value)
    full = False
    record(store, replay="off")


def mounted(script: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a mount namespace of its own, after a script that mounts."""
    able = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False, shell=False)
    if able.returncode:
        pytest.skip("no mount namespaces here")
    command = f'{script} && exec "$0" -c "$1"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", command, sys.executable, textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "error", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


FULL = """
    from rollcage import Halt, SessionHalted, StoreError, tool
    from rollcage.session.session import Session

    done = []

    @tool(effect="write")
    def write(text: str) -> int:
        done.append(text)
        return len(done)

    for attempt in range(3):
        try:
            with Session(f"job {attempt}", store="small/store") as session:
                for number in range(1000):
                    write("x" * 900)
        except (Halt, StoreError) as error:
            assert "ENOSPC" in str(error), error
            print(type(error).__name__)
"""


def test_a_disk_that_is_really_full_kills_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    script = "mount -t tmpfs -o size=64k none small"
    ended = mounted(script, FULL, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) == 3
    assert ended.stdout.startswith("TraceUnwritable")


# --- a store that can't be written ---------------------------------------------------------------

READ_ONLY = """
    import logging
    from rollcage import StoreReadOnly, tool
    from rollcage.session.session import Session
    from rollcage.store import JsonlStore

    logging.basicConfig()

    @tool(effect="write", name="disk.keep")
    def keep(text: str) -> str:
        raise AssertionError("it ran")

    @tool(effect="write", name="disk.login", secret="password")
    def login(user: str, password: str) -> str:
        raise AssertionError("it ran")

    for mode in ("offline", "verify"):
        with Session("job", store="store", replay=mode) as session:
            assert keep("x" * 100_000) == "x" * 100_000
            assert login("ann", "hunter2") == "ann"
        assert session.stats.hits == 2
    for mode in ("auto", "resume", "off"):
        try:
            with Session("job", store="store", replay=mode):
                print("entered")
        except StoreReadOnly as error:
            print(mode, "EROFS" in str(error))
    print(len(JsonlStore("store").runs()))
"""


def test_a_read_only_store_is_looked_back_at(store: JsonlStore, tmp_path: Path) -> None:
    run = record(store)
    before = {p: p.stat().st_mtime_ns for p in store.root.rglob("*")}
    script = "mount --bind store store && mount -o remount,bind,ro store"
    ended = mounted(script, READ_ONLY, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["auto True", "resume True", "off True", "1"]
    assert {p: p.stat().st_mtime_ns for p in store.root.rglob("*")} == before
    kept = sorted(tmp_path.glob("rollcage-*"))
    assert len(kept) == 2
    for folder in kept:
        assert str(folder) in ended.stderr
        (info,) = JsonlStore(folder).runs()
        assert (info.status, info.source) == ("ok", run)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert list(folder.glob("blobs/*/*"))  # it can be replayed without the first


def test_so_is_one_whose_folders_refuse(
    store: JsonlStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As another user's does; to root, who may do all, the call itself is made to refuse."""
    record(store)
    open_ = os.open

    def refuse(path: Any, flags: int, *args: Any, **words: Any) -> int:
        inside = str(path).startswith(str(store.root))
        if inside and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_(path, flags, *args, **words)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StoreReadOnly, match="EACCES"), Session("job", store=store):
        pytest.fail("it was entered")
    with (
        caplog.at_level(logging.WARNING, "rollcage"),
        Session("job", store=store, replay="offline") as session,
    ):
        assert keep("x" * 100_000) == "x" * 100_000
        assert login("ann", "hunter2") == "ann"
    (folder,) = tmp_path.glob("rollcage-*")
    assert (folder / "runs" / f"{session.run_id}.jsonl").exists()
    assert any(str(folder) in message for message in caplog.messages)
