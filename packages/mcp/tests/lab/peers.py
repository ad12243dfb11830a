"""Clients of a proxy that is a process, and what they have it write.

`python peers.py FOLDER TEXT…` is such a client: it writes these texts in the job that the folder
holds, and ends with 0 where all of it was answered.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

LINE_SERVER = str(Path(__file__).with_name("line_server.py"))


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


def told(folder: Path, texts: Sequence[str]) -> bool:
    """Have these texts written; whether all of that was answered well.

    A client that was killed looks like one that is done: so the job is gone on with in any case.
    """
    client = Peer(folder, "--name", "job", "--replay", "continue")
    client.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
    answered = all("result" in client.write(text, 0.05) for text in texts)
    return client.close() == 0 and answered


if __name__ == "__main__":
    sys.exit(not told(Path(sys.argv[1]), sys.argv[2:]))
