"""A denied call does not run, even if something else fails."""

from typing import Any

import pytest
from rollcage import Halt, Session, StepView, Verdict

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, SEND, notes

__all__ = ["GateSuite"]

REASON = "no sending after six; look instead"


def no_sending(step: StepView) -> Verdict | None:
    """Deny one tool, without an opinion on the others."""
    return Verdict.deny(REASON, code="too_late") if step.name == "send" else None


def broken_rule(step: StepView) -> Verdict | None:
    """Fail with a bug."""
    raise ZeroDivisionError(step.name)


class Stopped(Halt):
    """The run was stopped."""


class HookCrash(Exception):
    """A bug in the adapter, or in a function that it calls."""


class FaultySession(Session):
    """A session with a bug in one of the methods that adapters call."""

    faulty: frozenset[str] = frozenset()
    crashes = 0

    def _maybe(self, *names: str) -> None:
        if self.faulty.intersection(names):
            self.crashes += 1
            raise HookCrash(names[0])

    def place(self, **arguments: Any) -> Any:
        """Crash, or return the place of a call."""
        self._maybe("place")
        return super().place(**arguments)

    def turn(self, **arguments: Any) -> Any:
        """Crash, or begin a turn."""
        self._maybe("place")
        return super().turn(**arguments)

    def run_call(self, *arguments: Any, **options: Any) -> Any:
        """Crash, or guard a call."""
        self._maybe("run")
        return super().run_call(*arguments, **options)

    async def arun_call(self, *arguments: Any, **options: Any) -> Any:
        """Crash, or guard a call."""
        self._maybe("run")
        return await super().arun_call(*arguments, **options)


class GateSuite(Suite):
    """Denials, rules and hooks that raise, halted sessions."""

    def test_a_denied_call_runs_nothing_and_the_model_sees_why(
        self, stage: Stage, mode: Mode
    ) -> None:
        script: list[Message] = [[("send", {"text": "a"})], [("look", {"place": "b"})], "all done"]
        played = stage.play(Scenario([SEND, LOOK], script), mode, gate=[no_sending])
        assert played.error is None
        assert played.ran == ("look",)
        assert REASON in played.seen[0][0]
        assert played.seen[1] == ("saw b",)
        assert played.how == ["blocked", "ran"]
        assert played.steps[0]["verdict"]["code"] == "too_late"
        assert played.result.text == "all done"

    @needs("parallel")
    def test_a_denied_call_leaves_its_siblings_alone(self, stage: Stage, mode: Mode) -> None:
        calls = [("send", {"text": "a"}), ("look", {"place": "b"})]
        played = stage.play(Scenario([SEND, LOOK], [calls, "all done"]), mode, gate=[no_sending])
        assert played.ran == ("look",)
        assert REASON in played.seen[0][0]
        assert played.seen[0][1] == "saw b"

    def test_a_denial_replays_as_a_denial(self, stage: Stage, mode: Mode) -> None:
        recorded = stage.play(notes("a"), mode, gate=[no_sending])
        replayed = stage.play(notes("a"), mode, replay="offline")
        assert replayed.ran == ()
        assert replayed.seen == recorded.seen

    def test_a_rule_that_raises_runs_nothing(self, stage: Stage, mode: Mode) -> None:
        played = stage.play(notes("a"), mode, gate=[broken_rule])
        assert played.ran == ()
        assert played.how == ["blocked"]
        assert played.steps[0]["verdict"]["code"] == "rule_error"

    @pytest.mark.parametrize("faulty", ["place", "run"])
    def test_a_crash_in_the_hook_runs_nothing(self, stage: Stage, mode: Mode, faulty: str) -> None:
        sessions: list[FaultySession] = []

        def make(name: str, **settings: Any) -> Session:
            session = FaultySession(name, **settings)
            session.faulty = frozenset({faulty})
            sessions.append(session)
            return session

        played = stage.play(notes("a"), mode, make=make)
        if not sessions[0].crashes:
            pytest.skip(f"the adapter does not call `{faulty}`")
        assert played.ran == ()
        assert "ran" not in played.how

    def test_arguments_that_do_not_fit_run_nothing(self, stage: Stage, mode: Mode) -> None:
        script: list[Message] = [[("send", {"wrong": "a"})], [("send", {"text": "b"})], "all done"]
        played = stage.play(Scenario([SEND], script), mode)
        assert played.ran in {("send",), ()}  # () if the framework ends the agent
        assert all(step["args"] == {"text": "b"} for step in played.steps)

    def test_a_halted_session_runs_nothing(self, stage: Stage, mode: Mode) -> None:
        played = stage.play(notes("a", "b"), mode, opened=lambda s: s.halt(Stopped("enough")))
        assert played.ran == ()
        assert isinstance(played.error, Stopped)
        assert played.status == "halted"

    def test_a_session_halted_on_the_way_runs_nothing_more(self, stage: Stage, mode: Mode) -> None:
        played = _halted_on_the_way(stage, mode)
        assert played.ran == ("stop",)
        assert isinstance(played.error, Stopped)

    @needs("halting")
    def test_a_halted_session_ends_the_agent(self, stage: Stage, mode: Mode) -> None:
        played = _halted_on_the_way(stage, mode)
        assert played.script.asked == 1
        assert isinstance(played.error, Stopped)


def _halted_on_the_way(stage: Stage, mode: Mode) -> Played:
    """Play an agent whose first tool halts the session."""
    sessions: list[Session] = []

    def stop() -> str:
        """Stop everything."""
        sessions[0].halt(Stopped("enough"))
        return "stopping"

    script: list[Message] = [[("stop", {})], [("send", {"text": "a"})], "all done"]
    return stage.play(Scenario([ToolSpec(stop), SEND], script), mode, opened=sessions.append)
