"""What the adapter relies on in CrewAI: where one of these fails, look there first."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any

import pytest
from crewai import Agent, Crew
from crewai.agents.agent_builder.base_agent_executor import BaseAgentExecutor
from crewai.execution import get_execution_uuid
from crewai.hooks.dispatch import HookAborted
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import (
    ToolExecutionFailedError,
    ToolFailure,
    ToolFailurePolicy,
)
from crewai.utilities.agent_utils import extract_tool_call_info, is_tool_call_list
from rollcage_crewai.answers import Function, ToolCall

if TYPE_CHECKING:
    from .conftest import Lab

DONE = "Thought: I now can give a great answer\nFinal Answer: done"


def executor_of(agent: Agent) -> Any:
    return agent.executor_class


@pytest.mark.parametrize("name", ["invoke", "ainvoke", "_execute_single_native_tool_call"])
def test_executors_have_the_methods_that_we_stand_around(lab: Lab, name: str) -> None:
    base = executor_of(lab.agent(lab.model("done")))
    assert issubclass(base, BaseAgentExecutor)
    assert callable(getattr(base, name))


def test_crews_have_the_methods_that_we_stand_around() -> None:
    assert list(inspect.signature(Crew._create_manager_agent).parameters) == ["self"]
    assert list(inspect.signature(Crew.copy).parameters) == ["self"]


def test_models_have_the_methods_that_tell_of_a_call() -> None:
    ends = inspect.signature(BaseLLM._emit_call_completed_event).parameters
    assert {"response", "call_type", "usage", "finish_reason", "response_id"} <= ends.keys()
    pieces = inspect.signature(BaseLLM._emit_stream_chunk_event).parameters
    assert {"chunk", "tool_call", "call_type", "response_id"} <= pieces.keys()
    assert "chunk" in inspect.signature(BaseLLM._emit_thinking_chunk_event).parameters


def test_a_tool_that_raises_is_called_six_times_for_one_message(
    lab: Lab, fail: BaseTool, written: list[str]
) -> None:
    lab.crew(lab.agent(lab.model(lab.act("fail", text="a"), DONE, native=False), fail)).kickoff()
    assert written == ["a"] * 6
    lab.crew(lab.agent(lab.model([("fail", {"text": "b"})], "done"), fail)).kickoff()
    assert written[6:] == ["b"]


def test_a_failing_model_starts_the_task_over(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = lab.model([("write", {"text": "a"})], ConnectionError("no model"))
    with pytest.raises(ConnectionError):
        lab.crew(lab.agent(model, write)).kickoff()
    assert written == ["a"] * 3


def test_a_failure_under_the_policy_raise_ends_the_crew_at_once(lab: Lab) -> None:
    asked: list[str] = []

    @tool
    def book(room: str) -> Any:
        """Book a room."""
        asked.append(room)
        return ToolFailure(message="taken")

    book.tool_failure_policy = ToolFailurePolicy.RAISE
    calls: list[tuple[Any, Any]] = [
        ([("book", {"room": "1"})], True),
        (lab.act("book", room="1"), False),
    ]
    for call, native in calls:
        with pytest.raises(ToolExecutionFailedError):
            lab.crew(lab.agent(lab.model(call, DONE, native=native), book)).kickoff()
    assert asked == ["1", "1"]


def test_an_abort_before_a_model_call_is_not_tried_again(lab: Lab) -> None:
    seen: list[Any] = []

    def abort(context: Any) -> None:
        seen.append(context)
        raise HookAborted("enough")

    model = lab.model("done")
    agent = lab.agent(model)
    base = executor_of(agent)

    def invoke(self: Any, inputs: Any) -> Any:
        self.before_llm_call_hooks.insert(0, abort)
        return base.invoke(self, inputs)

    members: dict[str, Any] = {"__module__": base.__module__, "invoke": invoke}
    if hasattr(base, "flow_definition"):
        members["_flow_definition"] = base.flow_definition()
    agent.executor_class = base.__class__(base.__name__, (base,), members)
    with pytest.raises(HookAborted, match="enough"):
        lab.crew(agent).kickoff()
    assert len(seen) == 1
    assert model.asked == []


def test_what_is_set_around_a_call_is_seen_by_its_body(lab: Lab) -> None:
    around: contextvars.ContextVar[str] = contextvars.ContextVar("around", default="")
    seen: list[tuple[str, int]] = []

    @tool
    def look(text: str) -> str:
        """Look."""
        seen.append((around.get(), threading.get_ident()))
        return text

    around.set("here")
    calls: Any = [("look", {"text": text}) for text in "abc"]
    lab.crew(lab.agent(lab.model(calls, "done"), look)).kickoff()
    assert [each for each, _ in seen] == ["here"] * 3
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_an_async_tool_runs_in_a_loop_of_its_own(lab: Lab) -> None:
    loops: list[Any] = []

    @tool
    async def look(text: str) -> str:
        """Look."""
        loops.append(asyncio.get_running_loop())
        return text

    async def kickoff() -> asyncio.AbstractEventLoop:
        await lab.crew(lab.agent(lab.model([("look", {"text": "a"})], "done"), look)).akickoff()
        return asyncio.get_running_loop()

    assert asyncio.run(kickoff()) not in loops
    assert len(loops) == 1


def test_each_kickoff_has_an_id(lab: Lab) -> None:
    ids: list[Any] = []

    @tool
    def look(text: str) -> str:
        """Look."""
        ids.append(get_execution_uuid())
        return text

    crew = lab.crew(lab.agent(lab.model([("look", {"text": "a"})], "done"), look))
    crew.kickoff()
    crew.kickoff()
    assert all(ids)
    assert len(set(ids)) == 2


def test_our_tool_calls_are_taken_for_a_providers() -> None:
    call = ToolCall("1", Function("Look At", '{"a":  1}'))
    assert is_tool_call_list([call])
    assert extract_tool_call_info(call) == ("1", "look_at", '{"a":  1}')


def test_a_copied_tool_counts_for_itself(write: BaseTool) -> None:
    twin = write.model_copy()
    twin.run(text="a")
    assert (twin.current_usage_count, write.current_usage_count) == (1, 0)
