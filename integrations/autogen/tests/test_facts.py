"""What the adapter relies on in AutoGen: where one fails, look there first."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_core import CancellationToken
from autogen_core.models import CreateResult
from autogen_core.tools import FunctionTool, StaticStreamWorkbench, StaticWorkbench, ToolResult
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

VAR: ContextVar[str] = ContextVar("var", default="unset")


async def hangs(running: asyncio.Future[Any]) -> bool:
    """Whether something waits for ever: the loop has long had nothing left to do."""
    for _ in range(200):
        await asyncio.sleep(0)
    waits = not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return waits


async def test_calls_of_a_message_have_the_context_of_their_model_but_for_sync_tools(
    lab: Any,
) -> None:
    seen: list[tuple[str, str]] = []

    class Client(type(lab.client())):  # type: ignore[misc] # a fixture's class
        async def create(self, messages: Any, **options: Any) -> CreateResult:
            VAR.set("set by the model")
            result: CreateResult = await super().create(messages, **options)
            return result

    def sync(x: int) -> str:
        seen.append(("sync", VAR.get()))
        return "s"

    async def asynchronous(x: int) -> str:
        seen.append(("async", VAR.get()))
        return "a"

    calls = [("sync", {"x": 1}), ("asynchronous", {"x": 1})]
    agent = AssistantAgent("a", Client([calls, "end"]), tools=[sync, asynchronous])
    await agent.run(task="Go.")
    assert sorted(seen) == [("async", "set by the model"), ("sync", "unset")]


async def test_calls_of_a_message_begin_in_their_order(lab: Any) -> None:
    begun: list[int] = []

    async def note(x: int) -> str:
        begun.append(x)
        await asyncio.sleep(0)
        return "noted"

    agent = lab.agent(lab.client([("note", {"x": x}) for x in range(9)], "end"), tools=[note])
    await agent.run(task="Go.")
    assert begun == list(range(9))


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
async def test_an_agent_waits_for_ever_for_a_workbench_that_raises(
    lab: Any, kind: type[BaseException]
) -> None:
    class Raising(StaticWorkbench):
        async def call_tool(self, *args: Any, **kwargs: Any) -> ToolResult:
            raise kind

    client = lab.client([("act", {"x": 1})], "end")
    agent = lab.agent(client, workbench=Raising([_tool()]))
    assert await hangs(asyncio.ensure_future(agent.run(task="Go.")))


async def test_an_agent_waits_for_ever_for_a_call_that_is_cancelled(lab: Any) -> None:
    token = CancellationToken()

    async def act(x: int) -> str:
        token.cancel()
        await asyncio.sleep(0)
        return "done"

    agent = lab.agent(lab.client([("act", {"x": 1})], "end"), tools=[act])
    running = asyncio.ensure_future(agent.run(task="Go.", cancellation_token=token))
    assert await hangs(running)


def _tool() -> FunctionTool:
    def act(x: int) -> str:
        return "done"

    return FunctionTool(act, "Act.")


async def test_tools_are_listed_before_each_question_and_for_each_call(lab: Any) -> None:
    lists: list[str] = []

    class Listed(StaticWorkbench):
        async def list_tools(self) -> Any:
            frame = sys._getframe(1)
            while frame.f_code.co_name == "<listcomp>" and frame.f_back is not None:
                frame = frame.f_back
            lists.append(frame.f_code.co_name)
            return await super().list_tools()

    agent = lab.agent(lab.client([("act", {"x": 1})], "end"), workbench=Listed([_tool()]))
    await agent.run(task="Go.")
    assert lists == ["_call_llm", "_execute_tool_call", "_call_llm"]
    for name in lists:
        method: Any = inspect.unwrap(getattr(AssistantAgent, name))  # see bare.py
        assert method.__code__.co_name == name


async def test_streams_are_taken_from_one_class_only(lab: Any) -> None:
    called: list[str] = []

    class Noting(StaticStreamWorkbench):
        async def call_tool(self, *args: Any, **kwargs: Any) -> ToolResult:
            called.append("call_tool")
            return await super().call_tool(*args, **kwargs)

        async def call_tool_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            called.append("call_tool_stream")
            async for each in super().call_tool_stream(*args, **kwargs):
                yield each

    agent = lab.agent(lab.client([("act", {"x": 1})], "end"), workbench=Noting([_tool()]))
    await agent.run(task="Go.")
    assert called == ["call_tool_stream"]


async def test_handoffs_bypass_workbenches(lab: Any) -> None:
    class Refusing(StaticWorkbench):
        async def call_tool(self, *args: Any, **kwargs: Any) -> ToolResult:
            raise AssertionError("not asked")

    agent = lab.agent(
        lab.client([("transfer_to_bob", {})]),
        workbench=Refusing([]),
        handoffs=[Handoff(target="bob")],
    )
    ended = await agent.run(task="Go.")
    assert ended.messages[-1].type == "HandoffMessage"


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, "a"], "[1, 'a']"),
        ({"a": None}, "{'a': None}"),
        (None, "None"),
        (Point(x=1), '{"x": 1}'),
        ([{"type": "text", "text": "t"}], "[{'type': 'text', 'text': 't'}]"),
    ],
)
def test_how_results_are_shown(value: Any, text: str) -> None:
    assert _tool().return_value_as_string(value) == text


def test_where_a_client_keeps_the_name_of_its_model(lab: Any) -> None:
    client: Any = OpenAIChatCompletionClient(
        model="some-model", api_key="none", model_info=lab.client().model_info
    )
    found: Mapping[str, Any] = client._create_args
    assert found["model"] == "some-model"


def test_what_a_function_tool_is_made_of() -> None:
    tool: Any = _tool()
    assert tool._func(x=1) == "done"
    assert list(tool._signature.parameters) == ["x"]


def test_what_a_static_workbench_is_made_of() -> None:
    tool = _tool()
    bench: Any = StaticWorkbench([tool])
    assert bench._tools == [tool]
    assert bench._override_name_to_original == {}
    assert hasattr(StaticStreamWorkbench, "call_tool_stream")


def test_importing_the_adapter_imports_no_agents() -> None:
    program = (
        "import sys, rollcage_autogen\n"
        "heavy = ('autogen_agentchat', 'autogen_ext', 'openai', 'mcp')\n"
        "loaded = [m for m in sys.modules if m.startswith(heavy)]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
