"""Functions declared with `@rollcage.tool` as AutoGen's tools that belong to no session."""

import asyncio
import contextlib
import functools
from typing import Any

import pytest
import rollcage
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool
from rollcage import UnknownOutcome
from rollcage_autogen import as_tools, guard_tools


@rollcage.tool(effect="write")
def leave(text: str) -> str:
    """End the process."""
    raise SystemExit(3)


@rollcage.tool(effect="write")
async def aleave(text: str) -> str:
    """End the process."""
    raise KeyboardInterrupt


@rollcage.tool(effect="write")
async def cancel(text: str) -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("function", [leave, aleave, cancel], ids=lambda each: str(each.__name__))
@pytest.mark.parametrize("in_session", [True, False])
async def test_an_agent_ends_whatever_its_tool_raises(
    lab: Any, within: Any, results: Any, function: Any, *, in_session: bool
) -> None:
    client = lab.client([(function.__name__, {"text": "a"})], "end")
    agent = AssistantAgent("clerk", client, tools=[*as_tools([function])], max_tool_iterations=3)
    if not in_session:
        ended = await within(agent.run(task="Go."))
        assert [failed for _, failed in results(ended)] == [True]
        return
    with contextlib.suppress(UnknownOutcome), lab.session() as session:
        await within(agent.run(task="Go."))
    assert [step["outcome"]["status"] for step in lab.steps(session)] == ["unknown"]


async def test_guarding_one_guards_it_once(lab: Any, within: Any) -> None:
    @rollcage.tool(effect="pure")
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    client = lab.client([("double", {"number": 2})], "end")
    with lab.session() as session:
        tools = guard_tools(as_tools([double]), session)
        await within(lab.agent(client, session, tools=tools).run(task="Go."))
    assert len(lab.steps(session)) == 1


async def test_a_wrapper_around_a_declared_function_runs_and_its_call_is_nested(lab: Any) -> None:
    @rollcage.tool(effect="pure")
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"hello {name}"

    @functools.wraps(greet)
    def loudly(name: str) -> str:
        return greet(name=name).upper()

    with lab.session() as session:
        (guarded,) = guard_tools([FunctionTool(loudly, "")], session)
        assert await guarded.run_json({"name": "ann"}, CancellationToken()) == "HELLO ANN"
    assert [step.get("parent") for step in lab.steps(session)] == [None, 0]
