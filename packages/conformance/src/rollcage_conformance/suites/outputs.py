"""An output that breaks its contract is an error for its caller, and is on record."""

from typing import Any, Final

import pytest
from rollcage import OutputDrift

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite
from rollcage_conformance.tools import SEND

__all__ = ["OutputSuite"]

RAW: Final = '{"total": 3, "rows": [truncated'


def report() -> str:
    """Give a report, in JSON."""
    return RAW


def nothing() -> str:
    """Give nothing."""
    return " "


PROMISES: Final = {
    "output_not_json": ToolSpec(report, effect="read", more={"json_output": True}),
    "output_too_large": ToolSpec(report, effect="write", more={"max_output": 8}),
    "output_empty": ToolSpec(nothing, effect="read", more={"allow_empty": False}),
}


class OutputSuite(Suite):
    """Output contracts."""

    @pytest.mark.parametrize("code", PROMISES)
    def test_an_output_that_breaks_its_promise_is_an_error_and_is_kept(
        self, stage: Stage, mode: Mode, code: str
    ) -> None:
        spec = PROMISES[code]
        script: list[Message] = [[(spec.name, {})], [("send", {"text": "b"})], "all done"]
        scenario = Scenario([spec, SEND], script)
        raw = spec.function()
        played = stage.play(scenario, mode)
        assert played.ran[0] == spec.name
        assert played.ran.count(spec.name) == 1
        (step, *_) = played.steps
        assert step["outcome"]["value"] == raw
        assert step["outcome"]["drift"]["code"] == code
        if played.error is None:  # like any tool that raises: the model reads it, or the run ends
            assert code in played.seen[0][0]
            assert RAW not in played.seen[0][0]
            assert played.seen[1] == ("sent b",)
        else:
            assert isinstance(played.error, OutputDrift)
            assert played.error.drift_code == code
        again = stage.play(scenario, mode, replay="offline")
        assert again.ran == ()
        assert again.seen == played.seen
        assert type(again.error) is type(played.error)

    def test_an_output_that_is_only_reported_is_given(self, stage: Stage, mode: Mode) -> None:
        more: dict[str, Any] = {"json_output": True, "on_drift": "report"}
        spec = ToolSpec(report, effect="read", more=more)
        played = stage.play(Scenario([spec], [[("report", {})], "all done"]), mode)
        assert (played.error, played.ran, played.seen) == (None, ("report",), [(RAW,)])
        assert played.steps[0]["outcome"]["drift"]["code"] == "output_not_json"
