"""Tests of an agent in three frameworks, and in plain Python. The models are scripted: offline."""

import itertools
import json
import os
from collections.abc import Callable
from typing import Any

from rollcage import Session, tool
from rollcage_pytest import Cassette, assert_cost, assert_no_writes_outside


def task() -> str:
    """What the agents are asked to do: what changes in this story."""
    return os.environ.get("QUESTION", "Send me the news.")


@tool(effect="read")
def look_up(city: str) -> str:
    """Look up what is new in a city."""
    return f"the news from {city}"


@tool(effect="write")
def send(text: str, to: str = "ann") -> str:
    """Send a text to somebody."""
    return f"sent to {to}"


def plan(question: str) -> list[tuple[str, dict[str, str]]]:
    """What the model asks for, one call a message."""
    news = ("look_up", {"city": "Lima"})
    return [news, ("send", {"text": "the news from Lima"})] if "Send" in question else [news]


@tool(effect="read")
def ask_model(question: str, turn: int) -> list[tuple[str, dict[str, str]]]:
    """What stands for a model in plain Python: the calls that it asks for."""
    return plan(question)[turn : turn + 1]


# --- the agents, as anybody would write them -----------------------------------------------------


def plain(question: str) -> str:
    tools: dict[str, Callable[..., str]] = {"look_up": look_up, "send": send}
    for turn in itertools.count():
        calls = ask_model(question, turn)
        if not calls:
            break
        for name, arguments in calls:
            tools[name](**arguments)
    return "done"


def langchain(session: Session, question: str) -> str:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from rollcage_langchain import RollcageMiddleware, as_tools, guard_model

    class ScriptedModel(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            turn = sum(message.type == "ai" for message in messages)
            calls = [
                {"name": name, "args": arguments, "id": f"call-{turn}"}
                for name, arguments in plan(question)[turn : turn + 1]
            ]
            answer = AIMessage("" if calls else "done", tool_calls=calls)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    agent: Any = create_agent(
        guard_model(ScriptedModel(), session),
        as_tools([look_up, send], session),
        middleware=[RollcageMiddleware(session)],
    )
    state = agent.invoke({"messages": [{"role": "user", "content": question}]})
    return str(state["messages"][-1].content)


async def autogen(session: Session, question: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import AssistantMessage, CreateResult, ModelInfo, RequestUsage
    from autogen_ext.models.replay import ReplayChatCompletionClient
    from rollcage_autogen import as_tools, guard_model

    class ScriptedModel(ReplayChatCompletionClient):
        async def create(self, messages: Any, **_: Any) -> CreateResult:
            turn = sum(isinstance(message, AssistantMessage) for message in messages)
            calls = [
                FunctionCall(f"call-{turn}", json.dumps(arguments), name)
                for name, arguments in plan(question)[turn : turn + 1]
            ]
            reason: Any = "function_calls" if calls else "stop"
            return CreateResult(
                finish_reason=reason,
                content=calls or "done",
                usage=RequestUsage(10, 5),
                cached=False,
            )

    able = ModelInfo(
        vision=False, function_calling=True, json_output=False, family="unknown",
        structured_output=False,
    )  # fmt: skip
    agent = AssistantAgent(
        "clerk",
        guard_model(ScriptedModel([], able), session),
        tools=[*as_tools([look_up, send], session)],
        max_tool_iterations=5,
    )
    ended = await agent.run(task=question)
    return str(ended.messages[-1].to_text())


def crewai(session: Session, question: str) -> str:
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from rollcage_crewai import as_tools, guard_crew, guard_model

    class ScriptedModel(BaseLLM):
        def supports_function_calling(self) -> bool:
            return True

        def get_context_window_size(self) -> int:
            return 1_000_000

        def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
            return 0

        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            turn = sum(message["role"] == "assistant" for message in messages)
            calls = [
                {"id": f"call-{turn}", "type": "function",
                 "function": {"name": name, "arguments": json.dumps(arguments)}}
                for name, arguments in plan(question)[turn : turn + 1]
            ]  # fmt: skip
            return calls or "done"

    clerk = Agent(
        role="clerk",
        goal="news",
        backstory="A clerk.",
        llm=guard_model(ScriptedModel(model="scripted"), session),
        tools=as_tools([look_up, send], session),
    )
    task = Task(description=question, expected_output="A word.", agent=clerk)
    crew = Crew(agents=[clerk], tasks=[task], tracing=False)
    return str(guard_crew(crew, session).kickoff())


# --- the tests -----------------------------------------------------------------------------------


def test_plain_looks_up(cassette: Cassette) -> None:
    with cassette.session():
        assert plain("What is new?") == "done"
    assert_no_writes_outside(cassette, [])
    assert_cost(cassette, calls=3)


def test_plain_sends(cassette: Cassette) -> None:
    with cassette.session():
        assert plain(task()) == "done"
    assert_no_writes_outside(cassette, ["send"])


def test_langchain_looks_up(cassette: Cassette) -> None:
    with cassette.session() as session:
        assert langchain(session, "What is new?") == "done"
    assert_no_writes_outside(cassette, [])
    assert_cost(cassette, calls=1, model_calls=2)


def test_langchain_sends(cassette: Cassette) -> None:
    with cassette.session() as session:
        assert langchain(session, task()) == "done"
    assert_no_writes_outside(cassette, ["send"])


async def test_autogen_looks_up(cassette: Cassette) -> None:
    async with cassette.session() as session:
        assert await autogen(session, "What is new?") == "done"
    assert_no_writes_outside(cassette, [])


async def test_autogen_sends(cassette: Cassette) -> None:
    async with cassette.session() as session:
        assert await autogen(session, task()) == "done"
    assert_no_writes_outside(cassette, ["send"])


def test_crewai_looks_up(cassette: Cassette) -> None:
    with cassette.session() as session:
        assert crewai(session, "What is new?") == "done"
    assert_no_writes_outside(cassette, [])


def test_crewai_sends(cassette: Cassette) -> None:
    with cassette.session() as session:
        assert crewai(session, task()) == "done"
    assert_no_writes_outside(cassette, ["send"])
