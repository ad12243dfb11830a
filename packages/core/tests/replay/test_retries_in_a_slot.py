"""Several calls in one slot of a turn: there a framework's retries of a tool are placed."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Session, current_step, tool

Events = Callable[[str], list[dict[str, Any]]]

ran: list[Any] = []
keys: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    keys.clear()


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    def make(replay: Any = "auto", **how: Any) -> Session:
        return Session("job", store=tmp_path / "store", replay=replay, **how)

    return make


def note() -> int:
    step = current_step()
    assert step is not None
    keys.append(step.idempotency_key)
    ran.append(len(ran))
    return len(ran)


write = tool(effect="write", name="write")(note)
look = tool(effect="read", name="look")(note)


@tool(effect="write")
def child(of: int) -> int:
    ran.append(("child", of))
    return of


@tool(effect="scope")
def agent() -> int:
    return child(len(ran))


def three(opened: Session, function: Callable[[], int]) -> list[int]:
    with opened.turn() as turn, turn.slot(0):
        return [function() for _ in range(3)]


@pytest.mark.parametrize("function", [write, look])
def test_identical_calls_of_one_slot_are_steps_of_their_own(
    session: Any, events: Events, function: Callable[[], int]
) -> None:
    with session() as first:
        assert three(first, function) == [1, 2, 3]
    assert len(set(keys)) == 3
    placed = [e for e in events(first.run_id) if e["event"] == "step"]
    assert [e["slot"] for e in placed] == [0, 0, 0]
    with session("offline") as again:
        assert three(again, function) == [1, 2, 3]
        assert again.stats.hits == 3


def test_they_replay_in_turns_of_their_own_and_the_other_way_round(session: Any) -> None:
    with session() as first:
        three(first, write)
    with session("offline"):
        assert [write(), write(), write()] == [1, 2, 3]
    ran.clear()
    with session("off"):
        assert [write(), write(), write()] == [1, 2, 3]
    with session("offline") as again:
        assert three(again, write) == [1, 2, 3]


def test_the_slots_of_a_turn_keep_their_own_calls_apart(session: Any) -> None:
    def both(opened: Session, order: list[int]) -> dict[int, list[int]]:
        values: dict[int, list[int]] = {0: [], 1: []}
        with opened.turn() as turn:
            for slot in order:
                with turn.slot(slot):
                    values[slot].append(write())
        return values

    with session() as first:
        assert both(first, [0, 1, 0, 1]) == {0: [1, 3], 1: [2, 4]}
    assert len(set(keys)) == 4
    with session("offline") as again:
        assert both(again, [1, 1, 0, 0]) == {0: [1, 3], 1: [2, 4]}


def test_the_calls_inside_of_them_stay_apart_too(session: Any, events: Events) -> None:
    with session() as first:
        assert three(first, agent) == [0, 1, 2]
    inside = [e["branch"] for e in events(first.run_id) if e.get("name") == "child"]
    assert len(set(inside)) == 3
    with session("offline") as again:
        assert three(again, agent) == [0, 1, 2]


def test_a_slot_given_by_arrival_and_then_said_is_no_second_place(session: Any) -> None:
    with session() as first, first.turn() as turn:
        write()
        with turn.slot(0):
            write()
    assert len(set(keys)) == 2


# Turns of calls: in which slot, of which of two tools.
programs = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([write, look])), max_size=6), max_size=4
)


@given(programs, st.randoms(use_true_random=False))
def test_whatever_a_slot_does_replays(program: list[Any], chance: Any) -> None:
    """In the same turns, with the slots in the same order or another."""

    def play(turns: list[Any], replay: Any) -> list[tuple[int, int, int]]:
        told: list[tuple[int, int, int]] = []
        with Session("job", store=folder, replay=replay) as session:
            for number, calls in turns:
                with session.turn() as turn:
                    for slot, function in calls:
                        with turn.slot(slot):
                            told.append((number, slot, function()))
        return told

    turns = list(enumerate(program))
    mixed: list[Any] = []
    for number, calls in turns:
        waiting = list(calls)
        order = chance.sample([slot for slot, _ in calls], len(calls))
        moved = []
        for slot in order:
            index = next(i for i, call in enumerate(waiting) if call[0] == slot)
            moved.append(waiting.pop(index))
        mixed.append((number, moved))
    with tempfile.TemporaryDirectory(prefix="rollcage-slots-") as folder:
        ran.clear()
        keys.clear()
        recorded = play(turns, "off")
        count = len(keys)
        assert len(set(keys)) == count
        for again in (turns, mixed):
            assert sorted(play(again, "offline")) == sorted(recorded)
        assert len(keys) == count


# --- a tool that raises, and is retried ----------------------------------------------------------


@tool(effect="write")
def flaky(until: int) -> int:
    step = current_step()
    assert step is not None
    keys.append(step.idempotency_key)
    ran.append("flaky")
    if len(ran) < until:
        raise ConnectionRefusedError(len(ran))
    return len(ran)


def retried(opened: Session, until: int, tries: int = 3) -> int | None:
    """An adapter for a framework that calls a raising tool again, up to `tries` times."""
    with opened.turn() as turn, turn.slot(0):
        for _ in range(tries):
            try:
                return flaky(until)
            except ConnectionError:
                continue
    return None


def test_retries_replay_as_they_went(session: Any) -> None:
    with session() as first:
        assert retried(first, 3) == 3
    assert len(set(keys)) == 3
    with session("offline") as again:
        assert retried(again, 3) == 3
    assert again.stats.hits == 3


@pytest.mark.parametrize("generations", [1, 2])
def test_a_retry_that_succeeded_is_not_done_again(session: Any, generations: int) -> None:
    """The failures before it are behind the frontier: what followed them is known."""
    with pytest.raises(RuntimeError), session() as first:
        retried(first, 3)
        raise RuntimeError
    for _ in range(generations - 1):  # killed behind the first try, each time
        with pytest.raises(RuntimeError), session() as cut:
            retried(cut, 3, tries=1)
            raise RuntimeError
    with session() as again:
        assert retried(again, 3) == 3
    assert ran == ["flaky"] * 3
    assert again.stats.hits == 3


def test_only_the_last_of_the_failures_runs_again(session: Any) -> None:
    with pytest.raises(RuntimeError), session() as first:
        assert retried(first, 4) is None
        raise RuntimeError
    with session() as again:
        assert retried(again, 4) == 4
    assert (again.stats.hits, again.stats.misses) == (2, 1)
    assert keys[3] == keys[2]  # in its own place


def test_a_further_retry_than_was_recorded_is_a_step_of_its_own(session: Any) -> None:
    with pytest.raises(RuntimeError), session() as first:
        assert retried(first, 9, tries=2) is None
        raise RuntimeError
    with session() as again:
        assert retried(again, 9) is None
    once, twice, in_its_place, further = keys
    assert in_its_place == twice
    assert len({once, twice, further}) == 3
