"""Model calls are recorded and replayed like tools, streamed or not."""

import dataclasses
import re
import traceback

import pytest
from rollcage import Diverged

from rollcage_conformance.scenario import Scenario, Script
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import ORDER, SEND, Crash, notes

__all__ = ["ModelSuite"]

TEXT = "all of it is done"
THOUGHT = "first one, then the other"


def guarded(*texts: str, end: str | Exception = TEXT) -> Scenario:
    """Return an agent whose model calls are guarded too."""
    return dataclasses.replace(notes(*texts, end=end), guarded_model=True)


def turns(played: Played) -> list[tuple[int, int, str, object]]:
    """Return the tool calls of an agent: turn, slot, and call."""
    return [(step["turn"], step["slot"], step["name"], step["args"]) for step in played.steps]


def _room(stage: Stage, run: str) -> int:
    """Return the size of a run's log and its blobs in bytes."""
    log = b"".join(stage.store.read(run))
    blobs = set(re.findall(rb'"sha256":"([0-9a-f]{64})","size":([0-9]+)', log))
    return len(log) + sum(int(size) for _, size in blobs)


class ModelSuite(Suite):
    """Guarded models."""

    @needs("models")
    def test_a_replayed_model_is_not_asked(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(guarded("a", "b"), mode)
        assert recorded.error is None
        assert recorded.script.asked == 3
        assert len(recorded.asked) == 3
        replayed = stage.play(guarded("a", "b"), mode, replay="offline")
        assert replayed.error is None
        assert (replayed.script.asked, replayed.ran) == (0, ())
        assert replayed.result == recorded.result
        assert replayed.how == ["replayed"] * 2

    @needs("models")
    def test_a_resume_asks_the_model_only_for_the_rest(self, stage: Stage, mode: Mode) -> None:
        stage.play(guarded("a", "b", end=Crash("power cut")), mode)
        resumed = stage.play(guarded("a", "b", "c"), mode)
        assert resumed.error is None
        assert resumed.ran == ("send",)
        assert resumed.script.asked == 2  # for the message at which it died, and for the last
        assert resumed.result.text == TEXT

    @needs("models")
    def test_the_next_question_does_not_go_on_with_the_effects_of_this_one(
        self, stage: Stage, mode: Mode
    ) -> None:
        crashed = guarded("a", end=Crash("power cut"))
        stage.play(crashed, mode)
        other = dataclasses.replace(guarded("a"), question="Go on.")
        halted = stage.play(other, mode)
        assert isinstance(halted.error, Diverged)
        assert (halted.ran, halted.script.asked, halted.status) == ((), 0, "halted")
        with_input = stage.play(other, mode, input="Go on.")
        assert (with_input.error, with_input.ran) == (None, ("send",))
        resumed = stage.play(guarded("a"), mode)
        assert (resumed.error, resumed.ran, resumed.script.asked) == (None, (), 1)

    @needs("models")
    def test_a_log_grows_with_the_conversation(self, stage: Stage, mode: Mode) -> None:
        """Lines do not repeat earlier messages: twice the turns take twice the room."""
        sizes: list[int] = []
        for turns in (4, 8, 16):
            texts = [f"{turn} ".ljust(3000, "x") for turn in range(turns)]
            played = stage.play(guarded(*texts), mode, name=f"{turns} turns")
            assert played.error is None
            sizes.append(_room(stage, played.run))
        assert sizes[2] - sizes[1] <= 2.2 * (sizes[1] - sizes[0])

    @needs("models", "streaming")
    def test_a_stream_replays_in_the_same_pieces(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(guarded("a"), mode, stream=True)
        assert recorded.error is None
        assert recorded.result.text == TEXT
        assert list(recorded.result.chunks) == Script.pieces(TEXT)
        replayed = stage.play(guarded("a"), mode, stream=True, replay="offline")
        assert replayed.error is None
        assert (replayed.script.asked, replayed.ran) == (0, ())
        assert replayed.result == recorded.result

    @needs("models")
    def test_an_answer_is_recorded_in_a_neutral_form(self, stage: Stage, mode: Mode) -> None:
        calls = [("order", {"count": "3"}), ("send", {"text": "é"})]
        played = stage.play(Scenario([ORDER, SEND], [calls, TEXT], guarded_model=True), mode)
        assert played.error is None
        asked, ended = played.answers
        assert asked["tool_calls"] == [
            list(call) for call in calls
        ]  # the model's arguments: not validated
        assert asked.get("text", "") == ""
        assert ended["text"] == TEXT
        assert "tool_calls" not in ended

    @needs("models", "streaming")
    def test_a_streamed_answer_is_recorded_in_the_same_form(self, stage: Stage, mode: Mode) -> None:
        scenario = dataclasses.replace(guarded("a"), thought=THOUGHT)
        whole = stage.play(scenario, mode)
        streamed = stage.play(scenario, mode, stream=True, name="streamed")
        assert streamed.error is None
        assert streamed.answers == whole.answers

    @needs("models", "usage")
    def test_what_an_answer_took_is_recorded_and_given_in_replay(
        self, stage: Stage, mode: Mode
    ) -> None:
        recorded = stage.play(guarded("a", "b"), mode)
        assert [answer.get("usage") for answer in recorded.answers] == [Script.USAGE] * 3
        replayed = stage.play(guarded("a", "b"), mode, replay="offline")
        assert replayed.error is None
        assert [asked["how"] for asked in replayed.asked] == ["replayed"] * 3
        assert replayed.answers == recorded.answers

    @needs("models", "reasoning")
    def test_what_the_model_thought_is_recorded(self, stage: Stage, mode: Mode) -> None:
        scenario = dataclasses.replace(guarded("a"), thought=THOUGHT)
        played = stage.play(scenario, mode)
        assert played.error is None
        assert [answer.get("reasoning") for answer in played.answers] == [THOUGHT] * 2
        assert [answer.get("text", "") for answer in played.answers] == ["", TEXT]

    @needs("models", "replay_models")
    @pytest.mark.parametrize("model", ["plain", "guarded"])
    def test_recorded_decisions_drive_an_agent(self, stage: Stage, mode: Mode, model: str) -> None:
        recorded = stage.play(guarded("a", "b"), mode)
        scenario = dataclasses.replace(notes("a", "b"), guarded_model=model == "guarded")
        driven = stage.play(scenario, mode, replay="offline", decisions="source")
        assert driven.error is None
        assert (driven.script.asked, driven.ran) == (0, ())
        assert driven.result.text == TEXT
        assert driven.how == ["replayed"] * 2
        assert turns(driven) == turns(recorded)

    @needs("models", "replay_models")
    def test_decisions_of_a_trace_drive_an_agent_whose_tools_run(
        self, stage: Stage, mode: Mode
    ) -> None:
        recorded = stage.play(guarded("a", "b"), mode)
        run = stage.store, recorded.run
        driven = stage.play(notes("a", "b"), mode, name="other", decisions=run)
        assert driven.error is None
        assert driven.script.asked == 0
        assert driven.ran == ("send",) * 2
        assert driven.result.text == TEXT
        assert turns(driven) == turns(recorded)

    @needs("models", "replay_models")
    def test_an_agent_that_asks_for_more_than_is_recorded_is_told(
        self, stage: Stage, mode: Mode
    ) -> None:
        stage.play(guarded("a", "b", end=Crash("power cut")), mode)
        driven = stage.play(notes("a", "b"), mode, replay="offline", decisions="source")
        assert driven.ran == ()
        assert driven.error is not None
        assert "holds 2 answers" in "".join(traceback.format_exception(driven.error))

    @needs("streaming")
    def test_tools_are_guarded_while_the_model_streams(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(notes("a", "b", end=TEXT), mode, stream=True)
        assert recorded.error is None
        assert recorded.how == ["ran", "ran"]
        assert list(recorded.result.chunks) == Script.pieces(TEXT)
        replayed = stage.play(notes("a", "b", end=TEXT), mode, stream=True, replay="offline")
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen
