"""A branch ranks the turns that ask for one thing in one world, and holds none of them for that."""

import gc
from pathlib import Path

from rollcage import Session, tool
from rollcage.replay.walk import Branch, Turn
from rollcage.trace.run import Run


@tool(effect="read")
def look(what: str) -> str:
    """Return what was asked for."""
    return what


def branch() -> Branch:
    return Branch("", bytes(32), Run(), {})


def test_a_turn_keeps_its_rank_beside_others() -> None:
    here, first, second = branch(), Turn(), Turn()
    assert [here.rank("key", each) for each in (first, second, first, second)] == [0, 1, 0, 1]
    assert [here.rank("other", each) for each in (second, first, second)] == [0, 1, 0]
    assert here.rank("key", Turn()) == 2


def test_ranks_begin_anew_in_another_world() -> None:
    here, first, second = branch(), Turn(), Turn()
    assert [here.rank("key", each) for each in (first, second)] == [0, 1]
    here.fold()
    assert [here.rank("key", each) for each in (second, first)] == [0, 1]


def test_a_turn_has_ranks_of_its_own_in_each_branch() -> None:
    here, first, second = branch(), Turn(), Turn()
    there = Branch("#there", bytes(32), Run(), {})
    assert [here.rank("key", each) for each in (first, second)] == [0, 1]
    assert [there.rank("key", each) for each in (second, first)] == [0, 1]
    assert [here.rank("key", each) for each in (first, second)] == [0, 1]


def turns() -> int:
    gc.collect()
    return sum(type(each) is Turn for each in gc.get_objects())


def test_a_turn_goes_with_its_calls(tmp_path: Path) -> None:
    before = turns()
    with Session("job", store=tmp_path):
        for _ in range(50):
            assert look("the same") == "the same"
        assert turns() <= before + 3
