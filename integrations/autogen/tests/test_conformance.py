"""The adapter passes the suites that every adapter passes."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Final

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import BaseTool, FunctionTool, StaticStreamWorkbench
from rollcage import Session
from rollcage_adapter import Trace
from rollcage_autogen import (
    ReplayModel,
    RollcageWorkbench,
    follow_state,
    guard_model,
    guard_tools,
)
from rollcage_conformance import (
    AdapterSuite,
    Capabilities,
    Harness,
    Performance,
    Result,
    Scenario,
    Script,
)

Tools = list[BaseTool[Any, Any]]

USAGE = RequestUsage(Script.USAGE["input_tokens"], Script.USAGE["output_tokens"])


class Actor(ChatCompletionClient):
    """Asks the script for each message."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def _ask(self, messages: Sequence[LLMMessage]) -> CreateResult:
        turn = sum(isinstance(message, AssistantMessage) for message in messages)
        last = messages[-1]
        results: list[str] = []
        if isinstance(last, FunctionExecutionResultMessage):
            results = [each.content for each in last.content]
        answer = self.script.answer(turn, results)
        content: str | list[FunctionCall]
        if isinstance(answer, str):
            content = answer
        else:
            content = [
                FunctionCall(id=f"call-{turn}-{i}", name=name, arguments=json.dumps(dict(args)))
                for i, (name, args) in enumerate(answer)
            ]
        return CreateResult(
            finish_reason="stop" if isinstance(content, str) else "function_calls",
            content=content,
            usage=USAGE,
            cached=False,
            thought=self.script.thought or None,
        )

    async def create(self, messages: Sequence[LLMMessage], **_: Any) -> CreateResult:
        return self._ask(messages)

    async def create_stream(
        self, messages: Sequence[LLMMessage], **_: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        result = self._ask(messages)
        if isinstance(result.content, str):
            for piece in Script.pieces(result.content):
                yield piece
        yield result

    async def close(self) -> None:
        pass

    def actual_usage(self) -> RequestUsage:
        return USAGE

    def total_usage(self) -> RequestUsage:
        return USAGE

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Any = ()) -> int:
        return 0

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Any = ()) -> int:
        return 1000

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False,
            function_calling=True,
            json_output=False,
            family=ModelFamily.UNKNOWN,
            structured_output=False,
        )


class AutoGenHarness:
    """Plays scenarios with an `AssistantAgent` that has `tools=`."""

    def tools(self, scenario: Scenario) -> Tools:
        """The specs as AutoGen's own tools."""
        return [FunctionTool(spec.function, spec.function.__doc__ or "") for spec in scenario.tools]

    def replay_model(self, trace: Trace) -> ReplayModel:
        """The recorded answers as a model client."""
        return ReplayModel(trace)

    def memory(self) -> dict[str, Any]:
        """What an agent's state is saved to."""
        return {}

    def _agent(self, performance: Performance) -> AssistantAgent:
        model: ChatCompletionClient = performance.replay_model or Actor(performance.script)
        session, options = performance.session, {"tools": performance.tools}
        if session is not None:
            if performance.scenario.guarded_model:
                model = guard_model(model, session)
            contracts = {spec.name: spec.declared for spec in performance.scenario.tools}
            options = self.guard(performance.tools, session, contracts)
        return AssistantAgent(
            "actor",
            model,
            model_client_stream=performance.stream,
            max_tool_iterations=1000,
            **options,
        )

    def guard(self, tools: Tools, session: Session, contracts: dict[str, Any]) -> dict[str, Any]:
        """The guarded tools, as the agent takes them."""
        return {"tools": guard_tools(tools, session, contracts=contracts)}

    def run(self, performance: Performance) -> Result:
        """AutoGen has no sync agents."""
        raise NotImplementedError

    async def arun(self, performance: Performance) -> Result:
        """Play it; cancel it as AutoGen wants it, by its token."""
        token = CancellationToken()
        agent = self._agent(performance)
        playing = asyncio.ensure_future(_play(agent, token, performance))
        try:
            return await asyncio.shield(playing)
        except asyncio.CancelledError:
            token.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            raise


class WorkbenchHarness(AutoGenHarness):
    """The same, with the tools in a workbench."""

    def guard(self, tools: Tools, session: Session, contracts: dict[str, Any]) -> dict[str, Any]:
        """The guarded workbench, as the agent takes it."""
        inner = StaticStreamWorkbench(tools)
        return {"workbench": RollcageWorkbench(inner, session, contracts=contracts)}


async def _play(
    agent: AssistantAgent, token: CancellationToken, performance: Performance
) -> Result:
    memory: dict[str, Any] | None = performance.memory
    if not memory:
        try:
            return await _run(agent, performance.scenario.question, token)
        finally:
            if memory is not None:
                memory |= await agent.save_state()
    if performance.session is not None:
        follow_state(performance.session, memory)
    await agent.load_state(memory)
    try:
        return await _run(agent, None, token)
    finally:
        memory |= await agent.save_state()


async def _run(agent: AssistantAgent, task: str | None, token: CancellationToken) -> Result:
    text, chunks = "", []
    async for event in agent.run_stream(task=task, cancellation_token=token):
        if isinstance(event, ModelClientStreamingChunkEvent):
            chunks.append(event.content)
        elif isinstance(event, TextMessage) and event.source == "actor":
            text = event.content
    return Result(text, chunks=tuple(chunks))


HARNESS: Final[Harness] = AutoGenHarness()


class TestAutoGen(AdapterSuite):
    """Agents are async only; nothing but a cancellation token can be injected."""

    capabilities: ClassVar[Capabilities] = Capabilities(sync=False, injection=False)

    @pytest.fixture
    def harness(self) -> Harness:
        return HARNESS


class TestWorkbench(AdapterSuite):
    """The same, with a workbench."""

    capabilities: ClassVar[Capabilities] = Capabilities(sync=False, injection=False)

    @pytest.fixture
    def harness(self) -> Harness:
        return WorkbenchHarness()
