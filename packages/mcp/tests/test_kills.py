"""Each of the three parties is killed at any moment: nothing is lost, and nothing done twice.

`nox -s faults` kills each of them 67 times, by both transports.
"""

import contextlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from peers import LINE_SERVER, Peer, world_of
from rollcage import list_runs, open_store
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run

FAULTS = max(int(os.environ.get("ROLLCAGE_FAULTS", "0")) // 3 + 1, 2)
PEERS = str(Path(__file__).parent / "lab" / "peers.py")


def steps_of(folder: Path) -> dict[str, str]:
    """By text, what the newest run's writes came to."""
    store = open_store(folder / "store")
    run = list_runs(store, limit=1)[0].run
    steps = read_run(trace_of(store, run)).steps
    return {each.args["text"]: each.state for each in steps if each.name == "write"}


# --- by standard input and output: a job that is gone on with -------------------------------------


@pytest.mark.parametrize("party", ["proxy", "server", "both", "client"])
def test_parties_that_are_killed_lose_and_double_nothing(tmp_path: Path, party: str) -> None:
    """A write is done once, or its outcome is told as unknown; the job ends as if nothing was."""
    dice = random.Random(party)  # noqa: S311 - a seed
    for number in range(FAULTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        texts = [f"{each}" for each in range(3)]
        for _ in range(40):
            strikes = dice.random() < 0.6
            if party == "client":
                done = attempt_of_a_process(folder, texts, dice if strikes else None)
            else:
                done = attempt(folder, texts, party if strikes else "", dice)
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
                time.sleep(dice.random() * 0.1)  # killed before, in or after the write
                kill(client.process, party)
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


def attempt_of_a_process(folder: Path, texts: list[str], dice: random.Random | None) -> bool:
    """The same by a client that is a process, which may be killed; what it had started goes on."""
    client = subprocess.Popen([sys.executable, PEERS, str(folder), *texts])
    if dice is not None:
        began = time.monotonic()
        while not world_of(folder) and client.poll() is None and time.monotonic() - began < 60:
            time.sleep(0.01)  # starting takes most of the time, and it is to be killed in a write
        time.sleep(dice.random() * 0.2)  # so that it is killed at any of its calls
        client.kill()
    code = client.wait(120)
    while in_use(folder):
        time.sleep(0.02)  # nobody says when the processes it had started have gone
    return code == 0


def in_use(folder: Path) -> bool:
    """Whether the proxy of a killed client is still at work."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if b"rollcage" in command and str(folder / "store").encode() in command:
                return True
    return False


def kill(process: subprocess.Popen[bytes], party: str) -> None:
    if party in ("server", "both"):
        for pid in children_of(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if party in ("proxy", "both"):
        process.kill()


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return [int(pid) for pid in tasks.read_text().split()]
    return []


def resolve(folder: Path, said: str) -> None:
    store = open_store(folder / "store")
    run = list_runs(store, limit=1)[0].run
    steps = read_run(trace_of(store, run)).steps
    (number,) = [each.step for each in steps if each.state == "unknown"]
    result = '{"result": {"content": [{"type": "text", "text": "wrote"}]}}'
    more = [f"--result={result}"] if said == "--happened" else []
    command = [sys.executable, "-m", "rollcage", "resolve", "--store", str(folder / "store"), said]
    subprocess.run([*command, *more, run, str(number)], check=True, capture_output=True)


# --- by HTTP: conversations of their own ----------------------------------------------------------


class Service:
    """A proxy that serves by HTTP, and is started again where it was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.url = ""

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        self.starts += 1
        errors = self.folder / f"errors-{self.starts}"
        options = ["--port", "0", "--store", str(self.folder / "store")]
        server = [sys.executable, LINE_SERVER, str(self.folder / "world")]
        command = [sys.executable, "-m", "rollcage", "mcp", "serve", *options, "--", *server]
        with errors.open("wb") as told:
            self.process = subprocess.Popen(command, stderr=told)
        while (found := re.search(r"serving on (\S+)\n", said := errors.read_text())) is None:
            assert self.process.poll() is None, said
            time.sleep(0.01)  # what it writes to its log wakes nobody up
        self.url = found[1]

    def stop(self) -> None:
        """Stop it well."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    it = Service(tmp_path)
    try:
        yield it
    finally:
        if it.process is not None:
            it.process.kill()
            it.process.wait()


def message(number: int, method: str, **params: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def hang_up(url: str, raw: bytes, headers: dict[str, str], after: float) -> None:
    """Ask for something, and be killed: the connection is reset."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        head = [f"POST /mcp HTTP/1.1\r\nhost: {address.host}:{address.port}"]
        head += [f"{name}: {each}" for name, each in headers.items()]
        connection.sendall(
            "\r\n".join([*head, f"content-length: {len(raw)}\r\n\r\n"]).encode() + raw
        )
        time.sleep(after)  # how far the call gets before the connection is reset
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("party", ["proxy", "server", "client"])
def test_over_http_each_write_is_on_record_once(
    tmp_path: Path, service: Service, party: str
) -> None:
    """What was answered has happened; what has happened is on record, as done or as unknown."""
    dice = random.Random(party)  # noqa: S311 - a seed
    answered: list[str] = []
    for number in range(FAULTS):
        service.start()
        assert service.process is not None
        with httpx.Client(timeout=60) as http, contextlib.suppress(httpx.HTTPError):
            hello = message(0, "initialize", protocolVersion="2025-11-25", capabilities={})
            session = http.post(service.url, content=hello).headers["mcp-session-id"]
            headers = {"mcp-session-id": session}
            struck = dice.randrange(3)
            for slot in range(3):
                text = f"{number}-{slot}"
                raw = message(
                    slot + 1, "tools/call", name="write", arguments={"text": text, "after": 0.03}
                )
                delay = dice.random() * 0.08
                if slot == struck and party == "client":
                    hang_up(service.url, raw, headers, delay)
                    continue
                striking = strike(service.process, party, delay) if slot == struck else None
                try:
                    answer = http.post(service.url, content=raw, headers=headers)
                finally:
                    if striking is not None:
                        striking.join()
                if "result" in answer.json():
                    answered.append(text)
    service.stop()
    wrote = Counter(world_of(tmp_path))
    assert {text: often for text, often in wrote.items() if often > 1} == {}
    store = open_store(tmp_path / "store")
    runs = [read_run(trace_of(store, info.run)) for info in list_runs(store)]
    states = {e.args["text"]: e.state for run in runs for e in run.steps if e.name == "write"}
    lost = {text for text in wrote if states.get(text) not in ("ran", "unknown")}
    assert lost == set()
    assert {text for text, state in states.items() if state == "ran"} <= wrote.keys()
    assert {*answered} <= wrote.keys()
    assert len(answered) >= FAULTS // 2


def strike(process: subprocess.Popen[bytes], party: str, after: float) -> threading.Timer:
    """Kill a party a moment later."""
    timer = threading.Timer(after, kill, (process, party))
    timer.start()
    return timer
