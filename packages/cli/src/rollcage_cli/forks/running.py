"""Run a program whose session becomes a fork, and find the fork's run."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollcage import Store, list_runs, open_store
from rollcage.errors import ApprovalRequired, ForkEnded, RollcageError
from rollcage.trace.recorded import trace_of
from rollcage_views import RefusedCall, Run, Step, read_run

from rollcage_cli.errors import UsageError
from rollcage_cli.forks.asking import ForkRequest
from rollcage_cli.output import visible

__all__ = ["ENDED", "ForkResult", "NotForked", "Program", "run_fork", "would_have"]

ENDED: Final = ("would_write", "would_ask")
"""The regular end of a fork that came to a call which it must not make."""

_REQUIRED: Final = f"{ApprovalRequired.__module__}.{ApprovalRequired.__qualname__}"
_LAST: Final = 2000  # characters of a program's stderr that are quoted


class NotForked(RollcageError):
    """The program opened no session of the job, or the session could not be a fork."""

    code = "not_forked"


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The program to run.

    Attributes:
        command: the command with its arguments.
    """

    command: tuple[str, ...]

    @classmethod
    def of(cls, command: Sequence[str], function: str | None) -> Program:
        """Return a command, or a function as `module:function`.

        Raises:
            UsageError: there is neither, or both.
        """
        if bool(command) == bool(function):
            raise UsageError(
                "say what makes the run again: rollcage fork RUN … -- python my_agent.py, or "
                "--run MODULE:FUNCTION"
            )
        if function is not None:
            command = (sys.executable, "-m", "rollcage_cli.forks.calling", function)
        return cls(tuple(command))


@dataclasses.dataclass(frozen=True, slots=True)
class ForkResult:
    """The result of a program.

    Attributes:
        run: the fork, from its log.
        code: the program's exit code.
        stderr: its output on stderr.
    """

    run: Run
    code: int
    stderr: str

    @property
    def paused(self) -> bool:
        """Whether the fork waits for something, such as an approval."""
        return self.run.status == "paused"

    @property
    def failed(self) -> bool:
        """Whether the program failed, and not because its fork waits or ended before a write."""
        return self.code != 0 and self.run.status not in (*ENDED, "paused")

    @property
    def ended(self) -> Mapping[str, Any]:
        """The line at the end of the fork; empty without one."""
        return self.run.finished or {}

    @property
    def error(self) -> Mapping[str, Any]:
        """The error by which the fork ended; empty without one."""
        return self.ended.get("error") or {}

    @property
    def remedy(self) -> str:
        """What makes a live fork go on that waits for an approval; empty if it does not."""
        if not self.paused or self.error.get("type") != _REQUIRED:
            return ""
        if any(step.state == "waiting" for step in self.run.steps):
            return (
                f"When it is decided, go on with the fork in a session of the program: run="
                f"{self.run.id!r} and the same Fork in stages="
            )
        return (
            "A live fork asks for approvals: give the program's session an approver= and fork "
            "again, or give the result of the call with --answer TOOL=JSON"
        )


def run_fork(asked: ForkRequest, program: Program, *, quiet: bool = False) -> ForkResult:
    """Run a program; its session of the job is the fork. Its output is passed on, unless `quiet`.

    Raises:
        NotForked: there was no fork; the message quotes the program's output.
        UsageError: there is no such program.
    """
    store = open_store(asked.data["store"])
    known = set(_forks(store, asked.found.run))
    with tempfile.TemporaryDirectory(prefix="rollcage-fork-") as folder:
        file = Path(folder) / "fork.json"
        asked.write(file)
        try:
            ended = subprocess.run(  # noqa: S603 - what the user asks to be run
                program.command,
                env={**os.environ, "ROLLCAGE_STAGE": f"fork:{file}"},
                stdout=subprocess.DEVNULL if quiet else sys.stderr,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise UsageError(f"{visible(program.command[0])} can't be run: {error}") from None
    new = [run for run in _forks(store, asked.found.run) if run not in known]
    if not new:
        raise NotForked(
            f"the program opened no session of {visible(asked.origin.started['name'])!r} in "
            f"{visible(store.url)}, so nothing was forked. It ended with {ended.returncode}"
            f"{_quoted(ended.stderr)}"
        )
    return ForkResult(read_run(trace_of(store, new[-1])), ended.returncode, ended.stderr)


def would_have(run: Run) -> list[Step | RefusedCall]:
    """Return the writes that a fork would have made: answered ones, and the one that ended it.

    Without writes that were made, and whose recorded result is only replaced or assumed.
    """
    of_step = run.started["fork"]["change"] in ("result", "error")
    answered = [
        step
        for step in run.steps
        if step.simulated in ("write", "scope")
        and not step.assumed
        and not (step.changed and of_step)
    ]
    return [*answered, *(call for call in run.refused if call.code == ForkEnded.code)]


def _forks(store: Store, run: str) -> list[str]:
    """Return the forks of a run, the oldest first."""
    return [info.run for info in reversed(list_runs(store)) if info.origin == run and info.fork]


def _quoted(stderr: str) -> str:
    lines = visible(stderr[-_LAST:].replace("\n", "\x00")).replace("\\x00", "\n").strip()
    return f":\n{lines}" if lines else ""
