"""`ReplayModel`: the decisions of a recorded run, of any framework, drive an agent here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr
from rollcage_adapter import RecordedAnswers, Trace, offered

from rollcage_langchain.answers import as_chunk, message_of
from rollcage_langchain.requests import ASKED

__all__ = ["ReplayModel"]


class ReplayModel(BaseChatModel):
    """A chat model that gives the recorded answers of a run's model, by position.

    The run may have been recorded in any framework. Each call gets the next recorded answer: the
    same text, and the same tool calls in the same turns. No model is called.

    Args:
        trace: an entered session that replays the run, the path of its trace, or its store (a
            folder, a URL, or a `Store`) and its id.
        agent: the agent whose answers are used; None: all agents except the ones inside of tools.
        then: a live model that continues after the recorded answers.

    Raises:
        ReplayMiss: (when called) the agent asks for more answers than are recorded and there is no
            live model, or the answer calls a tool that the agent does not have.
    """

    then: BaseChatModel | None = None
    _answers: RecordedAnswers = PrivateAttr()

    def __init__(
        self, trace: Trace, *, agent: str | None = None, then: BaseChatModel | None = None
    ) -> None:
        super().__init__()
        self.then = then
        self._answers = RecordedAnswers(trace, agent=agent, then=then)

    @property
    def _llm_type(self) -> str:
        return "rollcage-replay"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        """Remember the tools, like providers do: a recorded answer may call no others."""
        offered = [convert_to_openai_tool(each) for each in tools]
        return self.bind(tools=offered, tool_choice=tool_choice, **kwargs)

    def _next(self, args: Any, kwargs: dict[str, Any]) -> tuple[AIMessage | None, Any, Any]:
        """Return the next answer; or the live model, with tools and options, and its messages."""
        asked = {name: each for name, each in ASKED.named(args, kwargs).items() if each is not None}
        messages, tools = asked.pop("messages"), asked.pop("tools", None)
        answer = self._answers.next(None if tools is None else offered(tools))
        if answer is not None:
            return message_of(answer), None, messages
        live, stop = self._answers.live, asked.pop("stop", None)
        bound = live.bind_tools(tools, **asked) if tools else live.bind(**asked)
        return None, bound.bind(stop=stop), messages

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        message, live, messages = self._next(args, kwargs)
        message = message or live.invoke(messages)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        message, live, messages = self._next(args, kwargs)
        message = message or await live.ainvoke(messages)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        message, live, messages = self._next(args, kwargs)
        for chunk in live.stream(messages) if message is None else [as_chunk(message)]:
            yield ChatGenerationChunk(message=chunk)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        message, live, messages = self._next(args, kwargs)
        if message is not None:
            yield ChatGenerationChunk(message=as_chunk(message))
            return
        async for chunk in live.astream(messages):
            yield ChatGenerationChunk(message=chunk)
