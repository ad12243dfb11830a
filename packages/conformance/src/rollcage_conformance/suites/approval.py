"""Calls that require approval: they halt the run, and the run can continue another day."""

from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    ApprovalRequired,
    Approver,
    StepView,
    Verdict,
)
from rollcage.stages.queue import ApprovalQueue, QueueApprover

from rollcage_conformance.scenario import Message, Scenario
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, SEND, notes

__all__ = ["ApprovalSuite"]


def ask_for_b(step: StepView) -> Verdict | None:
    """Ask for approval of one call."""
    if step.args.get("text") != "b":
        return None
    return Verdict.ask("somebody has to read this first", code="needs_reading")


def reject(_: ApprovalRequest) -> Approval:
    """Reject."""
    return Approval(False, by="ann", reason="use another word")


def broken_approver(request: ApprovalRequest) -> Approval:
    """Fail with a bug."""
    raise ZeroDivisionError(request.name)


class ApprovalSuite(Suite):
    """Rules that ask: without an approver, and with one."""

    def test_a_call_that_needs_approval_halts_and_runs_nothing(
        self, stage: Stage, mode: Mode
    ) -> None:
        played = stage.play(notes("a", "b", "c"), mode, gate=[ask_for_b])
        assert played.ran == ("send",)
        assert isinstance(played.error, ApprovalRequired)
        assert "somebody has to read this first" in str(played.error)
        assert played.status == "paused"

    @needs("halting")
    def test_an_agent_ends_where_it_needs_approval(self, stage: Stage, mode: Mode) -> None:
        played = stage.play(notes("a", "b", "c"), mode, gate=[ask_for_b])
        assert isinstance(played.error, ApprovalRequired)
        assert played.script.asked == 2
        assert played.seen == [("sent a",)]

    @needs("parallel")
    def test_a_call_that_needs_approval_beside_others(self, stage: Stage, mode: Mode) -> None:
        calls = [("look", {"place": "x"}), ("send", {"text": "b"})]
        script: list[Message] = [calls, "all done"]
        played = stage.play(Scenario([SEND, LOOK], script), mode, gate=[ask_for_b])
        assert "send" not in played.ran
        assert isinstance(played.error, ApprovalRequired)

    def test_an_approved_call_runs_once(self, stage: Stage, mode: Mode) -> None:
        asked: list[object] = []

        def approver(request: ApprovalRequest) -> Approval:
            asked.append(request.args["text"])
            return Approval(True, by="ann")

        played = stage.play(notes("a", "b", "c"), mode, gate=[ask_for_b], approver=approver)
        assert played.error is None
        assert played.ran == ("send",) * 3
        assert played.seen == [("sent a",), ("sent b",), ("sent c",)]
        assert asked == ["b"]
        how: dict[str, Any] = {"gate": [ask_for_b], "approver": approver}
        replayed = stage.play(notes("a", "b", "c"), mode, replay="resume", **how)
        assert (replayed.error, replayed.ran) == (None, ())
        assert asked == ["b"]

    @pytest.mark.parametrize("approver", [reject, broken_approver])
    def test_a_rejected_call_runs_nothing_and_the_agent_goes_on(
        self, stage: Stage, mode: Mode, approver: Approver
    ) -> None:
        played = stage.play(notes("a", "b", "c"), mode, gate=[ask_for_b], approver=approver)
        assert played.error is None
        assert played.result.text == "all done"
        assert played.ran == ("send",) * 2
        assert [played.seen[0], played.seen[2]] == [("sent a",), ("sent c",)]
        if approver is reject:
            assert "use another word" in played.seen[1][0]
        assert played.how == ["ran", "blocked", "ran"]

    @pytest.mark.parametrize(
        ("approval", "text", "ran"),
        [
            (Approval.edit({"text": "d"}, by="ann"), "sent d", 3),
            (Approval.respond("it is on its way", by="ann"), "it is on its way", 2),
        ],
        ids=["edit", "respond"],
    )
    def test_a_call_may_be_edited_or_answered_instead(
        self, stage: Stage, mode: Mode, approval: Approval, text: str, ran: int
    ) -> None:
        asked: list[object] = []

        def approver(request: ApprovalRequest) -> Approval:
            asked.append(request.args["text"])
            return approval

        how: dict[str, Any] = {"gate": [ask_for_b], "approver": approver}
        played = stage.play(notes("a", "b", "c"), mode, **how)
        assert played.error is None
        assert played.ran == ("send",) * ran
        assert played.seen == [("sent a",), (text,), ("sent c",)]
        for replay in ("resume", "offline", "resume"):  # includes the lines of an earlier replay
            again = stage.play(notes("a", "b", "c"), mode, replay=replay, **how)
            assert (again.error, again.ran, again.seen) == (None, (), played.seen)
        assert asked == ["b"]

    def test_a_deny_wins_over_an_approver(self, stage: Stage, mode: Mode) -> None:
        def rule(step: StepView) -> Verdict | None:
            if step.args.get("text") == "d":
                return Verdict.deny("never send a d", code="no_d")
            return ask_for_b(step)

        def approver(_: ApprovalRequest) -> Approval:
            return Approval.edit({"text": "d"}, by="ann")

        played = stage.play(notes("a", "b", "c"), mode, gate=[rule], approver=approver)
        assert (played.error, played.ran) == (None, ("send",) * 2)
        assert "never send a d" in played.seen[1][0]

    def test_a_rejection_is_not_asked_about_again_in_that_run(
        self, stage: Stage, mode: Mode
    ) -> None:
        stage.play(notes("a", "b", "c"), mode, gate=[ask_for_b], approver=reject)
        again = stage.play(
            notes("a", "b", "c"), mode, replay="resume", gate=[ask_for_b], approver=broken_approver
        )
        assert (again.error, again.ran) == (None, ())
        assert again.how == ["replayed", "blocked", "replayed"]
        assert "use another word" in again.seen[1][0]

    @pytest.mark.parametrize(
        ("approval", "text", "ran"),
        [
            (Approval(True, by="ann"), "sent b", 2),
            (Approval.edit({"text": "d"}, by="ann"), "sent d", 2),
            (Approval.respond("it is on its way", by="ann"), "it is on its way", 1),
            (Approval.reject("use another word", by="ann"), "use another word", 1),
        ],
        ids=["approve", "edit", "respond", "reject"],
    )
    def test_a_run_stops_and_goes_on_once_somebody_has_decided(
        self, stage: Stage, mode: Mode, approval: Approval, text: str, ran: int
    ) -> None:
        how: dict[str, Any] = {"gate": [ask_for_b], "approver": QueueApprover(stage.store)}
        halted = stage.play(notes("a", "b", "c"), mode, **how)
        assert isinstance(halted.error, ApprovalRequired)
        assert (halted.ran, halted.status) == (("send",), "paused")
        queue = ApprovalQueue(stage.store)
        (request,) = queue.waiting()
        queue.decide(request.id, approval)
        resumed = stage.play(notes("a", "b", "c"), mode, **how)
        assert resumed.error is None
        assert resumed.ran == ("send",) * ran
        assert text in resumed.seen[1][0]
        assert [resumed.seen[0], resumed.seen[2]] == [("sent a",), ("sent c",)]
        again = stage.play(notes("a", "b", "c"), mode, replay="resume", **how)
        assert (again.error, again.ran, again.seen) == (None, (), resumed.seen)
        assert queue.waiting() == []
        assert [line["id"] for line in again.of("requested")] == [request.id]

    def test_the_first_call_is_decided_where_nothing_else_is_on_record(
        self, stage: Stage, mode: Mode
    ) -> None:
        how: dict[str, Any] = {"gate": [ask_for_b], "approver": QueueApprover(stage.store)}
        stage.play(notes("b", "c"), mode, **how)
        (request,) = ApprovalQueue(stage.store).waiting()
        ApprovalQueue(stage.store).decide(request.id, Approval(True, by="ann"))
        resumed = stage.play(notes("b", "c"), mode, **how)
        assert resumed.error is None
        assert resumed.seen == [("sent b",), ("sent c",)]

    @needs("parallel")
    def test_a_call_that_was_decided_beside_others_that_ran(self, stage: Stage, mode: Mode) -> None:
        calls = [("send", {"text": "a"}), ("send", {"text": "b"})]
        script: list[Message] = [calls, "all done"]
        how: dict[str, Any] = {"gate": [ask_for_b], "approver": QueueApprover(stage.store)}
        stage.play(Scenario([SEND, LOOK], script), mode, **how)
        queue = ApprovalQueue(stage.store)
        (request,) = queue.waiting()
        queue.decide(request.id, Approval(True, by="ann"))
        resumed = stage.play(Scenario([SEND, LOOK], script), mode, **how)
        assert resumed.error is None
        assert resumed.seen == [("sent a", "sent b")]
        assert queue.waiting() == []
        assert [line["id"] for line in resumed.of("requested")] == [request.id]

    def test_a_run_goes_on_once_nothing_asks_any_more(self, stage: Stage, mode: Mode) -> None:
        stage.play(notes("a", "b", "c"), mode, gate=[ask_for_b])
        resumed = stage.play(notes("a", "b", "c"), mode)
        assert resumed.error is None
        assert resumed.how == ["replayed", "ran", "ran"]
        assert resumed.ran == ("send",) * 2
        assert resumed.seen == [("sent a",), ("sent b",), ("sent c",)]

    def test_what_was_allowed_once_needs_no_approval_in_replay(
        self, stage: Stage, mode: Mode
    ) -> None:
        recorded = stage.play(notes("a", "b"), mode)
        replayed = stage.play(notes("a", "b"), mode, replay="resume", gate=[ask_for_b])
        assert replayed.error is None
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen
