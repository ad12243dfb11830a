"""Bodies in sessions of the heart, held to what their tools declare."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from rollcage import Contract, Session, open_store, tool
from rollcage.errors import PermissionUndeclared, SessionError
from rollcage.trace import check_events
from rollcage_policy import Permissions


def job(store: Path, enforce: Literal["report", "strict"] = "strict", **how: Any) -> Session:
    return Session("job", store=store, replay="off", stages=[Permissions(enforce)], **how)


def told(store: Path, session: Session) -> list[str]:
    """What the lines of a run say that bodies did without having declared it."""
    lines = open_store(store).read(session.run_id)
    check_events(b"".join(lines), session.run_id)
    return [each for line in lines for each in orjson.loads(line).get("undeclared", ())]


def run(
    store: Path,
    body: Callable[[], Any],
    *permissions: str,
    enforce: Literal["report", "strict"] = "strict",
) -> list[str]:
    contract = Contract.of(lambda: None, name="tool", permissions=permissions or ("none",))
    with job(store, enforce) as session:
        session.run_call(contract, {}, lambda: body() and None)
    return told(store, session)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk" / "inside").mkdir(parents=True)
    (tmp_path / "disk" / "file").write_text("text")
    return tmp_path / "disk"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def connect() -> None:
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
        "net": (connect, "net:127.0.0.1:9"),
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

    @tool(permissions=["none"], name="none")
    def none(path: str) -> None:
        inner(path)

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
