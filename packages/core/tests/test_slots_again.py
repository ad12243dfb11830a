"""A turn whose calls came in another order when it was resumed, and was cut off in their midst."""

import contextlib
from collections.abc import Iterator, Sequence

import pytest
from rollcage import Session, tool
from rollcage.store import JsonlStore

done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    done.clear()


@tool(effect="write", name="slots.write")
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


def test_a_failed_call_is_made_again_beside_one_that_came_back_before_it(
    store: JsonlStore,
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
    assert [info.status for info in store.runs()][-1] == "ok"


def test_identical_calls_get_what_their_own_slots_gave(store: JsonlStore) -> None:
    first = Session("job", store=store)
    with broken_off(first):
        given = issue(first, [(0, "same"), (1, "same"), (2, "same")])
    second = Session("job", store=store)
    with broken_off(second):
        assert issue(second, [(1, "same")]) == {1: given[1]}
    with Session("job", store=store) as third:
        assert issue(third, [(2, "same"), (0, "same"), (1, "same")]) == given
    assert len(done) == 3
