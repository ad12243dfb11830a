"""The toolbox's own tools touch what they declare, and nothing else."""

import http.server
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import Contract, Session
from rollcage.errors import PermissionUndeclared
from rollcage_policy import Permissions
from rollcage_toolbox import Workspace, clock, system
from rollcage_toolbox.http import Http
from rollcage_toolbox.sql import Database


def contract(function: Callable[..., Any]) -> Contract:
    found: Contract = getattr(function, "__rollcage_contract__")  # noqa: B009 - a private name
    return found


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session that refuses what is not declared."""
    with Session("held", store=tmp_path / "store", gate=[Permissions("strict")]) as opened:
        yield opened


def test_files_are_touched_in_the_workspace_alone(
    session: Session, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.txt").write_text("another file of that name")
    monkeypatch.chdir(elsewhere)
    call = session.call
    call(workspace.write_file, path="a.txt", content="one")
    call(workspace.append_file, path="a.txt", content=" two")
    call(workspace.edit_file, path="a.txt", old="one", new="three")
    call(workspace.make_dir, path="folder")
    call(workspace.copy_file, source="a.txt", target="folder/b.txt")
    call(workspace.move_file, source="folder/b.txt", target="folder/c.txt")
    assert "three" in str(call(workspace.read_file, path="a.txt"))
    call(workspace.list_dir, path="folder")
    call(workspace.find_files, pattern="**/*.txt")
    call(workspace.hash_file, path="a.txt")
    call(workspace.disk_space)
    call(workspace.delete_file, path="folder/c.txt")
    call(workspace.delete_dir, path="folder")
    assert session.undo().complete
    assert list(workspace.root.iterdir()) == []
    assert (elsewhere / "a.txt").read_text() == "another file of that name"


def test_a_workspace_is_held_to_its_own_root(
    session: Session, workspace: Workspace, tmp_path: Path
) -> None:
    (workspace.root / "a.txt").write_text("x")
    moved = workspace.root.rename(tmp_path / "moved")  # it goes on working, by its descriptor
    with pytest.raises(PermissionUndeclared, match=f"fs:read:{moved}"):
        session.call(workspace.read_file, path="a.txt")


def test_a_database_is_its_file(session: Session, tmp_path: Path) -> None:
    place = tmp_path / "shop.db"
    with sqlite3.connect(place) as made:
        made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    made.close()
    with Database(f"sqlite:///{place}") as database:
        session.call(database.insert_rows, table="orders", rows=[{"id": 1, "item": "tea"}])
        session.call(database.query, sql="SELECT item FROM orders")
        session.call(database.execute, sql="UPDATE orders SET item = 'ale'")
        assert session.call(database.select, table="orders") == [{"id": 1, "item": "ale"}]
        assert f"fs:write:{place}" in contract(database.select).permissions


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a web server on loopback."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield web.server_port
        web.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_requests_go_to_the_hosts_that_are_allowed(
    session: Session, server: int, host: str
) -> None:
    web = Http(allowed_hosts=["example.com", "*.example.org"], allow_private=[f"{host}:{server}"])
    assert contract(web.get).permissions == (
        "http:get",
        "net:example.com:80",
        "net:example.com:443",
        "net:*.example.org:80",
        "net:*.example.org:443",
        f"net:{host}:{server}",
    )
    assert session.call(web.get, url=f"http://{host}:{server}/")["status"] == 501


def test_who_resolves_by_itself_may_go_anywhere() -> None:
    web = Http(allowed_hosts=["example.com"], resolver=lambda host, port: ["127.0.0.1"])
    assert contract(web.get).permissions == ("http:get", "net")


def test_the_clock_and_the_system_touch_nothing(session: Session) -> None:
    for function in (*clock.TOOLS, *system.TOOLS):
        assert not {p for p in contract(function).permissions if p.startswith(("fs", "net"))}
    session.call(clock.current_time, zone="Asia/Tokyo")
    session.call(system.system_info)
