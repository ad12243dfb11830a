"""Bodies of tools, held to what their tools declare: real files, sockets and processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import ctypes
import importlib
import inspect
import linecache
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from rollcage import Contract, Happened, Options, Session, Stage, open_store, tool
from rollcage.calls.stage import Body
from rollcage.errors import CaptureFailed, PermissionUndeclared, SessionError
from rollcage.replay.call import Call
from rollcage.session.session import BODY_CALLERS
from rollcage.trace import check_events
from rollcage_policy import Permissions
from rollcage_policy.watch import calls_body

Enforce = Literal["report", "strict"]


def job(store: Path, enforce: Enforce = "strict", **how: Any) -> Session:
    return Session("job", store=store, replay="off", stages=[Permissions(enforce)], **how)


def told(store: Path, session: Session) -> list[str]:
    """What the lines of a run say that bodies did without having declared it."""
    lines = open_store(store).read(session.run_id)
    check_events(b"".join(lines), session.run_id)
    return [each for line in lines for each in orjson.loads(line).get("undeclared", ())]


def declared(*permissions: str) -> Contract:
    return Contract.of(lambda: None, name="tool", permissions=permissions or ("none",))


def run(
    store: Path, body: Callable[[], Any], *permissions: str, enforce: Enforce = "strict"
) -> list[str]:
    """Run a body under these permissions; what it raises is raised."""
    with job(store, enforce) as session:
        session.run_call(declared(*permissions), {}, lambda: body() and None)
    return told(store, session)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk" / "inside").mkdir(parents=True)
    (tmp_path / "disk" / "file").write_text("text")
    return tmp_path / "disk"


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A folder that may be touched, with a file in it."""
    return filled(tmp_path / "inside")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that may not be."""
    return filled(tmp_path / "outside")


def filled(folder: Path) -> Path:
    (folder / "empty").mkdir(parents=True)
    (folder / "file").write_text("text")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


# --- files ---------------------------------------------------------------------------------------


def attribute(path: Path) -> None:
    with contextlib.suppress(OSError):  # there is none
        os.getxattr(path, "user.none")


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
    "attributes": lambda at: os.listxattr(at / "file"),
    "attribute": lambda at: attribute(at / "file"),
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
def test_reading_takes_a_permission(store: Path, inside: Path, outside: Path, what: str) -> None:
    read = READS[what]
    run(store, lambda: read(inside), f"fs:read:{inside}")
    run(store, lambda: read(outside), "fs:read")
    with pytest.raises(PermissionUndeclared, match="fs:read"):
        run(store, lambda: read(outside), f"fs:read:{inside}", "fs:write")
    assert run(store, lambda: read(outside), f"fs:read:{inside}", enforce="report")[0].startswith(
        f"fs:read:{outside}"
    )


@pytest.mark.parametrize("what", WRITES)
def test_changing_takes_a_permission(store: Path, inside: Path, outside: Path, what: str) -> None:
    write = WRITES[what]
    before = sorted(outside.iterdir()), (outside / "file").read_text()
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}"):
        run(store, lambda: write(outside), f"fs:write:{inside}", "fs:read")
    assert (sorted(outside.iterdir()), (outside / "file").read_text()) == before
    run(store, lambda: write(inside), f"fs:write:{inside}", "fs:read")
    assert run(store, lambda: write(outside), "fs:read", enforce="report")[0].startswith(
        f"fs:write:{outside}"
    )


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
    store: Path, inside: Path, outside: Path, what: str
) -> None:
    (inside / "empty" / "deep").mkdir()
    (inside / "empty" / "deep" / "file").write_text("x")
    step = SHUTIL[what]
    with pytest.raises(PermissionUndeclared):
        run(store, lambda: step(outside), f"fs:write:{inside}", f"fs:read:{inside}")
    assert (outside / "file").exists()
    run(store, lambda: step(inside), f"fs:write:{inside}", f"fs:read:{inside}")


def test_a_link_is_what_it_leads_to(store: Path, inside: Path, outside: Path) -> None:
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
    store: Path, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
        run(store, lambda: Path(f"{inside}/../outside/x").touch(), f"fs:write:{inside}")
    monkeypatch.chdir(inside)
    run(store, lambda: Path("x").touch(), f"fs:write:{inside}")
    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
        run(store, lambda: Path("../outside/x").touch(), f"fs:write:{inside}")
    run(store, os.listdir, f"fs:read:{inside}")


def test_paths_relative_to_a_descriptor(
    store: Path, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
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
    store: Path, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
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


def test_an_open_descriptor_is_not_asked_again(store: Path, outside: Path) -> None:
    with (outside / "file").open("r+") as file:
        run(store, lambda: open(file.fileno(), closefd=False).read())  # noqa: SIM115 - a descriptor
        run(store, lambda: file.truncate(0))


def test_devices_that_hold_nothing_are_free(store: Path) -> None:
    run(store, lambda: Path(os.devnull).write_text("x"))
    run(store, lambda: os.close(os.open("/dev/urandom", os.O_RDONLY)))
    run(store, lambda: sqlite3.connect(":memory:").close())
    run(store, lambda: sqlite3.connect("file::memory:?cache=shared", uri=True).close())


def test_imports_are_no_reading(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_module_acts_while_it_is_imported(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reading_module.py").write_text(f"open({str(tmp_path / 'x')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body() -> None:
        importlib.import_module("reading_module")

    with pytest.raises(PermissionUndeclared, match=f"fs:write:{tmp_path}/x"):
        run(store, body)


def test_a_traceback_shows_its_source(store: Path) -> None:
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


def test_connecting_takes_a_permission(store: Path, port: int) -> None:
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
    assert run(store, lambda: connect("127.0.0.1", port), enforce="report") == [
        f"net:127.0.0.1:{port}"
    ]


def test_a_declared_name_covers_its_addresses(store: Path, port: int) -> None:
    run(store, lambda: connect("localhost", port), "net:localhost")
    run(store, lambda: connect("127.0.0.1", port), f"net:localhost:{port}")
    with pytest.raises(PermissionUndeclared, match="net:localhost"):
        run(store, lambda: connect("localhost", port), "net:example.invalid")
    with pytest.raises(PermissionUndeclared, match=f"net:127.0.0.1:{port}"):
        run(store, lambda: connect("127.0.0.1", port), "net:example.invalid")


def test_looking_a_name_up_is_reaching(store: Path) -> None:
    by_name: list[Callable[[str], Any]] = [
        socket.gethostbyname,
        socket.gethostbyaddr,
        lambda name: socket.getaddrinfo(name, 80),
    ]
    for look in by_name:
        with pytest.raises(PermissionUndeclared, match=r"net:secret\.example"):
            run(store, lambda look=look: look("secret.example"), "net:other.example")  # type: ignore[misc] # mypy can't infer a default of a lambda
    run(store, lambda: socket.getaddrinfo("127.0.0.1", 80))  # no name: nobody is asked


def test_serving_and_datagrams(store: Path, port: int) -> None:
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


def test_unix_sockets(store: Path) -> None:
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


async def test_asyncio_looks_names_up_in_threads(store: Path, port: int) -> None:
    async def body() -> None:
        _, writer = await asyncio.open_connection("localhost", port)
        writer.close()
        await writer.wait_closed()

    able = Contract.of(body, name="able", permissions=["net:localhost"])
    unable = Contract.of(body, name="unable", permissions=["net:127.0.0.9"])
    async with job(store) as session:
        await session.arun_call(able, {}, body)
        with pytest.raises(PermissionUndeclared, match="net:"):
            await session.arun_call(unable, {}, body)


# --- processes -----------------------------------------------------------------------------------


def extension() -> None:
    """Load native code into SQLite, where it was built to do that."""
    sys.audit("sqlite3.load_extension", None, "spell.so")


PROCESSES: dict[str, Callable[[], Any]] = {
    "run": lambda: subprocess.run(["true"], check=True),
    "shell": lambda: subprocess.run("true", shell=True, check=True),  # noqa: S602 - as tools do
    "system": lambda: os.system("true"),  # noqa: S605 - as tools do
    "popen": lambda: os.popen("true").close(),  # noqa: S605 - as tools do
    "spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "spawnl": lambda: os.spawnl(os.P_WAIT, "/bin/true", "true"),  # noqa: S606 - as tools do
    "kill": lambda: os.kill(os.getpid(), 0),
    "native": lambda: ctypes.CDLL("libc.so.6"),
    "extension": extension,
}


@pytest.mark.parametrize("what", PROCESSES)
def test_processes_take_a_permission(store: Path, what: str) -> None:
    body = PROCESSES[what]
    run(store, body, "process")
    with pytest.raises(PermissionUndeclared, match="process:"):
        run(store, body, "fs:read", "fs:write", "net")
    found = run(store, body, enforce="report")
    assert found
    assert all(each.startswith("process:") for each in found)


def test_a_program_of_its_own(store: Path) -> None:
    run(store, lambda: subprocess.run(["true"], check=True), "process:true")
    with pytest.raises(PermissionUndeclared, match="process:false"):
        run(store, lambda: subprocess.run(["false"], check=False), "process:true")
    run(store, lambda: ctypes.CDLL(None))


def test_forks_and_replacing_the_process(store: Path) -> None:
    for body in (os.fork, lambda: os.execv("/bin/true", ["true"])):  # noqa: S606 - as tools do
        with pytest.raises(PermissionUndeclared, match="process:"):
            run(store, body)


# --- who is held to what -------------------------------------------------------------------------


def test_each_thing_is_told_once(store: Path, outside: Path) -> None:
    def body() -> None:
        for number in (1, 1, *range(100)):
            (outside / str(number)).touch()

    found = run(store, body, enforce="report")
    assert found[0] == f"fs:write:{outside}/1"
    assert len(found) == len(set(found)) == 64


def test_a_name_beyond_utf8_is_told(store: Path, outside: Path) -> None:
    odd = os.fsdecode(os.fsencode(outside) + b"/\xff")
    run(store, lambda: Path(odd).touch(), enforce="report")


def test_a_refusal_that_was_caught_is_recorded(store: Path, outside: Path) -> None:
    refused: list[str] = []

    def body() -> None:
        try:
            (outside / "x").touch()
        except PermissionUndeclared as error:
            refused.append(error.needs)

    assert run(store, body) == refused == [f"fs:write:{outside}/x"]
    assert not (outside / "x").exists()


@pytest.mark.parametrize("inner", ["within", "replay=off", "elsewhere", "in a session of its own"])
def test_a_session_of_its_own_excuses_nothing(
    store: Path, outside: Path, tmp_path: Path, inner: str
) -> None:
    how: dict[str, Any] = {"store": store}
    if inner == "elsewhere":
        how["store"] = tmp_path / "elsewhere"
    elif inner != "within":
        how["replay"] = "off"

    def body() -> None:
        with contextlib.ExitStack() as sessions:
            sessions.enter_context(Session("inner", **how))
            if inner == "in a session of its own":
                sessions.enter_context(Session("innermost", **how))
            with sessions.enter_context(Session("last", store=how["store"])).branch("b"):
                (outside / "x").touch()

    with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
        run(store, body)
    assert not (outside / "x").exists()


def test_undo_and_observe_are_no_body(store: Path, outside: Path, files: Any) -> None:
    @tool(undo=files.restore, observe=files.observe, permissions=["none"])
    def write(path: str) -> None: ...

    with job(store, options=Options(tools=[write, files.restore_file])):
        write(str(outside / "file"))


def test_a_thread_without_the_context_is_not_seen(store: Path, outside: Path) -> None:
    def body() -> None:
        thread = threading.Thread(target=(outside / "x").touch)
        thread.start()
        thread.join()

    run(store, body)
    assert (outside / "x").exists()


def test_a_doubtful_event_is_refused(store: Path) -> None:
    with pytest.raises(PermissionUndeclared, match=r"os\.remove: TypeError"):
        run(store, lambda: sys.audit("os.remove", object()))
    run(store, lambda: sys.audit("os.remove", object()), enforce="report")


def test_nothing_is_refused_outside_of_bodies(store: Path, outside: Path) -> None:
    run(store, lambda: None)
    with job(store):
        (outside / "x").touch()
        subprocess.run(["true"], check=True)
    assert (outside / "x").exists()


# --- relative roots ------------------------------------------------------------------------------


def read_here() -> str:
    return Path("file").read_text()


def test_a_relative_root_starts_at_the_session(
    store: Path, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (inside, outside):  # each session its own: nothing is left of the one before
        monkeypatch.chdir(folder)
        run(store, read_here, "fs:read:.")
        with pytest.raises(PermissionUndeclared, match="elsewhere"):
            run(store, lambda: Path("../elsewhere").read_text(), "fs:read:.")


def test_no_root_moves_with_the_directory(
    store: Path, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = Contract.of(lambda: None, name="tool", permissions=["fs:read:."])
    monkeypatch.chdir(inside)
    with job(store) as session:
        os.chdir(outside)  # before the first body, and so before any root was looked at
        session.run_call(contract, {}, (inside / "file").read_text)
        with pytest.raises(PermissionUndeclared, match=str(outside)):
            session.run_call(contract, {}, read_here)
        os.chdir(inside)
        assert session.run_call(contract, {}, read_here) == "text"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_streams_are_held_at_each_chunk(
    store: Path, inside: Path, outside: Path, asynchronous: bool
) -> None:
    def chunks() -> Iterator[int]:
        (inside / "x").touch()
        yield 1
        (outside / "x").touch()
        yield 2

    async def achunks() -> AsyncIterator[int]:
        for each in chunks():
            yield each

    contract = Contract.of(chunks, name="chunks", effect="read", permissions=[f"fs:write:{inside}"])
    seen: list[int] = []
    async with job(store) as session:
        with pytest.raises(PermissionUndeclared):
            if asynchronous:
                async for each in session.astream(contract, {}, achunks):
                    (outside / "between").touch()  # the consumer is held to nothing
                    seen.append(each)
            else:
                for each in session.stream(contract, {}, chunks):
                    (outside / "between").touch()
                    seen.append(each)
    assert seen == [1]
    assert told(store, session) == [f"fs:write:{outside}/x"]
    assert not (outside / "x").exists()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_function_that_returns_a_stream_is_held(
    store: Path, outside: Path, asynchronous: bool
) -> None:
    class Chunks:
        def __aiter__(self) -> AsyncIterator[int]:
            return self

        async def __anext__(self) -> int:
            raise StopAsyncIteration

    def opens() -> Any:
        (outside / "x").touch()
        return Chunks() if asynchronous else iter([1])

    contract = Contract.of(opens, name="opens", effect="read", permissions=["none"])
    async with job(store) as session:
        with pytest.raises(PermissionUndeclared):
            if asynchronous:
                assert [each async for each in session.astream(contract, {}, opens)] == []
            else:
                list(session.stream(contract, {}, opens))
    assert not (outside / "x").exists()


class Waits(Stage):
    """A third party's stage that surrounds bodies, and has no body of its own."""

    def around(self, call: Call, body: Body) -> Body:
        if not call.is_async:
            return body

        async def awaited() -> Any:
            value = body()
            return await value if inspect.isawaitable(value) else value

        return awaited


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("also", ["nothing", "probe", "observe", "once", "stage", "all"])
async def test_bodies_are_confined_inside_of_stages(
    store: Path, outside: Path, files: Any, also: str, asynchronous: bool
) -> None:
    with_it: dict[str, dict[str, Any]] = {
        "nothing": {},
        "probe": {"probe": lambda args: Path(args["path"]).read_text()},
        "observe": {"observe": files.observe, "undo": files.restore},
        "once": {"once": "touch/{path}"},
        "stage": {},
    }
    how = {k: v for each in with_it.values() for k, v in each.items()}
    how = how if also == "all" else with_it[also]

    def touch(path: str) -> None:
        Path(path).touch()

    async def atouch(path: str) -> None:
        touch(path)

    function = atouch if asynchronous else touch
    confined = tool(effect="write", permissions=["none"], name="touch", **how)(function)
    options = Options(tools=[files.restore_file])
    stages: list[Stage] = [Permissions()]
    if also in ("stage", "all"):
        stages.append(Waits())
    opened = Session("job", store=store, stages=stages, options=options)
    async with opened as session:
        with pytest.raises(PermissionUndeclared, match=f"fs:write:{outside}/x"):
            await session.acall(confined, path=str(outside / "x"))
    assert not (outside / "x").exists()
    assert told(store, session) == [f"fs:write:{outside}/x"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_finds_out_is_no_body(
    store: Path, outside: Path, files: Any, asynchronous: bool
) -> None:
    asked: list[str] = []

    def look(args: Any) -> Any:
        asked.append(Path(args["path"]).read_text())
        return Happened(None)

    def lose(path: str) -> None:
        raise ValueError(path)

    async def alose(path: str) -> None:
        lose(path)

    confined = tool(
        effect="write", permissions=["none"], name="lose", probe=look, observe=files.observe
    )(alose if asynchronous else lose)
    async with job(store) as session:
        await session.acall(confined, path=str(outside / "file"))
    assert asked
    assert told(store, session) == []


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
async def test_rollcage_itself_writes_from_threads(tmp_path: Path, kind: str) -> None:
    where = str(tmp_path / "runs") if kind == "folder" else f"sqlite:///{tmp_path}/runs.db"

    @tool(effect="read", permissions=["none"], name="large")
    async def large(n: int) -> str:
        return "x" * 100_000

    @tool(effect="write", permissions=["none"], name="small", once="small/{n}")
    def small(n: int) -> int:
        return n

    @tool(permissions=["none"], name="within")
    async def within() -> int:
        found = await asyncio.gather(*(opened.acall(small, n=n) for n in range(4)))
        async with Session("other", store=where, replay="off") as other:
            found += [await other.acall(small, n=n) for n in range(4, 8)]
        async with Session("inner", store=where) as inner:
            return sum(found) + len(await inner.acall(large, n=1))

    opened = Session("job", store=where, gate=[Permissions()])
    async with opened as session:
        assert await session.acall(within) == 100_028
    found = [orjson.loads(line) for line in open_store(where).read(session.run_id)]
    assert not [each for each in found if "undeclared" in each]


@pytest.mark.parametrize("way", ["task", "sync", "pool"])
async def test_the_context_is_held_in_tasks(store: Path, outside: Path, way: str) -> None:
    touch = (outside / "x").touch

    async def task() -> None:
        await asyncio.gather(asyncio.create_task(asyncio.to_thread(touch)))

    def pool() -> None:
        with concurrent.futures.ThreadPoolExecutor() as executor:
            executor.submit(contextvars.copy_context().run, touch).result()

    bodies: dict[str, Callable[[], Any]] = {"task": task, "sync": touch, "pool": pool}
    async with job(store) as session:
        with pytest.raises(PermissionUndeclared):
            await session.arun_call(declared(), {}, bodies[way])
    assert not (outside / "x").exists()


def test_functions_that_call_bodies_may_be_renamed(store: Path, outside: Path) -> None:
    perform: Any = next(each for each in BODY_CALLERS if each.__name__ == "perform")
    code = perform.__code__
    perform.__code__ = code.replace(co_name="another_name")
    try:
        calls_body(perform)
        with pytest.raises(PermissionUndeclared):
            run(store, (outside / "x").touch)
    finally:
        perform.__code__ = code
    assert not (outside / "x").exists()


def test_a_link_counts_anew_in_each_session(
    store: Path, inside: Path, outside: Path, tmp_path: Path
) -> None:
    link, permissions = tmp_path / "link", Permissions()
    for folder in (inside, outside):
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        with Session("job", store=store, replay="off", stages=[permissions]) as session:
            session.run_call(declared(f"fs:read:{link}"), {}, (folder / "file").read_text)


@pytest.mark.parametrize("seam", ["gate", "stages"])
def test_a_stage_serves_sessions_in_other_folders(
    store: Path, inside: Path, outside: Path, seam: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: dict[str, Any] = {seam: [Permissions()]}
    contract = declared("fs:read:.")
    monkeypatch.chdir(inside)
    first = Session("first", store=store, **shared)
    contextvars.copy_context().run(first.__enter__)
    monkeypatch.chdir(outside)
    with Session("second", store=store, **shared) as second:
        assert second.run_call(contract, {}, read_here) == "text"
        with pytest.raises(PermissionUndeclared, match=str(outside)):
            first.run_call(contract, {}, read_here)
        assert first.run_call(contract, {}, (inside / "file").read_text) == "text"
        with Session("inner", store=store, replay="off", gate=[shared[seam][0]]) as inner:
            assert inner.run_call(contract, {}, read_here) == "text"
    first.__exit__(None, None, None)


def reach() -> None:
    with socket.socket() as made:
        made.settimeout(1)
        made.connect_ex(("127.0.0.1", 9))


@pytest.mark.parametrize("what", ["read", "write", "sqlite", "process", "net"])
def test_what_is_not_declared_is_refused_inside(store: Path, disk: Path, what: str) -> None:
    bodies: dict[str, tuple[Callable[[], Any], str]] = {
        "read": ((disk / "file").read_text, "fs:read"),
        "write": ((disk / "new").touch, "fs:write"),
        "sqlite": (lambda: sqlite3.connect(disk / "db").close(), "fs:"),
        "process": (lambda: subprocess.run(["true"], check=True), "process:true"),
        "net": (reach, "net:127.0.0.1:9"),
    }
    body, needs = bodies[what]
    with pytest.raises(PermissionUndeclared, match=needs):
        run(store, body, "acme:nothing")
    found = run(store, body, "acme:nothing", enforce="report")
    assert found
    assert all(each.startswith(needs) for each in found)
    assert run(store, body, "fs:read", "fs:write", "process", "net") == []


def test_a_tool_that_declares_nothing_is_free(store: Path, disk: Path) -> None:
    @tool(effect="write", name="free")
    def free() -> None:
        (disk / "x").touch()

    with job(store):
        free()
    assert (disk / "x").exists()


def test_each_body_has_its_own(store: Path, disk: Path) -> None:
    @tool(permissions=[f"fs:write:{disk / 'inside'}"], name="inner", raises=[PermissionError])
    def inner(path: str) -> None:
        Path(path).touch()

    @tool(permissions=[f"fs:write:{disk}"], name="outer")
    def outer(path: str) -> None:
        inner(path)

    @tool(name="free")
    def free(path: str) -> None:
        Path(path).touch()

    @tool(permissions=["none"], name="none")
    def none(path: str) -> None:
        inner(path)
        free(path)

    with job(store) as session:
        with pytest.raises(PermissionUndeclared, match="inner does not declare"):
            outer(str(disk / "x"))
        none(str(disk / "inside" / "x"))
    assert not (disk / "x").exists()
    assert told(store, session) == [f"fs:write:{disk}/x"]


def test_rollcage_itself_may_write(store: Path) -> None:
    @tool(effect="read", permissions=["none"], name="large")
    def large() -> str:
        return "x" * 100_000

    @tool(permissions=["none"], name="within")
    def within() -> int:
        with Session("other", store=store, replay="off"):
            size = len(large())
        with Session("inner", store=store):
            return size + len(large())

    with job(store) as session:
        assert within() == 200_000
        with pytest.raises(PermissionUndeclared, match="fs:write"):
            run(store, (store / "runs-x").touch)
    assert told(store, session) == []


async def test_in_loops_threads_and_streams(store: Path, disk: Path) -> None:
    @tool(effect="read", permissions=["none"], name="stream")
    def stream() -> Iterator[str]:
        yield "a"
        yield (disk / "file").read_text()

    @tool(effect="read", permissions=["none"], name="astream")
    async def astream() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0)
        yield (disk / "file").read_text()

    @tool(effect="read", permissions=["none"], name="awaits")
    async def awaits() -> str:
        await asyncio.sleep(0)
        return (disk / "file").read_text()

    @tool(effect="read", permissions=["none"], name="plain")
    def plain() -> str:
        return (disk / "file").read_text()

    @tool(effect="read", permissions=["none"], name="threads")
    def threads() -> list[str]:
        found: list[str] = []

        def work() -> None:
            try:
                found.append((disk / "file").read_text())
            except PermissionUndeclared as error:
                found.append(error.needs)

        thread = threading.Thread(target=contextvars.copy_context().run, args=[work])
        thread.start()
        thread.join()
        return found

    async with job(store) as session:
        with pytest.raises(PermissionUndeclared):
            await awaits()
        with pytest.raises(PermissionUndeclared):
            await session.acall(plain)
        with pytest.raises(PermissionUndeclared):
            assert [each async for each in astream()] == ["a"]
    with job(store):
        with pytest.raises(PermissionUndeclared):
            list(stream())
        assert threads() == [f"fs:read:{disk}/file"]


def test_a_replay_gives_the_refusal_back(store: Path, disk: Path) -> None:
    runs: list[int] = []

    @tool(effect="read", permissions=["none"], name="peek")
    def peek() -> str:
        runs.append(1)
        return (disk / "file").read_text()

    with job(store) as session, pytest.raises(PermissionUndeclared) as live:
        peek()
    offline = Session("job", store=store, replay="offline", run=session.run_id)
    with offline, pytest.raises(PermissionUndeclared) as recorded:
        peek()
    assert (str(recorded.value), recorded.value.needs) == (str(live.value), live.value.needs)
    assert runs == [1]


@pytest.mark.parametrize("enforce", ["report", "strict"])
def test_a_verification_is_confined_too(store: Path, disk: Path, enforce: Enforce) -> None:
    @tool(effect="read", permissions=["none"], name="peek")
    def peek() -> str:
        return (disk / "file").read_text()

    @tool(effect="read", permissions=["none"], name="peeks")
    def peeks() -> Iterator[str]:
        yield "a"
        yield (disk / "file").read_text()

    with Session("job", store=store):
        peek()
        list(peeks())
    again = Session("job", store=store, replay="verify", gate=[Permissions(enforce)])
    with again:
        assert peek() == "text"
        assert list(peeks()) == ["a", "text"]
    assert again.report is not None
    drifts = [each.drift for each in again.report.steps]
    refused = "it now raises rollcage.errors.PermissionUndeclared"
    assert [each.startswith(refused) for each in drifts] == [enforce == "strict"] * 2


def test_the_strictest_counts(store: Path, disk: Path) -> None:
    @tool(effect="read", permissions=["none"], name="peek")
    def peek() -> str:
        return (disk / "file").read_text()

    with job(store, "report") as session:
        assert peek() == "text"
        strict = Session("inner", store=store, gate=[Permissions("strict")])
        with strict, pytest.raises(PermissionUndeclared):
            peek()
        loose = Session("other", store=store, gate=[Permissions("report")])
        with loose:
            assert peek() == "text"
    assert told(store, session) == [f"fs:read:{disk}/file"] * 3
    loosened = Session("inner", store=store, gate=[Permissions("report")])
    with job(store, "strict"), loosened, pytest.raises(PermissionUndeclared):
        peek()


def test_another_word_is_refused() -> None:
    word: Any = "maybe"
    with pytest.raises(SessionError, match="'maybe'"):
        Permissions(word)


@pytest.mark.parametrize("colour", ["sync", "thread", "async"])
async def test_a_read_that_a_tool_observes_with_is_confined(
    store: Path, outside: Path, colour: str
) -> None:
    @tool(effect="read", permissions=("none",))
    def look() -> str:
        """Read what it declares no permission for."""
        return (outside / "file").read_text()

    @tool(effect="read", permissions=("none",))
    async def alook() -> str:
        """Read what it declares no permission for, in a coroutine."""
        await asyncio.sleep(0)
        return (outside / "file").read_text()

    async def observe(args: Any) -> Any:
        return {"file": await alook(**args)}

    @tool(observe=observe if colour == "async" else lambda args: {"file": look(**args)})
    def put() -> None:
        """Put nothing."""

    with pytest.raises(CaptureFailed, match=f"fs:read:{outside}/file"):
        if colour == "sync":
            with job(store):
                put()
        else:
            async with job(store) as session:
                await session.acall(put)
