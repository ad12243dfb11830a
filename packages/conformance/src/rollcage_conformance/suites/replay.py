"""A recorded call happens once; a replayed call does not happen."""

from typing import Literal

import pytest
from rollcage import ReplayMiss

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, SEND, Crash, notes, polling

__all__ = ["ReplaySuite"]


class ReplaySuite(Suite):
    """Record, replay, resume after a crash, identical calls, an offline miss."""

    rounds = 100  # of parallel identical calls

    def test_each_call_runs_once_and_is_recorded(self, stage: Stage, mode: Mode) -> None:
        script: list[Message] = [[("send", {"text": "a"})], [("look", {"place": "b"})], "all done"]
        played = stage.play(Scenario([SEND, LOOK], script), mode)
        assert played.error is None
        assert played.result.text == "all done"
        assert played.ran == ("send", "look")
        assert played.seen == [("sent a",), ("saw b",)]
        assert [(s["name"], s["args"], s["effect"], s["how"]) for s in played.steps] == [
            ("send", {"text": "a"}, "write", "ran"),
            ("look", {"place": "b"}, "read", "ran"),
        ]
        assert [s["outcome"] for s in played.steps] == [
            {"status": "ok", "value": "sent a"},
            {"status": "ok", "value": "saw b"},
        ]
        assert played.status == "ok"

    @pytest.mark.parametrize("replay", ["resume", "offline"])
    def test_replay_runs_nothing_and_the_model_sees_the_same(
        self, stage: Stage, mode: Mode, replay: Literal["resume", "offline"]
    ) -> None:
        scenario = notes("a", "b", "c")
        recorded = stage.play(scenario, mode)
        replayed = stage.play(scenario, mode, replay=replay)
        assert recorded.ran == ("send",) * 3
        assert replayed.ran == ()
        assert replayed.how == ["replayed"] * 3
        assert replayed.error is None
        assert replayed.seen == recorded.seen
        assert replayed.result == recorded.result
        assert replayed.stats is not None
        assert (replayed.stats.hits, replayed.stats.misses) == (3, 0)

    @pytest.mark.parametrize("crash_after", [1, 2, 3])
    def test_a_resume_after_a_crash_hits_what_was_done(
        self, stage: Stage, mode: Mode, crash_after: int
    ) -> None:
        texts = "abcd"
        crashed = stage.play(notes(*texts[:crash_after], end=Crash("power cut")), mode)
        assert crashed.error is not None
        assert crashed.ran == ("send",) * crash_after
        assert crashed.status == "error"
        resumed = stage.play(notes(*texts), mode)
        assert resumed.error is None
        assert resumed.how == ["replayed"] * crash_after + ["ran"] * (4 - crash_after)
        assert resumed.ran == ("send",) * (4 - crash_after)
        assert resumed.seen == [(f"sent {text}",) for text in texts]
        again = stage.play(notes(*texts), mode, replay="resume")
        assert again.ran == ()
        assert again.seen == resumed.seen

    def test_a_resume_runs_the_failed_tool_again(self, stage: Stage, mode: Mode) -> None:
        broken = [True]

        def repair(part: str) -> str:
            """Repair a part."""
            if broken:
                raise ValueError("no tools at hand")
            return f"repaired {part}"

        calls = [[("send", {"text": "a"})], [("repair", {"part": "b"})]]
        tools = [SEND, ToolSpec(repair, raises=(ValueError,))]
        failed = stage.play(Scenario(tools, [*calls, Crash("gave up")]), mode)
        assert failed.error is not None
        assert [step["outcome"]["status"] for step in failed.steps] == ["ok", "error"]
        broken.clear()
        resumed = stage.play(Scenario(tools, [*calls, "all done"]), mode)
        assert resumed.error is None
        assert resumed.ran == ("repair",)
        assert resumed.seen == [("sent a",), ("repaired b",)]

    def test_identical_calls_in_a_row_replay_in_their_order(self, stage: Stage, mode: Mode) -> None:
        calls: list[Message] = [[("poll", {})]] * 3
        scenario = Scenario([polling()], [*calls, "all done"])
        expected = [("answer 1",), ("answer 2",), ("answer 3",)]
        assert stage.play(scenario, mode).seen == expected
        replayed = stage.play(scenario, mode, replay="offline")
        assert replayed.seen == expected
        assert replayed.ran == ()

    def test_an_identical_call_after_another_is_a_call_of_its_own(
        self, stage: Stage, mode: Mode
    ) -> None:
        script: list[Message] = [[("poll", {})], [("look", {"place": "x"})], [("poll", {})]]
        scenario = Scenario([polling(), LOOK], [*script, "all done"])
        recorded = stage.play(scenario, mode)
        assert recorded.seen == [("answer 1",), ("saw x",), ("answer 2",)]
        replayed = stage.play(scenario, mode, replay="offline")
        assert (replayed.ran, replayed.seen) == ((), recorded.seen)

    @needs("parallel")
    def test_parallel_identical_calls_keep_their_slots(self, stage: Stage, mode: Mode) -> None:
        width = 3
        calls: list[Message] = [[("poll", {})] * width] * self.rounds
        scenario = Scenario([polling()], [*calls, "all done"])
        recorded = stage.play(scenario, mode)
        assert recorded.error is None
        assert len(recorded.ran) == width * self.rounds
        values = [step["outcome"]["value"] for step in recorded.steps]
        assert values == [text for texts in recorded.seen for text in texts]
        assert [step["slot"] for step in recorded.steps] == [*range(width)] * self.rounds
        replayed = stage.play(scenario, mode, replay="offline")
        assert replayed.error is None
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen

    @needs("parallel")
    def test_parallel_calls_are_one_turn_and_one_batch(self, stage: Stage, mode: Mode) -> None:
        pair = [("send", {"text": "a"}), ("send", {"text": "b"})]
        played = stage.play(Scenario([SEND], [pair, [("send", {"text": "c"})], "all done"]), mode)
        first, second, third = played.steps
        assert [step["args"]["text"] for step in (first, second, third)] == ["a", "b", "c"]
        assert first["turn"] == second["turn"] < third["turn"]
        assert first["position"] == second["position"] < third["position"]

    def test_an_offline_miss_halts_and_names_the_nearest(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(notes("a", "b", "c"), mode)
        missed = stage.play(notes("a", "x", "c"), mode, replay="offline")
        assert missed.ran == ()
        assert isinstance(missed.error, ReplayMiss)
        assert "nearest recorded call is step" in str(missed.error)
        assert "(send)" in str(missed.error)
        assert "text" in str(missed.error)
        assert missed.lines == recorded.lines

    @needs("halting")
    def test_an_offline_miss_ends_the_agent(self, stage: Stage, mode: Mode) -> None:
        stage.play(notes("a", "b", "c"), mode)
        missed = stage.play(notes("a", "x", "c"), mode, replay="offline")
        assert isinstance(missed.error, ReplayMiss)
        assert missed.script.asked == 2
        assert missed.seen == [("sent a",)]
