"""Arguments and results are the same values in every framework."""

import pytest

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import GIVERS, ORDER, PLAN

__all__ = ["ValueSuite"]

PLANNED = {
    "what": {"items": [{"name": "é", "price": 2}, {"name": "b"}]},
    "colour": "b",
    "when": "2026-01-02T03:04:05+00:00",
    "price": "12.50",
    "place": "a/b",
    "tags": ["x"],
}
CANONICAL = {
    "what": {
        "items": [{"name": "é", "price": "2"}, {"name": "b", "price": "1.50"}],
        "colour": "r",
    },
    "colour": "b",
    "when": "2026-01-02T03:04:05Z",
    "price": "12.50",
    "place": "a/b",
    "tags": ["x"],
}
NATIVE = {
    "give_list": ["a", 1, None],
    "give_dict": {"b": [1, 2.5], "a": True},
    "give_none": None,
    "give_text": "plain “text”",
    "give_number": 3,
}


class ValueSuite(Suite):
    """Canonical arguments, native results, injected values."""

    @pytest.mark.parametrize("raw", [{"count": "3"}, {"count": 3}, {"count": 3, "unit": "box"}])
    def test_arguments_are_recorded_coerced_and_with_defaults(
        self, stage: Stage, mode: Mode, raw: dict[str, object]
    ) -> None:
        first = stage.play(Scenario([ORDER], [[("order", raw)], "all done"]), mode)
        assert first.error is None
        assert first.steps[0]["args"] == {"count": 3, "unit": "box"}
        other = Scenario([ORDER], [[("order", {"unit": "box", "count": 3})], "all done"])
        replayed = stage.play(other, mode, replay="offline")
        assert replayed.ran == ()
        assert replayed.steps[0]["key"] == first.steps[0]["key"]

    def test_typed_arguments_are_recorded_in_one_form(self, stage: Stage, mode: Mode) -> None:
        scenario = Scenario([PLAN], [[("plan", PLANNED)], "all done"])
        played = stage.play(scenario, mode)
        assert played.error is None
        assert played.ran == ("plan",)
        assert played.steps[0]["args"] == CANONICAL
        replayed = stage.play(scenario, mode, replay="offline")
        assert replayed.ran == ()
        assert replayed.seen == [("planned",)]

    @pytest.mark.parametrize("spec", GIVERS, ids=lambda spec: str(spec.name))
    def test_results_reach_the_model_as_without_us(
        self, stage: Stage, mode: Mode, spec: ToolSpec
    ) -> None:
        scenario = Scenario([spec], [[(spec.name, {})], "all done"])
        plain = stage.plain(scenario, mode)
        recorded = stage.play(scenario, mode)
        replayed = stage.play(scenario, mode, replay="offline")
        assert recorded.seen == plain.seen
        assert replayed.seen == plain.seen
        assert replayed.ran == ()

    @pytest.mark.parametrize("spec", GIVERS, ids=lambda spec: str(spec.name))
    def test_results_are_recorded_before_they_are_made_text(
        self, stage: Stage, mode: Mode, spec: ToolSpec
    ) -> None:
        played = stage.play(Scenario([spec], [[(spec.name, {})], "all done"]), mode)
        outcome = played.steps[0]["outcome"]
        assert "lossy" not in outcome
        if spec.name == "give_model":
            assert outcome["typed"] is True
            assert not isinstance(outcome["value"], str)
        else:
            assert outcome["value"] == NATIVE[spec.name]

    @needs("injection")
    def test_what_is_injected_is_no_part_of_the_call(self, stage: Stage, mode: Mode) -> None:
        given: list[str] = []

        def ask(question: str, who: str) -> str:
            """Ask somebody a question."""
            given.append(who)
            return f"answer to {question}"

        tool = ToolSpec(ask, injected="who")
        script: list[Message] = [[("ask", {"question": "why"})], "all done"]
        recorded = stage.play(Scenario([tool], script, injected="ann"), mode)
        assert recorded.error is None
        assert given == ["ann"]
        assert recorded.steps[0]["args"] == {"question": "why"}
        replayed = stage.play(Scenario([tool], script, injected="bob"), mode, replay="offline")
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen
        assert "ann" not in repr(recorded.lines)
