"""What `on_divergence="warn"` leaves behind is still there: it can be undone as anything else."""

from collections.abc import Callable
from typing import Any

import pytest
from rollcage import (
    Session,
    Store,
    UndoReport,
    UnknownOutcome,
    compensate,
    plan_undo,
    run_info,
    tool,
    undo_run,
)

there: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_there() -> None:
    there.clear()


@tool(name="accepted.take", idempotent=True)
def take(thing: str) -> None:
    there.remove(thing)


@tool(name="accepted.put", undo=lambda args: [compensate("accepted.take", **args)])
def put(thing: str) -> None:
    there.append(thing)


Job = Callable[[Session], None]


def crashed(store: Store, job: Job, **how: Any) -> Session:
    with pytest.raises(InterruptedError), Session("job", store=store, **how) as session:
        job(session)
        raise InterruptedError
    return session


def undone(store: Store, session: Session, to: int | None = None) -> UndoReport:
    report = undo_run(store, session.run_id, to=to, tools=[put, take])
    assert report.complete
    return report


def calls(*things: str) -> Job:
    def job(_: Session) -> None:
        for each in things:
            put(each)

    return job


@pytest.fixture
def warned(store: Store) -> Session:
    crashed(store, calls("a", "b", "c"))
    return crashed(store, calls("a", "x", "y"), on_divergence="warn")


def test_all_of_it_is_taken_back_the_newest_first(store: Store, warned: Session) -> None:
    plan = plan_undo(store, warned.run_id, tools=[put, take])
    assert [each.args["thing"] for each in plan.steps] == ["y", "x", "c", "b", "a"]
    undone(store, warned)
    assert there == []
    with Session("job", store=store) as session:
        calls("a", "b", "c")(session)
    assert there == ["a", "b", "c"]


def test_an_undo_to_a_step_behind_which_it_was_left_keeps_it(store: Store, warned: Session) -> None:
    undone(store, warned, to=4)  # x: by then, b and c were there
    assert there == ["a", "b", "c", "x"]
    undone(store, warned, to=1)
    assert there == ["a"]


@pytest.mark.parametrize("to", [None, 1, 4])
def test_in_later_attempts_too(store: Store, warned: Session, to: int | None) -> None:
    with Session("job", store=store) as last:
        calls("a", "x", "y", "z")(last)
    assert last.stats.hits == 3
    undone(store, last, to)
    assert there == ["a", "b", "c", "x"][: {None: 0, 1: 1, 4: 4}[to]]
    with Session("job", store=store) as last:
        calls("a", "x")(last)
    assert sorted(there) == {None: ["a", "x"], 1: ["a", "x"], 4: ["a", "b", "c", "x"]}[to]


def test_from_inside_of_the_session(store: Store) -> None:
    crashed(store, calls("a", "b"))
    with Session("job", store=store, on_divergence="warn") as session:
        put("x")
        assert session.undo().complete
    assert there == []


def in_branch(session: Session) -> None:
    with session.branch("agent"):
        put("a")
        with session.branch("helper"):
            put("b")


def test_what_came_back_with_a_branch_is_left_with_it(store: Store) -> None:
    crashed(store, in_branch)
    crashed(store, calls("x"), on_divergence="warn")
    with Session("job", store=store) as session:
        calls("x")(session)
    assert run_info(store, session.run_id).status == "ok", "nothing of it is asked for any more"
    undone(store, session)
    assert there == []


@pytest.mark.xfail(strict=True, reason="a block rolls back what holds in it, and that does not")
def test_a_block_that_raises_takes_back_what_it_left_behind(store: Store) -> None:
    def block(*things: str) -> Job:
        def job(session: Session) -> None:
            with session.transaction():
                calls(*things)(session)
                raise InterruptedError

        return job

    def cut(session: Session) -> None:
        with session.branch("transaction"):
            calls("a", "b")(session)
            raise InterruptedError

    crashed(store, cut)
    crashed(store, block("x"), on_divergence="warn")
    assert there == []


def test_an_unknown_write_in_such_a_branch_is_not_left(store: Store) -> None:
    @tool(effect="write")
    def lost() -> None:
        raise TimeoutError

    job = Session("job", store=store)
    with pytest.raises(UnknownOutcome), job, job.branch("agent"):
        lost()
    with pytest.raises(UnknownOutcome), Session("job", store=store, on_divergence="warn"):
        put("x")
    assert there == []


@tool(name="accepted.lost", effect="write")
def lost() -> None:
    raise TimeoutError


@tool(name="accepted.agent", effect="scope")
def agent(*, fails: bool) -> None:
    put("inside")
    if fails:
        lost()


def test_an_unknown_write_in_a_body_is_not_left(store: Store) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        agent(fails=True)
    for _ in range(2):
        with (
            pytest.raises(UnknownOutcome, match=r"accepted\.lost"),
            Session("job", store=store, on_divergence="warn"),
        ):
            put("x")
    assert there == ["inside"]


def test_what_a_body_has_called_is_left_with_it(store: Store) -> None:
    crashed(store, lambda _: agent(fails=False))
    session = crashed(store, calls("x", "y"), on_divergence="warn")
    undone(store, session, to=3)
    assert there == ["inside", "x"]
    undone(store, session)
    assert there == []
