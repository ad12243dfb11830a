# until the old core goes
"""One URL names the old core's store and the heart's: they lie side by side."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rollcage
from postgres import new_store
from rollcage import heart
from rollcage.errors import RunNotFound
from rollcage.heart.both import core_of
from rollcage.heart.listing import list_runs
from rollcage.store import Repair
from rollcage.store import open_store as open_old

done: list[str] = []


@rollcage.tool(effect="write")
def both_write(text: str) -> str:
    done.append(text)
    return text


@pytest.fixture(params=["folder", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    done.clear()
    if request.param == "postgres":
        with new_store() as url:
            yield url
    else:
        yield f"{'sqlite:///' if request.param == 'sqlite' else ''}{tmp_path}/store"


def in_old(url: str, *texts: str) -> str:
    with contextlib.suppress(ZeroDivisionError), rollcage.Session("a", store=url) as session:
        for text in texts:
            both_write(text) if text else 1 / 0
    return session.run_id


def in_heart(url: str, *texts: str) -> str:
    with contextlib.suppress(ZeroDivisionError), heart.Session("a", store=url) as session:
        for text in texts:
            both_write(text) if text else 1 / 0
    return session.run_id


@pytest.mark.parametrize("order", [(in_old, in_heart), (in_heart, in_old)])
def test_both_cores_use_one_store_in_any_order(
    url: str, order: tuple[Callable[..., str], Callable[..., str]]
) -> None:
    first, second = order
    one = first(url, "x", "")
    two = second(url, "y", "")
    assert first(url, "x", "z") is not None
    assert second(url, "y", "z") is not None
    assert done == ["x", "y", "z", "z"]
    for n in range(3):
        first(url, f"{n}")
        second(url, f"{n}")
    runs = {in_old: one, in_heart: two} if first is in_old else {in_old: two, in_heart: one}
    assert core_of(url, runs[in_old]) == "old"
    assert core_of(url, runs[in_heart]) == "heart"
    assert len(list_runs(url)) == 4
    assert len(open_old(url).runs()) == 5  # a resume is a run of its own there
    found = open_old(url).check()
    assert found == Repair(runs=5, unattested=found.unattested)


def test_a_run_that_neither_core_has_is_not_found(url: str) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    with pytest.raises(RunNotFound):
        core_of(url, nobody)
    in_heart(url, "x")
    with pytest.raises(RunNotFound):
        core_of(url, nobody)
    in_old(url, "x")
    with pytest.raises(RunNotFound):
        core_of(url, nobody)


def test_sessions_of_both_cores_are_open_at_once(url: str) -> None:
    with rollcage.Session("a", store=url) as old:
        with heart.Session("a", store=url) as new:
            assert new.call(both_write, text="x") == "x"
            assert old.call(both_write, text="y") == "y"
            assert new.call(both_write, text="z") == "z"
        assert old.call(both_write, text="z") == "z"
    assert (core_of(url, old.run_id), core_of(url, new.run_id)) == ("old", "heart")
    assert done == ["x", "y", "z", "z"]
