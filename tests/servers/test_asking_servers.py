"""What servers ask of clients (a person, a model, folders) passes in both eras, by HTTP too."""

import contextlib
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .real import PARTIES, ROLLCAGE, play, python

SERVER = str(PARTIES / "new_server.py")
OF_EACH_ERA = ["old", "new 2026-07-28"]
STORY: list[Any] = [
    ["call_tool", "consult", {"what": "tea"}],
    ["call_tool", "work", {"steps": 3}],
    ["call_tool", "add", {"a": 1, "b": 2}],
    ["send_ping"],
]


@contextlib.contextmanager
def running(command: list[str], log: Path, ready: str) -> Iterator[str]:
    """Run a process until it is not needed; what it said when it was ready."""
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
    try:
        while (found := re.search(ready, said := log.read_text())) is None:
            assert process.poll() is None, said
            time.sleep(0.02)  # what it writes to its log wakes nobody up
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def proxy(tmp_path: Path, *server: str) -> Iterator[str]:
    """A proxy by HTTP, of a server: its address."""
    options = ["--port", "0", "--store", str(tmp_path / "store"), *server]
    command = [*ROLLCAGE, "mcp", "serve", *options]
    with running(command, tmp_path / "proxy.log", r"http://\S+/mcp") as url:
        yield url


@contextlib.contextmanager
def at_a_port(tmp_path: Path) -> Iterator[str]:
    """The server itself, by HTTP: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = python("new", "python", SERVER, str(port))
    with running(command, tmp_path / "server.log", "Uvicorn running"):
        yield f"http://127.0.0.1:{port}/mcp"


def without_marks(seen: list[Any]) -> list[Any]:
    """Return what a client saw, and its questions as the server has asked them: each is marked."""
    asked = [each for each in seen if isinstance(each, list) and each[:1] == ["asked"]]
    assert asked
    for each in asked:
        who, mark, each[1] = each[1].partition(" asks, not Rollcage:\n")
        assert mark
        assert who.startswith("The server")
    return seen


@pytest.mark.parametrize("client", OF_EACH_ERA)
def test_all_that_a_server_asks_for_passes(tmp_path: Path, client: str) -> None:
    command = python("new", "python", SERVER)
    direct = play(client, STORY, command, ANSWERS="1")
    consulted = next(str(each) for each in direct if "tea: " in str(each))
    assert "tea: True, a sample, ['file:///work']" in consulted
    store = ["--store", str(tmp_path / "store"), "--name", "story"]
    guarded = [*ROLLCAGE, "mcp", "run", *store, "--", *command]
    assert without_marks(play(client, STORY, guarded, ANSWERS="1")) == direct
    with at_a_port(tmp_path) as there, proxy(tmp_path, "--upstream", there) as url:
        assert without_marks(play(client, STORY, [url], ANSWERS="1")) == direct


CANCELS: list[Any] = [["cancel", "hang", {}], ["call_tool", "add", {"a": 1, "b": 2}]]


@pytest.mark.parametrize("client", OF_EACH_ERA)
def test_a_cancelled_call_is_cancelled_in_the_server(tmp_path: Path, client: str) -> None:
    """And the next one is answered."""
    command = python("new", "python", SERVER)
    store = ["--store", str(tmp_path / "store")]
    guarded = [*ROLLCAGE, "mcp", "run", *store, "--", *command]
    seen = []
    for number, each in enumerate((command, guarded)):
        marks = tmp_path / f"marks-{number}"
        seen.append(play(client, CANCELS, each, MARKS=str(marks)))
        assert marks.read_text() == "began\ncancelled\n"
    assert seen[0] == seen[1]
    assert "cancelled" in seen[0]
