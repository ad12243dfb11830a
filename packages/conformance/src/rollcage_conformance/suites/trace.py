"""The same scenario leaves the same trace, in every framework."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from rollcage import tool
from rollcage_policy import Policy, UserInput

from rollcage_conformance.golden import load_golden, normalise, normalise_log
from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suite import Suite
from rollcage_conformance.suites.flow import ANN, ASKED, EVIL, FETCH, MAIL, READ, STRANGERS
from rollcage_conformance.suites.gate import no_sending
from rollcage_conformance.suites.policies import ERRANDS
from rollcage_conformance.suites.values import PLANNED
from rollcage_conformance.tools import GIVERS, LOOK, ORDER, PLAN, SEND, Crash, notes

__all__ = ["GOLDENS", "TraceSuite"]

GOVERNED: Final = (
    ERRANDS
    + STRANGERS
    + """
[[rules]]
id = "mail"
tools = ["mail"]
decision = "allow"
[limits]
loops = { same = 2 }
"""
)

Plot = Callable[[Stage, Mode], list[Played]]


def _sequence(stage: Stage, mode: Mode) -> list[Played]:
    script: list[Message] = [[("send", {"text": "a"})], [("look", {"place": "b"})]]
    scenario = Scenario([SEND, LOOK], [*script, *script, "all done"])
    return [stage.play(scenario, mode), stage.play(scenario, mode, replay="offline")]


def _crash(stage: Stage, mode: Mode) -> list[Played]:
    died = stage.play(notes("a", "b", end=Crash("power cut")), mode)
    return [died, stage.play(notes("a", "b", "c"), mode)]


def _parallel(stage: Stage, mode: Mode) -> list[Played]:
    calls = [("send", {"text": "a"}), ("send", {"text": "a"}), ("send", {"text": "b"})]
    scenario = Scenario([SEND], [calls, [("send", {"text": "a"})], "all done"])
    return [stage.play(scenario, mode), stage.play(scenario, mode, replay="offline")]


def _values(stage: Stage, mode: Mode) -> list[Played]:
    calls: list[Message] = [[("order", {"count": "3"})], [("plan", PLANNED)]]
    calls += [[(spec.name, {})] for spec in GIVERS]
    scenario = Scenario([ORDER, PLAN, *GIVERS], [*calls, "all done"])
    return [stage.play(scenario, mode), stage.play(scenario, mode, replay="offline")]


def _denied(stage: Stage, mode: Mode) -> list[Played]:
    script: list[Message] = [[("send", {"text": "a"})], [("look", {"place": "b"})], "all done"]
    return [stage.play(Scenario([SEND, LOOK], script), mode, gate=[no_sending])]


def _failed(stage: Stage, mode: Mode) -> list[Played]:
    def fail(part: str) -> str:
        """Fail."""
        raise ValueError(f"no {part}")

    script: list[Message] = [[("send", {"text": "a"})], [("fail", {"part": "b"})], Crash("gave up")]
    return [stage.play(Scenario([SEND, ToolSpec(fail)], script), mode)]


def _nested(stage: Stage, mode: Mode) -> list[Played]:
    @tool(effect="write")
    def log(line: str) -> str:
        """Write a line down."""
        return f"logged {line}"

    def work(job: str) -> str:
        """Do a job."""
        return log(line=f"{job} began") + ", " + log(line=f"{job} ended")

    script: list[Message] = [[("work", {"job": "x"})], [("work", {"job": "x"})], "all done"]
    return [stage.play(Scenario([ToolSpec(work)], script), mode)]


def _governed(stage: Stage, mode: Mode) -> list[Played]:
    script: list[Message] = [[("send", {"text": "LOUD"})], READ, [("mail", EVIL)], [("mail", ANN)]]
    script += [[("order", {"count": "3"})], [("order", {"count": "4"})]]
    scenario = Scenario([SEND, FETCH, MAIL, ORDER], [*script, *[script[3]] * 3, "all done"])
    how: dict[str, Any] = {"gate": [Policy.parse(GOVERNED), UserInput(ASKED)]}
    recorded = stage.play(scenario, mode, **how)
    return [recorded, stage.play(scenario, mode, replay="resume", source=recorded.run, **how)]


def _decided(stage: Stage, mode: Mode) -> list[Played]:
    calls = [("send", {"text": "é"}), ("order", {"count": "3"})]
    scenario = Scenario([SEND, ORDER], [calls, "all of it is done"], guarded_model=True)
    return [stage.play(scenario, mode), stage.play(scenario, mode, replay="offline")]


GOLDENS: Final[Mapping[str, Plot]] = {
    "sequence": _sequence,
    "crash": _crash,
    "parallel": _parallel,
    "values": _values,
    "denied": _denied,
    "failed": _failed,
    "nested": _nested,
    "decided": _decided,
    "governed": _governed,
}
_NEEDED: Final = {"parallel": {"parallel", "decided"}, "models": {"decided"}}


def traces(name: str, stage: Stage, mode: Mode) -> list[dict[str, Any]]:
    """Return the normalised traces of a harness for a golden scenario."""
    played = GOLDENS[name](stage, mode)
    attempts = [normalise(each.steps, each.asked) for each in played]
    return [*attempts, normalise_log(played[-1].lines)]


class TraceSuite(Suite):
    """Golden traces."""

    @pytest.mark.parametrize("golden", GOLDENS)
    def test_the_trace_is_the_golden_one(self, stage: Stage, mode: Mode, golden: str) -> None:
        for capability, needing in _NEEDED.items():
            if golden in needing and not getattr(self.capabilities, capability):
                pytest.skip(f"the adapter declares capabilities.{capability} = False")
        assert traces(golden, stage, mode) == load_golden(golden)
