"""Names of people: two that look alike are one, and what can't be seen is no part of a name."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalInvalid,
    ApprovalQueue,
    ApprovalRequired,
    Blocked,
    Contract,
    GovernanceError,
    PolicyInvalid,
    QueueApprover,
    Session,
    SessionError,
    StepView,
    Store,
    Verdict,
    tool,
)
from rollcage.gate import (
    ApprovalRequest,
    Refusal,
    Terms,
    judged,
    looks_like,
    person,
    same_person,
)
from rollcage_governance import Registry
from rollcage_policy import Policy

UNSEEN = {
    "zero width space": "ann\u200b",
    "zero width joiner": "a\u200dnn",
    "right to left": "\u202eann",
    "isolate": "\u2066ann\u2069",
    "byte order mark": "\ufeffann",
    "soft hyphen": "an\u00adn",
    "a control": "ann\x1b[2K",
    "a line": "ann\nbob",
    "a line separator": "ann\u2028",
    "a surrogate": "ann\udc80",
    "a tag": "ann\U000e0061",
    "a variation": "ann\ufe0f",
    "a filler": "ann\u3164",
    "a braille blank": "ann\u2800",
    "a joiner of marks": "a\u034fnn",
    "unassigned": "ann\u0378",
    "private": "ann\ue000",
}
NAMELESS = {
    "empty": "",
    "blank": " ",
    "wide blanks": "\u3000\u00a0",
    "a dot": ".",
    "long": "a" * 300,
}


@tool
def send(to: str) -> str:
    return to


def asking(_: StepView) -> Verdict:
    return Verdict.ask("somebody has to look")


@pytest.mark.parametrize("name", [*UNSEEN.values(), *NAMELESS.values()], ids=[*UNSEEN, *NAMELESS])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        person(name)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ann", "ann"),
        (" Ann  Lee ", "Ann Lee"),
        ("Ann\u00a0Lee", "Ann Lee"),
        ("\uff41\uff4e\uff4e", "ann"),
        ("Jose\u0301", "Jos\u00e9"),
        ("\u5c71\u7530", "\u5c71\u7530"),
        ("ann@example.com", "ann@example.com"),
    ],
)
def test_a_name_has_one_form(written: str, name: str) -> None:
    assert person(written) == name
    assert same_person(written, name.upper())


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ada", "\u0430da"),
        ("ADA", "\u0410d\u0430"),
        ("Bob", "\u0412ob"),
        ("ace", "\u0410\u0421\u0415"),
        ("Alonzo", "\u0391l\u03bfnz\u03bf"),
        ("Olof", "0lof"),
        ("ann", "\uff21nn"),
        ("carl", "car1"),
    ],
)
def test_names_that_can_be_taken_for_one_another_are_told_apart_on_lists_only(
    name: str, other: str
) -> None:
    assert looks_like(name, other)
    assert looks_like(other, name)
    assert same_person(name, other) == (other == "\uff21nn")


def test_names_that_differ_where_it_is_seen_are_of_two_people() -> None:
    names = [
        "ada",
        "bob",
        "Jos\u00e9",
        "Jose",
        "\u0412\u043e\u0432\u0430",
        "\u5c71\u7530",
        "ann lee",
    ]
    for name in names:
        assert [other for other in names if looks_like(name, other)] == [name]
    assert not looks_like("", "")


@pytest.mark.parametrize("unseen", ["\u200b", "\u202e", "\x00", "\u3164", "\ufe0f", "\udc80"])
def test_what_can_not_be_seen_makes_nobody_else(unseen: str) -> None:
    assert same_person(f"a{unseen}nn{unseen}", "Ann")
    assert not same_person(unseen, unseen)


@pytest.mark.parametrize("name", [*UNSEEN.values(), *NAMELESS.values()], ids=[*UNSEEN, *NAMELESS])
@pytest.mark.parametrize(
    "said",
    [
        lambda by: Approval(True, by),
        lambda by: Approval.edit({"to": "eve"}, by=by),
        lambda by: Approval.respond("sent", by=by),
    ],
)
def test_a_yes_without_a_name_does_not_count(said: Any, name: str) -> None:
    answer = judged(said(name), ApprovalRequest("tool", "send", {}), Terms("ann"))
    assert isinstance(answer, Refusal)
    assert answer.code in ("approval_unnamed", "approver_failed")  # what UTF-8 can't hold


def test_anybody_may_say_no() -> None:
    request = ApprovalRequest("tool", "send", {})
    for name in ("", "ann\u200b", "ann"):
        answer = judged(Approval.reject("no", by=name), request, Terms("ann"))
        assert isinstance(answer, Approval)
        assert answer.by in ("", "ann")


def test_who_asked_can_not_approve_under_a_name_that_looks_alike(store: Store) -> None:
    for name in ("ann", "ANN ", "\uff21nn", "a\u200bnn", "ann\ufe0f", ""):

        def approver(_: ApprovalRequest, by: str = name) -> Approval:
            return Approval(True, by)

        with (
            Session(
                "mail",
                store=store,
                replay="off",
                actor="Ann",
                gate=[asking],
                approver=approver,
            ) as session,
            pytest.raises(Blocked),
        ):
            session.call(send, to="eve")


def test_the_trace_has_the_name_in_its_one_form(store: Store, events: Any) -> None:
    with Session(
        "mail", store=store, gate=[asking], approver=lambda _: Approval(True, " \uff22ob  Lee")
    ) as session:
        session.call(send, to="ann")
        run = session.run_id
    assert [e["by"] for e in events(run) if "decision" in e] == ["Bob Lee"]


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN)
def test_everywhere_else_such_a_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="actor="):
        Session("mail", store=tmp_path, actor=name)
    registry = Registry(tmp_path)
    with pytest.raises(GovernanceError, match="by="):
        registry.propose(Contract(name="send", parameters={}), by=name)
    registry.propose(Contract(name="send", parameters={}), by="ann")
    with pytest.raises(GovernanceError, match="by="):
        registry.approve("send", by=name)
    with pytest.raises(GovernanceError, match="another person"):
        registry.approve("send", by="\uff21NN")


def test_a_policy_names_people_that_can_be_told_apart() -> None:
    head = 'version = 1\nname = "p"\ndefault = "ask"\n[approval]\napprovers = '
    with pytest.raises(PolicyInvalid, match="can't be seen"):
        Policy.parse(f'{head}["an\\u200bn"]')
    with pytest.raises(PolicyInvalid, match="the name is empty"):
        Policy.parse(f'{head}[" "]')
    assert Policy.parse(f'{head}["Bob  Lee"]').approval.approvers == ["Bob Lee"]


def test_the_queue_takes_no_word_of_nobody(store: Store) -> None:
    with (
        contextlib.suppress(ApprovalRequired),
        Session("mail", store=store, gate=[asking], approver=QueueApprover(store)) as session,
    ):
        session.call(send, to="ann")
    queue = ApprovalQueue(store)
    (request,) = queue.waiting()
    for name in ("", "ann\u200b"):
        with pytest.raises(ApprovalInvalid, match="the approval names no person"):
            queue.decide(request.id, Approval(True, name))
    queue.decide(request.id, Approval(True, "Bob\u00a0Lee"))
    decided = queue.decision(request)
    assert decided is not None
    assert decided.answer.by == "Bob Lee"
