"""`ReplayModel`: the decisions of a recorded run, of whichever framework, drive a crew here."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import BaseLLM, llm_call_context
from pydantic import PrivateAttr
from rollcage.adapter import Answer, RecordedAnswers, Trace

from rollcage_crewai.requests import asked_with
from rollcage_crewai.values import Function, ToolCall, names_of

__all__ = ["ReplayModel"]

_WINDOW: Final = 1_000_000  # tokens: recorded answers need no shorter conversation


class ReplayModel(BaseLLM):
    """A model that answers what the model of a recorded run answered, by position.

    The run may have been recorded under any framework. Each call gets the next recorded answer: the
    same text, and the same tool calls in the same turns. No model is asked. To an agent without
    native tool calls it writes each recorded call as text, one a message.

    Args:
        trace: an entered session that replays the run, or the path of its trace.
        agent: whose answers; None takes those of all agents but the ones inside of tools.
        then: a live model that goes on where the recorded answers end.

    Raises:
        ReplayMiss: (when called) the agent asks for more than is recorded and nobody goes on, or
            the answer asks for a tool that the agent does not have.
    """

    llm_type: str = "rollcage-replay"
    then: BaseLLM | None = None
    _answers: RecordedAnswers = PrivateAttr()
    _places: Iterator[int] = PrivateAttr(default_factory=itertools.count)
    _written: deque[str] = PrivateAttr(default_factory=deque[str])
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self, trace: Trace, *, agent: str | None = None, then: BaseLLM | None = None
    ) -> None:
        super().__init__(model="rollcage-replay", provider="rollcage")
        self.then = then
        self._answers = RecordedAnswers(trace, agent=agent)

    def supports_function_calling(self) -> bool:
        """Recorded tool calls are given as such."""
        return self.then is None or bool(getattr(self.then, "supports_function_calling", bool)())

    def get_context_window_size(self) -> int:
        """More than any recorded conversation has, in tokens; a live model knows its own."""
        return _WINDOW if self.then is None else self.then.get_context_window_size()

    def get_input_tokens_count(self, *args: Any, **kwargs: Any) -> int:
        """As the live model counts them; without one, nobody does: 0."""
        return 0 if self.then is None else self.then.get_input_tokens_count(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Give the next recorded answer."""
        given, value = self._next(asked_with(args, kwargs))
        return value if given else self._live().call(*args, **kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Give the next recorded answer."""
        given, value = self._next(asked_with(args, kwargs))
        return value if given else await self._live().acall(*args, **kwargs)

    def _live(self) -> BaseLLM:
        if self.then is None:
            raise self._answers.used_up()
        return self.then

    def _next(self, asked: dict[str, Any]) -> tuple[bool, Any]:
        """The next answer in the form that fits what is asked; False once all are given."""
        messages, tools = asked["messages"], asked.get("tools")
        with self._lock:
            if self._written:
                return True, self._written.popleft()
            answer = self._answers.next(names_of(tools) if tools else None)
            if answer is None:
                return False, None
            value: Any = answer.text
            if answer.tool_calls and tools:
                value = _calls(answer, next(self._places))
            elif answer.tool_calls:
                self._written.extend(_as_text(answer))
                value = self._written.popleft()
            elif asked.get("response_model") is not None:
                value = asked["response_model"].model_validate_json(answer.text)
        who = {name: asked.get(name) for name in ("from_task", "from_agent")}
        self._tell(answer, value, messages, tools, who)
        return True, value

    def _tell(
        self, answer: Answer, value: Any, messages: Any, tools: Any, who: dict[str, Any]
    ) -> None:
        """What CrewAI hears of any model's call."""
        usage: dict[str, Any] | None = None
        if answer.usage:
            asked, said = (answer.usage.get(f"{which}_tokens", 0) for which in ("input", "output"))
            usage = {
                "prompt_tokens": asked,
                "completion_tokens": said,
                "total_tokens": asked + said,
            }
        with llm_call_context():
            self._emit_call_started_event(messages=messages, tools=tools, **who)
            if answer.reasoning:
                self._emit_thinking_chunk_event(chunk=answer.reasoning, **who)
            if self._effective_stream() and isinstance(value, str):
                self._emit_stream_chunk_event(chunk=value, **who)
            if usage:
                self._track_token_usage_internal(usage)
            self._emit_call_completed_event(
                response=value,
                call_type=LLMCallType.TOOL_CALL if answer.tool_calls else LLMCallType.LLM_CALL,
                messages=messages,
                usage=usage,
                finish_reason=answer.finish_reason or None,
                response_id=answer.response_id or None,
                **who,
            )


def _calls(answer: Answer, place: int) -> list[ToolCall]:
    return [
        ToolCall(call.id or f"call-{place}-{slot}", Function(call.name, call.arguments or "{}"))
        for slot, call in enumerate(answer.tool_calls)
    ]


def _as_text(answer: Answer) -> list[str]:
    """The calls of an answer as an agent without native calls writes them: one a message."""
    thought = answer.text or "I should use a tool."
    return [
        f"Thought: {thought}\nAction: {call.name}\nAction Input: {call.arguments or '{}'}"
        for call in answer.tool_calls
    ]
