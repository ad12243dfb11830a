"""What readers make of a log: the same `Run` and `Step` that they make of an old trace."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import undo_tools as files
from copying import Copy
from rollcage import Session, abandon_run, resolve_step, tool, undo_run
from rollcage.contract.contract import Contract
from rollcage.errors import (
    ApprovalRequired,
    Blocked,
    Diverged,
    RunStopped,
    TraceCorrupt,
    UnknownOutcome,
)
from rollcage.gate.approval import Approval
from rollcage.gate.verdict import Verdict
from rollcage.stages.orders import stop_run
from rollcage.trace.recorded import LogTrace, trace_of, verify_trace
from rollcage.values.answer import Answer
from rollcage_views import Run, Step, read_run


@tool(effect="write", version="7")
def put(name: str) -> str:
    return f"put {name}"


@tool(effect="read")
def get(name: str) -> str:
    return f"got {name}"


@tool(effect="write")
def lose(name: str) -> None:
    raise TimeoutError(name)


@tool(effect="scope")
def work(names: list[str]) -> int:
    for name in names:
        put(name)
    return len(names)


MODEL = Contract(name="claude", parameters={}, effect="read", framework="langchain")


class CrashError(Exception):
    """The program ends here."""


def seen(store: Path, run: str, **more: Any) -> Run:
    return read_run(trace_of(store, run), **more)


def states(run: Run) -> list[tuple[str, str]]:
    return [(step.name, step.state) for step in run.steps]


def only(run: Run, name: str) -> Step:
    (step,) = [each for each in run.steps if each.name == name]
    return step


def crashed(store: Path, **more: Any) -> str:
    """A run of two steps that then died."""
    with pytest.raises(CrashError), Session("job", store=store, **more) as session:
        put("a")
        get("b")
        raise CrashError("died")
    return session.run_id


# --- steps ---------------------------------------------------------------------------------------


def test_steps_have_what_they_had(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, actor="ann", input={"n": 1}) as session:
        with session.turn() as turn, session.place(turn=turn, slot=2, agent="eve", call_id="c1"):
            put("a")
        get("b")
    run = seen(tmp_path, session.run_id)
    assert states(run) == [("put", "ran"), ("get", "ran")]
    first, second = run.steps
    assert (first.kind, first.effect, first.version) == ("tool", "write", "7")
    assert (first.agent, first.call_id, first.slot, first.turn) == ("eve", "c1", 2, 1)
    assert first.args == {"name": "a"}
    assert first.outcome == {"status": "ok", "value": "put a"}
    assert first.duration is not None
    assert first.ended == first.time + first.duration
    assert (first.line, first.ended_line) == (3, 4)
    assert (second.line, second.ended_line) == (5, 5)
    assert (run.id, run.status) == (session.run_id, "ok")
    assert run.started["name"] == "job"
    assert run.started["actor"] == "ann"
    assert run.started["input"] == {"value": {"n": 1}}
    assert [step.step for step in run.effects] == [1]
    assert first.ended is not None
    assert run.last_time >= first.ended


def test_attempts_say_what_each_did(tmp_path: Path) -> None:
    run_id = crashed(tmp_path)
    with Session("job", store=tmp_path):
        put("a")
        get("b")
        put("c")
    run = seen(tmp_path, run_id)
    first, second = run.attempts
    assert (first.status, second.status) == ("error", "ok")
    assert first.error == {"type": f"{__name__}.CrashError", "message": "died"}
    assert (first.steps, second.steps) == ([1, 2], [3])
    assert (first.replayed, second.replayed) == ([], [(1, 2)])
    assert (second.calls, second.hits) == (3, 2)
    assert [step.attempt for step in run.steps] == [1, 1, 2]
    assert first.begin <= (first.end or 0) <= second.begin
    assert run.started["mode"] == "resume"
    saved = sum(step.duration or 0 for step in run.steps[:2]) / 1e6
    assert run.totals.seconds_saved == saved


def test_killed_attempts_have_no_end(tmp_path: Path) -> None:
    run_id = crashed(tmp_path)
    trace = trace_of(tmp_path, run_id)
    lines = trace.data.splitlines(keepends=True)
    cut = read_run(type(trace)(run_id, "cut", b"".join(lines[:-1])))
    assert (cut.status, cut.finished) == ("unfinished", None)
    (attempt,) = cut.attempts
    assert (attempt.end, attempt.status, attempt.calls) == (None, "", None)


def test_parents_are_bodies_and_blocks(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session, session.branch("outer") as outer:
        work(["a"])
        with session.transaction("inner"):
            put("b")
        outer.call(get, name="c")
        with Session("deep", store=tmp_path):
            put("d")
    run = seen(tmp_path, session.run_id)
    by_number = {step.step: step for step in run.steps}
    tree = [
        (step.name, by_number[step.parent].name if step.parent else "", step.branch, step.block)
        for step in run.steps
    ]
    assert tree == [
        ("outer", "", "", "branch"),
        ("work", "outer", "outer", ""),
        ("put", "work", "outer", ""),
        ("inner", "outer", "outer", "transaction"),
        ("put", "inner", "outer/inner", ""),
        ("get", "outer", "outer", ""),
        ("deep", "outer", "outer", "session"),
        ("put", "deep", "outer/deep", ""),
    ]
    assert {step.kind for step in run.steps if step.block} == {"branch"}
    assert all(step.state == "ran" for step in run.steps)


def test_models_have_answers_and_usage(tmp_path: Path) -> None:
    def read(value: Any) -> Answer:
        return Answer(text=value, usage={"input_tokens": 3, "output_tokens": 4})

    with pytest.raises(CrashError), Session("job", store=tmp_path) as session:
        session.run_call(MODEL, {}, lambda: "hi", kind="model", answer=read)
        raise CrashError
    with Session("job", store=tmp_path) as session:
        session.run_call(MODEL, {}, lambda: "hi", kind="model", answer=read)
    run = seen(tmp_path, session.run_id)
    (step,) = run.steps
    assert (step.kind, step.effect, step.framework, step.tokens) == (
        "model",
        "read",
        "langchain",
        7,
    )
    assert (step.outcome or {})["answer"] == {"text": "hi"}
    assert run.totals.tokens_saved == 7


def test_answers_that_another_branch_took(tmp_path: Path) -> None:
    def ask(session: Session, name: str) -> None:
        with session.branch(name):
            session.run_call(MODEL, {}, lambda: name, kind="model")

    with pytest.raises(CrashError), Session("job", store=tmp_path) as session:
        ask(session, "one")
        raise CrashError
    with Session("job", store=tmp_path) as session:
        ask(session, "two")
    run = seen(tmp_path, session.run_id)
    first, moved = [step for step in run.steps if step.kind == "model"]
    assert (first.gone, moved.state) == ("moved", "hit")
    assert moved.origin == [run.id, first.step, first.turn]
    assert moved.outcome == first.outcome


# --- what became of them -------------------------------------------------------------------------


def test_unknown_writes_and_who_resolved_them(tmp_path: Path) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path) as session:
        lose("a")
    run = seen(tmp_path, session.run_id)
    assert states(run) == [("lose", "unknown")]
    assert run.status == "halted"
    assert len(run.effects) == 1
    resolve_step(tmp_path, run.id, 1, happened=True, result=None, by="bob")
    (step,) = seen(tmp_path, run.id).steps
    assert (step.state, step.resolved_by) == ("ran", "bob")


def test_what_did_not_happen_has_not_started(tmp_path: Path) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path) as session:
        lose("a")
    resolve_step(tmp_path, session.run_id, 1, happened=False)
    run = seen(tmp_path, session.run_id)
    (step,) = run.steps
    assert (step.state, step.resolved_by) == ("not_started", "operator")
    assert step.outcome == {"status": "not_started"}
    assert run.effects == []


def test_reads_that_were_cut_off_leave_no_step(tmp_path: Path) -> None:
    @tool(effect="read")
    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Session("job", store=tmp_path) as session:
        put("a")
        dies()
    run = seen(tmp_path, session.run_id)
    assert ("put", "ran") in states(run)
    assert all(state != "unknown" for _, state in states(run))


def test_failures_that_run_again(tmp_path: Path) -> None:
    fails = [True]

    @tool(effect="write", raises=(ValueError,))
    def flaky() -> str:
        if fails:
            fails.clear()
            raise ValueError("no")
        return "done"

    with pytest.raises(ValueError, match="no"), Session("job", store=tmp_path):
        flaky()
    with Session("job", store=tmp_path) as session:
        flaky()
    run = seen(tmp_path, session.run_id)
    first, second = run.steps
    assert (first.state, first.gone, first.replacement) == ("failed", "again", 2)
    assert (second.state, second.supersedes, second.attempt) == ("ran", [run.id, 1], 2)
    assert [step.step for step in run.effects] == [2]


def test_what_was_left_behind(tmp_path: Path) -> None:
    run_id = crashed(tmp_path)
    with pytest.raises(Diverged), Session("job", store=tmp_path):
        put("other")
    with Session("job", store=tmp_path, on_divergence="warn"):
        put("other")
    run = seen(tmp_path, run_id)
    left, new = [step for step in run.steps if step.name == "put"]
    assert (left.gone, left.left_by, left.stays_done) == ("left", new.step, True)
    assert new.orphans == [[run_id, left.step]]
    assert [each.status for each in run.attempts] == ["error", "halted", "ok"]


def test_undone_steps_say_how_well(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with Session("job", store=tmp_path) as session:
        files.put_file(path=str(disk / "a"), text="one")
        files.mail(to="ann")
        files.put_file(path=str(disk / "b"), text="two")
    undo_run(tmp_path, session.run_id, to=1)
    run = seen(tmp_path, session.run_id)
    steps = {step.step: step for step in run.steps}
    assert [steps[n].undone for n in (1, 2, 3)] == [None, None, "verified"]
    assert (steps[3].gone, steps[3].state) == ("undone", "ran")
    assert steps[3].reversible
    assert steps[3].before is not None
    (compensation,) = [step for step in run.steps if step.undoes]
    assert (compensation.undoes, compensation.attempt) == ([run.id, 3], 2)
    assert run.undone == {(run.id, 3): "verified"}
    assert [each["status"] for each in run.undos] == ["verified"]
    assert [each["why"] for each in run.rewinds] == ["undo"]
    assert [step.step for step in run.effects] == [1, 2]


def test_places_of_undone_steps_show_what_was_there(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with Session("job", store=tmp_path) as session, session.turn():
        files.mail(to="ann")
        files.put_file(path=str(disk / "b"), text="two")
        files.mail(to="bob")
    undo_run(tmp_path, session.run_id)
    step = only(seen(tmp_path, session.run_id), "put_file")
    assert (step.state, step.undone, step.stays_done) == ("ran", "verified", False)


def test_rolled_back_blocks(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with Session("job", store=tmp_path) as session:
        with pytest.raises(CrashError), session.transaction():
            files.both(one=str(disk / "a"), two=str(disk / "b"))
            raise CrashError
        put("after")
    run = seen(tmp_path, session.run_id)
    rolled = [step for step in run.steps if step.rolled and step.effect == "write"]
    assert {step.name for step in rolled} >= {"put_file", "append_file"}
    assert [step.name for step in run.effects] == ["put"]
    assert only(run, "transaction").state == "failed"


def test_accepted_steps(tmp_path: Path) -> None:
    run_id = crashed(tmp_path)
    resolve_step(tmp_path, run_id, 1, undone=True, by="bob")
    assert only(seen(tmp_path, run_id), "put").accepted


# --- decisions -----------------------------------------------------------------------------------


def asks(view: Any) -> Verdict | None:
    return Verdict.ask("it writes") if view.effect == "write" else None


def test_pending_calls_wait(tmp_path: Path) -> None:
    from rollcage.stages.approvals import Approvals

    def guarded(approver: Any) -> Session:
        return Session("job", store=tmp_path, gate=[asks], approver=approver)

    with pytest.raises(ApprovalRequired), guarded(Approvals()) as session:
        put("a")
    run = seen(tmp_path, session.run_id)
    assert states(run) == [("put", "waiting")]
    assert (run.status, run.effects) == ("paused", [])
    (asked,) = run.approvals
    assert (asked.request["name"], asked.request["args"]) == ("put", {"name": "a"})
    assert asked.decision is None
    with guarded(lambda _: Approval(True, by="bob")):
        put("a")
    run = seen(tmp_path, session.run_id)
    (step,) = run.steps
    assert (step.state, step.decided_by, step.approval) == ("ran", "bob", asked.request["id"])
    assert (step.verdict or {})["reason"] == "it writes"
    assert step.supersedes is None
    (asked,) = run.approvals
    assert (asked.decision or {})["decision"] == "approved"


def test_rejected_calls_are_blocked(tmp_path: Path) -> None:
    def reject(_: Any) -> Approval:
        return Approval.reject("not today", by="bob")

    guarded = Session("job", store=tmp_path, gate=[asks], approver=reject)
    with guarded as session, pytest.raises(Blocked):
        put("a")
    run = seen(tmp_path, session.run_id)
    (step,) = run.steps
    assert (step.state, step.decided_by) == ("blocked", "bob")
    assert (step.verdict or {})["reason"] == "not today"
    assert run.refused == []


def test_answered_calls_are_no_effects(tmp_path: Path) -> None:
    def answer(_: Any) -> Approval:
        return Approval.respond("made up", by="bob")

    with Session("job", store=tmp_path, gate=[asks], approver=answer) as session:
        assert put("a") == "made up"
    run = seen(tmp_path, session.run_id)
    (step,) = run.steps
    assert (step.answered, step.state, run.effects) == (True, "ran", [])


def test_denied_and_invalid_calls_are_refused(tmp_path: Path) -> None:
    def deny(view: Any) -> Verdict | None:
        return Verdict.deny("no", code="closed") if view.name == "put" else None

    with Session("job", store=tmp_path, gate=[deny]) as session, session.branch("b"):
        with pytest.raises(Blocked):
            put("a")
        session.refused("fly", {"to": "mars"})
    run = seen(tmp_path, session.run_id)
    denied, missing = run.refused
    assert (denied.name, denied.code, denied.reason) == ("put", "closed", "no")
    assert (denied.verdict or {})["decision"] == "deny"
    assert (missing.name, missing.code, missing.args) == ("fly", "tool_missing", {"to": "mars"})
    assert (denied.branch, denied.parent) == ("b", 1)
    assert run.totals.refused == 2


def test_stops_and_abandonment(tmp_path: Path) -> None:
    with pytest.raises(RunStopped), Session("job", store=tmp_path) as session:
        put("a")
        stop_run(tmp_path, session.run_id, by="bob", reason="enough")
        put("b")
    run = seen(tmp_path, session.run_id)
    (stop,) = run.stops
    assert (stop["by"], stop["reason"], stop["run"]) == ("bob", "enough", run.id)
    assert 0 < stop["ordered"] <= stop["time"]
    abandon_run(tmp_path, run.id, by="eve", reason="by hand")
    run = seen(tmp_path, run.id)
    assert (run.status, (run.abandoned or {})["by"]) == ("abandoned", "eve")
    assert (run.finished or {})["status"] == "halted"


# --- forks ---------------------------------------------------------------------------------------


def test_forks_show_what_they_were_given(tmp_path: Path) -> None:
    origin = crashed(tmp_path)
    change = {"outcome": {"status": "ok", "value": "changed"}}
    with Session("what if", store=tmp_path, stages=[Copy(origin, 1, change, live=True)]) as fork:
        assert put("a") == "changed"
        put("new")
    run = seen(tmp_path, fork.run_id)
    assert states(run) == [("put", "simulated"), ("put", "ran")]
    given, new = run.steps
    assert given.origin == [origin, 1, given.turn]
    assert (given.changed, given.simulated, given.attempt, new.attempt) == (True, "write", 0, 1)
    assert run.started["mode"] == "fork"
    assert run.started["fork"] == {"run": origin, "step": 1, "change": "result", "live": True}
    assert len(run.attempts) == 1
    assert run.attempts[0].hits == 1


def test_runs_that_go_on_from_another(tmp_path: Path) -> None:
    origin = crashed(tmp_path)
    with Session("other", store=tmp_path, source=origin) as session:
        put("a")
        put("c")
    run = seen(tmp_path, session.run_id)
    assert states(run) == [("put", "hit"), ("put", "ran")]
    assert run.steps[0].origin == [origin, 1, 1]
    assert (run.started["source"], run.started["mode"]) == (origin, "resume")


def test_once_says_where_it_was_made(tmp_path: Path) -> None:
    @tool(effect="write", once="pay/{n}")
    def pay(n: int) -> str:
        return f"paid {n}"

    with Session("one", store=tmp_path) as first:
        pay(1)
    with Session("two", store=tmp_path) as second:
        pay(1)
    (step,) = seen(tmp_path, second.run_id).steps
    assert (step.state, step.origin) == ("hit", [first.run_id, 1, 0])
    (step,) = seen(tmp_path, first.run_id).steps
    assert (step.state, (step.once or [])[:2]) == ("ran", ["mine", "pay/1"])


def test_gathered_calls_are_of_one_turn(tmp_path: Path) -> None:
    async def main() -> str:
        async with Session("job", store=tmp_path) as session:
            await asyncio.gather(*(session.acall(put, name=name) for name in "abc"))
            return session.run_id

    run = seen(tmp_path, asyncio.run(main()))
    assert [(step.turn, step.slot) for step in run.steps] == [(1, 0), (1, 1), (1, 2)]


# --- the lines -----------------------------------------------------------------------------------


def test_damage_names_the_line(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, crashed(tmp_path))
    verified = verify_trace(trace)
    assert (verified.lines, verified.is_ended) == (6, True)
    assert verified.head == orjson.loads(trace.data.splitlines()[-1])["hash"]
    damaged = type(trace)(trace.run, "it", trace.data.replace(b"put a", b"put b", 1))
    for check in (verify_trace, read_run):
        with pytest.raises(TraceCorrupt) as error:
            check(damaged)
        assert error.value.line == 4
    lines = trace.data.splitlines(keepends=True)
    assert not verify_trace(type(trace)(trace.run, "it", b"".join(lines[:4]))).is_ended


def test_a_log_without_lines_is_damaged() -> None:
    for check in (verify_trace, read_run):
        with pytest.raises(TraceCorrupt, match="it, line 1: the trace is empty"):
            check(LogTrace("", "it", b""))


def test_every_cut_can_be_read(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with pytest.raises(CrashError), Session("job", store=tmp_path) as session:
        files.both(one=str(disk / "a"), two=str(disk / "b"))
        with pytest.raises(CrashError), session.transaction():
            files.put_file(path=str(disk / "c"), text="x")
            raise CrashError
        raise CrashError
    undo_run(tmp_path, session.run_id)
    trace = trace_of(tmp_path, session.run_id)
    lines = trace.data.splitlines(keepends=True)
    before = 0
    for count in range(1, len(lines) + 1):
        run = read_run(type(trace)(trace.run, "cut", b"".join(lines[:count])))
        assert before <= len(run.steps) + len(run.attempts)
        before = len(run.steps)


def test_runs_are_read_without_a_detector_and_no_value_is_shown(tmp_path: Path) -> None:
    run = crashed(tmp_path)
    code = f"""
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "rollcage_policy" else find(name)
import sys
sys.modules["rollcage_policy"] = None
from rollcage.errors import DetectorMissing
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run
from rollcage_views.screen import Screen
run = read_run(trace_of({str(tmp_path)!r}, {run!r}))
print(len(run.steps))
try:
    Screen().fields(run.steps[0].args)
except DetectorMissing as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "2"
    assert "pip install 'rollcage-views[audit]'" in done.stdout
