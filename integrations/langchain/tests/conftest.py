"""What the adapter's tests share: a scripted model, agents over it, and runs to look at."""

import asyncio
import dataclasses
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from rollcage import Session
from rollcage.trace.chain import checked
from rollcage.trace.store import open_store
from rollcage_langchain import RollcageMiddleware, guard_tools

Answer = str | Sequence[tuple[str, dict[str, Any]]] | AIMessage | Exception
"""What a scripted model answers: a text, calls, a whole message, or an error of its own."""


class ScriptedModel(BaseChatModel):
    """A chat model that knows its answers beforehand; the conversation tells which is next."""

    script: list[Any]
    model: str = "scripted-1"
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    stop: list[str] | None = None
    max_retries: int | None = None
    seen: list[list[BaseMessage]] = []  # noqa: RUF012 - Pydantic copies a default
    asked: list[dict[str, Any]] = []  # noqa: RUF012 - the same

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        """As providers do it: the tools become an option of each call."""
        formatted = [convert_to_openai_tool(each) for each in tools]
        return self.bind(tools=formatted, tool_choice=tool_choice, **kwargs)

    def answer(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
        """The next answer of the script."""
        self.seen.append(list(messages))
        self.asked.append(kwargs)
        turn = sum(isinstance(message, AIMessage) for message in messages)
        answer = self.script[turn]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, AIMessage):
            return answer
        calls = [] if isinstance(answer, str) else answer
        return AIMessage(
            content=answer if isinstance(answer, str) else "",
            id=f"answer-{next(_serial)}",
            tool_calls=[
                {"name": name, "args": args, "id": f"call-{next(_serial)}", "type": "tool_call"}
                for name, args in calls
            ],
            usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
            response_metadata={"model_name": self.model, "finish_reason": "stop"},
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = self.answer(messages, kwargs)
        return ChatResult(
            generations=[ChatGeneration(message=message)], llm_output={"provider": "script"}
        )

    def pieces(self, message: AIMessage) -> Iterator[ChatGenerationChunk]:
        """An answer as a stream: its text word by word, or its calls; usage at the end."""
        base: dict[str, Any] = {"id": message.id}
        for word in re.findall(r"\S+\s*", str(message.content)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word, **base))
        last = AIMessageChunk(
            content="",
            tool_calls=message.tool_calls,
            usage_metadata=message.usage_metadata,
            response_metadata=message.response_metadata,
            **base,
        )
        yield ChatGenerationChunk(message=last, generation_info={"last": True})


_serial = itertools.count(1)


class StreamingModel(ScriptedModel):
    """The same, with a stream of its own."""

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from self.pieces(self.answer(messages, kwargs))


class AsyncModel(StreamingModel):
    """The same, with coroutines of its own."""

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages, stop, run_manager, **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for piece in self.pieces(self.answer(messages, kwargs)):
            yield piece


MODELS: dict[str, type[ScriptedModel]] = {
    "plain": ScriptedModel,
    "streaming": StreamingModel,
    "async": AsyncModel,
}


@dataclasses.dataclass
class Ran:
    """What became of an agent.

    Attributes:
        state: the agent's last state; None where it was ended by an exception.
        error: that exception, or what leaving the session raised.
        session: the session.
        model: its model, unguarded.
        events: the lines of the run's log, checked.
    """

    state: dict[str, Any] | None
    error: BaseException | None
    session: Session
    model: ScriptedModel
    events: list[dict[str, Any]]

    @property
    def texts(self) -> list[str]:
        """The contents of the messages that answer calls."""
        assert self.state is not None
        return [str(m.content) for m in self.state["messages"] if m.type == "tool"]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines with which the run's calls began."""
        return steps_in(self.events)

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        """How the calls ended that did, in that order."""
        return outcomes_in(self.events)

    @property
    def parents(self) -> list[int | None]:
        """For each call, the number of the one whose body made it."""
        return parents_in(self.events)

    @property
    def refused(self) -> list[dict[str, Any]]:
        """The lines of calls that were refused."""
        return [event for event in self.events if event["event"] == "refused"]


def steps_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with which calls began."""
    return [e for e in events if e["event"] == "step" and e["effect"] != "branch"]


def parents_in(events: list[dict[str, Any]]) -> list[int | None]:
    """For each call, the number of the one whose body made it."""
    bodies = {f"#{e['fingerprint']}": e["step"] for e in steps_in(events)}
    return [bodies.get(step["branch"]) for step in steps_in(events)]


def outcomes_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How calls ended, in that order."""
    calls = {e["step"] for e in steps_in(events)}
    ended = (e["outcome"] for e in events if "outcome" in e and e["step"] in calls)
    return [outcome for outcome in ended if outcome is not None]


class Lab:
    """Runs agents over one store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = open_store(root)

    def events(self, run: str) -> list[dict[str, Any]]:
        """The lines of a run's log, checked."""
        return list(checked(self.store.read(run), f"run {run}"))

    def of(self, session: Session) -> list[dict[str, Any]]:
        """The lines of one attempt at a run."""
        events = self.events(session.run_id)
        begins = [n for n, e in enumerate(events) if e["event"] == "attempt"]
        own = next(n for n in begins if events[n]["id"] == session.attempt.run.attempt)
        return events[own : min((n for n in begins if n > own), default=None)]

    def steps(self, session: Session) -> list[dict[str, Any]]:
        """The lines with which a run's calls began."""
        return steps_in(self.events(session.run_id))

    def parents(self, session: Session) -> list[int | None]:
        """For each call of a run, the number of the one whose body made it."""
        return parents_in(self.events(session.run_id))

    def outcomes(self, session: Session) -> list[dict[str, Any]]:
        """How a run's calls ended that did, in that order."""
        return outcomes_in(self.events(session.run_id))

    def args(self, session: Session) -> list[Any]:
        """The recorded arguments of each call of a run, in its order."""
        return [step["args"] for step in self.steps(session)]

    def session(self, name: str = "job", **settings: Any) -> Session:
        """A session over the store."""
        return Session(name, store=self.store, **settings)

    def model(self, script: Sequence[Answer], kind: str = "plain") -> ScriptedModel:
        """A scripted model; its kind says what it implements itself."""
        return MODELS[kind](script=list(script))

    def _agent(
        self,
        tools: Sequence[Any],
        model: BaseChatModel,
        session: Session | None,
        options: dict[str, Any],
    ) -> Any:
        effects = options.pop("effects", {})
        if session is None:
            return create_agent(model, list(tools), **options)
        guarded = guard_tools(tools, session, effects=effects)
        middleware = [RollcageMiddleware(session), *options.pop("middleware", [])]
        return create_agent(model, guarded, middleware=middleware, **options)

    def run(
        self,
        tools: Sequence[Any],
        script: Sequence[Answer],
        *,
        guard: Callable[..., Any] = lambda model, _: model,
        **settings: Any,
    ) -> Ran:
        """Run a guarded agent to its end, synchronously."""
        options = _split(settings)
        model = self.model(script)
        state = error = None
        session = self.session(**settings)
        try:
            with session:
                agent = self._agent(tools, guard(model, session), session, options)
                state = agent.invoke(QUESTION)
        except Exception as caught:  # noqa: BLE001 - the tests judge it
            error = caught
        return Ran(state, error, session, model, self.events(session.run_id))

    async def arun(
        self,
        tools: Sequence[Any],
        script: Sequence[Answer],
        *,
        guard: Callable[..., Any] = lambda model, _: model,
        **settings: Any,
    ) -> Ran:
        """The same in asyncio."""
        options = _split(settings)
        model = self.model(script)
        state = error = None
        session = self.session(**settings)
        try:
            async with session:
                agent = self._agent(tools, guard(model, session), session, options)
                state = await agent.ainvoke(QUESTION)
        except Exception as caught:  # noqa: BLE001 - the tests judge it
            error = caught
        return Ran(state, error, session, model, self.events(session.run_id))

    def await_run(self, *args: Any, **settings: Any) -> Ran:
        """`arun`, for a test that is not async itself."""
        return asyncio.run(self.arun(*args, **settings))

    def plain(self, tools: Sequence[Any], script: Sequence[Answer], **options: Any) -> Any:
        """Run an agent that nothing guards; its last state."""
        agent: Any = create_agent(self.model(script), list(tools), **options)
        return agent.invoke(QUESTION)


QUESTION: dict[str, Any] = {"messages": [HumanMessage("Go.", id="question")]}
_AGENT_OPTIONS = {
    "effects": "effects",
    "middleware": "middleware",
    "state_schema": "state_schema",
    "agent_name": "name",
    "agent_store": "store",
}


def _split(settings: dict[str, Any]) -> dict[str, Any]:
    """Take what is create_agent's out of the settings."""
    return {
        theirs: settings.pop(ours) for ours, theirs in _AGENT_OPTIONS.items() if ours in settings
    }


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A store of the test's own, and agents over it."""
    return Lab(tmp_path / "store")


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, lab: Lab) -> Callable[..., Ran]:
    """Run an agent, in both ways."""
    return lab.run if request.param == "sync" else lab.await_run


@pytest.fixture
def written() -> list[str]:
    """What the tool `writer` has written."""
    return []


@pytest.fixture
def writer(written: list[str]) -> StructuredTool:
    """A tool that notes what it wrote."""

    def write(text: str) -> str:
        """Write a text."""
        written.append(text)
        return f"wrote {text}, number {len(written)}"

    return StructuredTool.from_function(write)


@pytest.fixture
def call() -> Callable[..., dict[str, Any]]:
    """A tool call as LangChain hands it to a tool."""
    return lambda **args: {"name": "t", "args": args, "id": "call-1", "type": "tool_call"}
