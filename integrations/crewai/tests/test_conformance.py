"""The adapter passes the suites that every adapter passes."""

import json
from typing import Any, Final

import pytest
from crewai import Agent, Crew, Task
from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import BaseLLM, llm_call_context
from crewai.tools import BaseTool, tool
from crewai.types.streaming import StreamChunkType
from rollcage_adapter import Trace
from rollcage_conformance import (
    AdapterSuite,
    Capabilities,
    FacadeSuite,
    FlowSuite,
    GateSuite,
    Harness,
    IsolationSuite,
    LimitSuite,
    OutcomeSuite,
    Performance,
    PolicySuite,
    ReplaySuite,
    Result,
    Scenario,
    Script,
    ToolSpec,
)
from rollcage_crewai import ReplayModel, guard_crew, guard_model, guard_tools


class Actor(BaseLLM):
    """Asks the script for each message."""

    script: Any = None

    def supports_function_calling(self) -> bool:
        """The script's calls are given as such."""
        return True

    def get_context_window_size(self) -> int:
        """Enough for any script."""
        return 1_000_000

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer by the script, and tell what a provider's model tells."""
        who = {name: kwargs.get(name) for name in ("from_task", "from_agent")}
        with llm_call_context():
            self._emit_call_started_event(messages=messages, **who)
            answer = self._ask(messages)
            if self.script.thought:
                self._emit_thinking_chunk_event(chunk=self.script.thought, **who)
            if self._effective_stream() and isinstance(answer, str):
                for piece in Script.pieces(answer):
                    self._emit_stream_chunk_event(chunk=piece, **who)
            asked, said = Script.USAGE.values()
            usage = {
                "prompt_tokens": asked,
                "completion_tokens": said,
                "total_tokens": asked + said,
            }
            self._track_token_usage_internal(usage)
            kind = LLMCallType.LLM_CALL if isinstance(answer, str) else LLMCallType.TOOL_CALL
            self._emit_call_completed_event(response=answer, call_type=kind, usage=usage, **who)
        return answer

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """The same in asyncio."""
        return self.call(messages, *args, **kwargs)

    def _ask(self, messages: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in messages)
        results: list[str] = []
        for message in reversed(messages):
            if message["role"] == "assistant":
                break
            if message["role"] == "tool":
                results.insert(0, str(message["content"]))
        answer = self.script.answer(turn, results)
        if isinstance(answer, str):
            return answer
        return [
            {
                "id": f"call-{turn}-{slot}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for slot, (name, arguments) in enumerate(answer)
        ]


class CrewAIHarness:
    """Plays scenarios with a crew of one."""

    def tools(self, scenario: Scenario) -> list[BaseTool]:
        """The specs as CrewAI's own tools."""
        return [_tool(spec) for spec in scenario.tools]

    def replay_model(self, trace: Trace) -> ReplayModel:
        """The decisions of a recorded run."""
        return ReplayModel(trace)

    def memory(self) -> None:
        """CrewAI keeps the outputs of whole tasks, and nothing of the calls that were made."""
        return

    def _crew(self, performance: Performance) -> Crew:
        model: BaseLLM = performance.replay_model or Actor(
            model="scripted", script=performance.script
        )
        session, tools = performance.session, performance.tools
        contracts = {spec.name: spec.declared for spec in performance.scenario.tools}
        if session is not None:
            tools = self.guard(tools, session, contracts)
            if performance.scenario.guarded_model:
                model = guard_model(model, session)
        agent = Agent(
            role="actor",
            goal="act",
            backstory="An actor.",
            llm=model,
            tools=tools,
            max_iter=1000,  # one for each message of the script
        )
        asked = performance.scenario.question
        task = Task(description=asked, expected_output="A text.", agent=agent)
        crew = Crew(agents=[agent], tasks=[task], stream=performance.stream, tracing=False)
        if session is None:
            return crew
        return guard_crew(crew, session, contracts=contracts)

    def guard(self, tools: list[BaseTool], session: Any, contracts: Any) -> list[BaseTool]:
        """The agent's tools: guarded by hand."""
        return guard_tools(tools, session, contracts=contracts)

    def run(self, performance: Performance) -> Result:
        """Play it, synchronously."""
        output: Any = self._crew(performance).kickoff()
        if not performance.stream:
            return Result(output.raw)
        pieces = tuple(
            chunk.content for chunk in output if chunk.chunk_type is StreamChunkType.TEXT
        )
        return Result(output.result.raw, chunks=pieces)

    async def arun(self, performance: Performance) -> Result:
        """Play it in asyncio."""
        output: Any = await self._crew(performance).akickoff()
        if not performance.stream:
            return Result(output.raw)
        pieces = [c.content async for c in output if c.chunk_type is StreamChunkType.TEXT]
        return Result(output.result.raw, chunks=tuple(pieces))


class CrewAloneHarness(CrewAIHarness):
    """The same, with the tools left to `guard_crew`."""

    def guard(self, tools: list[BaseTool], session: Any, contracts: Any) -> list[BaseTool]:
        """The agent's tools as they are."""
        return tools


def _tool(spec: ToolSpec) -> BaseTool:
    return tool(spec.name)(spec.function)


HARNESS: Final[Harness] = CrewAIHarness()


class TestCrewAI(AdapterSuite):
    """Everything that CrewAI can do; it injects nothing, and has no memory of calls."""

    capabilities = Capabilities(injection=False, memory=False)
    rounds = 30  # a turn of a crew takes ten times that of another agent

    @pytest.fixture
    def harness(self) -> Harness:
        return HARNESS


@pytest.mark.nightly
class TestCrewAlone(
    ReplaySuite,
    GateSuite,
    PolicySuite,
    LimitSuite,
    FlowSuite,
    FacadeSuite,
    OutcomeSuite,
    IsolationSuite,
):
    """The same, where nobody guarded the tools before."""

    capabilities = Capabilities(injection=False)
    rounds = 10

    @pytest.fixture
    def harness(self) -> Harness:
        return CrewAloneHarness()
