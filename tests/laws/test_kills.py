"""Real processes that are killed: nothing is lost, and nothing is done twice."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.lab import Lab
from tests.laws.places import KINDS, runs_on
from tests.laws.victim import PROGRAM, Mortal, Victims

TRIALS = int(os.environ.get("ROLLCAGE_FAULTS", "4")) // 2  # on each kind of store
KILLS = 4  # of each run at most, before it may go on to its end; most have two or more


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    victims = Victims()
    yield victims
    victims.end()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """All labs are on this kind of store."""
    if request.param == "postgres":
        from postgres import server

        server()  # it is started once
    with runs_on(request.param):
        yield


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("seed", range(TRIALS))
def test_a_killed_process_is_followed_by_one_that_goes_on(
    victims: Victims, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    whole = Lab(tmp_path / "whole")
    whole.through(PROGRAM)
    end = len(whole.timeline.moments)
    died = 0
    while died < KILLS:
        code = victims.run(tmp_path, chance.randint(1, end), chance.randrange(100))
        assert code in (-signal.SIGKILL, 0)
        if code == 0:
            break
        died += 1
    assert victims.run(tmp_path, 0, 0) == 0
    left = Mortal(tmp_path / "effects", 0)
    assert left.effects == whole.timeline.effects
