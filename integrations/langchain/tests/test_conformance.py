"""The adapter passes the suites that every adapter passes."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NotRequired

import pytest
from langchain.agents import AgentState, create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState
from rollcage import Session
from rollcage_adapter import Trace
from rollcage_conformance import (
    AdapterSuite,
    Harness,
    Performance,
    Result,
    Scenario,
    Script,
    ToolSpec,
)
from rollcage_langchain import ReplayModel, RollcageMiddleware, guard_model, guard_tools

USAGE: Final = UsageMetadata(
    input_tokens=Script.USAGE["input_tokens"],
    output_tokens=Script.USAGE["output_tokens"],
    total_tokens=sum(Script.USAGE.values()),
)


THREAD: Final[RunnableConfig] = {"configurable": {"thread_id": "1"}}


class Actor(BaseChatModel):
    """Asks the script for each message."""

    script: Any
    asynchronous: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """The script knows the tools."""
        return self

    def _ask(self, messages: list[BaseMessage]) -> AIMessage:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        results: list[str] = []
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                break
            results.insert(0, str(message.content))
        answer = self.script.answer(turn, results)
        thought: str = self.script.thought
        more: dict[str, Any] = {"usage_metadata": USAGE}
        if thought:
            more["additional_kwargs"] = {"reasoning_content": thought}
        if isinstance(answer, str):
            return AIMessage(answer, **more)
        calls = [
            {"name": name, "args": dict(args), "id": f"call-{turn}-{i}", "type": "tool_call"}
            for i, (name, args) in enumerate(answer)
        ]
        return AIMessage("", tool_calls=calls, **more)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._ask(messages))])

    def _stream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> Iterator[ChatGenerationChunk]:
        message = self._ask(messages)
        if message.additional_kwargs:
            chunk = AIMessageChunk(content="", additional_kwargs=message.additional_kwargs)
            yield ChatGenerationChunk(message=chunk)
        if message.tool_calls:
            chunk = AIMessageChunk(content="", tool_calls=message.tool_calls)
            yield ChatGenerationChunk(message=chunk)
        for piece in Script.pieces(str(message.content)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=USAGE))


class State(AgentState[Any]):
    """An agent's state, with what is injected."""

    injected: NotRequired[str]


class LangChainHarness:
    """Plays scenarios with `create_agent`."""

    def tools(self, scenario: Scenario) -> list[StructuredTool]:
        """The specs as LangChain's own tools."""
        return [_tool(spec) for spec in scenario.tools]

    def replay_model(self, trace: Trace) -> ReplayModel:
        """The recorded answers as a chat model."""
        return ReplayModel(trace)

    def memory(self) -> InMemorySaver:
        """A checkpointer."""
        return InMemorySaver()

    def _agent(self, performance: Performance) -> Any:
        model: BaseChatModel = performance.replay_model or Actor(script=performance.script)
        session, tools = performance.session, performance.tools
        if session is None:
            return create_agent(model, tools, state_schema=State)
        if performance.scenario.guarded_model:
            model = guard_model(model, session)
        guarded, middleware = self.guard(tools, session, _declared(performance.scenario))
        return create_agent(
            model,
            guarded,
            middleware=[middleware],
            state_schema=State,
            checkpointer=performance.memory,
        )

    def guard(
        self, tools: list[StructuredTool], session: Session, contracts: dict[str, Any]
    ) -> tuple[list[StructuredTool], RollcageMiddleware]:
        """The agent's tools and its middleware: each tool is guarded by hand."""
        return guard_tools(tools, session, contracts=contracts), RollcageMiddleware(session)

    def run(self, performance: Performance) -> Result:
        """Play it, synchronously."""
        agent, question = self._agent(performance), _question(performance)
        if not performance.stream:
            return _ended(agent.invoke(question, THREAD))
        ended = _Streamed()
        for mode, part in agent.stream(question, stream_mode=["messages", "values"]):
            ended.take(mode, part)
        return ended.result()

    async def arun(self, performance: Performance) -> Result:
        """Play it in asyncio."""
        agent, question = self._agent(performance), _question(performance)
        if not performance.stream:
            return _ended(await agent.ainvoke(question, THREAD))
        ended = _Streamed()
        async for mode, part in agent.astream(question, stream_mode=["messages", "values"]):
            ended.take(mode, part)
        return ended.result()


class MiddlewareHarness(LangChainHarness):
    """The same, with the tools left to the middleware."""

    def guard(
        self, tools: list[StructuredTool], session: Session, contracts: dict[str, Any]
    ) -> tuple[list[StructuredTool], RollcageMiddleware]:
        """The agent's tools as they are, and its middleware."""
        return tools, RollcageMiddleware(session, contracts=contracts)


def _declared(scenario: Scenario) -> dict[str, Any]:
    return {spec.name: spec.declared for spec in scenario.tools}


def _tool(spec: ToolSpec) -> StructuredTool:
    function = spec.function
    if spec.injected:
        function = spec.annotated(Annotated[str, InjectedState("injected")])
    form: Literal["content", "content_and_artifact"]
    form = "content_and_artifact" if spec.artifact else "content"
    make = functools.partial(StructuredTool.from_function, response_format=form)
    return make(coroutine=function) if spec.is_async else make(function)


def _question(performance: Performance) -> dict[str, Any] | None:
    memory: InMemorySaver | None = performance.memory
    if memory is not None and memory.get_tuple(THREAD) is not None:
        return None  # it goes on with what its checkpoints hold
    scenario = performance.scenario
    return {"messages": [HumanMessage(scenario.question)], "injected": scenario.injected}


def _ended(state: dict[str, Any]) -> Result:
    last = state["messages"][-1]
    return Result(str(last.content) if isinstance(last, AIMessage) else "")


@dataclasses.dataclass
class _Streamed:
    """A streamed run: its last state, and the pieces of the last answer."""

    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    pieces: list[tuple[Any, str]] = dataclasses.field(default_factory=list)

    def take(self, mode: str, part: Any) -> None:
        if mode == "values":
            self.state = part
        elif isinstance(part[0], AIMessageChunk) and part[0].content:
            self.pieces.append((part[0].id, str(part[0].content)))

    def result(self) -> Result:
        ended = _ended(self.state)
        last = self.pieces[-1][0] if self.pieces else None
        chunks = tuple(text for message, text in self.pieces if message == last)
        return dataclasses.replace(ended, chunks=chunks)


HARNESS: Final[Harness] = LangChainHarness()


class TestLangChain(AdapterSuite):
    """Everything, with all capabilities."""

    @pytest.fixture
    def harness(self) -> Harness:
        return HARNESS


@pytest.mark.nightly
class TestMiddlewareAlone(AdapterSuite):
    """The same, where nobody guarded the tools before."""

    rounds = 10

    @pytest.fixture
    def harness(self) -> Harness:
        return MiddlewareHarness()
