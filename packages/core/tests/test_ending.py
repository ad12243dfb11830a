"""How a run ends, and what the next session of its job makes of that."""

import logging
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from numbers_written import done, nothing_is_done, unwrite, write  # noqa: F401 - pytest finds it here
from rollcage import ApprovalRequired, Diverged, Forked, SessionError, StepView, Verdict, tool
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]


def interrupted(store: JsonlStore, *numbers: int) -> str:
    """A run that did these, and was left by an exception."""
    session = Session("job", store=store)
    with pytest.raises(InterruptedError), session:
        for number in numbers:
            write(number)
        raise InterruptedError
    return session.run_id


def status(store: JsonlStore, run: str) -> str | None:
    info = store.read(run).info
    assert info is not None
    return info.status


# --- partial -------------------------------------------------------------------------------------


def test_a_session_that_resumes_and_calls_nothing_loses_nothing(store: JsonlStore) -> None:
    first = interrupted(store, 1, 2)
    for _ in range(2):
        with Session("job", store=store) as idle:
            pass
        assert status(store, idle.run_id) == "partial"
    with Session("job", store=store) as session:
        assert [write(n) for n in (1, 2, 3)] == [1, 2, 3]
    assert done == [1, 2, 3]
    assert session.root == first
    assert status(store, session.run_id) == "ok"


def test_what_a_partial_run_did_come_to_is_kept_too(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(store, 1, 2, 3)
    with caplog.at_level(logging.WARNING, "rollcage"), Session("job", store=store) as half:
        write(1)
    assert status(store, half.run_id) == "partial"
    assert half.stats.orphans == 2
    assert "never asked for 2 recorded effects: step 2 (write) of run " in caplog.text
    assert "No guarded call" not in caplog.text
    with Session("job", store=store) as session:
        assert [write(n) for n in (1, 2, 3)] == [1, 2, 3]
    assert (session.stats.hits, done) == (3, [1, 2, 3])


def test_a_resume_without_a_call_says_how_a_job_that_is_done_is_closed(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = interrupted(store, 1, 2)
    with caplog.at_level(logging.WARNING, "rollcage"), Session("job", store=store) as idle:
        idle.follow(Elsewhere())  # a framework's memory that nothing was run in
    assert status(store, idle.run_id) == "partial"
    assert f"never asked for 2 recorded effects: step 1 (write) of run {first}" in caplog.text
    assert "No guarded call was made. They are kept, and the next session of 'job'" in caplog.text
    (command,) = re.findall(r"rollcage (abandon [^ ]+ --store [^;]+);", caplog.text)
    assert command == f"abandon {idle.run_id} --store {store.root}"
    abandon_run(store, idle.run_id)  # what the command does
    with Session("job", store=store) as afresh:
        pass
    assert (status(store, afresh.run_id), afresh.root, done) == ("ok", afresh.run_id, [1, 2])


class Elsewhere:
    """A framework's memory that is looked at from outside of everything that it holds."""

    def here(self) -> None:
        return None

    def attempts(self) -> tuple[()]:
        return ()

    def waits(self) -> None:
        return None

    async def awaits(self) -> None:
        return None


def test_a_partial_run_needs_what_it_builds_on(store: JsonlStore) -> None:
    first = interrupted(store, 1)
    with Session("job", store=store):
        pass
    (store.root / "runs" / f"{first}.jsonl").unlink()
    with pytest.raises(Exception, match=first), Session("job", store=store):
        pytest.fail("what the first one did can't be known")


def test_effects_that_were_accepted_as_left_behind_make_no_run_partial(store: JsonlStore) -> None:
    interrupted(store, 1, 2)
    with Session("job", store=store, on_divergence="warn") as session:
        write(7)
    assert status(store, session.run_id) == "ok"


def test_a_partial_run_that_is_undone_is_followed_by_nothing_of_it(store: JsonlStore) -> None:
    interrupted(store, 1, 2)
    with Session("job", store=store) as half:
        write(1)
    undo_run(store, half.run_id, tools=[write, unwrite])
    assert done == []
    with Session("job", store=store) as session:
        assert [write(n) for n in (1, 2)] == [1, 2]
    assert (session.stats.hits, done) == (0, [1, 2])


# --- paused --------------------------------------------------------------------------------------


def ask(call: StepView) -> Verdict | None:
    if call.args == {"number": 3}:
        return Verdict("ask", "somebody has to see it", code="ask", rule="third")
    return None


def test_a_run_that_waits_for_an_approval_is_paused(store: JsonlStore, events: Events) -> None:
    session = Session("job", store=store, rules=[ask])
    with pytest.raises(ApprovalRequired), session:
        for number in (1, 2, 3):
            write(number)
    last = events(session.run_id)[-1]
    assert last["status"] == status(store, session.run_id) == "paused"
    assert last["error"]["type"].endswith("ApprovalRequired")
    with Session("job", store=store) as later:
        assert [write(n) for n in (1, 2, 3)] == [1, 2, 3]
    assert (later.stats.hits, done) == (2, [1, 2, 3])


def test_an_approval_that_a_framework_swallows_still_pauses_the_run(store: JsonlStore) -> None:
    session = Session("job", store=store, rules=[ask])
    with pytest.raises(ApprovalRequired), session:
        write(1)
        with pytest.raises(ApprovalRequired):
            write(3)
        with pytest.raises(SessionError):
            write(2)
    assert status(store, session.run_id) == "paused"
    assert done == [1]


def test_a_paused_run_is_gone_on_with_and_undone_as_one_job(
    store: JsonlStore, events: Events
) -> None:
    with Session("job", store=store) as session:
        write(1)
        session.pause("ann is to answer")
        assert session.paused == "ann is to answer"
    last = events(session.run_id)[-1]
    assert (last["status"], last["reason"]) == ("paused", "ann is to answer")
    assert status(store, session.run_id) == "paused"
    with Session("job", store=store) as later:
        assert [write(n) for n in (1, 2)] == [1, 2]
    assert (later.stats.hits, done, later.root) == (1, [1, 2], session.run_id)
    assert undo_run(store, later.run_id, tools=[write, unwrite]).complete
    assert done == []


def test_a_run_that_goes_on_in_its_own_session_is_paused_no_more(
    store: JsonlStore, events: Events
) -> None:
    with Session("job", store=store) as session:
        session.pause("ann is to answer")
        write(1)  # another branch of the agent is at work meanwhile
        session.go_on()
        assert session.paused is None
    last = events(session.run_id)[-1]
    assert last["status"] == "ok"
    assert "reason" not in last


def test_an_error_or_a_halt_counts_more_than_a_pause(store: JsonlStore) -> None:
    failed = Session("job", store=store)
    with pytest.raises(InterruptedError), failed:
        write(1)
        failed.pause("ann is to answer")
        raise InterruptedError
    assert status(store, failed.run_id) == "error"
    halted = Session("job", store=store)
    with pytest.raises(Diverged), halted:
        halted.pause("ann is to answer")
        write(2)
    assert status(store, halted.run_id) == "halted"


def test_a_pause_that_recorded_effects_are_ahead_of_loses_none(store: JsonlStore) -> None:
    interrupted(store, 1, 2)
    with Session("job", store=store) as session:
        write(1)
        session.pause("ann is to answer")
    assert status(store, session.run_id) == "paused"
    assert session.stats.orphans == 0
    with Session("job", store=store):
        assert [write(n) for n in (1, 2)] == [1, 2]
    assert done == [1, 2]


async def test_an_async_session_is_paused_as_well(store: JsonlStore) -> None:
    async with Session("job", store=store) as session:
        await session.acall(write, number=1)
        session.pause("a signal")
    assert status(store, session.run_id) == "paused"
    async with Session("job", store=store) as later:
        assert await later.acall(write, number=1) == 1
    assert done == [1]


def test_an_inner_session_that_waits_does_not_pause_the_one_around_it(store: JsonlStore) -> None:
    with Session("outer", store=store) as outer:
        with Session("inner", store=store) as inner:
            write(1)
            inner.pause("ann is to answer")
        write(2)
    assert status(store, inner.run_id) == "paused"
    assert status(store, outer.run_id) == "ok"


def test_a_paused_run_waits_until_something_is_asked_for(store: JsonlStore, events: Events) -> None:
    with Session("job", store=store) as session:
        write(1)
        session.pause("ann is to answer")
    for _ in range(2):
        with Session("job", store=store) as idle:
            assert idle.paused == "ann is to answer"
        last = events(idle.run_id)[-1]
        assert (last["status"], last["reason"]) == ("paused", "ann is to answer")
    with Session("job", store=store) as later:
        assert [write(n) for n in (1, 2)] == [1, 2]
        assert later.paused is None
    assert (done, later.root, status(store, later.run_id)) == ([1, 2], session.run_id, "ok")


def test_a_run_that_waits_for_an_approval_goes_on_waiting_for_it(
    store: JsonlStore, events: Events
) -> None:
    with pytest.raises(ApprovalRequired), Session("job", store=store, rules=[ask]):
        write(3)
    with Session("job", store=store) as idle:
        pass
    last = events(idle.run_id)[-1]
    assert (last["status"], last["reason"]) == ("paused", "an approval")


def test_a_paused_run_that_was_taken_back_waits_no_more(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        write(1)
        session.pause("ann is to answer")
    undo_run(store, session.run_id, tools=[write, unwrite])
    with Session("job", store=store) as idle:
        assert idle.paused is None
    with Session("job", store=store) as paused:
        write(1)
        paused.pause("ann is to answer")
    with Session("job", store=store) as told:
        told.go_on()
    assert (status(store, idle.run_id), status(store, told.run_id)) == ("ok", "partial")


def test_only_an_entered_session_can_be_paused(store: JsonlStore) -> None:
    with pytest.raises(SessionError, match="not entered"):
        Session("job", store=store).pause("ann is to answer")


# --- where they meet others ----------------------------------------------------------------------


def test_a_transaction_that_was_taken_back_leaves_nothing_to_be_asked_for(
    store: JsonlStore,
) -> None:
    session = Session("job", store=store, tools=[write, unwrite])
    with pytest.raises(InterruptedError), session:
        write(1)
        with session.transaction():
            write(2)
            raise InterruptedError
    assert done == [1]
    with Session("job", store=store, tools=[write, unwrite]) as later:
        write(1)
    assert (status(store, later.run_id), done) == ("ok", [1])


def test_a_transaction_that_came_back_is_asked_for(store: JsonlStore) -> None:
    session = Session("job", store=store)
    with pytest.raises(InterruptedError), session:
        with session.transaction():
            write(1)
        raise InterruptedError
    with Session("job", store=store) as idle:
        pass
    assert status(store, idle.run_id) == "partial"
    with Session("job", store=store) as later, later.transaction():
        write(1)
    assert (status(store, later.run_id), done) == ("ok", [1])


def test_a_pause_in_a_branch_or_in_a_body_pauses_the_run(store: JsonlStore) -> None:
    @tool(effect="scope", name="ending.plan")
    def plan() -> None:
        write(1)
        paused.append(True)
        here[0].pause("ann is to answer")

    here: list[Session] = []
    paused: list[bool] = []
    with Session("job", store=store) as session:
        here.append(session)
        plan()
        with session.branch("side") as side:
            side.call(write, number=2)
    assert (paused, status(store, session.run_id)) == ([True], "paused")
    with Session("job", store=store) as later:
        here[0] = later
        plan()
        with later.branch("side") as side:
            assert side.call(write, number=2) == 2
    assert (done, status(store, later.run_id)) == ([1, 2], "ok")


@pytest.mark.parametrize("replay", ["offline", "verify"])
def test_a_paused_run_is_looked_back_at_as_it_is(store: JsonlStore, replay: Any) -> None:
    with Session("job", store=store) as session:
        write(1)
        session.pause("ann is to answer")
    with Session("job", store=store, replay=replay) as looked:
        assert write(1) == 1
    assert (status(store, looked.run_id), done) == ("ok", [1])
    with Session("job", store=store) as later:
        write(1)
    assert (later.root, done) == (session.run_id, [1])


def test_what_was_undone_after_a_pause_is_done_again(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        write(1)
        write(2)
        session.pause("ann is to answer")
    undo_run(store, session.run_id, to=1, tools=[write, unwrite])
    assert (done, status(store, session.run_id)) == ([1], "undone")
    with Session("job", store=store, replay="continue") as later:
        assert [write(n) for n in (1, 3)] == [1, 3]
    assert (done, status(store, later.run_id)) == ([1, 3], "ok")


def test_a_forked_child_can_not_pause_its_parents_run(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        write(1)
        if (child := os.fork()) == 0:
            refused = 1
            try:
                session.pause("the child's")
            except Forked:
                refused = 0
            finally:
                os._exit(refused)
        assert os.waitpid(child, 0)[1] == 0
    assert status(store, session.run_id) == "ok"
