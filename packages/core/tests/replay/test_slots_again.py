"""A turn whose calls came in another order when it was resumed, and was cut off in their midst."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from rollcage import Session, Store, list_runs, tool

done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    done.clear()


@tool(effect="write", name="slots.write", raises=[ValueError])
def write(what: str) -> str:
    if what == "fails":
        raise ValueError(what)
    done.append(what)
    return f"{what} {len(done)}"


@contextlib.contextmanager
def broken_off(session: Session) -> Iterator[None]:
    with pytest.raises(KeyError), session:
        yield
        raise KeyError


def issue(session: Session, calls: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Make calls of one turn, each in its slot, as threads would, in whatever order."""
    given: dict[int, str] = {}
    with session.turn() as turn:
        for slot, what in calls:
            with turn.slot(slot), contextlib.suppress(ValueError):
                given[slot] = write(what)
    return given


def test_a_failure_again_beside_a_replayed_call(
    store: Store,
) -> None:
    first = Session("job", store=store)
    with broken_off(first):
        issue(first, [(0, "fails"), (1, "works")])
    second = Session("job", store=store)
    with broken_off(second):
        assert issue(second, [(1, "works")]) == {1: "works 1"}
    with Session("job", store=store) as third:
        assert issue(third, [(0, "fails"), (1, "works")]) == {1: "works 1"}
    assert done == ["works"]
    assert [info.status for info in list_runs(store)] == ["ok"]


@pytest.mark.parametrize("second", [[1], [1, 2], [2, 1, 0], [1, 0]])
def test_a_failure_again_beside_new_calls(second: list[int], store: Store) -> None:
    """The first trace ends with the failure; in the second, calls of its turn were made first."""
    turn = [(0, "fails"), (1, "one"), (2, "two")]
    first = Session("job", store=store)
    with broken_off(first):
        issue(first, turn[:1])
    again = Session("job", store=store)
    with broken_off(again):
        issue(again, [turn[slot] for slot in second])
    with Session("job", store=store) as third:
        assert set(issue(third, turn)) == {1, 2}
    assert sorted(done) == ["one", "two"]


def test_a_failure_again_beside_both(
    store: Store,
) -> None:
    first = Session("job", store=store)
    with broken_off(first):
        issue(first, [(0, "fails"), (1, "one")])
    second = Session("job", store=store)
    with broken_off(second):
        issue(second, [(1, "one"), (2, "two")])
    third = Session("job", store=store)
    with broken_off(third):
        issue(third, [(2, "two"), (3, "three")])
    with Session("job", store=store) as last:
        given = issue(last, [(0, "fails"), (3, "three"), (1, "one"), (2, "two")])
    assert set(given) == {1, 2, 3}
    assert sorted(done) == ["one", "three", "two"]


def test_one_message_asks_what_two_had_asked(store: Store) -> None:
    """Slots of another message mean nothing, and none of its calls is made again."""
    first = Session("job", store=store)
    with broken_off(first):
        given = issue(first, [(0, "one")]) | {1: issue(first, [(0, "two")])[0]}
        counted = count()
    with Session("job", store=store) as second:
        assert issue(second, [(0, "one"), (1, "two")]) == given
        with second.turn() as turn, turn.slot(2):
            assert count() == counted
        assert (second.stats.hits, second.stats.misses) == (3, 0)


def test_identical_calls_keep_their_slots(store: Store) -> None:
    first = Session("job", store=store)
    with broken_off(first):
        given = issue(first, [(0, "same"), (1, "same"), (2, "same")])
    second = Session("job", store=store)
    with broken_off(second):
        assert issue(second, [(1, "same")]) == {1: given[1]}
    with Session("job", store=store) as third:
        assert issue(third, [(2, "same"), (0, "same"), (1, "same")]) == given
    assert len(done) == 3


@tool(effect="read", name="slots.count")
def count() -> int:
    done.append("counted")
    return len(done)


@pytest.mark.parametrize("before", [[], ["one"]])
@pytest.mark.parametrize("replay", ["offline", "auto"])
def test_a_read_holds_behind_a_write_that_joined_its_turn_later(
    store: Store, before: list[str], replay: Literal["offline", "auto"]
) -> None:
    """The read was asked for in front of the new write, so both are concurrent, as in one go."""

    def issue(*writes: str) -> int:
        with session.turn():
            for what in before:
                write(what)
            counted = count()
            for what in writes:
                write(what)
        return counted

    session = Session("job", store=store)
    with broken_off(session):
        counted = issue()
    session = Session("job", store=store)
    with broken_off(session):
        assert issue("two") == counted
    was = list(done)
    with broken_off(Session("job", store=store, replay=replay)):
        for what in (*before, "two"):
            write(what)
        assert count() == counted
    assert done == was


def test_a_read_that_was_not_asked_for_does_not_hold_behind_a_new_write(store: Store) -> None:
    session = Session("job", store=store)
    with broken_off(session), session.turn():
        write("one")
        count()
    session = Session("job", store=store)
    with broken_off(session), session.turn():
        write("one")
        write("two")
    with Session("job", store=store):
        write("one")
        write("two")
        assert count() == 4
