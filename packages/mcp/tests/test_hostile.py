"""The proxy as a process: servers that misbehave, parties that are killed, tools that change."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage.store import open_store
from rollcage.trace import read_run
from rollcage_governance import Registry
from rollcage_mcp.errors import ServersInvalid
from rollcage_mcp.toolset import tools_of

LINE_SERVER = str(Path(__file__).parent / "lab" / "line_server.py")
FAULTS = int(os.environ.get("ROLLCAGE_FAULTS", "2"))


class Peer:
    """A client of the proxy, which is a process."""

    def __init__(self, folder: Path, *options: str, manner: str = "") -> None:
        self.folder = folder
        command = [sys.executable, LINE_SERVER, str(folder / "world"), manner]
        proxy = [sys.executable, "-m", "rollcage", "mcp", "run", "--store", str(folder / "store")]
        with (folder / "errors").open("ab") as errors:
            self.process = subprocess.Popen(
                [*proxy, *options, "--", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.number = 0

    def put(self, method: str, **params: Any) -> int:
        self.number += 1
        data = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        assert self.process.stdin is not None
        self.process.stdin.write(orjson.dumps(data) + b"\n")
        self.process.stdin.flush()
        return self.number

    def get(self) -> dict[str, Any]:
        """The next answer; ConnectionError where there is none."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.endswith(b"\n") and "id" in (found := orjson.loads(line)):
                return dict(found)
        raise ConnectionError("the proxy is gone")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.put(method, **params)
        return self.get()

    def write(self, text: str, after: float = 0.0) -> dict[str, Any]:
        return self.ask("tools/call", name="write", arguments={"text": text, "after": after})

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    @property
    def world(self) -> list[str]:
        return world_of(self.folder)


def world_of(folder: Path) -> list[str]:
    """What was written, in its order."""
    path = folder / "world"
    return path.read_text().splitlines() if path.exists() else []


@contextlib.contextmanager
def peer(folder: Path, *options: str, manner: str = "") -> Iterator[Peer]:
    it = Peer(folder, *options, manner=manner)
    try:
        it.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
        yield it
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(it.process.pid, signal.SIGKILL)
        it.close()


@pytest.mark.parametrize(("manner", "said"), [
    ("endless", "longer than 64 MiB"),
    ("huge", "longer than 64 MiB"),
    ("no object", "a result that is no object"),
    ("odd error", "an error that is no object"),
    ("silent end", "exit code 3"),
])  # fmt: skip
def test_a_server_that_breaks_the_protocol_ends_in_a_clear_error(
    tmp_path: Path, manner: str, said: str
) -> None:
    with peer(tmp_path, manner=manner) as client:
        answer = client.write("a")
        assert said in answer["error"]["message"] + (tmp_path / "errors").read_text()
        assert client.world == ["a"]


@pytest.mark.parametrize("manner", ["garbage", "wrong id"])
def test_what_is_no_answer_is_dropped_and_told(tmp_path: Path, manner: str) -> None:
    with peer(tmp_path, manner=manner) as client:
        assert client.write("a")["result"]["content"][0]["text"] == "wrote a"
    assert "dropped" in (tmp_path / "errors").read_text()


def steps_of(folder: Path) -> dict[str, str]:
    """By text, what the newest run's writes came to."""
    store = open_store(folder / "store")
    run = next(iter(store.runs(limit=1))).run
    steps = read_run(store.read(run)).steps
    return {each.args["text"]: each.state for each in steps if each.name == "write"}


@pytest.mark.parametrize("party", ["proxy", "server", "both"])
def test_parties_that_are_killed_lose_and_double_nothing(tmp_path: Path, party: str) -> None:
    """Whoever is killed at any moment: a write is done once, or its outcome is told as unknown.

    `ROLLCAGE_FAULTS=67 nox -s "tests(mcp)"` does it 200 times.
    """
    dice = random.Random(party)  # noqa: S311 - a seed
    for number in range(FAULTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        texts = [f"{each}" for each in range(3)]
        for _ in range(20):
            done = attempt(folder, texts, party if dice.random() < 0.6 else "", dice)
            states = steps_of(folder)
            doubt = {text for text, state in states.items() if state == "unknown"}
            if doubt:
                happened = doubt <= {*world_of(folder)}
                resolve(folder, "--happened" if happened else "--did-not-happen")
            elif done:
                break
        else:
            pytest.fail("it never came to an end")
        assert world_of(folder) == texts


def attempt(folder: Path, texts: list[str], party: str, dice: random.Random) -> bool:
    """Make all writes in a job that is gone on with; whether none of it failed."""
    client = Peer(folder, "--name", "job")
    try:
        client.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
        for text in texts:
            client.put("tools/call", name="write", arguments={"text": text, "after": 0.05})
            if party and dice.random() < 0.4:
                time.sleep(dice.random() * 0.1)
                kill(client, party)
            answer = client.get()
            if "error" in answer:
                return False
        return client.close() == 0
    except (ConnectionError, OSError):
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(client.process.pid, signal.SIGKILL)
        client.close()


def kill(client: Peer, party: str) -> None:
    children = Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children").read_text()
    for pid in children.split() if party in ("server", "both") else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    if party in ("proxy", "both"):
        client.process.kill()


def resolve(folder: Path, said: str) -> None:
    store = open_store(folder / "store")
    run = next(iter(store.runs(limit=1))).run
    steps = read_run(store.read(run)).steps
    (number,) = [each.step for each in steps if each.state == "unknown"]
    result = '{"result": {"content": [{"type": "text", "text": "wrote"}]}}'
    more = [f"--result={result}"] if said == "--happened" else []
    command = [sys.executable, "-m", "rollcage", "resolve", "--store", str(folder / "store"), said]
    subprocess.run([*command, *more, run, str(number)], check=True, capture_output=True)


def test_a_tool_that_changed_is_refused_until_it_is_approved_again(tmp_path: Path) -> None:
    """Its description alone was changed: it may tell the model anything."""
    command = [sys.executable, LINE_SERVER, str(tmp_path / "world")]
    servers = tmp_path / "servers.toml"
    servers.write_text(f"[servers.line]\ncommand = {orjson.dumps(command).decode()}\n")
    registry = Registry(tmp_path / "store")
    found: list[Any] = tools_of(servers)
    for each in found:
        name = each.__rollcage_contract__.name
        registry.propose(each, by="ann")
        registry.approve(name, by="bob")
        registry.activate(name, "line", by="bob")
    registry.define_facade("line", ["line"], by="bob")
    for manner, ran in (("", True), ("changed", False)):
        with peer(tmp_path, "--facade", "line", manner=manner) as client:
            listed = client.ask("tools/list")["result"]["tools"]
            assert bool(listed) is ran
            answer = client.write("a")["result"]
            assert answer.get("isError", False) is not ran
            if not ran:
                assert "not what was approved: other description" in str(answer)
    assert world_of(tmp_path) == ["a"]


@pytest.mark.parametrize(("options", "code", "said"), [
    (["--policy", "missing.toml"], 2, "missing.toml"),
    (["--replay", "sometimes"], 2, "'sometimes' is not one of"),
    (["--pack", "missing"], 2, "the pack 'missing' can't be read"),
    (["--servers", "missing.json"], 2, "name one server"),
    (["--store", "/proc/missing"], 5, "/proc/missing"),
    (["--facade", "missing"], 2, "missing"),
])  # fmt: skip
def test_a_client_is_told_why_the_proxy_cant_start(
    tmp_path: Path, options: list[str], code: int, said: str
) -> None:
    client = Peer(tmp_path, *options)
    answer = client.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
    assert said in answer["error"]["message"]
    assert client.close() == code
    (told,) = (tmp_path / "errors").read_text().splitlines()
    assert told.startswith("rollcage: ")
    assert client.world == []


def test_two_proxies_of_one_job_at_once(tmp_path: Path) -> None:
    """The second one is told which process has the job; the first one goes on."""
    with peer(tmp_path, "--name", "job") as first:
        first.write("a")
        second = Peer(tmp_path, "--name", "job")
        error = second.ask("initialize", capabilities={})["error"]
        assert error["data"] == {"rollcage": "RunInUse"}
        assert second.close() == 4
        assert first.write("b")["result"]["content"][0]["text"] == "wrote b"
        assert first.world == ["a", "b"]


def test_a_client_that_says_nothing_at_all(tmp_path: Path) -> None:
    """Standard input is /dev/null: the conversation ends as it begins."""
    proxy = [sys.executable, "-m", "rollcage", "mcp", "run", "--store", str(tmp_path / "store")]
    command = [*proxy, "--", sys.executable, LINE_SERVER, str(tmp_path / "world")]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_two_servers_with_a_tool_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """An undo must not call the wrong one."""
    command = orjson.dumps([sys.executable, LINE_SERVER, str(tmp_path / "world")]).decode()
    servers = tmp_path / "servers.toml"
    servers.write_text("".join(f"[servers.{name}]\ncommand = {command}\n" for name in "ab"))
    with pytest.raises(ServersInvalid, match=r"'a' and 'b' of .* both have a tool 'write'"):
        tools_of(servers)
    with pytest.raises(ServersInvalid, match="no server 'c': it has a, b"):
        tools_of(servers, "c")
    found: list[Any] = tools_of(servers, "b")
    assert {"read", "write"} <= {each.__rollcage_contract__.name for each in found}
