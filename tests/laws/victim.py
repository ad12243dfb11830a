"""Processes that run a program and kill themselves at a given moment, or none.

    python -m tests.laws.victim

It forks one for each line of stdin, and answers with its exit code. The world is a file: what was
done before stands, whoever dies.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

from tests.laws.lab import Lab
from tests.laws.programs import Block, Branches, Inner, Op, Program, Turn
from tests.laws.timeline import Deed, Moment, Timeline

PROGRAM: Program = (
    Op("write"),
    Turn((Op("write", 1), Op("plain", 1), Op("read", 1))),
    Op(
        "outer",
        inner=(Op("write", 2), Block((Op("idem"), Op("write", 3)), raises=True), Op("read")),
    ),
    Branches(((Op("write", 4), Op("thread", 4)), (Op("stream", 5),)), ("b0", "b1")),
    Inner("in", (Op("scope", inner=(Op("plain", 6),)), Op("write", 0, "fail"))),
    Op("idem", 7),
)


class Mortal(Timeline):
    """A timeline whose process dies at one of its moments; effects are in a file."""

    def __init__(self, effects: Path, left: int) -> None:
        super().__init__()
        self.left = left
        self.effects_file = effects
        for line in effects.read_text().splitlines() if effects.exists() else ():
            run, step, key, token, sign, gave = line.split("|")
            super().add(Deed(run, int(step), key, token, int(sign), gave))

    def add(self, moment: Moment) -> None:
        """Add what has happened; die, if it is time, behind it or in front of what comes next."""
        if isinstance(moment, Deed):
            each = (moment.run, moment.step, moment.key, moment.token, moment.sign, moment.gave)
            with self.effects_file.open("a") as file:
                file.write("|".join(map(str, each)) + "\n")
        super().add(moment)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Victims:
    """A process that forks victims: to import everything takes longer than they live."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.laws.victim"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, moment: int, shuffle: int) -> int:
        """Run a victim in a folder, with the environment of now; returns its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"folder": str(folder), "moment": moment, "shuffle": shuffle}
        print(json.dumps([dict(os.environ), job]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def live(folder: str, moment: int, shuffle: int) -> None:
    """Run or resume the program; say what became of lost steps, as the file of effects has it."""
    lab = Lab(Path(folder, "store"))
    lab.watch_over(Mortal(Path(folder, "effects"), moment))
    attempt = lab.through(PROGRAM, shuffle=shuffle, replay="continue")  # it may have ended well
    assert lab.world.doubled == [], lab.world.doubled
    assert sorted(lab.timeline.standing.elements()) == sorted(attempt.stays)


def main() -> None:
    """Fork a victim for each line, with everything in memory that the first run of all makes."""
    with tempfile.TemporaryDirectory() as folder:
        Lab(Path(folder)).through(PROGRAM)
    # The writer begins anew in a child.
    assert {each.name for each in threading.enumerate()} <= {"MainThread", "rollcage-writer"}
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            environment, job = json.loads(line)
            os.environ.update(environment)
            code = 1
            try:
                live(**job)
                code = 0
            except BaseException:  # noqa: BLE001 - printed, as Python does
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
