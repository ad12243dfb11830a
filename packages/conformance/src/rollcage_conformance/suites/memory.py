"""A framework resumes from its own memory: nothing is lost, nothing done twice."""

from collections.abc import Sequence
from typing import Final

import pytest
from rollcage import Halt, StepView, Verdict

from rollcage_conformance.scenario import Message, Scenario, ToolCall
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, SEND, Crash

__all__ = ["MemorySuite"]

TURNS: Final[Sequence[Sequence[ToolCall]]] = [
    [("send", {"text": "a"})],
    [("send", {"text": "b"}), ("look", {"place": "x"}), ("send", {"text": "c"})],
    [("look", {"place": "y"})],
    [("send", {"text": "d"})],
]


def scenario(*turns: Message, end: Message = "all done", guarded: bool = False) -> Scenario:
    """Return an agent that takes these turns, and ends."""
    return Scenario([SEND, LOOK], [*turns, end], guarded_model=guarded)


def asks(step: StepView) -> Verdict | None:
    """Ask for approval, without an approver."""
    return Verdict.ask("is that so?") if step.args.get("text") == "d" else None


class MemorySuite(Suite):
    """Resumes from the framework's own memory after a crash, a halt, and once more."""

    @needs("memory")
    @pytest.mark.parametrize("model", ["bare", "guarded"])
    @pytest.mark.parametrize("crash_after", [1, 2, 3, 4])
    def test_a_framework_that_goes_on_by_itself_does_nothing_twice(
        self, stage: Stage, mode: Mode, crash_after: int, model: str
    ) -> None:
        guarded = model == "guarded"
        if guarded and not self.capabilities.models:
            pytest.skip("the adapter declares capabilities.models = False")
        memory = stage.harness.memory()
        done, left = TURNS[:crash_after], TURNS[crash_after:]
        crash = scenario(*done, end=Crash("power cut"), guarded=guarded)
        crashed = stage.play(crash, mode, memory=memory)
        assert crashed.error is not None
        resumed = stage.play(scenario(*TURNS, guarded=guarded), mode, memory=memory)
        assert resumed.error is None
        assert resumed.result.text == "all done"
        assert sorted(resumed.ran) == sorted(name for turn in left for name, _ in turn)
        assert resumed.stats is not None
        answers = crash_after if guarded else 0
        assert resumed.stats.seen == answers + sum(len(turn) for turn in done)
        assert resumed.stats.hits == 0
        assert resumed.status == "ok"
        sent = [line["args"]["text"] for line in resumed.of("step") if line["name"] == "send"]
        assert sorted(sent) == ["a", "b", "c", "d"]  # one run holds all calls of the job, once

    @needs("memory")
    def test_it_goes_on_after_crash_after_crash(self, stage: Stage, mode: Mode) -> None:
        memory = stage.harness.memory()
        ran: list[str] = []
        for done in range(1, len(TURNS) + 1):
            crash = scenario(*TURNS[:done], end=Crash("power cut"))
            ran += stage.play(crash, mode, memory=memory).ran
        ended = stage.play(scenario(*TURNS), mode, memory=memory)
        assert (ended.error, ended.result.text, ended.ran) == (None, "all done", ())
        assert sorted(ran) == sorted(name for turn in TURNS for name, _ in turn)
        again = stage.play(scenario(*TURNS), mode, replay="offline")  # and without its memory
        assert (again.error, again.ran, again.result.text) == (None, (), "all done")

    @needs("memory")
    def test_where_its_memory_is_lost_all_is_asked_for(self, stage: Stage, mode: Mode) -> None:
        crash = scenario(*TURNS[:2], end=Crash("power cut"))
        stage.play(crash, mode, memory=stage.harness.memory())
        resumed = stage.play(scenario(*TURNS), mode, memory=stage.harness.memory())
        assert resumed.error is None
        assert resumed.stats is not None
        assert (resumed.stats.seen, resumed.stats.hits) == (0, 4)
        assert sorted(resumed.ran) == ["look", "send"]

    @needs("memory", "halting")
    def test_a_halt_is_no_answer_in_its_memory(self, stage: Stage, mode: Mode) -> None:
        memory = stage.harness.memory()
        halted = stage.play(scenario(*TURNS), mode, memory=memory, gate=[asks])
        assert isinstance(halted.error, Halt)
        resumed = stage.play(scenario(*TURNS), mode, memory=memory)
        if resumed.error is None:
            assert (resumed.ran, resumed.result.text) == (("send",), "all done")
        else:  # the framework keeps it, but the agent does not read that it was done
            assert isinstance(resumed.error, Halt)
            assert "never ran" in str(resumed.error)
            assert (resumed.ran, resumed.result.text) == ((), "")
