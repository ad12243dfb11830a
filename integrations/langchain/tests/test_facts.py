"""What the adapter relies on in LangChain and LangGraph: where one fails, look there first."""

import subprocess
import sys
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, Tool, tool
from langgraph.prebuilt.tool_node import ToolCallRequest

QUESTION: dict[str, Any] = {"messages": [HumanMessage("Go.")]}


def add(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


def agent_with(lab: Any, middleware: AgentMiddleware[Any, Any, Any], **options: Any) -> Any:
    """An agent that calls `add` twice at once."""
    script = [[("add", {"x": 1}), ("add", {"x": "1"})], "done"]
    tools = [StructuredTool.from_function(add)]
    return create_agent(lab.model(script), tools, middleware=[middleware], **options)


def test_a_hook_sees_the_message_with_an_id_the_call_and_raw_arguments(lab: Any) -> None:
    seen: list[ToolCallRequest] = []

    class Look(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            seen.append(request)
            assert ensure_config().get("metadata", {})["lc_agent_name"] == "clerk"
            return handler(request)

    agent_with(lab, Look(), name="clerk").invoke(QUESTION)
    messages = [request.state["messages"][-1] for request in seen]
    assert messages[0].id
    assert {message.id for message in messages} == {messages[0].id}
    ids = [call["id"] for call in messages[0].tool_calls]
    assert sorted(str(request.tool_call["id"]) for request in seen) == sorted(ids)
    assert {repr(request.tool_call["args"]) for request in seen} == {"{'x': 1}", "{'x': '1'}"}


def test_raising_in_the_hook_crashes_the_agent(lab: Any) -> None:
    class Raise(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        agent_with(lab, Raise()).invoke(QUESTION)


async def test_a_middleware_without_coroutines_does_not_work_in_asyncio(lab: Any) -> None:
    class Sync(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

    with pytest.raises(NotImplementedError):
        await agent_with(lab, Sync()).ainvoke(QUESTION)


def test_a_hook_may_bring_another_tool(lab: Any) -> None:
    class Swap(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            assert request.tool is not None
            other = request.tool.model_copy(update={"func": lambda **_: "other"})
            return handler(request.override(tool=other))

    state = agent_with(lab, Swap()).invoke(QUESTION)
    texts = [m.content for m in state["messages"] if isinstance(m, ToolMessage)]
    assert texts == ["other", "other"]


def test_callbacks_that_raise_stop_nothing(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Raise(BaseCallbackHandler):
        def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError

    original = StructuredTool.from_function(add, callbacks=[Raise()])
    assert original.invoke({"x": 1}) == 3
    assert "ZeroDivisionError" in caplog.text


def test_a_copied_tool_calls_its_new_function() -> None:
    for original in (StructuredTool.from_function(add), Tool("add", add, "Adds.")):
        assert original.model_copy(update={"func": lambda *_, **__: "new"}).invoke("1") == "new"


def test_the_call_schema_leaves_out_what_is_injected() -> None:
    from langgraph.prebuilt import ToolRuntime

    @tool
    def look(place: str, runtime: ToolRuntime) -> str:
        """Look."""
        return place

    schema: Any = look.tool_call_schema
    assert set(schema.model_fields) == {"place"}


def test_a_body_runs_in_a_config_of_its_call() -> None:
    seen: list[Any] = []

    class Look(BaseTool):
        name: str = "look"
        description: str = "Looks."

        def _run(self, again: bool = False) -> str:  # noqa: FBT002 - a tool's argument
            seen.append(var_child_runnable_config.get())
            if again:
                self._run()
                self.invoke({})
            return "seen"

    Look().invoke({"again": True})
    assert seen[0] is seen[1]
    assert seen[2] is not seen[0]


def test_a_model_is_only_streamed_where_it_can_be(lab: Any) -> None:
    assert lab.model([])._should_stream(async_api=False, stream=True) is False
    assert lab.model([], "streaming")._should_stream(async_api=False, stream=True) is True
    names = ("_generate", "_agenerate", "_stream", "_astream", "_get_ls_params", "_should_stream")
    assert all(hasattr(BaseChatModel, name) for name in names)


def test_importing_the_adapter_imports_no_agents() -> None:
    program = (
        "import sys, rollcage_langchain as adapter\n"
        "heavy = ('langchain.', 'langgraph.prebuilt')\n"
        "loaded = lambda: [m for m in sys.modules if m.startswith(heavy)]\n"
        "assert not loaded(), loaded()\n"
        "assert adapter.RollcageMiddleware and adapter.tool_node_wrappers and loaded()\n"
        "try: adapter.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "has no attribute 'nothing'" in done.stdout
