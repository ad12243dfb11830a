"""What comes out of a guarded tool: errors, artifacts, typed results, and what callbacks hear."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForToolRun
from langchain_core.messages import AIMessage
from langchain_core.tools import (
    BaseTool,
    StructuredTool,
    ToolException,
    tool,
)
from pydantic import BaseModel
from rollcage.errors import ReplayedError
from rollcage_langchain import guard_tools

Call = Callable[..., dict[str, Any]]
"""Makes a tool call as LangChain hands it to a tool."""


class Point(BaseModel):
    """Two numbers."""

    x: int
    y: int = 2


def add(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


class Flaky(Exception):
    """An error of a tool's own."""


def test_the_text_of_a_subagents_answer_comes_back(lab: Any) -> None:
    def ask(question: str) -> Any:
        """Ask another agent."""
        return AIMessage(f"{question} Yes.").text

    with pytest.raises(InterruptedError), lab.session() as session:
        (asks,) = guard_tools([StructuredTool.from_function(ask)], session)
        assert asks.invoke({"question": "So?"}) == "So? Yes."
        raise InterruptedError
    with lab.session() as session:
        (asks,) = guard_tools([StructuredTool.from_function(ask)], session)
        assert asks.invoke({"question": "So?"}) == "So? Yes."
    assert (session.stats.hits, session.stats.misses) == (1, 0)


@pytest.mark.parametrize(
    ("error", "declared", "replayed"),
    [
        (ToolException("not now"), (), ToolException),
        (ValueError("no"), (), ValueError),
        (Flaky("oh"), (Flaky,), Flaky),
        (Flaky("oh"), (), ReplayedError),
    ],
)
def test_a_tool_error_is_itself_live_and_in_replay(
    lab: Any, error: Exception, declared: Any, replayed: type[Exception]
) -> None:
    def fail() -> str:
        """Fail."""
        raise error

    seen: list[BaseException] = []
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            failing, fine = guard_tools(
                [StructuredTool.from_function(fail), StructuredTool.from_function(add)],
                session,
                contracts={"fail": {"raises": declared}},
            )
            with pytest.raises(Exception) as caught:  # noqa: PT011 - its type is what is tested
                failing.invoke({})
            seen.append(caught.value)
            fine.invoke({"x": 1})
    assert seen[0] is error
    assert type(seen[1]) is replayed
    assert str(error) in str(seen[1])


def test_handle_tool_error_handles_a_replayed_one_too(lab: Any, call: Call) -> None:
    def fail() -> str:
        """Fail."""
        raise ToolException("not now")

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            original = StructuredTool.from_function(fail, handle_tool_error=lambda e: f"sorry: {e}")
            (guarded,) = guard_tools([original], session)
            message = guarded.invoke(call())
            assert (message.content, message.status) == ("sorry: not now", "error")


def test_an_artifact_comes_back(lab: Any, call: Call) -> None:
    @tool(response_format="content_and_artifact")
    def look(place: str) -> tuple[str, dict[str, Any]]:
        """Look."""
        return f"saw {place}", {"raw": (1, b"2")}

    messages = []
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([look], session)
            messages.append(guarded.invoke(call(place="here")))
    assert messages[0] == messages[1]
    assert messages[1].artifact == {"raw": (1, b"2")}


def test_a_result_of_a_declared_type_comes_back_as_that_type(lab: Any) -> None:
    @tool
    def point() -> Point:
        """Give a point."""
        return Point(x=1)

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([point], session)
            assert guarded.invoke({}) == Point(x=1)


class Heard(BaseCallbackHandler):
    """Notes what it hears of tools."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.events.append(("start", (kwargs["tags"], kwargs["metadata"]["team"])))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.events.append(("end", output.content))

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.events.append(("error", type(error)))


def test_callbacks_hear_of_live_and_replayed_calls_alike(lab: Any, call: Call) -> None:
    heard: list[Any] = []
    for replay in ("auto", "offline"):
        handler = Heard()
        original = StructuredTool.from_function(
            add, callbacks=[handler], tags=["sums"], metadata={"team": "red"}
        )
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([original], session)
            guarded.invoke(call(x=1))
        heard.append(handler.events)
    assert heard[0] == heard[1] == [("start", (["sums"], "red")), ("end", "3")]


def test_a_body_still_gets_its_run_manager_and_callbacks(lab: Any) -> None:
    given: list[Any] = []

    def work(x: int, callbacks: Any = None) -> int:
        """Work."""
        given.append(callbacks)
        return x

    class Works(BaseTool):
        name: str = "works"
        description: str = "Works."

        def _run(self, x: int, run_manager: CallbackManagerForToolRun | None = None) -> int:
            given.append(run_manager)
            return x

    with lab.session() as session:
        for guarded in guard_tools([StructuredTool.from_function(work), Works()], session):
            guarded.invoke({"x": 1})
    assert None not in given
    assert len(given) == 2
    assert lab.args(session) == [{"x": 1}, {"x": 1}]
