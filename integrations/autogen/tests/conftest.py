"""What the adapter's tests share: a scripted client, agents over it, and runs to look at."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient
from rollcage import Options, Session
from rollcage.trace.chain import parse
from rollcage.trace.folder import Folder
from rollcage_autogen import guard_model
from rollcage_conformance import Witness

T = TypeVar("T")

DEADLINE = 20.0  # seconds: what takes longer hangs
INFO = ModelInfo(
    vision=True,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=True,
    multiple_system_messages=True,
)

Answer = str | Sequence[tuple[str, dict[str, Any]]] | CreateResult | BaseException
"""What a scripted client answers: a text, calls, a whole result, or an error of its own."""

_serial = itertools.count(1)


class Scripted(ReplayChatCompletionClient):
    """AutoGen's own fake; the conversation tells which answer is next. Ids of calls never recur."""

    def __init__(self, script: Sequence[Answer], model: str = "scripted-1") -> None:
        super().__init__([], INFO)
        self.script = list(script)
        self.asked: list[dict[str, Any]] = []
        self._create_args = {"model": model}

    def answer(self, messages: Sequence[Any], options: dict[str, Any]) -> CreateResult:
        """The next answer of the script."""
        self.asked.append({"messages": list(messages), **options})
        answer = self.script[sum(isinstance(each, AssistantMessage) for each in messages)]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, CreateResult):
            return answer
        calls = [] if isinstance(answer, str) else answer
        return CreateResult(
            finish_reason="function_calls" if calls else "stop",
            content=answer
            if isinstance(answer, str)
            else [
                FunctionCall(id=f"call-{next(_serial)}", name=name, arguments=json.dumps(args))
                for name, args in calls
            ],
            usage=RequestUsage(10, 5),
            cached=False,
        )

    async def create(self, messages: Sequence[Any], **options: Any) -> CreateResult:
        """The next answer."""
        return self.answer(messages, options)

    async def create_stream(
        self, messages: Sequence[Any], **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        """The next answer, a text word by word."""
        result = self.answer(messages, options)
        if isinstance(result.content, str):
            for word in result.content.split():
                yield f"{word} "
        yield result


_OPTIONS = {field.name for field in dataclasses.fields(Options)}


class Lab:
    """Runs agents over one store."""

    def __init__(self, root: Path) -> None:
        self.store = Folder(root)
        self._witnesses: dict[Session, Witness] = {}

    def session(self, name: str = "job", *, inner: bool = False, **settings: Any) -> Session:
        """A session over the store, with a witness of its calls; `inner`: one inside of another.

        Fields of `Options` are among the settings.
        """
        chosen = {each: settings.pop(each) for each in _OPTIONS & settings.keys()}
        witness, options = Witness(), Options(**chosen)
        stages = [] if inner else [witness]
        session = Session(name, store=self.store, stages=stages, options=options, **settings)
        self._witnesses[session] = witness
        return session

    def client(self, *script: Answer, model: str = "scripted-1") -> Scripted:
        """A scripted client."""
        return Scripted(script, model)

    def agent(
        self, client: Any, session: Session | None = None, *, name: str = "clerk", **options: Any
    ) -> AssistantAgent:
        """An agent with a model that is guarded where there is a session."""
        if session is not None:
            client = guard_model(client, session)
        return AssistantAgent(name, client, **{"max_tool_iterations": 10, **options})

    def lines(self, session: Session) -> list[dict[str, Any]]:
        """The lines of a run's log, checked."""
        return parse(self.store.read(session.run_id), session.run_id)

    def steps(self, session: Session, kind: str = "tool") -> list[dict[str, Any]]:
        """The calls of an attempt, by turn and slot: see `Witness.records`."""
        return self._witnesses[session].records(kind)


def _results(ended: TaskResult) -> list[tuple[str, bool]]:
    return [
        (each.content, bool(each.is_error))
        for message in ended.messages
        if isinstance(message, ToolCallExecutionEvent)
        for each in message.content
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A store of the test's own, and agents over it."""
    return Lab(tmp_path / "store")


@pytest.fixture
def results() -> Callable[[TaskResult], list[tuple[str, bool]]]:
    """What the model saw of its calls: each text, and whether it is an error."""
    return _results


@pytest.fixture
def within() -> Callable[[Awaitable[T]], Awaitable[T]]:
    """Await something that must not hang."""

    async def wait(awaitable: Awaitable[T]) -> T:
        async with asyncio.timeout(DEADLINE):
            return await awaitable

    return wait
