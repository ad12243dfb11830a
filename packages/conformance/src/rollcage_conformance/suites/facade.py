"""A tool that is not approved is not shown to any agent, and runs in no way."""

from collections.abc import Sequence
from typing import Final

from rollcage import Blocked, Contract, StepView, ToolRefused, tool
from rollcage_governance import Facade, Registry

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suite import Suite
from rollcage_conformance.tools import LOOK, SEND

__all__ = ["FacadeSuite"]

BOTH: Final[Sequence[Message]] = [[("send", {"text": "a"})], [("look", {"place": "b"})], "all done"]
LOOKING: Final[Sequence[Message]] = [[("look", {"place": "b"})], "all done"]


def contracts(stage: Stage, mode: Mode, scenario: Scenario) -> dict[str, Contract]:
    """Return the contracts of a scenario's tools, from this framework's adapter."""
    found: dict[str, Contract] = {}

    def note(step: StepView) -> None:
        found.setdefault(step.name, step.contract)

    played = stage.play(scenario, mode, name="rehearsal", gate=[note])
    assert played.error is None
    return found


def approve(stage: Stage, *given: Contract) -> Registry:
    """Approve tools, and give them by the facade `agent`."""
    registry = Registry(stage.store)
    for contract in given:
        registry.propose(contract, by="ann")
        registry.approve(contract.name, by="bob")
        registry.activate(contract.name, "pack", by="bob")
    registry.define_facade("agent", ["pack"], by="bob")
    return registry


def check_refused(played: Played, name: str, code: str) -> None:
    """Check that a tool was refused before the call, is not offered, or its call was denied."""
    assert name not in played.ran
    if isinstance(played.error, ToolRefused):
        assert played.script.asked <= 1  # when the agent is made, or at the very first call
        assert name in str(played.error)
    elif any(step["name"] == name for step in played.steps):
        (step,) = [each for each in played.steps if each["name"] == name]
        assert (step["how"], step["verdict"]["code"]) == ("blocked", code)
    else:
        assert played.seen  # the framework itself answered that there is no such tool


class FacadeSuite(Suite):
    """Facades: approved tools run, with any others present."""

    def test_an_agent_has_what_was_approved(self, stage: Stage, mode: Mode) -> None:
        scenario = Scenario([SEND, LOOK], BOTH)
        approve(stage, *contracts(stage, mode, scenario).values())
        played = stage.play(scenario, mode, gate=[Facade("agent")])
        assert (played.error, played.ran) == (None, ("send", "look"))
        facade = played.of("attempt")[0]["gate"][0]["facade"]
        assert (facade["name"], sorted(facade["tools"])) == ("agent", ["look", "send"])

    def test_a_tool_that_nobody_approved_is_refused(self, stage: Stage, mode: Mode) -> None:
        scenario = Scenario([SEND, LOOK], BOTH)
        approve(stage, contracts(stage, mode, scenario)["look"])
        played = stage.play(scenario, mode, gate=[Facade("agent")])
        check_refused(played, "send", "tool_unapproved")
        given = stage.play(Scenario([LOOK], LOOKING), mode, gate=[Facade("agent")], name="given")
        assert (given.error, given.ran) == (None, ("look",))

    def test_a_tool_that_was_changed_is_refused(self, stage: Stage, mode: Mode) -> None:
        approve(stage, *contracts(stage, mode, Scenario([LOOK], LOOKING)).values())

        def look(place: str) -> str:
            """Look at a place."""
            return f"saw {place}, and wrote it down"

        changed = Scenario([ToolSpec(look, effect="read")], LOOKING)
        check_refused(stage.play(changed, mode, gate=[Facade("agent")]), "look", "tool_changed")

    def test_a_frozen_tool_is_refused_and_so_is_what_is_recorded_of_it(
        self, stage: Stage, mode: Mode
    ) -> None:
        scenario = Scenario([SEND, LOOK], BOTH)
        registry = approve(stage, *contracts(stage, mode, scenario).values())
        recorded = stage.play(scenario, mode, gate=[Facade("agent")])
        assert recorded.error is None
        registry.freeze("send", by="bob", why="it leaks")
        again = stage.play(scenario, mode, replay="resume", gate=[Facade("agent")])
        check_refused(again, "send", "tool_frozen")
        assert ("sent a",) not in again.seen

    def test_the_body_of_a_tool_that_is_given_calls_no_other(
        self, stage: Stage, mode: Mode
    ) -> None:
        logged: list[str] = []

        @tool(effect="write")
        def log(line: str) -> None:
            """Write a line down."""
            logged.append(line)

        def work(job: str) -> str:
            """Do a job."""
            try:
                log(line=job)
            except Blocked as blocked:
                return f"could not: {blocked.verdict_code}"
            return "done"

        scenario = Scenario([ToolSpec(work)], [[("work", {"job": "x"})], "all done"])
        approve(stage, contracts(stage, mode, scenario)["work"])
        logged.clear()
        played = stage.play(scenario, mode, gate=[Facade("agent")])
        assert (played.error, played.ran) == (None, ("work",))
        assert played.seen == [("could not: tool_unapproved",)]
        assert logged == []
