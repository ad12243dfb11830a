"""The laws on databases; and law 16: runs that are copied, moved and pruned over several stores."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from dying import Dying, Killed, Life
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Session, Store, open_store
from rollcage.errors import RunElsewhere, RunNotFound
from rollcage.trace.listing import list_runs, newest_run, run_info
from rollcage_stores.copies import move_run
from rollcage_stores.doctor import examine, repair
from rollcage_stores.prune import prune_run

from tests.laws.lab import Lab, folder
from tests.laws.law import accounts, chances, fewer, offline, order, resumed
from tests.laws.places import KINDS, place_of, runs_on
from tests.laws.programs import Program, programs, seeds
from tests.laws.test_approvals import killed
from tests.laws.test_cuts import LOSES, cut
from tests.laws.test_forks import recorded
from tests.laws.test_once import CALLS, JOBS, TOLD, check_what_was_told, told
from tests.laws.test_orders import lifted
from tests.laws.test_undo import resolve_all, undo
from tests.laws.timeline import Watched

pytestmark = pytest.mark.law

FEW = fewer(25)  # in `tests`; `nox -s laws` tries thirty times as many
BLOCKS = ["outer", "scope", "turn", "branches", "inner", "block"]
DATABASES = [kind for kind in KINDS if kind != "folder"]


@pytest.fixture(params=DATABASES, scope="module")
def database(request: pytest.FixtureRequest) -> Iterator[None]:
    """All labs are on this kind of store."""
    if request.param == "postgres":
        from postgres import server

        server()  # it is started once
    with runs_on(request.param):
        yield


@pytest.mark.usefixtures("database")
@FEW
@given(programs(blocks=BLOCKS), seeds)
def test_programs_are_killed_at_any_moment(program: Program, seed: int) -> None:
    cut(program, seed)


@pytest.mark.usefixtures("database")
@FEW
@given(programs(does=LOSES), seeds)
def test_calls_get_lost(program: Program, seed: int) -> None:
    cut(program, seed)


@pytest.mark.usefixtures("database")
@FEW
@given(programs(blocks=BLOCKS), seeds)
def test_runs_are_taken_back(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        undo(lab, lab.newest(), chance)
        assert not lab.timeline.effects


@pytest.mark.usefixtures("database")
@FEW
@given(programs(blocks=BLOCKS), seeds)
def test_calls_are_asked_about(program: Program, seed: int) -> None:
    killed(program, seed)


@pytest.mark.usefixtures("database")
@FEW
@given(programs(blocks=BLOCKS), seeds)
def test_runs_are_stopped(program: Program, seed: int) -> None:
    lifted(program, seed)


@pytest.mark.usefixtures("database")
@FEW
@given(st.lists(CALLS, min_size=2, max_size=3), seeds)
def test_keys_are_claimed_once(programs: list[Program], seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        for job, program in zip(JOBS, programs, strict=False):
            told(lab, job, program, chance)
        lab = lab.at(root / "killed", chance.randint(1, len(lab.timeline.moments)))
        for job, program in chance.sample([*zip(JOBS, programs, strict=False)], len(programs)):
            told(lab, job, program, chance)
        once = {name: n for name, n in lab.timeline.effects.items() if name.startswith("once")}
        assert set(once.values()) <= {1}
        assert lab.world.doubled == []


@pytest.mark.usefixtures("database")
@FEW
@given(TOLD, seeds)
def test_what_was_told_under_a_key_stands(among: list[Program], seed: int) -> None:
    check_what_was_told(among, seed)


# --- law 16 ---


def other_store(root: Path, chance: random.Random) -> Store:
    """Return a store of some kind, the faster ones more often."""
    with runs_on(chance.choice(["folder", "folder", "sqlite"])):
        return open_store(place_of(root))


@FEW
@given(programs(blocks=BLOCKS), seeds)
def test_a_run_that_is_moved_in_between_ends_as_if_it_had_stayed(
    program: Program, seed: int
) -> None:
    """It is cut, moved, killed while it is moved, cut in the other store, and moved on."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        accounts(whole, whole.through(program, **order(program, chance)))
        lab = whole.at(root / "cut", chance.randint(1, len(whole.timeline.moments)))
        if lab.timeline.newest() is None:
            return
        run, here = lab.newest(), open_store(place_of(lab.root))
        for hop in range(3):
            there = other_store(root / f"hop {hop}", chance)
            life = Life(chance.randint(1, 14))
            with contextlib.suppress(Killed):
                move_run(Dying(here, life), Dying(there, life), run)
            life.bury()
            if chance.random() < 0.5:  # somebody goes on before the move is asked for again
                goes_on = chance.choice([here, there])
                with contextlib.suppress(RunElsewhere, RunNotFound):
                    lab.store = Watched(goes_on, lab.timeline)
                    if newest_run(goes_on, lab.job) is not None:
                        resumed(lab, program, chance)
            move_run(here, there, run)
            for left in (here, there):
                assert [each.code for each in examine(left) if each.kind == "damaged"] == []
            with pytest.raises(RunElsewhere), Session("job", store=here, run=run):
                pass
            here = there
        lab.store = Watched(here, lab.timeline)
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == whole.timeline.effects
        offline(lab, program, attempt, chance)
        resolve_all(lab, run)
        undo(lab, run, chance)
        assert not lab.timeline.effects


@FEW
@given(st.lists(CALLS, min_size=2, max_size=3), seeds)
def test_what_is_pruned_stays_done(programs: list[Program], seed: int) -> None:
    """Each run is pruned when its job is done, the prune is killed; effects of once stay once."""
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        own = open_store(place_of(lab.root))
        for job, program in zip(JOBS, programs, strict=False):
            told(lab, job, program, chance)
            for each in list_runs(own):
                life = Life(chance.randint(1, 10))
                with contextlib.suppress(Killed):
                    prune_run(Dying(own, life), each.run)
                life.bury()
            repair(own)
            for each in list_runs(own):
                prune_run(own, each.run)
                assert run_info(own, each.run).status == "ok"
            assert examine(own) == []
        once = {name: n for name, n in lab.timeline.effects.items() if name.startswith("once")}
        assert set(once.values()) <= {1}
        assert lab.world.doubled == []
