"""Measure the MCP proxy beside a raw recorder and FastMCP's proxy: `python -m benchmarks --mcp`.

Each proxy stands between the same client and the same server, as a process of its own. Only the
proxy's CPU is measured, not the client's or the server's. All take turns in one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Found", "measure", "table"]

_PARTIES: Final = Path(__file__).with_name("mcp_parties")
_SERVER: Final = [sys.executable, str(_PARTIES / "server.py")]
_FASTMCP: Final = "ROLLCAGE_BENCH_FASTMCP"  # the Python of an environment with FastMCP
_OURS: Final = "rollcage mcp run"
_RAW: Final = "raw recorder"
_FLOOR: Final = "poll loop that records"
_THEIRS: Final = "FastMCP's proxy"


class Found(NamedTuple):
    """Hold the cost of a call behind one proxy (µs of CPU), and its bound."""

    what: str
    figure: float
    unit: str
    bound: str
    reached: bool


class _Client:
    """Make one call after the other, over a process's own pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._number = 0

    def ask(self, method: str, params: Any) -> Any:
        self._number += 1
        self._put({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        assert self._process.stdout is not None
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"it has ended: {self._process.args!r}")
            message = json.loads(line)
            if message.get("id") == self._number and "method" not in message:
                if "error" in message:
                    raise RuntimeError(str(message["error"]))
                return message["result"]

    def greet(self) -> None:
        info = {"name": "bench", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        self.ask("initialize", hello)
        self._put({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert [each["name"] for each in self.ask("tools/list", {})["tools"]] == ["write"]

    def call(self, number: int) -> None:
        arguments = {"path": f"/home/ann/notes/{number}.txt", "number": number}
        result = self.ask("tools/call", {"name": "write", "arguments": arguments})
        assert result["content"][0]["text"] == "done"

    def _put(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator[tuple[_Client, int]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        try:
            yield _Client(process), process.pid
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
        finally:
            process.kill()


def _cpu(pid: int) -> float:
    """Return the CPU that a process has used, in all of its threads (µs)."""
    took = 0
    for each in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            took += int((each / "schedstat").read_text().split()[0])
    return took / 1000


def cost(command: list[str], calls: int) -> float:
    """Return what a call costs a proxy (µs of its CPU)."""
    with _started([*command, *_SERVER]) as (client, pid):
        client.greet()
        for number in range(calls // 4):
            client.call(-1 - number)
        began = _cpu(pid)
        for number in range(calls):
            client.call(number)
        return (_cpu(pid) - began) / calls


def measure(*, quick: bool = False, at: Path = Path()) -> list[Found]:
    """Measure all proxies, on the disk of a folder; `quick` only shows that they run."""
    calls, rounds = (20, 1) if quick else (1_000, 5)
    costs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=at.resolve()) as folder:
        at = Path(folder)
        rollcage = [sys.executable, "-m", "rollcage", "mcp", "run", "--store", str(at / "store")]
        parties = {
            _RAW: [sys.executable, str(_PARTIES / "recorder.py"), str(at / "lines")],
            _FLOOR: [sys.executable, str(_PARTIES / "floor.py"), str(at / "lines")],
            _OURS: [*rollcage, "--"],
        }
        if _FASTMCP in os.environ:
            script = str(_PARTIES / "fastmcp_proxy.py")
            parties[_THEIRS] = [os.environ[_FASTMCP], script]
        else:
            _tell(f"{_THEIRS} is not measured: {_FASTMCP} names no Python that has it")
        for number in range(rounds):
            _tell(f"round {number + 1} of {rounds}")
            # in turn, so that other work on the machine meets all of them
            for name, command in parties.items():
                costs.setdefault(name, []).append(cost(command, calls))
    found = [
        Found(f"CPU a call: {name}", statistics.median(each), "µs", "", reached=True)
        for name, each in costs.items()
    ]
    for other, most in ((_RAW, 5), (_THEIRS, 0.2)):
        if other in costs:
            each = zip(costs[_OURS], costs[other], strict=True)
            ratio = statistics.median(own / its for own, its in each)
            bound = f"≤ {most:g}"
            found.append(Found(f"{_OURS}, to: {other}", ratio, "x", bound, ratio <= most))
    return found


def table(found: list[Found]) -> str:
    """Return the figures as Markdown."""
    rows: list[str] = []
    for each in found:
        figure = f"{each.figure:.{1 if each.unit == 'µs' else 2}f} {each.unit}"
        missed = "" if each.reached else ", **not reached**"
        rows.append(f"| {each.what} | {figure} | {each.bound}{missed} |")
    return "\n".join(["| what | measured | to reach |", "|---|---|---|", *rows])


def main(*, quick: bool, to: Path | None, at: Path) -> None:
    """Print the table. A slow result is not a failure."""
    found = measure(quick=quick, at=at)
    print(table(found))
    if to is not None:
        data = [each._asdict() for each in found]
        to.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _tell(what: str) -> None:
    print(what, file=sys.stderr)
