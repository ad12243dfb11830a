"""Real processes that are killed: nothing is lost, and nothing is done twice."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws.lab import Lab
from tests.laws.victim import PROGRAM, Mortal

ROOT = Path(__file__).resolve().parents[2]
TRIALS = int(os.environ.get("ROLLCAGE_FAULTS", "3"))
KILLS = 3  # of each run, before it may go on to its end


def process(folder: Path, moment: int, shuffle: int) -> "subprocess.CompletedProcess[str]":
    """Run the victim; it dies at this moment, or ends."""
    command = [sys.executable, "-m", "tests.laws.victim", str(folder), str(moment), str(shuffle)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


@pytest.mark.parametrize("seed", range(TRIALS))
def test_a_killed_process_is_followed_by_one_that_goes_on(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    whole = Lab(tmp_path / "whole")
    whole.through(PROGRAM)
    end = len(whole.timeline.moments)
    for _ in range(KILLS):
        died = process(tmp_path, chance.randint(1, end), chance.randrange(100))
        assert died.returncode in (-signal.SIGKILL, 0), died.stderr
        if died.returncode == 0:
            break
    done = process(tmp_path, 0, 0)
    assert done.returncode == 0, done.stderr
    left = Mortal(tmp_path / "effects", 0)
    assert left.effects == whole.timeline.effects
