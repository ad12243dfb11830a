"""Which run a session goes on with: whatever the clocks say, and whoever ends a run meanwhile."""

import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from rollcage import RunInUse, tool
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store import JsonlStore, Lock, RunInfo, RunTrace, TraceFile, newest_run

done: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_is_done() -> None:
    done.clear()


@tool(effect="write")
def write(number: int) -> int:
    done.append(number)
    return number


def at(hour: int) -> Clock:
    """The clock of a host."""
    return Clock(wall=lambda: time.time_ns() + hour * 3_600 * 10**9)


def info(run: str, source: str | None = None, *, name: str = "job", **more: Any) -> RunInfo:
    return RunInfo(run, name, "record" if source is None else "resume", source, 0, **more)


def test_the_newest_run_is_one_that_none_resumes() -> None:
    runs = [info("a"), info("c", "b"), info("b", "a")]  # an index that was made again
    newest = newest_run(runs, "job")
    assert newest is not None
    assert newest.run == "c"


def test_of_several_the_one_that_began_last_is_the_newest() -> None:
    runs = [info("a", status="ok"), info("b"), info("c", "b"), info("d"), info("x", name="other")]
    newest = newest_run(runs, "job")
    assert newest is not None
    assert newest.run == "d"
    assert newest_run(runs, "none") is None


def test_a_run_of_another_job_makes_none_older() -> None:
    newest = newest_run([info("a"), info("b", "a", name="other")], "job")
    assert newest is not None
    assert newest.run == "a"


def test_a_clock_that_goes_back_between_crash_and_resume_loses_nothing(store: JsonlStore) -> None:
    for hour, steps in ((0, 4), (-1, 2), (-2, 5)):
        with (
            pytest.raises(InterruptedError),
            Session("job", store=store, clock=at(hour)),
        ):
            for number in range(steps):
                write(number)
            raise InterruptedError
    with Session("job", store=store, clock=at(-3)):
        assert [write(n) for n in range(6)] == [*range(6)]
    assert done == [0, 1, 2, 3, 4, 5]
    assert [run.status for run in store.runs()] == ["error", "error", "error", "ok"]


def test_yesterdays_run_by_a_clock_ahead_is_not_resumed_today(store: JsonlStore) -> None:
    with Session("job", store=store, clock=at(5)):
        write(1)
    with pytest.raises(InterruptedError), Session("job", store=store) as today:
        write(1)
        raise InterruptedError
    with Session("job", store=store) as later:
        write(1)
    assert (later.root, later.stats.hits, done) == (today.run_id, 1, [1, 1])


# --- between the look and the lock ---------------------------------------------------------------


class Waiting(JsonlStore):
    """A store in which something happens between the look for a source and its lock."""

    def __init__(self, root: Path, meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self._meanwhile = [meanwhile]

    def lock(self, run: str) -> Lock:
        if self._meanwhile:
            self._meanwhile.pop()()
        return super().lock(run)


class Live:
    """A session in a thread of its own, which ends when it is told to."""

    def __init__(self, store: JsonlStore, error: Exception | None = None) -> None:
        self._store, self._error = store, error
        self._begun, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(30)

    def _run(self) -> None:
        try:
            with Session("job", store=self._store):
                write(1)
                self._begun.set()
                assert self._may_end.wait(30)
                if self._error is not None:
                    raise self._error
        except InterruptedError:
            pass

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_run_that_ends_before_it_is_locked_answers_nothing_of_the_next(store: JsonlStore) -> None:
    live = Live(store)
    with Session("job", store=Waiting(store.root, live.end)) as session:
        write(1)
    assert done == [1, 1], "today's job was to run"
    assert (session.stats.hits, session.root) == (0, session.run_id)
    assert [run.mode for run in store.runs()] == ["record", "record"]
    with Session("job", store=store, replay="resume", source=store.runs()[0].run):
        pass  # nobody holds its lock any more


def test_a_run_that_fails_before_it_is_locked_is_resumed(store: JsonlStore) -> None:
    live = Live(store, InterruptedError())
    with Session("job", store=Waiting(store.root, live.end)) as session:
        write(1)
    assert (done, session.stats.hits) == ([1], 1)


def test_a_run_that_is_resumed_whether_it_ended_or_not_is_read_under_its_lock(
    store: JsonlStore,
) -> None:
    live = Live(store)
    with Session("job", store=Waiting(store.root, live.end), replay="resume") as session:
        write(1)
    assert (done, session.stats.hits) == ([1], 1)


def test_a_run_that_goes_on_is_in_use(store: JsonlStore) -> None:
    live = Live(store)
    with pytest.raises(RunInUse), Session("job", store=store):
        pytest.fail("two sessions write one job")
    live.end()


@pytest.mark.parametrize("mode", ["offline", "verify"])
def test_a_run_that_ends_while_it_is_looked_at_is_not_taken_for_damaged(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, mode: Literal["offline", "verify"]
) -> None:
    live = Live(store)
    run = store.runs()[0].run
    read, left = TraceFile.read, [live.end]

    def read_slowly(folder: TraceFile, wanted: str, *, after: int = 0) -> RunTrace:
        trace = read(folder, wanted, after=after)
        if wanted == run and left:
            left.pop()()
        return trace

    monkeypatch.setattr(TraceFile, "read", read_slowly)
    with Session("job", store=store, replay=mode) as session:
        assert write(1) == 1
    assert (left, done, session.stats.hits) == ([], [1], 1)


# --- names ---------------------------------------------------------------------------------------


def test_a_name_is_one_however_its_accents_were_typed(store: JsonlStore) -> None:
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert composed != apart
    with pytest.raises(InterruptedError), Session(apart, store=store):
        write(1)
        raise InterruptedError
    with Session(composed, store=store) as session:
        assert [write(1), write(2)] == [1, 2]
    assert (done, session.stats.hits, session.name) == ([1, 2], 1, composed)
    assert {run.name for run in store.runs()} == {composed}
