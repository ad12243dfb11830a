"""A job is its name and its input; a run of it may be set aside, be too old, or be gone on with."""

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numbers_written import done, nothing_is_done, unwrite, write  # noqa: F401 - pytest finds it here
from pydantic import BaseModel, SecretStr
from rollcage import (
    RunAbandoned,
    RunInUse,
    RunNotFound,
    RunTooOld,
    SessionError,
    Unencodable,
    compensate,
    tool,
)
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]


def interrupted(store: JsonlStore, *numbers: int, **settings: Any) -> str:
    """A run that did these, and was left by an exception."""
    session = Session("job", store=store, **settings)
    with pytest.raises(InterruptedError), session:
        for number in numbers:
            write(number)
        raise InterruptedError
    return session.run_id


def finished(store: JsonlStore, *numbers: int, **settings: Any) -> Session:
    with Session("job", store=store, **settings) as session:
        for number in numbers:
            write(number)
    return session


# --- input ---------------------------------------------------------------------------------------


class Order(BaseModel):
    number: int
    tags: list[str] = []


def test_a_run_of_another_input_is_not_resumed(store: JsonlStore) -> None:
    first = interrupted(store, 1, input={"order": 7})
    other = finished(store, 1, input={"order": 8})
    none = finished(store, 1)
    assert (other.stats.hits, none.stats.hits, done) == (0, 0, [1, 1, 1])
    same = finished(store, 1, 2, input={"order": 7})
    assert (same.stats.hits, same.root, done) == (1, first, [1, 1, 1, 2])


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": "2"}),
        (Order(number=1), Order(number=1, tags=[]), Order(number=2)),
        (SecretStr("one"), SecretStr("one"), SecretStr("two")),
        (dt.date(2026, 1, 2), dt.date(2026, 1, 2), "2026-01-02"),
        ([1, 2], [1, 2], (1, 2)),
        (1, 1, 1.0),
        ("", "", None),
        ("x" * 5000, "x" * 5000, "x" * 5001),
    ],
)
def test_inputs_are_compared_by_what_they_say(
    store: JsonlStore, one: Any, same: Any, other: Any
) -> None:
    interrupted(store, 1, input=one)
    assert finished(store, 1, input=other).stats.hits == 0
    assert finished(store, 1, input=same).stats.hits == 1


def test_an_input_is_on_record_where_it_is_small_and_never_a_secret(
    store: JsonlStore, events: Events
) -> None:
    shown = finished(store, input={"order": 7, "token": SecretStr("hunter22hunter22")})
    held = events(shown.run_id)[0]["input"]
    assert held["value"]["order"] == 7
    assert "hunter22" not in (store.root / "runs" / f"{shown.run_id}.jsonl").read_text()
    large = finished(store, input="x" * 5000)
    assert events(large.run_id)[0]["input"].keys() == {"digest"}
    info = store.runs()[0]
    assert info.input == held["digest"]


def test_an_input_without_an_encoding_is_refused_by_its_path(store: JsonlStore) -> None:
    with (
        pytest.raises(Unencodable, match="input"),
        Session("job", store=store, input={"what": object()}),
    ):
        pytest.fail("nobody could tell this job from another")
    assert not store.runs()


@pytest.mark.parametrize("replay", ["resume", "offline", "verify"])
def test_what_has_no_run_of_this_input_is_told_so(store: JsonlStore, replay: Any) -> None:
    finished(store, 1, input=7)
    for given, said in ((None, "without an input"), (8, "with this input")):
        with (
            pytest.raises(RunNotFound, match=f"{said} to replay; 1 of it has another"),
            Session("job", store=store, replay=replay, input=given),
        ):
            pytest.fail("a run of another job was replayed")
    with Session("job", store=store, replay="offline", input=7) as session:
        assert write(1) == 1
    assert session.stats.hits == 1


def test_a_run_that_is_named_is_resumed_for_its_own_input_only(store: JsonlStore) -> None:
    run = interrupted(store, 1, input=7)
    for other in (8, None):
        with (
            pytest.raises(SessionError, match="had another input"),
            Session("job", store=store, source=run, input=other),
        ):
            pytest.fail("a run of another input was resumed")
    with Session("job", store=store, source=run, replay="offline") as looked:
        assert write(1) == 1
    assert looked.stats.hits == 1
    assert finished(store, 1, source=run, input=7).stats.hits == 1
    assert done == [1]


def test_jobs_of_one_name_do_not_get_in_each_others_way(store: JsonlStore) -> None:
    with Session("job", store=store, input=1) as outer:
        write(1)
        with Session("job", store=store, input=2) as inner:
            write(2)
    assert outer.run_id != inner.run_id
    assert {run.status for run in store.runs()} == {"ok"}


def test_an_undone_run_is_followed_by_its_own_input_only(store: JsonlStore) -> None:
    run = finished(store, 1, input=7).run_id
    finished(store, 2, input=8)
    assert undo_run(store, run, tools=[write, unwrite]).complete
    assert finished(store, 1, input=7).root == run
    assert finished(store, 2, input=8).stats.hits == 0


# --- continue ------------------------------------------------------------------------------------


def test_continue_goes_on_with_a_finished_run_and_records_where_there_is_none(
    store: JsonlStore,
) -> None:
    first = finished(store, 1, replay="continue")
    second = finished(store, 1, 2, replay="continue")
    third = finished(store, 1, 2, 3, replay="continue")
    assert done == [1, 2, 3]
    assert first.root == second.root == third.root == first.run_id
    assert finished(store, 1).root != first.root  # the default starts over


def test_what_is_to_be_resumed_is_looked_at_once_more_when_nobody_else_can_write_it(
    store: JsonlStore,
) -> None:
    run = interrupted(store, 1)
    seen: list[str] = []

    def look(of: str) -> None:
        with pytest.raises(RunInUse):
            store.lock(of)
        assert [info.run for info in store.runs()] == [run]
        seen.append(of)

    second = finished(store, 1, before_resume=look)
    assert (seen, done, second.stats.hits) == ([run], [1], 1)
    finished(store, 1, before_resume=look)  # a new run: there is nothing to look at
    with Session("job", store=store, replay="offline", before_resume=look):
        write(1)
    assert seen == [run]


async def test_what_is_refused_then_is_not_begun_and_can_be_resumed_later(
    store: JsonlStore,
) -> None:
    run = interrupted(store, 1)

    def refuse(of: str) -> None:
        raise LookupError(f"{of} is not wanted any more")

    with (
        pytest.raises(LookupError, match=run),
        Session("job", store=store, before_resume=refuse),
    ):
        pytest.fail("it was refused")
    with pytest.raises(LookupError, match=run):
        async with Session("job", store=store, before_resume=refuse):
            pytest.fail("it was refused")
    assert [info.run for info in store.runs()] == [run]
    assert finished(store, 1, 2).stats.hits == 1
    assert done == [1, 2]


# --- abandon -------------------------------------------------------------------------------------


def test_an_abandoned_run_is_never_gone_on_with(store: JsonlStore, events: Events) -> None:
    first = interrupted(store, 1)
    second = interrupted(store, 1, 2)
    abandon_run(store, second, by="ann", reason="the order was cancelled")
    last = events(second)[-1]
    assert (last["event"], last["by"]) == ("run.abandoned", "ann")
    assert [run.status for run in store.runs()] == ["error", "abandoned"]
    for source in (None, second):
        with (
            pytest.raises(RunAbandoned, match="abandoned"),
            Session("job", store=store, replay="resume", source=source),
        ):
            pytest.fail("it was set aside")
    fresh = finished(store, 1)
    assert (fresh.stats.hits, fresh.root, done) == (0, fresh.run_id, [1, 2, 1])
    assert first != fresh.root


def test_continue_begins_afresh_after_an_abandoned_run(store: JsonlStore) -> None:
    run = finished(store, 1).run_id
    abandon_run(store, run)
    assert finished(store, 1, replay="continue").stats.hits == 0


def test_an_abandoned_run_can_be_looked_at_and_undone(store: JsonlStore) -> None:
    run = interrupted(store, 1, 2)
    abandon_run(store, run)
    with Session("job", store=store, replay="offline", source=run):
        assert [write(n) for n in (1, 2)] == [1, 2]
    assert undo_run(store, run, tools=[write, unwrite]).complete
    assert done == []
    assert store.runs()[0].status == "abandoned"
    assert finished(store, 1).stats.hits == 0


def test_a_run_whose_process_was_killed_can_be_abandoned(store: JsonlStore) -> None:
    run = interrupted(store, 1)
    trace = store.root / "runs" / f"{run}.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    index = store.root / "index.jsonl"
    index.write_bytes(index.read_bytes().splitlines(keepends=True)[0])
    abandon_run(store, run)
    assert store.runs()[0].status == "abandoned"
    assert finished(store, 1).stats.hits == 0


def test_a_run_that_is_written_or_built_on_is_not_abandoned(store: JsonlStore) -> None:
    first = interrupted(store, 1)
    with Session("job", store=store) as live:
        for run in (live.run_id, first):
            with pytest.raises(RunInUse):
                abandon_run(store, run)
        write(1)
        raising = pytest.raises(SessionError, match=f"{live.run_id} builds on run {first}")
    with raising:
        abandon_run(store, first)
    abandon_run(store, live.run_id)
    with pytest.raises(SessionError, match="abandoned before"):
        abandon_run(store, live.run_id)


def test_a_look_back_is_nothing_to_abandon(store: JsonlStore) -> None:
    finished(store, 1)
    with Session("job", store=store, replay="offline") as looked:
        write(1)
    with pytest.raises(SessionError, match="was a replay only"):
        abandon_run(store, looked.run_id)


def test_where_there_is_no_store_abandoning_makes_none(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        abandon_run(tmp_path / "none", "01a20109-b84f-7669-a7b8-717a20c31c95")
    assert not (tmp_path / "none").exists()


# --- resume_within -------------------------------------------------------------------------------


def later(**span: float) -> Clock:
    """A clock that is ahead by so much."""
    ahead = dt.timedelta(**span) // dt.timedelta(microseconds=1) * 1000
    return Clock(wall=lambda: time.time_ns() + ahead)


@pytest.mark.parametrize("within", [3600, 3600.0, dt.timedelta(hours=1)])
@pytest.mark.parametrize("more", [{}, {"replay": "resume"}, {"replay": "continue"}])
def test_a_run_that_is_too_old_is_neither_resumed_nor_done_again(
    store: JsonlStore, within: Any, more: dict[str, Any]
) -> None:
    run = interrupted(store, 1)
    with (
        pytest.raises(RunTooOld, match=f"2:00:0.* ago.*abandon {run} --store {store.root}"),
        Session("job", store=store, resume_within=within, clock=later(hours=2), **more),
    ):
        pytest.fail("it is two hours old")
    assert len(store.runs()) == 1
    soon = Session("job", store=store, resume_within=within, clock=later(minutes=50), **more)
    with soon:
        assert write(1) == 1
    assert (soon.stats.hits, done) == (1, [1])


def test_the_age_of_a_run_is_that_of_its_last_line(store: JsonlStore) -> None:
    interrupted(store, 1)
    interrupted(store, 1, 2, clock=later(hours=2))
    assert finished(store, 1, 2, resume_within=3600, clock=later(hours=2.5)).stats.hits == 2


def test_a_run_from_the_future_counts_as_new(store: JsonlStore) -> None:
    interrupted(store, 1, clock=later(days=9))
    assert finished(store, 1, resume_within=0).stats.hits == 1


def test_looking_back_and_recording_afresh_ask_for_no_age(store: JsonlStore) -> None:
    run = interrupted(store, 1)
    old = {"resume_within": 1, "clock": later(days=1)}
    assert finished(store, 1, replay="offline", **old).stats.hits == 1
    abandon_run(store, run)
    assert finished(store, 1, **old).stats.hits == 0


@pytest.mark.parametrize("within", [-1, "1 day", float("nan"), dt.timedelta(-1)])
def test_what_is_no_span_is_refused(store: JsonlStore, within: Any) -> None:
    with pytest.raises(SessionError, match="resume_within="):
        Session("job", store=store, resume_within=within)


# --- an undo that was cut off --------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_a_finished_run_whose_undo_was_cut_off_is_not_done_again_beside_what_is_left(
    store: JsonlStore, killed: bool
) -> None:
    cut = [2]

    @tool(effect="write", name="cut.unwrite", idempotent=True)
    def take(number: int) -> None:
        if number in cut:
            cut.clear()
            raise KeyboardInterrupt
        if number in done:
            done.remove(number)

    @tool(
        effect="write",
        name="cut.write",
        undo=lambda args: [compensate(take, number=args["number"])],
    )
    def put(number: int) -> int:
        done.append(number)
        return number

    with Session("job", store=store) as first:
        for number in (1, 2, 3):
            put(number)
    index = store.root / "index.jsonl"
    with pytest.raises(KeyboardInterrupt):
        undo_run(store, first.run_id, tools=[put, take])
    assert done == [1, 2]
    if killed:  # before the index was told
        lines = index.read_bytes().splitlines(keepends=True)
        while b'"status":"undone"' in lines[-1]:
            lines.pop()
        index.write_bytes(b"".join(lines))
    assert store.runs()[0].status == "undone"
    with Session("job", store=store, tools=[put, take]) as second:
        assert done == [1], "the step whose undo had begun is undone first"
        assert [put(number) for number in (1, 2, 3)] == [1, 2, 3]
    assert (done, second.root) == ([1, 2, 3], first.run_id)
