"""Workers that are killed at any moment, a few of what `nox -s workers` does."""

from pathlib import Path

import pytest
from fleet import Steering, check_blinds, check_chaos, check_kills, check_mixed, fleet, start_mixed
from fleet_plans import STEPS
from postgres import server


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_done_twice(place: str, tmp_path: Path) -> None:
    url = server() if place == "postgres" else None
    with fleet(tmp_path, seed=1, workers=2, postgres=url) as made:
        ids = made.start("kills", 6)
        made.kill_until_done(kills=2, every=30)
        assert check_kills(made, ids, STEPS) == 6 * STEPS


def test_without_a_probe_an_interrupted_write_halts(tmp_path: Path) -> None:
    with fleet(tmp_path, seed=2, workers=2, postgres=None) as made:
        ids = made.start("blinds", 4)
        made.kill_until_done(kills=2, every=15)
        check_blinds(made, ids)


def test_what_fails_is_rolled_back_whole_and_nothing_else(tmp_path: Path) -> None:
    with fleet(tmp_path, seed=3, workers=2, postgres=None) as made:
        ids = made.start("chaos", 8, fails=lambda n: bool(n % 2))
        made.kill_until_done(kills=2, every=40)
        assert check_chaos(made, ids, STEPS) == 4


def test_workers_that_live_and_are_taken_for_dead_do_nothing_twice(tmp_path: Path) -> None:
    with fleet(tmp_path, seed=4, workers=2, postgres=None, is_reckless=True) as made:
        ids = made.start("kills", 8)
        made.kill_until_done(kills=0, every=1)
        assert check_kills(made, ids, STEPS) == 8 * STEPS


def test_what_failed_at_another_worker_meanwhile_is_not_run_once_more(tmp_path: Path) -> None:
    with fleet(tmp_path, seed=7, workers=2, postgres=None, is_reckless=True) as made:
        ids = made.start("chaos", 8, fails=lambda n: bool(n % 2))
        made.kill_until_done(kills=0, every=1)
        assert check_chaos(made, ids, STEPS) == 4


@pytest.mark.parametrize("place", ["sqlite", "postgres", "files"])
def test_random_plans_end_right_or_are_rolled_back_whole(place: str, tmp_path: Path) -> None:
    """Teams, races, quorums, lists, loops, plans inside and waits, one in the other."""
    url = server() if place == "postgres" else None
    with fleet(tmp_path, seed=5, workers=2, postgres=url, in_files=place == "files") as made:
        ids = start_mixed(made, 8)
        made.kill_until_done(kills=3, every=10)
        assert check_mixed(made, ids)[1] == 4


def test_what_is_paused_resumed_and_cancelled_while_workers_are_killed_ends_right(
    tmp_path: Path,
) -> None:
    """Whoever steers does so at random moments; each execution ends right, or is rolled back."""
    with fleet(tmp_path, seed=6, workers=2, postgres=None) as made:
        ids = start_mixed(made, 8)
        steering = Steering(made, ids, most=20)
        made.kill_until_done(kills=2, every=10, steer=steering)
        check_mixed(made, ids, steering.cancelled)
