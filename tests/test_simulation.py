"""Simulate workers, crashes, and failing disks and networks: see `tests/simulation`.

The seeds are the same in each run; `nox -s simulate` tries random ones.
"""

import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.places import places
from tests.simulation.universe import replay

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 5  # in each place; `nox -s simulate` tries thousands


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Collect circular garbage while no test runs."""
    yield
    gc.collect()


@pytest.mark.parametrize("place", sorted(places))
def test_in_every_universe_all_that_must_hold_holds(place: str) -> None:
    for seed in range(1, SEEDS + 1):
        universe, error = replay(seed, place)
        again = f"nox -s simulate -- --place {place} --seed {seed}"
        assert error is None, f"{error}\n\n{universe.story}\n\n{again}"


@pytest.mark.nightly
@pytest.mark.parametrize("mistake", sorted(BUGS))
def test_each_mistake_is_found(mistake: str) -> None:
    bug = BUGS[mistake]
    with bug.put_in():
        found = next((s for s in bug.seeds if replay(s, bug.place)[1] is not None), None)
    assert found is not None


@pytest.mark.nightly
def test_a_universe_is_the_same_in_every_process() -> None:
    code = """
        import hashlib, logging, sys
        from tests.simulation.universe import replay
        logging.disable()
        log = "\\n".join(replay(7, sys.argv[1])[0].scheduler.log)
        print(len(log), hashlib.sha256(log.encode()).hexdigest())
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    for place in sorted(places):
        told = set()
        for hashes in ("1", "2"):
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            done = subprocess.run(
                [sys.executable, "-c", code, place],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=True,
            )
            told.add(done.stdout)
        log = "\n".join(replay(7, place)[0].scheduler.log)
        told.add(f"{len(log)} {hashlib.sha256(log.encode()).hexdigest()}\n")
        assert len(told) == 1
