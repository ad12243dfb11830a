"""Model calls are recorded and replayed like tools, streamed or not."""

import dataclasses

from rollcage_conformance.golden import steps
from rollcage_conformance.scenario import Scenario, Script
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import Crash, notes

__all__ = ["ModelSuite"]

TEXT = "all of it is done"


def guarded(*texts: str, end: str | Exception = TEXT) -> Scenario:
    """An agent whose model calls are guarded too."""
    return dataclasses.replace(notes(*texts, end=end), guarded_model=True)


class ModelSuite(Suite):
    """Guarded models."""

    @needs("models")
    def test_a_replayed_model_is_not_asked(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(guarded("a", "b"), mode)
        assert recorded.error is None
        assert recorded.script.asked == 3
        assert len(steps(recorded.events, "model")) == 3
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

    @needs("streaming")
    def test_tools_are_guarded_while_the_model_streams(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(notes("a", "b", end=TEXT), mode, stream=True)
        assert recorded.error is None
        assert recorded.how == ["ran", "ran"]
        assert list(recorded.result.chunks) == Script.pieces(TEXT)
        replayed = stage.play(notes("a", "b", end=TEXT), mode, stream=True, replay="offline")
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen
