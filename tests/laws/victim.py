"""A process that runs a program and kills itself at a given moment, or none.

    python -m tests.laws.victim FOLDER SEED MOMENT

The world is a file: what was done before stands, whoever dies.
"""

import os
import signal
import sys
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


def main(folder: Path, moment: int, shuffle: int) -> None:
    """Run or resume the program; say what became of lost steps, as the file of effects has it."""
    lab = Lab(folder / "store")
    lab.watch_over(Mortal(folder / "effects", moment))
    attempt = lab.through(PROGRAM, shuffle=shuffle, replay="continue")  # it may have ended well
    assert lab.world.doubled == [], lab.world.doubled
    assert sorted(lab.timeline.standing.elements()) == sorted(attempt.stays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
