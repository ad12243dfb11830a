"""`rollcage serve`, `ui` and `token`, as processes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from mission import World
from rollcage import order_of
from rollcage_cli.app import main
from rollcage_server import Role

WAIT = 60.0


class Said(NamedTuple):
    """What a command ended with, and said."""

    code: int
    out: str
    err: str


@pytest.fixture
def rollcage(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command line, in this process."""

    def run(*words: str) -> Said:
        code = main(list(words))
        said = capsys.readouterr()
        return Said(code, str(said.out), str(said.err))

    return run


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for each in found:
        each.kill()
        each.wait()
        assert each.stderr is not None
        each.stderr.close()


def serve(started: list["subprocess.Popen[str]"], *words: str) -> str:
    """A server in a process; the address that it prints."""
    command = [sys.executable, "-m", "rollcage", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found is not None
    return found[0]


def test_tokens_are_made_listed_and_revoked(tmp_path: Path, rollcage: Callable[..., Said]) -> None:
    file = str(tmp_path / "tokens.json")
    more = ("--tokens", file)
    made = rollcage(
        "token", "create", "--name", "ada", "--role", "viewer", "--role", "approver", *more
    )
    assert made.code == 0, made.err
    assert re.fullmatch(r"rct_[0-9a-f]{12}_\S{43}\n", made.out)
    (kept,) = json.loads(rollcage("token", "list", "--json", *more).out)["tokens"]
    assert (kept["name"], kept["roles"], kept["state"]) == ("ada", ["approver", "viewer"], "active")
    assert rollcage("token", "revoke", kept["id"], *more).code == 0
    assert "revoked" in rollcage("token", "list", *more).out
    assert rollcage("token", "revoke", "nobody", *more).code != 0
    wrong = ("--name", "ada", "--role", "viewer", "--expires", "soon", *more)
    assert "30m, 12h or 90d" in rollcage("token", "create", *wrong).err
    assert rollcage("token", "create", "--name", "\u200b", "--role", "viewer", *more).code != 0


def test_other_machines_are_served_with_authentication_only(
    tmp_path: Path, rollcage: Callable[..., Said]
) -> None:
    for words, said in (
        (("--host", "0.0.0.0"), "--tokens FILE or --oidc"),  # noqa: S104 - it is refused
        (("--host", "::"), "--tokens FILE or --oidc"),
        (("--host", "example.com"), "--tokens FILE or --oidc"),
        (("--oidc", "https://issuer.example"), "--audience"),
        (("--audience", "x"), "--oidc"),
        (("--oidc", "http://issuer.example", "--audience", "x"), "https"),
        (("--tokens", str(tmp_path / "none.json")), "can't be read"),
    ):
        refused = rollcage("serve", "--store", str(tmp_path), *words)
        assert refused.code != 0, words
        assert said in refused.err, refused.err


def test_a_server_that_is_killed_leaves_nothing_behind_and_the_next_one_goes_on(
    world: World, started: list["subprocess.Popen[str]"]
) -> None:
    words = ("serve", "--store", world.url, "--tokens", str(world.tokens.path), "--port", "0")
    headers = {"Authorization": f"Bearer {world.token[Role.ADMIN]}"}
    first = serve(started, *words)
    at = f"/api/v1/runs/{world.runs['lost']}"
    with (
        httpx.Client(base_url=first, headers=headers, timeout=WAIT) as client,
        client.stream("GET", f"{at}/events") as answer,
    ):
        next(answer.iter_lines())
        assert client.post(f"{at}/stop", json={}).status_code == 200
        os.kill(started[0].pid, signal.SIGKILL)
    with httpx.Client(base_url=serve(started, *words), headers=headers, timeout=WAIT) as client:
        assert client.post(f"{at}/lift", json={}).status_code == 200
        lines = client.get("/api/v1/audit").json()["lines"]
    assert [line["action"] for line in lines] == ["stop", "stop", "lift", "lift"]
    assert order_of(world.store, world.runs["lost"]) is None


def test_the_page_of_this_machine_signs_one_browser_in_once(
    world: World, started: list["subprocess.Popen[str]"]
) -> None:
    address = serve(started, "ui", "--store", world.url, "--no-browser")
    with httpx.Client(timeout=WAIT) as client:
        answer = client.get(address)
        assert "__Host-rollcage" in answer.headers["set-cookie"]
        cookie = answer.headers["set-cookie"].partition(";")[0]
        root = address.partition("login")[0]
        assert client.get(root, headers={"Cookie": cookie}).status_code == 200
        assert client.get(address).status_code == 303
        assert client.get(root).status_code == 303


@pytest.mark.parametrize("store", ["folder", "sqlite:///{}/runs.db"])
def test_a_store_that_nobody_has_made(
    rollcage: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    where = store.format(tmp_path)
    for command in (("serve",), ("ui", "--no-browser")):
        said = rollcage(*command, "--store", where)
        assert said.code == 2
        assert f"{where} yet: the first session makes it" in said.err
    assert [*tmp_path.iterdir()] == []
