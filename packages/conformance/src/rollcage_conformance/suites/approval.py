"""A call that somebody has to allow: it halts the run, and the run can go on another day."""

from typing import Any

import pytest
from rollcage import Approval, ApprovalRequest, ApprovalRequired, Approver, StepView, Verdict

from rollcage_conformance.scenario import Message, Scenario
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, SEND, notes

__all__ = ["ApprovalSuite"]


def ask_for_b(step: StepView) -> Verdict | None:
    """A rule that wants somebody to allow one call."""
    if step.args.get("text") != "b":
        return None
    return Verdict.ask("somebody has to read this first", code="needs_reading")


def reject(_: ApprovalRequest) -> Approval:
    """An approver that says no."""
    return Approval(False, by="ann", reason="use another word")


def broken_approver(request: ApprovalRequest) -> Approval:
    """An approver that has a bug."""
    raise ZeroDivisionError(request.name)


class ApprovalSuite(Suite):
    """Rules that ask: while nobody is there to answer, and where an approver is."""

    def test_a_call_that_needs_approval_halts_and_runs_nothing(
        self, stage: Stage, mode: Mode
    ) -> None:
        played = stage.play(notes("a", "b", "c"), mode, rules=[ask_for_b])
        assert played.ran == ("send",)
        assert isinstance(played.error, ApprovalRequired)
        assert "somebody has to read this first" in str(played.error)
        assert played.events[-1]["status"] == "halted"

    @needs("halting")
    def test_an_agent_ends_where_it_needs_approval(self, stage: Stage, mode: Mode) -> None:
        played = stage.play(notes("a", "b", "c"), mode, rules=[ask_for_b])
        assert isinstance(played.error, ApprovalRequired)
        assert played.script.asked == 2
        assert played.seen == [("sent a",)]

    @needs("parallel")
    def test_a_call_that_needs_approval_beside_others(self, stage: Stage, mode: Mode) -> None:
        calls = [("look", {"place": "x"}), ("send", {"text": "b"})]
        script: list[Message] = [calls, "all done"]
        played = stage.play(Scenario([SEND, LOOK], script), mode, rules=[ask_for_b])
        assert "send" not in played.ran
        assert isinstance(played.error, ApprovalRequired)

    def test_an_approved_call_runs_once(self, stage: Stage, mode: Mode) -> None:
        asked: list[object] = []

        def approver(request: ApprovalRequest) -> Approval:
            asked.append(request.args["text"])
            return Approval(True, by="ann")

        played = stage.play(notes("a", "b", "c"), mode, rules=[ask_for_b], approver=approver)
        assert played.error is None
        assert played.ran == ("send",) * 3
        assert played.seen == [("sent a",), ("sent b",), ("sent c",)]
        assert asked == ["b"]
        how: dict[str, Any] = {"rules": [ask_for_b], "approver": approver}
        replayed = stage.play(notes("a", "b", "c"), mode, replay="resume", **how)
        assert (replayed.error, replayed.ran) == (None, ())
        assert asked == ["b"]

    @pytest.mark.parametrize("approver", [reject, broken_approver])
    def test_a_rejected_call_runs_nothing_and_the_agent_goes_on(
        self, stage: Stage, mode: Mode, approver: Approver
    ) -> None:
        played = stage.play(notes("a", "b", "c"), mode, rules=[ask_for_b], approver=approver)
        assert played.error is None
        assert played.result.text == "all done"
        assert played.ran == ("send",) * 2
        assert [played.seen[0], played.seen[2]] == [("sent a",), ("sent c",)]
        if approver is reject:
            assert "use another word" in played.seen[1][0]
        assert played.how == ["ran", "blocked", "ran"]

    def test_a_run_goes_on_once_nothing_asks_any_more(self, stage: Stage, mode: Mode) -> None:
        stage.play(notes("a", "b", "c"), mode, rules=[ask_for_b])
        resumed = stage.play(notes("a", "b", "c"), mode)
        assert resumed.error is None
        assert resumed.how == ["replayed", "ran", "ran"]
        assert resumed.ran == ("send",) * 2
        assert resumed.seen == [("sent a",), ("sent b",), ("sent c",)]

    def test_what_was_allowed_once_needs_no_approval_in_replay(
        self, stage: Stage, mode: Mode
    ) -> None:
        recorded = stage.play(notes("a", "b"), mode)
        replayed = stage.play(notes("a", "b"), mode, replay="resume", rules=[ask_for_b])
        assert replayed.error is None
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen
