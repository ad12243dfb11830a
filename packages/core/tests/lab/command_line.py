"""The command line, in this process, and runs to look at with it, recorded by real sessions."""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rollcage import Session, Verdict, tool
from rollcage_cli.app import main

__all__ = [
    "Cli",
    "Result",
    "cli",
    "dead",
    "died",
    "edit",
    "evil",
    "payment",
    "plain_environment",
    "record",
    "store",
    "tools",
]

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J [red]x[/red] \u202eabc\u2028"


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of whoever runs the tests, and no store but the test's own."""
    for name in ("ROLLCAGE_STORE", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAGER", "cat")  # nobody is there to leave another one
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """The command line, in this process."""

    def run(*arguments: object) -> Result:
        capfdbinary.readouterr()
        code = main([str(each) for each in arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return run


@pytest.fixture
def evil() -> str:
    """Text that would act on a terminal."""
    return EVIL


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the command line looks by default."""
    return tmp_path / ".rollcage"


@tool(effect="read")
def look(path: str) -> str:
    return f"content of {path}"


@tool
def put(path: str, text: str) -> dict[str, int]:
    return {"wrote": len(text)}


@tool(secret=["password"])
def login(user: str, password: str) -> str:
    return f"hello {user}"


@tool
def fails(text: str) -> None:
    raise ValueError(text)


@tool
def outer(text: str) -> int:
    put("nested", text)
    return 1


class Tools(NamedTuple):
    """The tools that the runs call."""

    look: Any
    put: Any
    login: Any
    fails: Any
    outer: Any


@pytest.fixture
def tools() -> Tools:
    return Tools(look, put, login, fails, outer)


def no_passwd(view: Any) -> Verdict | None:
    if view.args.get("path") == "/etc/passwd":
        return Verdict.deny("that path is outside of the workspace", code="path_escape")
    return None


@pytest.fixture
def record(store: Path) -> Callable[..., str]:
    """Record a run of everything that can happen to a step; its id."""

    def record(name: str = "job", *, text: str = "some text", **options: Any) -> str:
        with Session(name, store=store, replay="off", gate=[no_passwd], **options) as session:
            look("a.txt")
            put("b.txt", text)
            login("ann", "hunter2-password")
            with pytest.raises(ValueError, match=r".*"):
                fails(text)
            with pytest.raises(Exception, match="outside of the workspace"):
                put("/etc/passwd", text)
            outer(text)
            with session.branch("side"):
                put("side.txt", text)
        return session.run_id

    return record


DYING = """
import os, sys
from rollcage import Session, tool

@tool
def put(path: str) -> str:
    return "put"

@tool
def pay(amount: int) -> dict:
    if "live" not in sys.argv:
        os._exit(9)
    return {"paid": amount, "by": "the tool"}

with Session("payment", store=sys.argv[1]) as session:
    put("a.txt")
    print(pay(100))
"""


def _pay(store: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", DYING, str(store), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def payment(store: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """A real process that dies in the middle of a write; with "live" it does not."""
    return functools.partial(_pay, store)


@pytest.fixture(scope="session")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that such a process left."""
    store = tmp_path_factory.mktemp("died") / ".rollcage"
    assert _pay(store).returncode == 9
    return store


@pytest.fixture
def dead(died: Path, store: Path) -> str:
    """The run that such a process left: its step 2 is unknown."""
    shutil.copytree(died, store, dirs_exist_ok=True)
    (path,) = (store / "logs").glob("*.jsonl")
    return path.stem


@pytest.fixture
def edit(store: Path) -> Callable[..., None]:
    """Change a run's log in the store, byte by byte."""

    def edit(run: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
        path = store / "logs" / f"{run}.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return edit
