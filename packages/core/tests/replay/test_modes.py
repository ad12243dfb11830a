"""How a session may be asked to replay."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from rollcage import Options, Session, abandon_run, open_store, tool, undo_run
from rollcage.contract.contract import Contract
from rollcage.errors import (
    Halt,
    ReplayMiss,
    RunAbandoned,
    RunInUse,
    RunNotFound,
    RunTooOld,
    SessionError,
    UnknownOutcome,
)
from rollcage.session.options import Clock

sent: list[str] = []


@tool(effect="write", name="test_modes.send")
def send(to: str) -> None:
    sent.append(to)


@pytest.mark.parametrize("replay", ["checks", "of", ""])
def test_an_unknown_mode_is_refused(tmp_path: Path, replay: Any) -> None:
    with pytest.raises(SessionError, match="is not one of auto, continue, off, resume, offline"):
        Session("job", store=tmp_path, replay=replay)


def test_offline_runs_no_body(tmp_path: Path) -> None:
    sent.clear()
    with Session("job", store=tmp_path):
        send("ann")
    with pytest.raises(ReplayMiss), Session("job", store=tmp_path, replay="offline"):
        send("ann")
        send("bob")
    assert sent == ["ann"]


@pytest.mark.parametrize("replay", ["auto", "continue"])
def test_a_run_that_was_set_aside_is_not_resumed(tmp_path: Path, replay: Any) -> None:
    sent.clear()
    with Session("job", store=tmp_path) as first:
        send("ann")
    abandon_run(tmp_path, first.run_id, by="ann")
    with pytest.raises(RunAbandoned, match=f"rollcage show {first.run_id}"):
        Session("job", store=tmp_path, replay="resume").__enter__()
    with pytest.raises(SessionError, match="abandoned before"):
        abandon_run(tmp_path, first.run_id)
    with Session("job", store=tmp_path, replay=replay) as second:
        send("ann")
    assert second.run_id != first.run_id
    assert sent == ["ann", "ann"]
    with pytest.raises(ValueError, match="it dies"), Session("job", store=tmp_path) as third:
        send("bob")
        raise ValueError("it dies")
    abandon_run(tmp_path, third.run_id)
    with Session("job", store=tmp_path, replay=replay) as fourth:
        send("bob")
    assert fourth.run_id != third.run_id
    with Session("job", store=tmp_path, run=third.run_id):  # it was named
        send("bob")
    assert sent == ["ann", "ann", "bob", "bob"]


# --- which run is resumed ------------------------------------------------------------------------


def dies(**how: Any) -> str:
    """Let a session do one thing and die; return its run."""
    session = Session("job", **how)
    with pytest.raises(ValueError, match="it dies"), session:
        send("ann")
        raise ValueError("it dies")
    return session.run_id


def test_a_run_that_is_too_old_is_not_resumed(tmp_path: Path) -> None:
    now = [10**18]
    clock = Clock(wall=lambda: now[0])

    def options(within: Any = None) -> Options:
        return Options(clock=clock, resume_within=within)

    run = dies(store=tmp_path, options=options())
    now[0] += 3600 * 10**9
    before = open_store(tmp_path).read(run)
    for within in (60, dt.timedelta(minutes=59)):
        with pytest.raises(RunTooOld, match=f"1:00:00 ago.*rollcage abandon {run}"):
            Session("job", store=tmp_path, options=options(within)).__enter__()
    assert open_store(tmp_path).read(run) == before
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(SessionError, match="is not a time span"):
            options(wrong)
    now[0] -= 7200 * 10**9  # a clock that was set back: the run is from the future, and new
    with Session("job", store=tmp_path, options=options(0)) as session:
        send("ann")
    assert (session.run_id, session.stats.hits) == (run, 1)


async def test_a_program_may_look_before_it_resumes(tmp_path: Path) -> None:
    run = dies(store=tmp_path)
    seen: list[str] = []

    def look(resumed: str) -> None:
        with pytest.raises(RunInUse):  # nobody else can write it now
            Session("job", store=tmp_path).__enter__()
        seen.append(resumed)
        raise LookupError("it has changed")

    store = open_store(tmp_path)
    before = store.read(run)
    options = Options(before_resume=look)
    with pytest.raises(LookupError, match="it has changed"):
        Session("job", store=tmp_path, options=options).__enter__()
    with pytest.raises(LookupError, match="it has changed"):
        await Session("job", store=tmp_path, options=options).__aenter__()
    assert store.read(run) == before
    with Session("job", store=tmp_path, options=Options(before_resume=seen.append)) as session:
        send("ann")
    with Session("job", store=tmp_path, options=Options(before_resume=seen.append)):
        send("ann")  # a new run: there is nothing to look at
    assert (seen, session.stats.hits) == ([run] * 3, 1)


def test_a_run_of_another_input_is_another_job(tmp_path: Path) -> None:
    run = dies(store=tmp_path, input={"id": 1})
    for given, said in (({"id": 2}, "another input"), (7, "another input")):
        with pytest.raises(SessionError, match=said):
            Session("job", store=tmp_path, run=run, input=given).__enter__()
    with Session("job", store=tmp_path, run=run, input={"id": 1}) as session:
        send("ann")
    assert session.stats.hits == 1
    with pytest.raises(RunNotFound, match="has no run of 'job' without an input"):
        Session("job", store=tmp_path, replay="resume").__enter__()
    with pytest.raises(RunNotFound, match="has no run of 'other' to replay"):
        Session("other", store=tmp_path, replay="offline").__enter__()


def test_leaving_raises_what_halted_in_place_of_another_halt(tmp_path: Path) -> None:
    class Over(Halt):
        pass

    @tool(effect="write", name="test_modes.lost")
    def lost() -> None:
        raise TimeoutError

    with pytest.raises(UnknownOutcome) as raised, Session("job", store=tmp_path):
        try:
            lost()
        except Exception as error:
            raise Over from error
    assert isinstance(raised.value.__cause__, Over)


@pytest.mark.parametrize("replay", ["auto", "continue", "resume"])
def test_a_run_that_is_not_there_is_not_begun(tmp_path: Path, replay: Any) -> None:
    with pytest.raises(RunNotFound), Session("a", store=tmp_path, run="nobody", replay=replay):
        pass
    with pytest.raises(RunNotFound):
        undo_run(tmp_path, "nobody")
    assert list(tmp_path.rglob("*.jsonl")) == []


# --- pure calls and models in other branches -----------------------------------------------------


@pytest.mark.parametrize("kind", ["tool", "model"])
def test_a_failure_of_another_branch_has_its_place_there(tmp_path: Path, kind: Any) -> None:
    runs: list[int] = []

    def flaky(x: int) -> int:
        runs.append(x)
        if len(runs) == 1:
            raise LookupError("the first time")
        return x

    contract = Contract.of(flaky, effect="pure")

    def call(session: Session) -> Any:
        return session.run_call(contract, {"x": 1}, flaky, kind=kind)

    first = Session("job", store=tmp_path)
    with pytest.raises(LookupError), first, first.branch("a"):
        call(first)
    with Session("job", store=tmp_path) as session:
        assert call(session) == 1
    with Session("job", store=tmp_path, replay="continue") as session:  # the log can be read
        assert call(session) == 1
        with session.branch("a"):
            assert call(session) == 1
    assert len(runs) == (2 if kind == "tool" else 3)


@pytest.mark.parametrize("within", [-1, float("nan"), "1 day", dt.timedelta(seconds=-1)])
def test_what_is_no_span_is_refused(within: Any) -> None:
    with pytest.raises(SessionError, match="is not a time span"):
        Options(resume_within=within)
