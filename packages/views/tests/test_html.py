"""Pages: text stays text, nothing is fetched, every state is seen, no hidden value is."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from incident import Incident
from markup import HOSTILE, Markup
from rollcage import Session, Verdict, open_store, plan_undo, tool
from rollcage.trace.recorded import trace_of
from rollcage_views import SEES_ALL, STATES, Run, Step, Viewer, read_run, visible
from rollcage_views.audit import Selection, Summary, audited, runs_of
from rollcage_views.html import (
    TONES,
    Links,
    environment,
    step_row,
    stylesheet,
    tone,
    undo_rows,
    write_audit,
    write_diff,
    write_run,
)

Record = Callable[..., str]
TAGS = {
    "html", "head", "meta", "title", "style", "script", "body", "header", "main", "section",
    "h1", "h2", "p", "span", "div", "b", "i", "em", "small", "code", "pre", "a", "dl", "dt", "dd",
    "ul", "li", "br", "table", "thead", "tbody", "tfoot", "tr", "th", "td", "details", "summary",
    "svg", "rect", "ins", "del", "form", "label", "input", "select", "option", "output",
    "fieldset", "legend", "caption",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "role",
    "aria-label", "aria-labelledby", "aria-live", "aria-hidden", "tabindex", "data-state",
    "data-count", "data-whole", "title", "type", "placeholder", "autocomplete", "value", "hidden",
    "checked", "open", "scope",
    "viewbox", "preserveaspectratio", "x", "width", "height",
}  # fmt: skip


def page_of(store: Path, run: str, viewer: Viewer = SEES_ALL) -> str:
    out = io.StringIO()
    write_run(out, read_run(trace_of(store, run)), viewer=viewer)
    return out.getvalue()


@tool
def html_keep(key: str, text: str, more: Any = None) -> Any:
    return {"kept": text, "under": key}


@pytest.fixture
def hostile(store: Path) -> str:
    """A run whose every text would act on a page."""

    def rule(view: Any) -> Verdict | None:
        denied = view.args["key"] == "no"
        return Verdict.deny(view.args["text"], code="x") if denied else None

    with Session(
        HOSTILE[1],
        store=store,
        gate=[rule],
        actor=HOSTILE[2],
        input=HOSTILE[0],
    ) as session:
        for text in HOSTILE:
            branch = text.replace("/", "|").replace("#", "")
            with session.place(agent=text), session.branch(branch):
                html_keep("yes", text, {text: [text, f"{text}\n{text}"]})
                with pytest.raises(Exception, match=r"[\s\S]*"):
                    html_keep("no", text)
    return session.run_id


def test_text_stays_text(store: Path, hostile: str) -> None:
    page = Markup(page_of(store, hostile))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert [tag for tag, _ in page.elements].count("script") == 1
    page.check_alone()
    for text in HOSTILE:
        assert page.text.count(visible(text)) >= 4, text
    assert not {*"\x1b\x07\u202e\u2028\u200b"} & {*page.text}


def diff_of(store: Path, a: str, b: str, viewer: Viewer = SEES_ALL) -> str:
    out = io.StringIO()
    runs = read_run(trace_of(store, a)), read_run(trace_of(store, b))
    write_diff(out, runs, viewer=viewer)
    return out.getvalue()


def test_text_stays_text_in_a_difference(store: Path, hostile: str, incident: Incident) -> None:
    for a, b in ((hostile, incident.job), (incident.job, hostile), (hostile, hostile)):
        page = Markup(diff_of(store, a, b))
        page.check_alone()
        assert page.tags <= TAGS
        assert page.attributes <= ATTRIBUTES
        for text in HOSTILE:
            assert visible(text) in page.text


def test_the_first_difference_is_marked_and_linked(store: Path) -> None:
    runs = []
    for text in ("one\ntwo\n", "one\n2\n"):
        with Session("job", store=store, replay="off") as session:
            html_keep("a", "as ever")
            html_keep("b", text)
            html_keep("c", text)
        runs.append(session.run_id)
    page = Markup(diff_of(store, runs[0], runs[1]))
    assert "2 of 3 steps differ" in page.text
    assert page.text.count("first difference") == 2
    assert "#pair-2" in page.addresses
    (marked,) = [g for _, g in page.elements if "first" in (g.get("class") or "").split()]
    assert (marked["id"], marked["data-state"]) == ("pair-2", "changed")
    for line in ("  one", "- two", "+ 2"):
        assert line in page.text
    alike = Markup(diff_of(store, runs[0], runs[0])).text
    assert "3 steps, none differ" in alike
    hidden = diff_of(store, runs[0], runs[1], Viewer(values=False))
    assert "as ever" not in hidden
    assert "2 of 3 steps differ" in hidden


def test_a_page_needs_nothing_else(incident: Incident) -> None:
    for run in (incident.job, incident.waits, incident.unknown, incident.resumed):
        page = Markup(page_of(incident.store, run))
        page.check_alone()
        assert page.tags <= TAGS
        anchors = {given["id"] for _, given in page.elements if given.get("id")}
        assert {address.removeprefix("#") for address in page.addresses} <= anchors


def test_a_page_tells_what_happened(incident: Incident) -> None:
    page = Markup(page_of(incident.store, incident.job))
    assert {"ok", "bad", "denied", "undone"} <= page.classes
    for said in ("view_put", "reversible write", "path_escape", "ran, undone", "side branch",
                 "ValueError", "- two".replace("- ", "-   "), "+   2"):  # fmt: skip
        assert said in page.text, said
    waits = Markup(page_of(incident.store, incident.waits)).text
    assert "rollcage approve" in waits
    unknown = Markup(page_of(incident.store, incident.unknown)).text
    assert f"rollcage resolve {incident.unknown} 1" in unknown
    resumed = Markup(page_of(incident.store, incident.resumed)).text
    for said in ("Attempts", "approval of view_pay", "approved by ann", "replay saved"):
        assert said in resumed, said


def test_a_page_is_the_same_each_time(incident: Incident) -> None:
    assert page_of(incident.store, incident.job) == page_of(incident.store, incident.job)


def test_who_may_not_see_values_sees_none_on_a_page(incident: Incident) -> None:
    for run in (incident.job, incident.waits, incident.unknown, incident.resumed):
        assert incident.text in page_of(incident.store, run)
        hidden = page_of(incident.store, run, Viewer(values=False))
        assert "&lt;redacted&gt;" in hidden
        head = hidden[hidden.index("<dl class") :] if run != incident.job else hidden
        assert incident.text not in head


def test_a_secret_is_on_no_page(store: Path, record: Record) -> None:
    page = page_of(store, record())
    assert "hunter2" not in page
    assert "&lt;secret&gt;" in page


@pytest.mark.parametrize("state", [*STATES, "undone"])
def test_every_state_has_a_look(incident: Incident, state: str) -> None:
    seen = read_run(trace_of(incident.store, incident.job))
    step = seen.steps[0]
    shown = (
        dataclasses.replace(step, undone="verified")
        if state == "undone"
        else dataclasses.replace(step, state=state)  # type: ignore[arg-type]  # one of them
    )
    row = step_row(seen.id, shown, span=(seen.started["time"], 1))
    assert row.state == state
    assert tone(state) in TONES
    assert f".{tone(state)} {{ --tone:" in stylesheet()
    out = io.StringIO()
    write_run(out, dataclasses.replace(seen, steps=[shown]))
    assert state.replace("_", " ") in Markup(out.getvalue()).text


def test_a_huge_value_is_cut_and_marked(store: Path) -> None:
    with Session("job", store=store) as session:
        html_keep("big", "a\n" * 10_000)
    text = page_of(store, session.run_id)
    assert len(text) < 60_000
    assert "more characters" in text
    assert f"rollcage show {session.run_id} --step 1 --json" in Markup(text).text


def test_a_deep_value_is_written(store: Path) -> None:
    value: Any = "x\ny"
    for _ in range(60):
        value = [value]
    with Session("job", store=store) as session:
        html_keep("deep", "t", value)
    Markup(page_of(store, session.run_id)).check_alone()


def many(store: Path, record: Record, count: int) -> Run:
    """A run of so many steps."""
    seen = read_run(trace_of(store, record()))
    first = seen.steps[0]
    steps: list[Step] = [
        dataclasses.replace(first, step=n, turn=n, time=first.time + n, args={"path": f"file {n}"})
        for n in range(1, count + 1)
    ]
    return dataclasses.replace(seen, steps=steps, last_time=first.time + count)


def test_ten_thousand_steps_are_one_page(store: Path, record: Record) -> None:
    seen, out = many(store, record, 10_000), io.StringIO()
    write_run(out, seen)
    text = out.getvalue()
    assert len(text) < 8_000_000
    assert text.count('id="step-') == 10_000
    assert "content-visibility: auto" in text


def audit_of(store: Path, viewer: Viewer = SEES_ALL) -> str:
    out, summary = io.StringIO(), Summary()
    meant = runs_of(open_store(store))
    write_audit(out, audited(meant, Selection(), summary, viewer=viewer), summary)
    return out.getvalue()


def test_an_audit_page_has_every_state_and_who_decided(incident: Incident) -> None:
    page = Markup(audit_of(incident.store))
    page.check_alone()
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert {"ok", "bad", "denied", "undone", "unknown", "waiting"} <= page.classes
    for said in ("approved by ann", "deny by _rules", "undo of view_put", "Needs attention"):
        assert said in page.text
    assert "ran ran" not in " ".join(page.text.split())


def test_who_may_not_see_values_audits_without(incident: Incident) -> None:
    hidden = audit_of(incident.store, Viewer(values=False))
    assert incident.text not in hidden
    assert "deny by _rules" in hidden
    for run in (incident.waits, incident.resumed):
        for asked in read_run(trace_of(incident.store, run)).approvals:
            assert (asked.request or asked.decision or {})["id"] not in hidden


def test_a_report_has_no_credential_that_can_be_found(store: Path, record: Record) -> None:
    token = "ghp" + "_" + "a1B2" * 9
    seen = read_run(trace_of(store, record()))
    told = [{"role": "user", "content": f"use {token} {n}"} for n in range(3)]
    answer = {"text": f"I use {token}", "tool_calls": [{"name": "x", "arguments": token}]}
    state = {"r": {"text": f"{token}\nold"}}
    steps = [
        dataclasses.replace(
            seen.steps[0], step=1, kind="model", args={"messages": told[:1]},
            outcome={"status": "ok", "value": token, "answer": answer},
        ),
        dataclasses.replace(seen.steps[0], step=2, kind="model", args={"messages": told}),
        dataclasses.replace(
            seen.steps[0], step=3, args={"password": "hunter3-hunter3", "n": token},
            before=state, after={"r": "0" * 64}, state="failed",
            outcome={"status": "error", "error": {"type": "E", "message": f"no {token}"}},
            verdict={"decision": "deny", "reason": token, "code": "c", "rule": "r"},
        ),
    ]  # fmt: skip
    out = io.StringIO()
    write_run(out, dataclasses.replace(seen, steps=steps))
    text = out.getvalue()
    assert token not in text
    assert "hunter3" not in text
    page = Markup(text).text
    assert "2 new messages" in page
    assert page.count("use <GitHub Token>") >= 4
    whole = io.StringIO()
    write_run(whole, dataclasses.replace(seen, steps=steps), viewer=SEES_ALL)
    assert whole.getvalue().count(token) > 8
    pairs = io.StringIO()
    other = dataclasses.replace(seen, steps=[dataclasses.replace(steps[2], args={"password": "x"})])
    write_diff(pairs, (dataclasses.replace(seen, steps=steps), other))
    assert token not in pairs.getvalue()
    assert "hunter3" not in pairs.getvalue()


@pytest.mark.parametrize("values", [True, False])
def test_the_plan_of_an_undo_shows_what_it_takes_back(incident: Incident, values: bool) -> None:
    own = open_store(incident.store)
    (disk,) = incident.store.parent.glob("disk-*")
    (disk / "old.txt").write_text("somebody else")
    data = plan_undo(own, incident.job).as_data()
    seen = read_run(trace_of(own, incident.job))
    rows = undo_rows(data, seen if values else None, Viewer(values=values))
    assert [row.step for row in rows] == [each["step"] for each in data["steps"]]
    assert {"conflict", "reversible", "irreversible"} & {row.state for row in rows}
    template = environment().from_string(
        "{% import 'parts.html' as parts %}{{ parts.undo(rows, links) }}"
    )
    page = Markup(template.render(rows=rows, links=Links(incident.job)))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert ("file:old.txt: text" in page.text) is values
    assert ("what it puts back" in page.text) is values
    assert (incident.text in page.text) is values
