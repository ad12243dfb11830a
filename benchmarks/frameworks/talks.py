"""Long conversations in each framework: a model that is asked with one, and an agent that has one.

A turn is an answer that asks for a call, and that call's result. The models answer at once, so that
a bare turn costs what the framework makes of it and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rollcage import Session

__all__ = ["TALKS", "Talk"]

Ask = Callable[[list[Any]], object]
"""Ask a model with these messages."""

Run = Callable[[int, int], list[int]]
"""Run an agent for so many turns, each with a text of so many characters.

It gives the CPU clock (ns) at each question that its model is asked.
"""


class Talk:
    """A framework's models and agents, bare and guarded in an entered session.

    Attributes:
        bare: asks the bare model.
        guarded: asks the guarded model.
        turn: makes the messages of a turn, by its number and with texts of so many characters.
        bare_agent: runs an agent of the bare model and the bare tool.
        guarded_agent: runs one of the guarded model and the guarded tool.
    """

    def __init__(
        self,
        bare: Ask,
        guarded: Ask,
        turn: Callable[[int, int], list[Any]],
        bare_agent: Run,
        guarded_agent: Run,
    ) -> None:
        self.bare, self.guarded, self.turn = bare, guarded, turn
        self.bare_agent, self.guarded_agent = bare_agent, guarded_agent


def _text(number: int, size: int) -> str:
    return f"{number:08} " + "x" * (size - 9)


class _Script:
    """What the model of an agent answers: a call in each turn, then that it is done."""

    def __init__(self) -> None:
        self.turns = self.asked = self.size = self.runs = 0
        self.clock: list[int] = []

    def begin(self, turns: int, size: int) -> None:
        """Begin with the first turn."""
        self.turns, self.size, self.asked = turns, size, 0
        self.runs += 1
        self.clock = []

    def next(self) -> int | None:
        """The number of the page that is asked for; None at the end."""
        self.clock.append(time.process_time_ns())
        self.asked += 1
        return None if self.asked > self.turns else self.asked

    @property
    def task(self) -> str:
        """What the agent is to do: no two runs have the same conversation."""
        return f"Read, for the {self.runs}. time."

    def page(self, number: int) -> str:
        """The result of the tool."""
        return _text(number, self.size)


def langchain(session: Session, folder: Path) -> Talk:
    """`invoke` of a chat model, and of an agent."""
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import StructuredTool
    from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

    script = _Script()

    class Answering(BaseChatModel):
        calls: bool = False

        @property
        def _llm_type(self) -> str:
            return "answering"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            page = script.next() if self.calls else None
            message = AIMessage("done") if page is None else asks(page)
            return ChatResult(generations=[ChatGeneration(message=message)])

    def asks(page: int) -> AIMessage:
        call = {"name": "read", "args": {"page": page}, "id": f"call-{page}"}
        return AIMessage("", tool_calls=[call])

    def turn(number: int, size: int) -> list[Any]:
        return [asks(number), ToolMessage(_text(number, size), tool_call_id=f"call-{number}")]

    def read(page: int) -> str:
        """Read a page."""
        return script.page(page)

    def running(agent: Any) -> Run:
        def run(turns: int, size: int) -> list[int]:
            script.begin(turns, size)
            agent.invoke({"messages": [("user", script.task)]}, {"recursion_limit": 4 * turns + 10})
            return script.clock

        return run

    model, tool = Answering(), StructuredTool.from_function(read)
    guarded = guard_model(Answering(calls=True), session)
    middleware = [RollcageMiddleware(session)]
    return Talk(
        model.invoke,
        guard_model(model, session).invoke,
        turn,
        running(create_agent(Answering(calls=True), [tool])),
        running(create_agent(guarded, guard_tools([tool], session), middleware=middleware)),
    )


def autogen(session: Session, folder: Path) -> Talk:
    """`create` of a client, and `run` of an agent."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import (
        AssistantMessage,
        ChatCompletionClient,
        CreateResult,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        ModelFamily,
        ModelInfo,
        RequestUsage,
    )
    from autogen_core.tools import FunctionTool
    from autogen_ext.models.replay import ReplayChatCompletionClient
    from rollcage_autogen import guard_model, guard_tools

    script = _Script()
    usage = RequestUsage(0, 0)
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=False,
        family=ModelFamily.UNKNOWN,
        structured_output=False,
    )

    def call(page: int) -> FunctionCall:
        return FunctionCall(id=f"call-{page}", name="read", arguments=json.dumps({"page": page}))

    class Answering(ReplayChatCompletionClient):
        async def create(self, *_: Any, **__: Any) -> CreateResult:
            return CreateResult(finish_reason="stop", content="done", usage=usage, cached=False)

    class Calling(ReplayChatCompletionClient):
        async def create(self, *_: Any, **__: Any) -> CreateResult:
            page = script.next()
            if page is None:
                return CreateResult(finish_reason="stop", content="done", usage=usage, cached=False)
            return CreateResult(
                finish_reason="function_calls", content=[call(page)], usage=usage, cached=False
            )

    def turn(number: int, size: int) -> list[Any]:
        result = FunctionExecutionResult(
            content=_text(number, size), call_id=f"call-{number}", name="read", is_error=False
        )
        return [
            AssistantMessage(content=[call(number)], source="agent"),
            FunctionExecutionResultMessage(content=[result]),
        ]

    async def read(page: int) -> str:
        return script.page(page)

    loop = asyncio.new_event_loop()

    def asking(client: ChatCompletionClient) -> Ask:
        return lambda messages: loop.run_until_complete(client.create(messages))

    def running(client: ChatCompletionClient, tools: list[Any]) -> Run:
        def run(turns: int, size: int) -> list[int]:
            script.begin(turns, size)
            agent = AssistantAgent("reader", client, tools=tools, max_tool_iterations=turns + 1)
            loop.run_until_complete(agent.run(task=script.task))
            return script.clock

        return run

    client, tool = Answering(["done"]), FunctionTool(read, "Read a page.", name="read")
    calling = Calling(["done"], model_info=info)
    return Talk(
        asking(client),
        asking(guard_model(client, session)),
        turn,
        running(calling, [tool]),
        running(guard_model(calling, session), guard_tools([tool], session)),
    )


def crewai(session: Session, folder: Path) -> Talk:
    """`call` of a model, and `kickoff` of a crew of one."""
    os.environ |= {"XDG_DATA_HOME": str(folder), "CREWAI_DISABLE_TELEMETRY": "true"}
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import tool
    from rollcage_crewai import guard_crew, guard_model

    script = _Script()

    class Answering(BaseLLM):
        def supports_function_calling(self) -> bool:
            return True

        def get_context_window_size(self) -> int:
            return 1_000_000_000

        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            return "done"

    class Calling(Answering):
        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            page = script.next()
            return "done" if page is None else [asks(page)]

    def asks(page: int) -> dict[str, Any]:
        function = {"name": "read", "arguments": json.dumps({"page": page})}
        return {"id": f"call-{page}", "type": "function", "function": function}

    def turn(number: int, size: int) -> list[Any]:
        return [
            {"role": "assistant", "content": None, "tool_calls": [asks(number)]},
            {"role": "tool", "tool_call_id": f"call-{number}", "content": _text(number, size)},
        ]

    def read(page: int) -> str:
        """Read a page."""
        return script.page(page)

    def running(guard: Callable[[Any], Any], model: BaseLLM) -> Run:
        def run(turns: int, size: int) -> list[int]:
            script.begin(turns, size)
            agent = Agent(
                role="reader", goal="read", backstory="A reader.", llm=model,
                tools=[tool("read")(read)], max_iter=turns + 2,
            )  # fmt: skip
            task = Task(description=script.task, expected_output="A text.", agent=agent)
            guard(Crew(agents=[agent], tasks=[task], tracing=False)).kickoff()
            return script.clock

        return run

    model, calling = Answering(model="answering"), Calling(model="calling")
    return Talk(
        model.call,
        guard_model(model, session).call,
        turn,
        running(lambda crew: crew, calling),
        running(lambda crew: guard_crew(crew, session), guard_model(calling, session)),
    )


TALKS: Final[dict[str, Callable[[Session, Path], Talk]]] = {
    "langchain": langchain,
    "autogen": autogen,
    "crewai": crewai,
}
"""By framework."""
