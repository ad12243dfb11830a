"""A trace, folded once: its steps, what became of each, and what else is told of the run."""

from collections.abc import Callable
from typing import Any

import pytest
from rollcage import Approval, ApprovalRequest, Blocked, StepView, Verdict, compensate, tool
from rollcage.errors import ArgumentsInvalid, TraceCorrupt, UnknownOutcome
from rollcage.session.abandon import abandon_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore, RunTrace
from rollcage.trace import Run, decode, fold, read_run

there: dict[str, int] = {}


@tool(effect="write")
def remove(name: str) -> None:
    there.pop(name, None)


@tool(effect="write", undo=lambda args, before, result: [compensate(remove, name=args["name"])])
def add(name: str, many: int = 1) -> int:
    there[name] = there.get(name, 0) + many
    return there[name]


@tool(effect="read")
def look(name: str) -> int:
    if name == "nowhere":
        raise LookupError(name)
    return there.get(name, 0)


@tool(effect="write")
def lose(name: str) -> None:
    raise TimeoutError(name)


@pytest.fixture(autouse=True)
def nothing_there() -> None:
    there.clear()


@pytest.fixture
def run_of(store: JsonlStore) -> Callable[[str], Run]:
    return lambda run: read_run(store.read(run))


def refuse_tar(step: StepView) -> Verdict | None:
    return Verdict.deny("not tar") if step.args.get("name") == "tar" else None


def test_what_became_of_each_step(store: JsonlStore, run_of: Callable[[str], Run]) -> None:
    with Session("job", store=store, rules=[refuse_tar]) as first:
        add("tea", many=2)
        look("tea")
        with pytest.raises(LookupError):
            look("nowhere")
        with pytest.raises(Blocked):
            add("tar")
        with first.branch("side"):
            add("salt")
    run = run_of(first.run_id)
    told = [(s.step, s.kind, s.name, s.effect, s.state) for s in run.steps]
    assert told == [
        (1, "tool", "add", "write", "ran"),
        (2, "tool", "look", "read", "ran"),
        (3, "tool", "look", "read", "failed"),
        (4, "tool", "add", "write", "blocked"),
        (5, "tool", "add", "write", "ran"),
        (6, "branch", "side", "write", "ran"),
    ]
    step = run.step(1)
    assert step is not None
    assert step.outcome is not None
    assert (step.args, decode(step.outcome["value"])) == ({"name": "tea", "many": 2}, 2)
    assert (step.line, step.ended_line, step.occurrence, step.reversible) == (2, 3, (0, 0), True)
    assert step.ended is not None
    assert step.ended >= step.time
    blocked, inside = run.steps[3:5]
    assert (blocked.verdict or {})["reason"] == "not tar"
    assert inside.branch == "side"
    assert [each.step for each in run.effects] == [1, 5]
    assert (run.id, run.status, run.totals.states["ran"]) == (first.run_id, "ok", 4)


def test_a_resumed_run_tells_where_its_hits_first_ran(
    store: JsonlStore, run_of: Callable[[str], Run]
) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=store) as first:
        add("tea")
        with pytest.raises(TimeoutError):
            lose("tea")
    assert [s.state for s in run_of(first.run_id).steps] == ["ran", "unknown"]
    with pytest.raises(UnknownOutcome), Session("job", store=store) as second:
        add("tea")
        lose("tea")
    hit, refused = run_of(second.run_id).steps
    assert (hit.state, hit.origin, hit.ended_line) == ("hit", [first.run_id, 1, 1], None)
    assert refused.state == "blocked"
    assert run_of(second.run_id).totals.states["hit"] == 1


def test_undos_approvals_and_refused_calls_are_told(
    store: JsonlStore, run_of: Callable[[str], Run]
) -> None:
    def asks(step: StepView) -> Verdict | None:
        return Verdict.ask("really?") if step.name == "add" else None

    def ann(_: ApprovalRequest) -> Approval:
        return Approval(True, "ann")

    with Session("job", store=store, rules=[asks], approver=ann) as session:
        add("tea")
        with pytest.raises(ArgumentsInvalid, match="many"):
            session.call(add, name="tea", many="a lot")
        session.undo()
    run = run_of(session.run_id)
    assert [(s.name, s.undone, s.undoes) for s in run.steps] == [
        ("add", "compensated", None),
        ("remove", None, [session.run_id, 1]),
    ]
    assert run.undone == {(session.run_id, 1): "compensated"}
    assert [each["status"] for each in run.undos] == ["compensated"]
    (asked,) = run.approvals
    assert asked.decision is not None
    assert (asked.request["name"], asked.decision["by"]) == ("add", "ann")
    assert run.steps[0].approval == asked.request["id"]
    assert [(each.name, each.code) for each in run.refused] == [("add", "arguments_invalid")]


def test_a_run_without_its_end_and_one_that_was_set_aside(
    store: JsonlStore, run_of: Callable[[str], Run]
) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store) as session:
        raise RuntimeError
    whole = store.read(session.run_id)
    cut = whole.data[: whole.data.rfind(b"\n", 0, -1) + 1]
    assert read_run(RunTrace("", "cut", cut, b"", None)).status == "unfinished"
    assert run_of(session.run_id).status == "error"
    abandon_run(store, session.run_id, by="ann", reason="done by hand")
    run = run_of(session.run_id)
    assert (run.status, run.abandoned and run.abandoned["by"]) == ("abandoned", "ann")


def test_what_is_no_event_is_refused_with_or_without_the_schema(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        add("tea")
    data = store.read(session.run_id).data.replace(b'"tea"', b'"tar"')
    for schema in (True, False):
        with pytest.raises(TraceCorrupt, match="line 2"):
            read_run(RunTrace("", "trace", data, b"", None), schema=schema)


def test_events_that_were_read_already_are_folded_as_they_are(
    store: JsonlStore, events: Any
) -> None:
    with Session("job", store=store) as session:
        add("tea")
    assert fold(enumerate(events(session.run_id), 1)) == read_run(store.read(session.run_id))
