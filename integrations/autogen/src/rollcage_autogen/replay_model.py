"""`ReplayModel`: the decisions of a recorded run, of any framework, drive an agent here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import Tool, ToolSchema
from rollcage import Session
from rollcage_adapter import RecordedAnswers, Trace, offered

from rollcage_autogen.answers import result_of
from rollcage_autogen.turns import answered

__all__ = ["ReplayModel"]

_UNLIMITED: Final = 1_000_000_000  # tokens: nothing is sent


class ReplayModel(ChatCompletionClient):
    """A model client that gives the recorded answers of a run's model, by position.

    The run may have been recorded in any framework. Each call gets the next recorded answer: the
    same text, and the same tool calls in the same turns. No model is called.

    Args:
        trace: an entered session that replays the run, the path of its trace, or its store (a
            folder, a URL, or a `Store`) and its id.
        agent: the agent whose answers are used; None: all agents except the ones inside of tools.
        then: a live client that continues after the recorded answers.

    Raises:
        ReplayMiss: (when called) the agent asks for more answers than are recorded and there is no
            live client, or the answer calls a tool that the agent does not have.
    """

    def __init__(
        self, trace: Trace, *, agent: str | None = None, then: ChatCompletionClient | None = None
    ) -> None:
        self.then = then
        self._answers = RecordedAnswers(trace, agent=agent, then=then)
        self._session = trace if isinstance(trace, Session) else None

    def _next(self, tools: Sequence[Tool | ToolSchema]) -> CreateResult | None:
        """Return the next recorded answer; None if the live client is to be called."""
        if self._session is not None:
            self._session.check()
        answer = self._answers.next(offered(tools))
        if answer is None:
            return None
        result = result_of(answer)
        answered(result, self._session)
        return result

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        **options: Any,
    ) -> CreateResult:
        """Return the next answer; `options` are for the live client."""
        result = self._next(tools)
        if result is None:
            result = await self._answers.live.create(messages, tools=tools, **options)
            answered(result, self._session)
        return result

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        **options: Any,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """Yield the next answer as a stream: its text in one piece, then the result."""
        result = self._next(tools)
        if result is not None:
            if isinstance(result.content, str) and result.content:
                yield result.content
            yield result
            return
        live = self._answers.live.create_stream(messages, tools=tools, **options)
        async with contextlib.aclosing(live):
            async for piece in live:
                if isinstance(piece, CreateResult):
                    answered(piece, self._session)
                yield piece

    async def close(self) -> None:
        """Close the live client, if there is one."""
        if self.then is not None:
            await self.then.close()

    def actual_usage(self) -> RequestUsage:
        """Return the live client's usage; recorded answers use nothing."""
        return RequestUsage(0, 0) if self.then is None else self.then.actual_usage()

    def total_usage(self) -> RequestUsage:
        """Return the live client's usage; recorded answers use nothing."""
        return RequestUsage(0, 0) if self.then is None else self.then.total_usage()

    def count_tokens(
        self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()
    ) -> int:
        """Return the live client's count; 0 without one."""
        return 0 if self.then is None else self.then.count_tokens(messages, tools=tools)

    def remaining_tokens(
        self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()
    ) -> int:
        """Return the live client's limit; without a client there is no limit."""
        if self.then is None:
            return _UNLIMITED
        return self.then.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        """The older form of `model_info`."""
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        """The live client's capabilities; without one, all of them, for any recording."""
        if self.then is not None:
            return self.then.model_info
        return ModelInfo(
            vision=True,
            function_calling=True,
            json_output=True,
            family=ModelFamily.UNKNOWN,
            structured_output=True,
            multiple_system_messages=True,
        )
