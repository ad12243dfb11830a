"""Nothing hangs: however a call ends, the crew ends too, within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from crewai.hooks.dispatch import InterceptionPoint, get_hooks
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolExecutionFailedError
from rollcage import StepView, UnknownOutcome, Verdict
from rollcage_crewai import guard_crew, guard_model

if TYPE_CHECKING:
    from .conftest import Lab

DEADLINE = 30.0  # seconds: long for a crew, short for one that hangs


def in_time(work: Callable[[], Any]) -> Any:
    """Do it in a thread of its own, which is left behind where it hangs."""
    ended: Future[Any] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the test judges it
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return ended.result(DEADLINE)


class Stopped(BaseException):
    """What no `except Exception` catches."""


def raising(error: BaseException) -> BaseTool:
    """A tool that ends so."""

    @tool
    def end(text: str) -> str:
        """End."""
        raise error

    return end


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no"), None),
        (TimeoutError("late"), UnknownOutcome),
        (asyncio.CancelledError(), (UnknownOutcome, asyncio.CancelledError)),
        (Stopped(), (UnknownOutcome, Stopped)),
    ],
    ids=["error", "timeout", "cancelled", "stopped"],
)
def test_a_crew_ends_however_its_tool_ends(
    lab: Lab, error: BaseException, expected: Any, *, native: bool, asynchronous: bool
) -> None:
    call: Any = [("end", {"text": "a"})] if native else lab.act("end", text="a")
    model = lab.model(call, "Thought: done\nFinal Answer: done", native=native)

    def run() -> None:
        with lab.session() as session:
            crew = guard_crew(lab.crew(lab.agent(model, raising(error))), session)
            asyncio.run(crew.akickoff()) if asynchronous else crew.kickoff()

    if expected is None:
        in_time(run)
    else:
        with pytest.raises(expected):
            in_time(run)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_parallel_calls_end_where_one_of_them_halts(
    lab: Lab, write: BaseTool, *, asynchronous: bool
) -> None:
    def ask(step: StepView) -> Verdict | None:
        return Verdict.ask("really?") if step.args.get("text") == "3" else None

    calls: Any = [("write", {"text": str(n)}) for n in range(12)]
    model = lab.model(calls, "done")

    def run() -> None:
        with lab.session(gate=[ask]) as session:
            crew = guard_crew(lab.crew(lab.agent(model, write)), session)
            with pytest.raises(ToolExecutionFailedError):
                asyncio.run(crew.akickoff()) if asynchronous else crew.kickoff()

    with pytest.raises(Exception, match=r"really\?"):
        in_time(run)
    assert len(model.asked) == 1


def test_cancelling_a_crew_cancels_its_async_tools(lab: Lab) -> None:
    begun = threading.Event()
    ended: list[str] = []

    @tool
    async def wait(text: str) -> str:
        """Wait for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(text)
        return "never"

    model = lab.model([("wait", {"text": "a"}), ("wait", {"text": "b"})], "done")

    async def cancelled() -> None:
        with lab.session() as session:
            crew = guard_crew(lab.crew(lab.agent(model, wait)), session)
            running = asyncio.ensure_future(crew.akickoff())
            await asyncio.to_thread(begun.wait, DEADLINE)
            running.cancel()
            await running

    with pytest.raises((asyncio.CancelledError, UnknownOutcome)):
        in_time(lambda: asyncio.run(cancelled()))
    assert set(ended) <= {"a", "b"}
    assert ended
    assert len(model.asked) == 1


def test_a_session_that_was_left_runs_nothing_more(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = lab.model([("write", {"text": "a"})], "done")
    with lab.session() as session:
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
    in_time(crew.kickoff)
    assert written == []


def test_a_crash_of_ours_runs_nothing_in_either_way_to_call(
    lab: Lab, write: BaseTool, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    for call, native in (([("write", {"text": "a"})], True), (lab.act("write", text="a"), False)):
        model = lab.model(call, "Thought: done\nFinal Answer: done", native=native)
        with lab.session(replay="off") as session:
            crew = guard_crew(lab.crew(lab.agent(model, write)), session)
            monkeypatch.setattr(session, "place", broken)
            with contextlib.suppress(ZeroDivisionError):  # the call's or the crew's: CrewAI decides
                in_time(crew.kickoff)
    assert written == []


def test_nothing_is_left_in_the_process(lab: Lab, write: BaseTool, written: list[str]) -> None:
    before = {point: get_hooks(point) for point in InterceptionPoint}
    model = lab.model([("write", {"text": "a"})], "done")
    plain = lab.crew(lab.agent(model, write))
    with lab.session() as session:
        guarded = guard_crew(plain, session)
        guard_model(model, session)
        in_time(guarded.kickoff)
        in_time(plain.kickoff)  # the same tools, the same model: no step of the session
    assert {point: get_hooks(point) for point in InterceptionPoint} == before
    assert lab.steps(session) == [("write", "ok")]
    assert written == ["a", "a"]
