"""What an approver, a resume and a strict session make of a framework's calls."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    ArgumentsInvalid,
    Blocked,
    Contract,
    ForkEnded,
    Options,
    Session,
    StepView,
    Verdict,
)
from rollcage.trace.chain import parse
from rollcage_adapter import (
    GuardedCall,
    GuardedTool,
    Instead,
    asking,
    gathered,
    refuse,
    refuses_unguarded,
    step_here,
)
from rollcage_fork import Fork

SEND = Contract(
    name="send",
    parameters={"properties": {"to": {"type": "string"}, "n": {"type": "integer"}}},
    framework="test",
)


class Call(GuardedCall):
    """A call whose body gets one mapping, which the framework holds on to."""

    def __init__(
        self, session: Session, contract: Contract, given: dict[str, Any], *, edits: bool
    ) -> None:
        super().__init__(session, contract, given)
        self.edits = edits

    def instead(self, inside: Any) -> Instead | None:
        return Instead(gathered(inside), lambda said: {"said": said}) if self.edits else None


class Guard(GuardedTool):
    edits = True

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return Call(self.session, self.contract, args[0], edits=self.edits)


def ask(_: StepView) -> Verdict:
    return Verdict.ask("may it?")


def events(session: Session, kind: str) -> list[dict[str, Any]]:
    lines = parse(session.store.read(session.run_id), "the log")
    return [line for line in lines if line["event"] == kind]


def test_an_edit_of_a_framework_call_survives_a_crash(tmp_path: Path) -> None:
    """The decision is on record before the body runs, and reaches the body in the next attempt."""
    ran: list[Any] = []
    dies = True

    def edit(_: ApprovalRequest) -> Approval:
        return Approval.edit({"to": "eve"}, by="ann")

    def send(given: dict[str, Any]) -> str:
        if dies:
            raise KeyboardInterrupt
        ran.append(given)
        return "sent"

    contract = dataclasses.replace(SEND, idempotent=True)
    for dies in (True, False):
        options: dict[str, Any] = {"gate": [ask], "approver": edit if dies else None}
        if not dies:
            options["approver"] = lambda _: pytest.fail("asked again")
        try:
            with Session("job", store=tmp_path, **options) as session:
                assert Guard(session, contract).function(send)({"to": "bob"}) == "sent"
        except KeyboardInterrupt:
            assert dies
    assert ran == [{"to": "eve"}]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Approval.edit({"to": "eve"}, by="ann"), "approval_edit_unsupported"),
        (Approval.respond("done", by="ann"), "approval_response_invalid"),
    ],
)
def test_a_call_that_nobody_can_edit_or_answer(tmp_path: Path, reply: Approval, code: str) -> None:
    with Session("job", store=tmp_path, gate=[ask], approver=lambda _: reply) as session:
        guard = Guard(session, SEND)
        guard.edits = False
        with pytest.raises(Blocked) as blocked:
            guard.function(lambda given: pytest.fail("ran"))({"to": "bob"})
    assert blocked.value.verdict_code == code


def test_an_answer_in_place_of_the_tool_has_its_form(tmp_path: Path) -> None:
    reply = Approval.respond("done", by="ann")
    for approver in (lambda _: reply, None):
        gate = [ask] if approver else []
        with Session("job", store=tmp_path, gate=gate, approver=approver, replay="continue") as s:
            assert Guard(s, SEND).function(lambda given: pytest.fail("ran"))({"to": "bob"}) == {
                "said": "done"
            }


def test_an_edit_names_no_argument_that_the_framework_would_drop(tmp_path: Path) -> None:
    reply = Approval.edit({"to": "eve", "cc": "all"}, by="ann")
    with (
        Session("job", store=tmp_path, gate=[ask], approver=lambda _: reply) as session,
        pytest.raises(Blocked, match="it has no argument 'cc'") as blocked,
    ):
        Guard(session, SEND).function(lambda given: pytest.fail("ran"))({"to": "bob"})
    assert blocked.value.verdict_code == "approval_edit_invalid"


def test_arguments_that_change_while_somebody_is_asked_are_refused(tmp_path: Path) -> None:
    held = {"to": "bob"}

    def approve(_: ApprovalRequest) -> Approval:
        held["to"] = "eve"
        return Approval(True, "ann")

    with (
        Session("job", store=tmp_path, gate=[ask], approver=approve) as session,
        pytest.raises(Blocked) as blocked,
    ):
        Guard(session, SEND).function(lambda given: pytest.fail("ran"))(held)
    assert blocked.value.verdict_code == "approval_other_call"


def test_a_fork_ends_at_a_call_that_it_can_not_change(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        Guard(session, SEND).function(lambda given: "sent")({"to": "bob"})
    fork = Fork(session.run_id, 1, {"args": {"to": "eve"}}, live=True)
    with (
        pytest.raises(ForkEnded, match="step 1 like that"),
        Session("job", store=tmp_path, stages=[fork]) as session,
    ):
        guard = Guard(session, SEND)
        guard.edits = False
        guard.function(lambda given: pytest.fail("ran"))({"to": "bob"})


def test_a_strict_session_judges_what_the_model_wrote(tmp_path: Path) -> None:
    """The framework has made a number of the text already."""
    with Session("job", store=tmp_path, options=Options(strict=True)) as session:
        guarded = Guard(session, SEND).function(lambda given: pytest.fail("ran"))
        with asking({"to": "bob", "n": "3"}) as asked, pytest.raises(ArgumentsInvalid):
            guarded({"to": "bob", "n": 3})
        assert asked.reached
        assert Guard(session, SEND).function(lambda given: "sent")({"to": "bob", "n": 3}) == "sent"
    (refused,) = events(session, "refused")
    assert refused["args"] == {"to": "bob", "n": "3"}


def test_a_call_that_the_framework_refuses_is_on_record_once(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        with asking() as asked:
            assert not asked.reached
            refuse(session, SEND, {"to": 3}, reason="ValidationError", call_id="c1")
            assert asked.reached
        with asking() as asked:
            Guard(session, SEND).function(lambda given: "sent")({"to": "bob"})
            assert asked.reached
    (refused,) = events(session, "refused")
    assert (refused["name"], refused["call_id"]) == ("send", "c1")


def test_a_body_may_do_what_it_likes_and_an_agent_may_not(tmp_path: Path) -> None:
    found: list[Any] = []

    def body(given: dict[str, Any]) -> None:
        found.append((refuses_unguarded(), step_here()))

    assert (refuses_unguarded(), step_here()) == (None, None)
    with Session("job", store=tmp_path, options=Options(unguarded="refuse")) as session:
        assert refuses_unguarded() is session
        Guard(session, SEND).function(body)({"to": "bob"})
        scope = dataclasses.replace(SEND, name="team", effect="scope")
        session.run_call(scope, {}, lambda **_: body({}))
    assert found == [(None, (session.run_id, 1)), (session, (session.run_id, 2))]
