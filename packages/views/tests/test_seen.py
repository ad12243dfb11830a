"""What is made of recorded runs: timelines, inboxes, changes, hits, sums, searches."""

import contextlib
import dataclasses
import io
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from incident import Incident
from rollcage import ApprovalRequired, QueueApprover, Session, Verdict, open_store, plan_undo
from rollcage.trace.recorded import trace_of
from rollcage_views import (
    Run,
    RunFilter,
    StateChange,
    States,
    StepFilter,
    Viewer,
    align,
    changes_of,
    hits_of,
    in_order,
    inbox_of,
    jobs_of,
    line_diff,
    may_answer,
    pair_data,
    read_run,
    rule_counts,
    run_data,
    search_runs,
    search_steps,
    standing,
    step_data,
    timeline_of,
    tree_of,
    usage_of,
    words,
)
from rollcage_views.audit import AuditEntry, Selection, Summary, audited, runs_of
from rollcage_views.html import write_run

Record = Callable[..., str]
BLIND = Viewer(values=False)


def seen_of(incident: Incident, run: str) -> Run:
    return read_run(trace_of(incident.store, run))


# --- who may see values --------------------------------------------------------------------------


def everything(incident: Incident, viewer: Viewer) -> dict[str, str]:
    """Every view of everything, as JSON, by its name."""
    own, now = open_store(incident.store), time_ns() // 1000
    told: dict[str, Any] = {"inbox": inbox_of(own, now, viewer).as_data(now)}
    for run in (incident.job, incident.waits, incident.unknown, incident.resumed):
        whole = seen_of(incident, run)
        seen, stands = viewer.run(whole), standing(whole)
        pairs = align(in_order(whole), in_order(seen_of(incident, incident.job)))
        plan = plan_undo(own, run)
        told[run] = [
            run_data(seen, stands, seen.steps),
            timeline_of(seen).as_data(),
            [node.as_data() for node in tree_of(seen.steps)],
            [hit.as_data() for hit in hits_of(seen)],
            usage_of(seen).as_data(),
            viewer.plan(plan).as_data(),
            [[change.as_data() for change in changes_of(step, States(seen))]
             for step in seen.steps],
            [pair_data(viewer.pair(pair)) for pair in pairs],
            [[step_data(step) for step in (pair.a, pair.b) if step]
             for pair in map(viewer.pair, pairs)],
            [seen.finished, seen.undos, seen.stops, seen.policies],
            [[asked.request, asked.decision] for asked in seen.approvals],
        ]  # fmt: skip
    return {name: json.dumps(each, default=str) for name, each in told.items()}


def test_who_may_not_see_values_sees_none(incident: Incident) -> None:
    for name, told in everything(incident, Viewer()).items():
        assert incident.text in told, name
    hidden = everything(incident, BLIND)
    for told in hidden.values():
        assert incident.text not in told
    whole = json.dumps(hidden)
    for run in (incident.job, incident.waits, incident.unknown, incident.resumed):
        seen = seen_of(incident, run)
        for step in seen.steps:  # a short value could be guessed from a hash of it
            assert step.key not in whole
        for asked in seen.approvals:
            for event in filter(None, (asked.request, asked.decision)):
                assert event["idempotency_key"][:16] not in whole


def test_what_is_no_value_stays(incident: Incident) -> None:
    seen = seen_of(incident, incident.job)
    shown = BLIND.run(seen)
    assert [(s.name, s.state, s.undone) for s in shown.steps] == [
        (s.name, s.state, s.undone) for s in seen.steps
    ]
    assert [hit.code for hit in hits_of(shown)] == ["path_escape"]
    assert [list(step.args) for step in shown.steps] == [list(step.args) for step in seen.steps]


def test_nobody_finds_by_what_they_may_not_see(incident: Incident) -> None:
    own, by = open_store(incident.store), StepFilter(text=incident.text)
    assert {each.info.run for each in search_steps(own, RunFilter(), by)} >= {incident.job}
    assert [*search_steps(own, RunFilter(), by, viewer=BLIND)] == []
    named = StepFilter(text="view_look")
    assert [*search_steps(own, RunFilter(names=["job"]), named, viewer=BLIND)]


# --- over time -----------------------------------------------------------------------------------


def test_a_wait_is_a_bar_of_its_own(incident: Incident) -> None:
    seen = seen_of(incident, incident.resumed)
    first, second = seen.attempts
    line = timeline_of(seen)
    assert [bar.kind for bar in line.bars if bar.kind != "step"] == [
        "attempt", "wait", "wait", "attempt",
    ]  # fmt: skip
    approval, between = [bar for bar in line.bars if bar.kind == "wait"]
    assert approval.title == "approval of view_pay"
    assert (between.state, between.start) == ("resumed", first.end)
    assert between.start + between.length == second.begin
    for bar in line.bars:
        start, length = line.place(bar)
        assert 0 <= start <= start + length <= 1


def test_a_clock_that_went_back_breaks_no_timeline(incident: Incident) -> None:
    seen = seen_of(incident, incident.resumed)
    seen.attempts[1].begin = seen.attempts[0].begin - 5_000_000
    line = timeline_of(seen)
    assert all(bar.length >= 0 for bar in line.bars)
    assert all(sum(line.place(bar)) <= 1.000001 for bar in line.bars)


# --- what waits for somebody ---------------------------------------------------------------------


def test_the_inbox_has_what_waits_and_nothing_else(incident: Incident) -> None:
    own, now = open_store(incident.store), time_ns() // 1000
    found = inbox_of(own, now)
    (waiting,) = found.approvals
    assert waiting.request.run == incident.waits
    assert dict(waiting.request.args) == {"to": incident.text, "amount": 500}
    assert may_answer(waiting, "ann")
    assert not may_answer(waiting, "Carl")
    assert not may_answer(waiting, "")
    (unknown,) = found.unknown
    assert (unknown.run, unknown.step.step, unknown.why) == (incident.unknown, 1, "unknown")
    assert len(found) == 2
    assert inbox_of(own, waiting.request.expires).approvals == []


def test_an_inbox_says_that_older_jobs_were_not_looked_through(
    incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, now = open_store(incident.store), time_ns() // 1000
    count = len(jobs_of(own))
    monkeypatch.setattr("rollcage_views.inbox._JOBS", count)
    found = inbox_of(own, now)
    assert not found.older
    assert found.as_data(now)["older"] is False
    monkeypatch.setattr("rollcage_views.inbox._JOBS", count - 1)
    assert inbox_of(own, now).older


def test_a_request_that_cannot_be_believed_is_reported(incident: Incident) -> None:
    own, now = open_store(incident.store), time_ns() // 1000
    (waiting,) = inbox_of(own, now).approvals
    was = own.get("requests", waiting.id)
    assert was is not None
    assert own.swap("requests", waiting.id, was, was.replace(b'"verdict"', b'"verdicts"'))
    found = inbox_of(own, now)
    assert found.approvals == []
    assert list(found.damaged) == [waiting.id]
    assert waiting.id not in json.dumps(inbox_of(own, now, BLIND).as_data(now))


# --- what was changed ----------------------------------------------------------------------------


def test_a_change_is_shown_where_a_digest_proves_it(incident: Incident) -> None:
    seen = seen_of(incident, incident.job)
    put, append = (step for step in seen.steps[1:3])
    (change,) = changes_of(put, States(seen))
    assert change.changed
    assert not change.fields
    assert change.lines() == [
        (" ", "text:"), (" ", "  one"), ("-", f"  two {incident.text}"),
        ("+", f"  2 {incident.text}"), (" ", "  three"),
    ]  # fmt: skip
    (change,) = changes_of(append, States(seen))  # no argument is what the file holds afterwards
    assert change.fields == ("text",)
    assert change.lines()[-1][0] == "…"
    assert not any(sign in "+-" for sign, _ in change.lines())
    back = change.lines(back=True)
    assert [sign for sign, _ in back] == ["…", *"+" * (len(back) - 1)]
    assert changes_of(put, States(seen))[0].lines(back=True)[2:4] == [
        ("-", f"  2 {incident.text}"), ("+", f"  two {incident.text}"),
    ]  # fmt: skip
    (change,) = changes_of(put)  # the argument says it, with no other step
    assert [sign for sign, _ in change.lines()] == [" ", " ", "-", "+", " "]
    new = next(step for step in seen.steps if step.step == 4)
    assert [sign for sign, _ in changes_of(new, States(seen))[0].lines()] == ["-", "+"]


def test_what_a_later_write_found_is_what_was_left(
    store: Path, view_files: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_text("1")
    with Session("job", store=store) as session:
        view_files.append(str(path), "2")
        view_files.append(str(path), "3")
    seen = read_run(trace_of(store, session.run_id))
    (change,) = changes_of(seen.steps[0], States(seen))
    assert change.lines() == [("-", "text: 1"), ("+", "text: 12")]
    (change,) = changes_of(seen.steps[1], States(seen))
    assert change.fields == ("text",)


def test_a_diff_is_bounded_and_safe(evil: str) -> None:
    lines = line_diff(evil * 3, "\n".join(str(n) for n in range(5000)))
    assert len(lines) < 500
    assert lines[-1][0] == "…"
    assert not any(c in text for _, text in lines for c in "\x1b\u202e\x07")
    assert [sign for sign, _ in StateChange("r", {"a": 1}, None, ("*",)).lines()] == [" ", "…"]


# --- undo ----------------------------------------------------------------------------------------


def test_a_plan_is_confirmed_as_it_was_seen(incident: Incident) -> None:
    own = open_store(incident.store)
    plan = plan_undo(own, incident.job)
    assert plan.digest == plan_undo(own, incident.job).digest
    (disk,) = incident.store.parent.glob("disk-*")
    (disk / "old.txt").write_text("somebody else")
    assert plan.digest != plan_undo(own, incident.job).digest


# --- rules, sums, search -------------------------------------------------------------------------


def test_hits_are_counted_by_rule(incident: Incident) -> None:
    hits = [
        hit
        for run in (incident.job, incident.waits, incident.resumed)
        for hit in hits_of(seen_of(incident, run))
    ]
    counts = {each.rule: (each.decisions, each.blocked) for each in rule_counts(hits)}
    assert counts["_rules"] == ({"deny": 1}, 1)
    assert counts["_asks"][0]["ask"] >= 1
    assert [hit.state for hit in hits if hit.step is None] == ["blocked", "waiting"]


def test_what_was_used_up_and_what_replay_spared(incident: Incident) -> None:
    used = usage_of(seen_of(incident, incident.resumed), price=lambda step: 0.5)
    rows = {row.name: row for row in used.rows}
    assert (rows["view_look"].calls, rows["view_look"].replayed) == (1, 1)
    assert rows["view_pay"].calls == 1
    assert used.total.cost == 1.0
    assert usage_of(seen_of(incident, incident.job)).total.failed == 1


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (RunFilter(), ["payout", "transfer", "refund", "job"]),
        (RunFilter(names=["pay*"]), ["payout"]),
        (RunFilter(statuses=["paused"]), ["refund"]),
        (RunFilter(text="REF"), ["refund"]),
        (RunFilter(modes=["fork"]), []),
        (RunFilter(before=0), []),
    ],
)
def test_runs_are_found(incident: Incident, wanted: RunFilter, names: list[str]) -> None:
    own = open_store(incident.store)
    found = search_runs(own, wanted)
    assert sorted(info.name for info in found) == sorted(names)
    assert search_runs(own, wanted, limit=1) == found[:1]
    if found:
        assert search_runs(own, wanted, behind=found[0].run) == found[1:]


def test_a_run_is_found_by_its_id(incident: Incident) -> None:
    own = open_store(incident.store)
    (info,) = search_runs(own, RunFilter(text=incident.job[-8:]))
    assert info.run == incident.job


def test_the_lines_of_files_that_tools_keep_as_bytes_are_compared() -> None:
    def kept(text: str) -> dict[str, Any]:
        return {
            "kind": "file",
            "data": {"$rollcage": "bytes", "value": b64encode(text.encode()).decode()},
        }

    assert line_diff(kept("one\ntwo"), kept("one\n2")) == [
        (" ", "kind: file"), (" ", "data:"), (" ", "  one"), ("-", "  two"), ("+", "  2"),
    ]  # fmt: skip
    broken = {"data": {"$rollcage": "bytes", "value": "no base64"}}
    assert [sign for sign, _ in line_diff(broken, kept("x"))] == ["-", "+", "+"]


def test_many_writes_on_one_resource_are_read_in_time(incident: Incident) -> None:
    seen = seen_of(incident, incident.job)
    first = seen.steps[1]
    steps = [
        dataclasses.replace(
            first, step=n, before={"r": {"n": str(n)}}, after={"r": {"n": "0" * 64}}
        )
        for n in range(1, 5001)
    ]
    states = States(dataclasses.replace(seen, steps=steps))
    assert [*states.after(4999, "r")] == [{"n": "5000"}]
    assert [*states.after(5000, "r")] == []
    assert len(changes_of(steps[0], states)) == 1


def test_what_each_attempt_was_given_back_is_counted(store: Path, view_files: Any) -> None:
    def attempt(*paths: str, fails: bool = True) -> str:
        with contextlib.suppress(LookupError), Session("job", store=store) as session:
            for path in paths:
                view_files.look(path)
            if fails:
                raise LookupError
        return session.run_id

    run = attempt("a")
    assert attempt("a", "b") == attempt("a", "b", fails=False) == run
    row = {row.name: row for row in usage_of(read_run(trace_of(store, run))).rows}["view_look"]
    assert (row.calls, row.replayed, row.failed) == (2, 3, 0)
    page = io.StringIO()
    write_run(page, read_run(trace_of(store, run)))
    assert "replay saved" in page.getvalue()


def test_an_audit_names_what_left_a_step_behind(store: Path, view_files: Any) -> None:
    with contextlib.suppress(LookupError), Session("other", store=store):
        view_files.pay("ann", 1)
        raise LookupError
    with Session("other", store=store, on_divergence="warn") as session:
        view_files.pay("bob", 2)
    (each,) = (each for each in runs_of(open_store(store)) if each.run == session.run_id)
    entries = [
        item
        for item in audited([each], Selection(), Summary())
        if isinstance(item, AuditEntry) and item.kind == "call"
    ]
    assert [(entry.step, entry.left_by) for entry in entries] == [
        (1, (session.run_id, 2)), (2, None),
    ]  # fmt: skip


def test_runs_of_one_millisecond_are_each_on_one_page(store: Path) -> None:
    for number in range(8):
        with Session(f"job {number}", store=store):
            pass
    own, found, last = open_store(store), [], ""
    while page := search_runs(own, RunFilter(), limit=3, behind=last):
        found += [info.name for info in page]
        last = page[-1].run
    assert sorted(found) == [f"job {number}" for number in range(8)]


def test_a_paused_run_tells_what_it_has_not_asked_for(store: Path, view_files: Any) -> None:
    def asks(view: Any) -> Verdict | None:
        return Verdict.ask("who reads it?") if view.name == "view_look" else None

    with contextlib.suppress(LookupError), Session("job", store=store):
        view_files.pay("ann", 1)
        view_files.pay("bob", 2)
        raise LookupError
    approver = QueueApprover(store)
    with (
        pytest.raises(ApprovalRequired),
        Session("job", store=store, gate=[asks], approver=approver) as session,
    ):
        view_files.pay("ann", 1)
        view_files.look("a")
    seen = read_run(trace_of(store, session.run_id))
    stands = standing(seen)
    assert (seen.status, [each.step for each in stands.ahead]) == ("paused", [2])
    (note,) = words(stands, seen.status, seen.id, "")
    assert note.startswith("Not asked for so far: 1 effect, step 2 (view_pay)")
