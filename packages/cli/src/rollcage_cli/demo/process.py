"""Processes that play: imports take long, so one process imports, and forks one for each entrance.

`Program` is the side of the stage, `serve` the side of the program. The program's stdin has a line
for each entrance: `ACT...`, played one after the other in one process. Its stdout has the messages
of an act, and after each act `end` with its result; then `exit`, with the process's code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self

__all__ = ["Program", "own_environment", "serve"]

Tell = Callable[[str], None]


def own_environment(**more: str) -> dict[str, str]:
    """Return this process's environment, without the user's store.

    All runs stay in the demo's folder.
    """
    kept = {name: value for name, value in os.environ.items() if name != "ROLLCAGE_STORE"}
    return kept | more


def serve(play: Callable[[str, Tell], str]) -> int:
    """Fork a process for each entrance, and play its acts there; return the exit code.

    Other output in it, by a framework for example, goes to stderr.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(line: str) -> None:
        out.write(f"{line}\n")

    while acts := sys.stdin.readline().split():
        process = os.fork()
        if process == 0:
            for act in acts:
                tell(f"end {play(act, tell)}")
            return 0
        tell(f"exit {os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}")
    return 0


class Program:
    """A started program on `serve`: its process forks another one for each entrance."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        errors: IO[bytes],
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=cwd,
            env=own_environment(**(more or {})),
            text=True,
            encoding="utf-8",
            bufsize=1,
        )
        self._code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()  # the demo stopped in the middle
        self._process.__exit__(None, None, None)

    def enter(self, *acts: str) -> None:
        """Play these acts in a new process."""
        assert self._process.stdin is not None
        self._code = None
        with contextlib.suppress(BrokenPipeError):  # no process plays: the first claim reports it
            self._process.stdin.write(" ".join(acts) + "\n")

    def act(self, tell: Callable[[], None]) -> str:
        """Follow the act until it or its process ends; return the agent's answer.

        Its messages are shown as they come.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            tell()
            if line.startswith("end "):
                return line.removeprefix("end ").rstrip("\n")
            if line.startswith("exit "):
                self._code = int(line.removeprefix("exit "))
                return ""
        self._code = self._process.wait()
        tell()
        return ""

    def wait(self) -> int:
        """Return the exit code of the process that played, when it has ended."""
        while self._code is None:
            self.act(lambda: None)
        return self._code
