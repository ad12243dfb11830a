"""`ReplayModel`: the decisions of a recorded run, of any framework, drive a crew here."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

from crewai.llms.base_llm import BaseLLM
from pydantic import PrivateAttr
from rollcage_adapter import Answer, RecordedAnswers, Trace, offered

from rollcage_crewai.answers import ModelResponse, emit
from rollcage_crewai.private import streams
from rollcage_crewai.requests import ASKED

__all__ = ["ReplayModel"]

_WINDOW: Final = 1_000_000  # tokens: recorded answers need no shorter conversation


class ReplayModel(BaseLLM):
    """A model that gives the recorded answers of a run's model, by position.

    The run may have been recorded in any framework. Each call gets the next recorded answer: the
    same text, and the same tool calls in the same turns. No model is called. An agent without
    native tool calls gets each recorded call as text, one a message.

    Args:
        trace: an entered session that replays the run, the path of its trace, or its store (a
            folder, a URL, or a `Store`) and its id.
        agent: the agent whose answers are used; None: all agents except the ones inside of tools.
        then: a live model that continues after the recorded answers.

    Raises:
        ReplayMiss: (when called) the agent asks for more answers than are recorded and there is no
            live model, or the answer calls a tool that the agent does not have.
    """

    llm_type: str = "rollcage-replay"
    then: BaseLLM | None = None
    _answers: RecordedAnswers = PrivateAttr()
    _written: deque[str] = PrivateAttr(default_factory=deque[str])
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self, trace: Trace, *, agent: str | None = None, then: BaseLLM | None = None
    ) -> None:
        super().__init__(model="rollcage-replay", provider="rollcage")
        self.then = then
        self._answers = RecordedAnswers(trace, agent=agent, then=then)

    def supports_function_calling(self) -> bool:
        """Return that recorded tool calls are given as such."""
        return self.then is None or bool(getattr(self.then, "supports_function_calling", bool)())

    def get_context_window_size(self) -> int:
        """Return more tokens than any recorded conversation has; or the live model's window."""
        return _WINDOW if self.then is None else self.then.get_context_window_size()

    def get_input_tokens_count(self, *args: Any, **kwargs: Any) -> int:
        """Return the live model's count; 0 without one."""
        return 0 if self.then is None else self.then.get_input_tokens_count(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next recorded answer."""
        response = self._next(ASKED.named(args, kwargs))
        return self._answers.live.call(*args, **kwargs) if response is None else response.value

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next recorded answer."""
        response = self._next(ASKED.named(args, kwargs))
        if response is None:
            return await self._answers.live.acall(*args, **kwargs)
        return response.value

    def _next(self, asked: dict[str, Any]) -> ModelResponse | None:
        """Return the next answer in the form of the request; None after the last."""
        tools = asked.get("tools")
        with self._lock:
            if self._written:
                return ModelResponse(self._written.popleft())
            answer = self._answers.next(offered(tools) if tools else None)
            if answer is None:
                return None
            response = ModelResponse.of(answer)
            if answer.tool_calls and not tools:
                self._written.extend(_as_text(answer))
                response.value = self._written.popleft()
            elif not answer.tool_calls and asked.get("response_model") is not None:
                response.value = asked["response_model"].model_validate_json(answer.text)
        if answer.reasoning:
            response.chunks.append(["thinking", answer.reasoning])
        if streams(self) and isinstance(response.value, str):
            response.chunks.append(["text", response.value])
        emit(self, asked, response)
        return response


def _as_text(answer: Answer) -> list[str]:
    """Return the calls of an answer as an agent without native calls writes them: one a message."""
    thought = answer.text or "I should use a tool."
    return [
        f"Thought: {thought}\nAction: {call.name}\nAction Input: {call.arguments}"
        for call in answer.tool_calls
    ]
