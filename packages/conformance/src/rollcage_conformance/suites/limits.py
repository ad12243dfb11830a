"""Budgets, loops and the kill switch hold in every framework."""

from typing import Any

import pytest
from rollcage import RunStopped, Session
from rollcage.stages.orders import lift_order, stop_run

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.suites.policies import ruling
from rollcage_conformance.tools import LOOK, SEND, Crash, notes

__all__ = ["LimitSuite"]

TWO_SENDS = """
[[limits.rules]]
id = "two"
tools = ["send"]
calls = 2
remedy = "Look around instead."
"""

CIRCLES = """
[limits.loops]
id = "circles"
same = 2
ignore = ["look"]
"""


def codes(played: Played) -> list[str]:
    """Return the codes of the denied calls, in order."""
    return [step["verdict"]["code"] for step in played.steps if step["how"] == "blocked"]


class LimitSuite(Suite):
    """Limits and loops of a policy, and the kill switch."""

    @needs("parallel")
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    def test_of_the_calls_of_a_turn_as_many_run_as_there_is_room_for(
        self, stage: Stage, mode: Mode, *, stream: bool
    ) -> None:
        if stream and not self.capabilities.streaming:
            pytest.skip("the adapter declares capabilities.streaming = False")
        calls = [("send", {"text": each}) for each in "abcde"]
        script: list[Message] = [calls, [("look", {"place": "b"})], "all done"]
        scenario = Scenario([SEND, LOOK], script)
        played = stage.play(scenario, mode, stream=stream, gate=[ruling(TWO_SENDS)])
        assert played.error is None
        assert sorted(played.ran) == ["look", "send", "send"]
        assert sorted(played.how) == ["blocked"] * 3 + ["ran"] * 3
        assert codes(played) == ["limit_calls"] * 3
        denied = [text for text in played.seen[0] if "Look around instead." in text]
        assert len(denied) == 3
        assert played.seen[1] == ("saw b",)
        rules = {step["verdict"]["rule"] for step in played.steps if step["how"] == "blocked"}
        assert rules == {"two"}

    def test_a_job_that_is_resumed_has_one_budget(self, stage: Stage, mode: Mode) -> None:
        how: dict[str, Any] = {"gate": [ruling(TWO_SENDS)]}
        stage.play(notes("a", "b", end=Crash("power cut")), mode, **how)
        resumed = stage.play(notes("a", "b", "c"), mode, **how)
        assert (resumed.error, resumed.ran) == (None, ())
        assert resumed.how == ["replayed", "replayed", "blocked"]
        assert "Look around instead." in resumed.seen[2][0]

    def test_what_is_denied_takes_nothing_of_a_budget(self, stage: Stage, mode: Mode) -> None:
        rule = """
            [[rules]]
            id = "no-b"
            tools = ["send"]
            when = 'args.text == "b"'
            decision = "deny"
            reason = "no b"
        """
        played = stage.play(notes("a", "b", "c", "d"), mode, gate=[ruling(rule + TWO_SENDS)])
        assert (played.error, played.ran) == (None, ("send",) * 2)
        assert played.how == ["ran", "blocked", "ran", "blocked"]
        assert codes(played) == ["denied", "limit_calls"]

    def test_an_agent_that_goes_round_in_circles_is_told(self, stage: Stage, mode: Mode) -> None:
        same: list[Message] = [[("send", {"text": "a"})]] * 4
        script = [*same, [("send", {"text": "b"})], *[[("look", {"place": "c"})]] * 3, "all done"]
        played = stage.play(Scenario([SEND, LOOK], script), mode, gate=[ruling(CIRCLES)])
        assert played.error is None
        assert played.ran == ("send",) * 3 + ("look",) * 3
        assert played.how == ["ran", "ran", "blocked", "blocked", *["ran"] * 4]
        assert codes(played) == ["loop_same"] * 2
        assert "with these very arguments 2 times in a row" in played.seen[2][0]
        assert played.steps[2]["verdict"]["rule"] == "circles"

    @needs("models", "usage")
    def test_a_model_that_has_used_up_its_tokens_is_not_asked(
        self, stage: Stage, mode: Mode
    ) -> None:
        rule = "[[limits.rules]]\nid = 'tokens'\nkinds = ['model']\ntokens = 30\n"
        texts = notes("a", "b", "c", "d")
        scenario = Scenario(texts.tools, texts.script, guarded_model=True)
        played = stage.play(scenario, mode, gate=[ruling(rule)])
        assert (played.script.asked, played.ran) == (2, ("send",) * 2)
        assert played.result.text == ""
        asked = played.asked
        assert [step["how"] for step in asked[:3]] == ["ran", "ran", "blocked"]
        assert asked[2]["verdict"]["code"] == "limit_tokens"

    # --- the kill switch -------------------------------------------------------------------------

    def test_nothing_runs_once_a_run_is_stopped(self, stage: Stage, mode: Mode) -> None:
        played = _stopped_on_the_way(stage, mode)
        assert played.ran == ("send", "alarm")
        assert isinstance(played.error, RunStopped)
        assert (played.error.by, "enough" in str(played.error)) == ("ann", True)
        assert played.status == "halted"
        (stopped,) = played.of("ordered")
        assert (stopped["order"], stopped["by"], stopped["reason"]) == ("stop", "ann", "enough")

    @needs("halting")
    def test_an_agent_whose_run_is_stopped_ends(self, stage: Stage, mode: Mode) -> None:
        played = _stopped_on_the_way(stage, mode)
        assert isinstance(played.error, RunStopped)
        assert played.script.asked <= 3  # up to the call that was refused
        assert played.result.text == ""

    def test_a_stopped_run_goes_on_once_that_is_lifted(self, stage: Stage, mode: Mode) -> None:
        played = _stopped_on_the_way(stage, mode)
        script: list[Message] = [[("send", {"text": "a"})], [("alarm", {})], "all done"]

        def alarm() -> str:
            """Is there a fire?"""
            raise AssertionError("it is recorded")

        scenario = Scenario([SEND, ToolSpec(alarm)], script)
        with pytest.raises(RunStopped):  # on entering: no agent begins
            stage.play(scenario, mode)
        lift_order(stage.store, played.run)
        resumed = stage.play(scenario, mode)
        assert (resumed.error, resumed.ran) == (None, ())
        assert resumed.how == ["replayed"] * 2


def _stopped_on_the_way(stage: Stage, mode: Mode) -> Played:
    """Play an agent whose run is stopped while its second tool runs."""
    sessions: list[Session] = []

    def alarm() -> str:
        """Is there a fire?"""
        stop_run(stage.store, sessions[0].run_id, by="ann", reason="enough")
        return "there is"

    script: list[Message] = [[("send", {"text": "a"})], [("alarm", {})], [("send", {"text": "b"})]]
    scenario = Scenario([SEND, ToolSpec(alarm)], [*script, "all done"])
    return stage.play(scenario, mode, opened=sessions.append)
