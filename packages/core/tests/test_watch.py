"""What bodies do, held to what their tools declare: real files, sockets and processes."""

import asyncio
import concurrent.futures
import contextvars
import ctypes
import importlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import Contract, SessionError, tool
from rollcage.contract.permissions import Enforce
from rollcage.errors import PermissionUndeclared
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]


def run(
    store: JsonlStore, body: Callable[[], Any], *permissions: str, enforce: Enforce = "strict"
) -> Session:
    """Run a body under these permissions; what it raises is raised."""
    contract = Contract.of(lambda: None, name="tool", permissions=permissions or ("none",))
    with Session("job", store=store, replay="off", enforce=enforce) as session:
        session.run(contract, {}, lambda: body() and None)
    return session


def told(events: list[dict[str, Any]], step: int = 1) -> list[str]:
    """What a step's end says that its body did without having declared it."""
    (end,) = (e for e in events if e["event"] == "step.finished" and e["step"] == step)
    found: list[str] = end.get("undeclared", [])
    return found


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A folder that may be touched, with a file in it."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "file").write_text("text")
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that may not be."""
    folder = tmp_path / "outside"
    (folder / "empty").mkdir(parents=True)
    (folder / "file").write_text("text")
    return folder


# --- files ---------------------------------------------------------------------------------------

READS: dict[str, Callable[[Path], Any]] = {
    "open": lambda at: (at / "file").read_text(),
    "bytes": lambda at: open(os.fsencode(at / "file"), "rb").close(),  # noqa: PTH123 - bytes
    "os.open": lambda at: os.close(os.open(at / "file", os.O_RDONLY)),
    "listdir": os.listdir,
    "iterdir": lambda at: list(at.iterdir()),
    "scandir": lambda at: os.scandir(at).close(),
    "walk": lambda at: list(os.walk(at)),
    "glob": lambda at: list(at.glob("*")),
    "sqlite": lambda at: sqlite3.connect(f"file:{at / 'file'}?mode=ro", uri=True).close(),
}
WRITES: dict[str, Callable[[Path], Any]] = {
    "write": lambda at: (at / "new").write_text("x"),
    "append": lambda at: (at / "file").open("a").close(),
    "exclusive": lambda at: (at / "new").open("x").close(),
    "os.open": lambda at: os.close(os.open(at / "new", os.O_WRONLY | os.O_CREAT)),
    "truncating": lambda at: os.close(os.open(at / "file", os.O_WRONLY | os.O_TRUNC)),
    "touch": lambda at: (at / "new").touch(),
    "remove": lambda at: (at / "file").unlink(),
    "rename": lambda at: (at / "file").rename(at / "other"),
    "replace": lambda at: (at / "file").replace(at / "other"),
    "mkdir": lambda at: (at / "new").mkdir(),
    "rmdir": lambda at: (at / "empty").rmdir(),
    "link": lambda at: (at / "hard").hardlink_to(at / "file"),
    "symlink": lambda at: (at / "soft").symlink_to("file"),
    "chmod": lambda at: (at / "file").chmod(0o600),
    "chown": lambda at: os.chown(at / "file", os.getuid(), os.getgid()),
    "truncate": lambda at: os.truncate(at / "file", 0),
    "utime": lambda at: os.utime(at / "file"),
    "tempfile": lambda at: tempfile.mkstemp(dir=at),
    "sqlite": lambda at: sqlite3.connect(at / "db").close(),
    "sqlite uri": lambda at: sqlite3.connect(f"file:{at / 'db'}?mode=rwc", uri=True).close(),
}


@pytest.mark.parametrize("what", READS)
def test_reading_takes_a_permission(
    store: JsonlStore, inside: Path, outside: Path, events: Events, what: str
) -> None:
    read = READS[what]
    run(store, lambda: read(inside), f"fs:read:{inside}")
    run(store, lambda: read(outside), "fs:read")
    with pytest.raises(PermissionUndeclared, match="fs:read"):
        run(store, lambda: read(outside), f"fs:read:{inside}", "fs:write")
    session = run(store, lambda: read(outside), f"fs:read:{inside}", enforce="report")
    assert told(events(session.run_id))[0].startswith(f"fs:read:{outside}")


@pytest.mark.parametrize("what", WRITES)
def test_changing_takes_a_permission(
    store: JsonlStore, inside: Path, outside: Path, events: Events, what: str
) -> None:
    (inside / "empty").mkdir()
    write = WRITES[what]
    before = sorted(outside.iterdir()), (outside / "file").read_text()
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}"):
        run(store, lambda: write(outside), f"fs:write:{inside}", "fs:read")
    assert (sorted(outside.iterdir()), (outside / "file").read_text()) == before
    run(store, lambda: write(inside), f"fs:write:{inside}", "fs:read")
    session = run(store, lambda: write(outside), "fs:read", enforce="report")
    assert told(events(session.run_id))[0].startswith(f"fs:write:{outside}")


SHUTIL: dict[str, Callable[[Path], Any]] = {
    "copyfile": lambda at: shutil.copyfile(at / "file", at / "copy"),
    "copy2": lambda at: shutil.copy2(at / "file", at / "copy"),
    "copytree": lambda at: shutil.copytree(at / "empty", at / "tree"),
    "move": lambda at: shutil.move(at / "file", at / "moved"),
    "rmtree": shutil.rmtree,
    "archive": lambda at: shutil.make_archive(str(at / "all"), "zip", at / "empty"),
}


@pytest.mark.parametrize("what", SHUTIL)
def test_shutil_is_seen_by_what_it_does(
    store: JsonlStore, inside: Path, outside: Path, what: str
) -> None:
    (inside / "empty").mkdir()
    (inside / "empty" / "deep").mkdir()
    (inside / "empty" / "deep" / "file").write_text("x")
    step = SHUTIL[what]
    with pytest.raises(PermissionUndeclared):
        run(store, lambda: step(outside), f"fs:write:{inside}", f"fs:read:{inside}")
    assert (outside / "file").exists()
    run(store, lambda: step(inside), f"fs:write:{inside}", f"fs:read:{inside}")


def test_a_link_is_what_it_leads_to(store: JsonlStore, inside: Path, outside: Path) -> None:
    (inside / "out").symlink_to(outside / "file")
    (inside / "folder").symlink_to(outside)
    able = (f"fs:read:{inside}", f"fs:write:{inside}")
    with pytest.raises(PermissionUndeclared, match=f"fs:read:{outside}/file"):
        run(store, (inside / "out").read_text, *able)
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/new"):
        run(store, lambda: (inside / "folder" / "new").write_text("x"), *able)
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/file"):
        run(store, (inside / "folder" / "file").unlink, *able)
    run(store, (inside / "out").unlink, *able)  # the link itself is inside
    assert (outside / "file").exists()


def test_a_way_out_by_dots_leads_out(
    store: JsonlStore, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
        run(store, lambda: Path(f"{inside}/../outside/x").touch(), f"fs:write:{inside}")
    monkeypatch.chdir(inside)
    run(store, lambda: Path("x").touch(), f"fs:write:{inside}")
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
        run(store, lambda: Path("../outside/x").touch(), f"fs:write:{inside}")
    run(store, os.listdir, f"fs:read:{inside}")


def test_paths_relative_to_a_descriptor(
    store: JsonlStore, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY
    here, there = os.open(inside, flags), os.open(outside, flags)
    able = (f"fs:read:{inside}", f"fs:write:{inside}")
    monkeypatch.chdir(outside / "empty")
    try:
        run(store, lambda: os.mkdir("made", dir_fd=here), *able)
        run(store, lambda: os.rename("made", "m", src_dir_fd=here, dst_dir_fd=here), *able)
        run(store, lambda: os.rmdir("m", dir_fd=here), *able)
        run(store, lambda: os.listdir(here), *able)  # noqa: PTH208 - a descriptor
        run(store, lambda: os.chmod("file", 0o600, dir_fd=here), *able)
        for each in (
            lambda: os.mkdir("made", dir_fd=there),
            lambda: os.unlink("file", dir_fd=there),
            lambda: os.rename("file", "f", src_dir_fd=here, dst_dir_fd=there),
            lambda: os.listdir(there),  # noqa: PTH208 - a descriptor
            lambda: os.fchmod(there, 0o700),
        ):
            with pytest.raises(PermissionUndeclared, match=str(outside)):
                run(store, each, *able)
        assert (outside / "file").exists()
    finally:
        os.close(here)
        os.close(there)


def test_os_open_does_not_tell_its_descriptor(
    store: JsonlStore, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside / "own").write_text("x")
    folder = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    able = (f"fs:read:{inside}", f"fs:write:{inside}")
    monkeypatch.chdir(outside)

    def opened(name: str, flags: int, *, told: bool = False) -> None:
        if told:
            sys.audit("rollcage.dir_fd", folder)
        os.close(os.open(name, flags, dir_fd=folder))

    try:
        # Nothing else has that name: it is the one inside that is meant, or nothing happens.
        run(store, lambda: opened("own", os.O_RDONLY), *able)
        # Both have it, or one of them would get it: nobody can tell, unless the body does.
        with pytest.raises(PermissionUndeclared, match=f"fs:read:{outside}/file"):
            run(store, lambda: opened("file", os.O_RDONLY), *able)
        with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/new"):
            run(store, lambda: opened("new", os.O_WRONLY | os.O_CREAT), *able)
        run(store, lambda: opened("file", os.O_RDONLY, told=True), *able)
        run(store, lambda: opened("new", os.O_WRONLY | os.O_CREAT, told=True), *able)
        assert (inside / "new").exists()
        assert not (outside / "new").exists()
        with pytest.raises(PermissionUndeclared, match=str(inside)):
            run(store, lambda: opened("own", os.O_RDONLY, told=True), "none")
        with pytest.raises(PermissionUndeclared, match="relative to a descriptor"):
            run(store, lambda: os.mkdir("x", dir_fd=999), *able)
    finally:
        os.close(folder)


def test_what_a_descriptor_was_opened_for_is_not_asked_again(
    store: JsonlStore, outside: Path
) -> None:
    with (outside / "file").open("r+") as file:
        run(store, lambda: open(file.fileno(), closefd=False).read())  # noqa: SIM115 - a descriptor
        run(store, lambda: file.truncate(0))


def test_devices_that_hold_nothing_are_nobodys(store: JsonlStore) -> None:
    run(store, lambda: Path(os.devnull).write_text("x"))
    run(store, lambda: os.close(os.open("/dev/urandom", os.O_RDONLY)))
    run(store, lambda: sqlite3.connect(":memory:").close())
    run(store, lambda: sqlite3.connect("file::memory:?cache=shared", uri=True).close())


def test_imports_and_what_is_installed_are_no_reading(
    store: JsonlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text("NUMBER = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body() -> None:
        sys.modules.pop("wave", None)
        import wave  # noqa: F401 - of the standard library

        assert importlib.import_module("own_module").NUMBER == 5
        Path(os.__file__).read_bytes()

    run(store, body)
    with pytest.raises(PermissionUndeclared, match="own_module"):
        run(store, (tmp_path / "own_module.py").read_text)


def test_a_module_that_reads_while_it_is_imported_reads(
    store: JsonlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reading_module.py").write_text(f"open({str(tmp_path / 'x')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body() -> None:
        importlib.import_module("reading_module")

    with pytest.raises(PermissionUndeclared, match=f"fs:write:{tmp_path}/x"):
        run(store, body)


def test_a_traceback_shows_its_source(store: JsonlStore) -> None:
    import linecache
    import traceback

    def body() -> None:
        linecache.clearcache()
        try:
            raise ValueError
        except ValueError:
            assert "raise ValueError" in traceback.format_exc()

    run(store, body)


# --- the network ---------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    """A port of loopback where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def connect(host: str, port: int) -> None:
    with socket.socket() as client:
        client.connect((host, port))


def test_connecting_takes_a_permission(store: JsonlStore, port: int, events: Events) -> None:
    for able in (
        "net",
        "net:127.0.0.1",
        f"net:127.0.0.1:{port}",
        "net:127.0.0.0/8",
        f"net:*:{port}",
    ):
        run(store, lambda: connect("127.0.0.1", port), able)
    for unable in ("none", "net:127.0.0.2", "net:127.0.0.1:1", "net:localhost:1", "fs:read"):
        with pytest.raises(PermissionUndeclared, match=f"net:127.0.0.1:{port}"):
            run(store, lambda: connect("127.0.0.1", port), unable)
    session = run(store, lambda: connect("127.0.0.1", port), enforce="report")
    assert told(events(session.run_id)) == [f"net:127.0.0.1:{port}"]


def test_a_declared_name_covers_the_addresses_that_it_stands_for(
    store: JsonlStore, port: int
) -> None:
    run(store, lambda: connect("localhost", port), "net:localhost")
    run(store, lambda: connect("127.0.0.1", port), f"net:localhost:{port}")
    with pytest.raises(PermissionUndeclared, match="net:localhost"):
        run(store, lambda: connect("localhost", port), "net:example.invalid")
    with pytest.raises(PermissionUndeclared, match=f"net:127.0.0.1:{port}"):
        run(store, lambda: connect("127.0.0.1", port), "net:example.invalid")


def test_looking_a_name_up_tells_somebody_of_it(store: JsonlStore) -> None:
    for look in (socket.gethostbyname, lambda name: socket.getaddrinfo(name, 80)):
        with pytest.raises(PermissionUndeclared, match=r"net:secret\.example"):
            run(store, lambda look=look: look("secret.example"), "net:other.example")  # type: ignore[misc] # mypy can't infer a default of a lambda
    run(store, lambda: socket.getaddrinfo("127.0.0.1", 80))  # no name: nobody is asked


def test_serving_and_datagrams(store: JsonlStore, port: int) -> None:
    def datagram() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", ("127.0.0.1", port))
            sender.sendmsg([b"x"], [], 0, ("127.0.0.1", port))

    def serve() -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))

    for body in (datagram, serve):
        run(store, body, "net:127.0.0.1")
        with pytest.raises(PermissionUndeclared, match=r"net:127\.0\.0\.1"):
            run(store, body)


def test_unix_sockets(store: JsonlStore) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path: it has about 100 bytes
        path = os.path.join(os.path.realpath(folder), "s")  # noqa: PTH118 - a text is wanted
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()

            def reach() -> None:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)

            run(store, reach, "net:unix")
            run(store, reach, f"net:unix:{folder}")
            with pytest.raises(PermissionUndeclared, match=f"net:unix:{path}"):
                run(store, reach, "net:unix:/run/other")


async def test_asyncio_looks_names_up_in_threads_of_its_own(store: JsonlStore, port: int) -> None:
    async def body() -> None:
        _, writer = await asyncio.open_connection("localhost", port)
        writer.close()
        await writer.wait_closed()

    able = Contract.of(body, name="able", permissions=["net:localhost"])
    unable = Contract.of(body, name="unable", permissions=["net:127.0.0.9"])
    async with Session("job", store=store, enforce="strict") as session:
        await session.arun(able, {}, body)
        with pytest.raises(PermissionUndeclared, match="net:"):
            await session.arun(unable, {}, body)


# --- processes -----------------------------------------------------------------------------------

PROCESSES: dict[str, Callable[[], Any]] = {
    "run": lambda: subprocess.run(["true"], check=True),
    "shell": lambda: subprocess.run("true", shell=True, check=True),  # noqa: S602 - as tools do
    "system": lambda: os.system("true"),  # noqa: S605 - as tools do
    "popen": lambda: os.popen("true").close(),  # noqa: S605 - as tools do
    "spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "spawnl": lambda: os.spawnl(os.P_WAIT, "/bin/true", "true"),  # noqa: S606 - as tools do
    "kill": lambda: os.kill(os.getpid(), 0),
    "native": lambda: ctypes.CDLL("libc.so.6"),
}


@pytest.mark.parametrize("what", PROCESSES)
def test_processes_take_a_permission(store: JsonlStore, what: str, events: Events) -> None:
    body = PROCESSES[what]
    run(store, body, "process")
    with pytest.raises(PermissionUndeclared, match="process:"):
        run(store, body, "fs:read", "fs:write", "net")
    session = run(store, body, enforce="report")
    assert all(each.startswith("process:") for each in told(events(session.run_id)))


def test_a_program_of_its_own(store: JsonlStore) -> None:
    run(store, lambda: subprocess.run(["true"], check=True), "process:true")
    with pytest.raises(PermissionUndeclared, match="process:false"):
        run(store, lambda: subprocess.run(["false"], check=False), "process:true")
    run(store, lambda: ctypes.CDLL(None))


def test_a_fork_and_what_replaces_the_process(store: JsonlStore) -> None:
    for body in (os.fork, lambda: os.execv("/bin/true", ["true"])):  # noqa: S606 - as tools do
        with pytest.raises(PermissionUndeclared, match="process:"):
            run(store, body)


# --- who is held to what -------------------------------------------------------------------------


def test_nothing_is_looked_at_unless_the_session_says_so(
    store: JsonlStore, outside: Path, events: Events
) -> None:
    session = run(store, (outside / "x").touch, enforce="off")
    assert told(events(session.run_id)) == []
    assert "enforce" not in events(session.run_id)[0]


def test_a_tool_that_declares_nothing_is_held_to_nothing(store: JsonlStore, outside: Path) -> None:
    @tool
    def free() -> None:
        (outside / "x").touch()

    with Session("job", store=store, enforce="strict"):
        free()


def test_the_session_says_how_it_was_held(store: JsonlStore, events: Events) -> None:
    with Session("job", store=store, enforce="report") as session:
        pass
    assert events(session.run_id)[0]["enforce"] == "report"
    other: Any = "maybe"
    with pytest.raises(SessionError, match="enforce='maybe'"):
        Session("job", store=store, enforce=other)


def test_each_thing_is_told_once_and_not_too_many(
    store: JsonlStore, outside: Path, events: Events
) -> None:
    def body() -> None:
        for number in (1, 1, *range(100)):
            (outside / str(number)).touch()

    session = run(store, body, enforce="report")
    found = told(events(session.run_id))
    assert found[0] == f"fs:write:{outside}/1"
    assert len(found) == len(set(found)) == 64


def test_a_name_that_utf8_can_not_hold_is_told(store: JsonlStore, outside: Path) -> None:
    odd = os.fsdecode(os.fsencode(outside) + b"/\xff")
    run(store, lambda: Path(odd).touch(), enforce="report")


def test_a_body_that_takes_the_refusal_goes_on_and_the_trace_tells(
    store: JsonlStore, outside: Path, events: Events
) -> None:
    refused: list[str] = []

    def body() -> None:
        try:
            (outside / "x").touch()
        except PermissionUndeclared as error:
            refused.append(error.needs)

    session = run(store, body)
    assert told(events(session.run_id)) == refused == [f"fs:write:{outside}/x"]
    assert not (outside / "x").exists()


def test_a_replay_tells_the_refusal_and_runs_nothing(store: JsonlStore, outside: Path) -> None:
    runs: list[int] = []

    @tool(effect="read", permissions=["none"])
    def peek() -> str:
        runs.append(1)
        return (outside / "file").read_text()

    strict, refused = Session("job", store=store, enforce="strict"), PermissionUndeclared
    with strict as session, pytest.raises(refused) as live:
        peek()
    offline = Session("job", store=store, replay="offline", source=session.run_id)
    with offline, pytest.raises(refused) as recorded:
        peek()
    assert (str(recorded.value), recorded.value.needs) == (str(live.value), live.value.needs)
    assert runs == [1]


def test_an_inner_tool_has_permissions_of_its_own(
    store: JsonlStore, inside: Path, outside: Path, events: Events
) -> None:
    @tool(permissions=[f"fs:write:{inside}"])
    def inner(path: str) -> None:
        Path(path).touch()

    @tool
    def free(path: str) -> None:
        Path(path).touch()

    @tool(permissions=[f"fs:write:{outside}"])
    def outer(path: str) -> None:
        inner(path)

    @tool(permissions=["none"])
    def lets_others(path: str) -> None:
        inner(path)
        free(path)

    with Session("job", store=store, enforce="strict") as session:
        with pytest.raises(PermissionUndeclared, match="inner does not declare"):
            outer(str(outside / "x"))  # the outer one's do not excuse it
        lets_others(str(inside / "x"))  # nor does the outer one take them upon itself
    assert not (outside / "x").exists()
    assert told(events(session.run_id), 1) == []
    assert told(events(session.run_id), 2) == [f"fs:write:{outside}/x"]


def test_rollcage_itself_may_write_its_trace_and_blobs(store: JsonlStore, events: Events) -> None:
    @tool(effect="read", permissions=["none"])
    def large() -> str:
        return "x" * 100_000

    @tool(permissions=["none"])
    def outer() -> int:
        with Session("within", store=store, replay="off"):
            return len(large())

    with Session("job", store=store, enforce="strict") as session:
        assert outer() == 100_000
        with pytest.raises(PermissionUndeclared, match="fs:write"):
            run(store, (store.root / "runs" / "x").touch)
    assert told(events(session.run_id)) == []


def test_what_a_body_does_in_a_session_of_its_own_is_its_deed(
    store: JsonlStore, outside: Path
) -> None:
    def body() -> None:
        with Session("within", store=store, replay="off"):
            (outside / "x").touch()

    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
        run(store, body)


def test_what_is_declared_beside_a_tool_is_no_body(
    store: JsonlStore, outside: Path, files: Any
) -> None:
    @tool(undo=files.restore, observe=files.observe, permissions=["none"])
    def write(path: str) -> None: ...

    with Session("job", store=store, enforce="strict", tools=[write, files.restore_file]):
        write(str(outside / "file"))


async def test_tasks_and_threads_that_know_the_context(store: JsonlStore, outside: Path) -> None:
    def touch() -> None:
        (outside / "x").touch()

    async def task() -> None:
        await asyncio.gather(asyncio.create_task(asyncio.to_thread(touch)))

    def sync() -> None:
        touch()

    def pooled() -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pool.submit(contextvars.copy_context().run, touch).result()

    async with Session("job", store=store, enforce="strict") as session:
        for number, (body, is_async) in enumerate([(task, True), (sync, False), (pooled, False)]):
            contract = Contract.of(body, name=f"t{number}", permissions=["none"])
            with pytest.raises(PermissionUndeclared):
                await session.arun(contract, {}, body, is_async=is_async)
    assert not (outside / "x").exists()


def test_a_thread_without_the_context_is_not_seen(store: JsonlStore, outside: Path) -> None:
    def body() -> None:
        thread = threading.Thread(target=(outside / "x").touch)
        thread.start()
        thread.join()

    run(store, body)
    assert (outside / "x").exists()


async def test_streams_are_held_for_each_chunk(
    store: JsonlStore, inside: Path, outside: Path, events: Events
) -> None:
    def chunks() -> Iterator[int]:
        (inside / "x").touch()
        yield 1
        (outside / "x").touch()
        yield 2

    async def achunks() -> AsyncIterator[int]:
        for each in chunks():
            yield each

    declared: dict[str, Any] = {"permissions": [f"fs:write:{inside}"], "effect": "read"}
    contract = Contract.of(chunks, name="chunks", **declared)
    seen: list[int] = []
    async with Session("job", store=store, enforce="strict") as session:
        with pytest.raises(PermissionUndeclared):
            seen.extend(session.stream(contract, {}, chunks))
        with pytest.raises(PermissionUndeclared):
            async for each in session.astream(contract, {}, achunks):
                seen += [-each]
        (outside / "y").touch()  # between the chunks nobody is held to anything
    assert seen == [1, -1]
    assert told(events(session.run_id), 1) == [f"fs:write:{outside}/x"]
    assert not (outside / "x").exists()


def test_the_functions_that_call_bodies_are_known_by_their_code_not_their_names(
    store: JsonlStore, outside: Path
) -> None:
    """Renamed, they still are: what a body does under them is its own deed."""
    from rollcage.step import bodies, watch

    def touch() -> None:
        (outside / "x").touch()

    contract = Contract.of(touch, permissions=["fs:read:/nowhere"])
    execute: Any = bodies.Bodies.execute
    code = execute.__code__
    renamed = code.replace(co_name="perform")
    execute.__code__ = renamed
    watch.calls_body(execute)
    try:
        with pytest.raises(PermissionUndeclared):  # noqa: SIM117 - whatever is declared of it
            with Session("job", store=store, enforce="strict") as session:
                session.run(contract, {}, touch)
    finally:
        execute.__code__ = code
    assert not (outside / "x").exists()


def test_what_can_not_be_told_is_not_let_through(store: JsonlStore) -> None:
    with pytest.raises(PermissionUndeclared, match=r"os\.remove: TypeError"):
        run(store, lambda: sys.audit("os.remove", object()))
    run(store, lambda: sys.audit("os.remove", object()), enforce="report")


def test_the_process_goes_on_as_before_outside_of_bodies(store: JsonlStore, outside: Path) -> None:
    run(store, lambda: None)
    with Session("job", store=store, enforce="strict"):
        (outside / "x").touch()
        subprocess.run(["true"], check=True)
    assert (outside / "x").exists()


# --- relative roots ------------------------------------------------------------------------------


def read_here() -> str:
    return Path("file").read_text()


def test_a_relative_root_starts_where_the_session_was_opened(
    store: JsonlStore, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (inside, outside):  # each session its own: nothing is left of the one before
        monkeypatch.chdir(folder)
        run(store, read_here, "fs:read:.")
        with pytest.raises(PermissionUndeclared, match=str((folder.parent / "elsewhere").name)):
            run(store, lambda: Path("../elsewhere").read_text(), "fs:read:.")


def test_a_change_of_directory_moves_no_root_of_an_open_session(
    store: JsonlStore, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = Contract.of(lambda: None, name="tool", permissions=["fs:read:."])
    monkeypatch.chdir(inside)
    with Session("job", store=store, enforce="strict") as session:
        os.chdir(outside)  # before the first body, and so before any root was looked at
        session.run(contract, {}, (inside / "file").read_text)
        with pytest.raises(PermissionUndeclared, match=str(outside)):
            session.run(contract, {}, read_here)
        os.chdir(inside)
        assert session.run(contract, {}, read_here) == "text"


def test_a_link_that_leads_elsewhere_since_counts_in_the_next_session(
    store: JsonlStore, inside: Path, outside: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    for folder in (inside, outside):
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        run(store, (folder / "file").read_text, f"fs:read:{link}")
