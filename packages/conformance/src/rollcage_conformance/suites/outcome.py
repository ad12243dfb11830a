"""The ends of calls: an error, a cancellation, an unknown outcome."""

import asyncio
from collections.abc import Callable
from typing import Literal

import pytest
from rollcage import Diverged, UnknownOutcome

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Hold, Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import SEND, Broken, notes

__all__ = ["OutcomeSuite"]


def builtin() -> str:
    """Fail with a builtin exception."""
    raise ValueError("there is no such thing")


def own() -> str:
    """Fail with an exception of the tool's own."""
    raise Broken("it fell apart")


def late() -> str:
    """Take too long."""
    raise TimeoutError("no answer")


def reset() -> str:
    """Lose the connection."""
    raise ConnectionResetError(104, "Connection reset by peer")


def wrapped() -> str:
    """Take too long, in a library's own words."""
    try:
        return late()
    except TimeoutError as error:
        raise Broken("no luck") from error


FAILING = [ToolSpec(builtin), ToolSpec(own, raises=(Broken,)), ToolSpec(late, effect="read")]


class OutcomeSuite(Suite):
    """Errors, cancellation, timeouts."""

    @pytest.mark.parametrize("spec", FAILING, ids=lambda spec: str(spec.name))
    def test_a_tool_error_is_what_it_is_without_us(
        self, stage: Stage, mode: Mode, spec: ToolSpec
    ) -> None:
        script: list[Message] = [[(spec.name, {})], [("send", {"text": "b"})], "all done"]
        scenario = Scenario([spec, SEND], script)
        plain = stage.plain(scenario, mode)
        recorded = stage.play(scenario, mode)
        assert recorded.steps[0]["outcome"]["status"] == "error"
        assert recorded.ran == plain.ran
        assert recorded.seen == plain.seen
        assert type(recorded.error) is type(plain.error)
        assert str(recorded.error) == str(plain.error)
        replayed = stage.play(scenario, mode, replay="offline")
        assert replayed.ran == ()
        assert replayed.seen == plain.seen
        assert type(replayed.error) is type(plain.error)
        assert str(replayed.error) == str(plain.error)

    @pytest.mark.parametrize("effect", ["read", "write"])
    def test_a_failing_tool_runs_once_for_each_request(
        self, stage: Stage, mode: Mode, effect: Literal["read", "write"]
    ) -> None:
        scenario = Scenario([ToolSpec(builtin, effect=effect)], [[("builtin", {})], "all done"])
        played = stage.play(scenario, mode)
        assert played.ran == ("builtin",)
        assert [step["outcome"]["status"] for step in played.steps] == ["error"]

    @pytest.mark.parametrize("body", [late, reset, wrapped], ids=lambda body: str(body.__name__))
    def test_a_write_that_nobody_answered_is_unknown_and_halts(
        self, stage: Stage, mode: Mode, body: Callable[[], str]
    ) -> None:
        name = body.__name__
        script: list[Message] = [[(name, {})], [(name, {})], [("send", {"text": "b"})], "all done"]
        scenario = Scenario([ToolSpec(body), SEND], script)
        played = stage.play(scenario, mode)
        assert played.ran == (name,)
        assert played.steps[0]["outcome"]["status"] == "unknown"
        assert isinstance(played.error, UnknownOutcome)
        resumed = stage.play(scenario, mode)
        assert resumed.ran == ()
        assert isinstance(resumed.error, UnknownOutcome)

    @needs("asynchronous")
    def test_a_cancelled_write_is_unknown_and_halts(self, stage: Stage) -> None:
        hold = Hold()

        async def wait() -> str:
            """Wait for ever."""
            return await hold.wait()

        script: list[Message] = [[("send", {"text": "a"})], [("wait", {})], "all done"]
        scenario = Scenario([SEND, ToolSpec(wait)], script)
        played = stage.play(scenario, "async", hold=hold)
        assert isinstance(played.error, asyncio.CancelledError)
        assert [step["outcome"]["status"] for step in played.steps] == ["ok", "unknown"]
        assert played.status == "halted"
        resumed = stage.play(scenario, "async")
        assert resumed.ran == ()
        assert isinstance(resumed.error, UnknownOutcome)

    @needs("asynchronous")
    def test_a_cancelled_read_is_an_error_and_runs_again(self, stage: Stage) -> None:
        hold = Hold()
        waiting = [True]

        async def wait() -> str:
            """Wait for ever, the first time."""
            return await hold.wait() if waiting else "here"

        script: list[Message] = [[("send", {"text": "a"})], [("wait", {})], "all done"]
        scenario = Scenario([SEND, ToolSpec(wait, effect="read")], script)
        played = stage.play(scenario, "async", hold=hold)
        assert isinstance(played.error, asyncio.CancelledError)
        assert [step["outcome"]["status"] for step in played.steps] == ["ok", "error"]
        waiting.clear()
        resumed = stage.play(scenario, "async")
        assert resumed.error is None
        assert resumed.ran == ("wait",)
        assert resumed.seen == [("sent a",), ("here",)]

    def test_new_effects_do_not_leave_recorded_ones_behind(self, stage: Stage, mode: Mode) -> None:
        stage.play(notes("a", "b", "c"), mode)
        diverged = stage.play(notes("a", "x", "c"), mode, replay="resume")
        assert diverged.ran == ()
        assert isinstance(diverged.error, Diverged)
        assert diverged.status == "halted"
