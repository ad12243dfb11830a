"""Guard models: each call is recorded and replayed by its content, streamed or not."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Final, TypeVar, cast, overload

import pydantic
from crewai.llms.base_llm import BaseLLM
from crewai.utilities.llm_utils import create_llm
from rollcage import Contract, Session
from rollcage.errors import ContractError
from rollcage_adapter import Answer, BodyForm, GuardedModel, ModelCall, is_model_class, is_object

from rollcage_crewai.answers import ModelResponse, emit
from rollcage_crewai.private import (
    EMIT_CHUNK,
    EMIT_END,
    EMIT_THINKING,
    count_apart,
    without_retries,
)
from rollcage_crewai.replay_model import ReplayModel
from rollcage_crewai.requests import ASKED, FORM, asked_besides, messages_of
from rollcage_crewai.values import register

__all__ = ["guard_model"]

M = TypeVar("M", bound=BaseLLM)

register()


@overload
def guard_model(llm: M, session: Session) -> M: ...
@overload
def guard_model(llm: str, session: Session) -> BaseLLM: ...
def guard_model(llm: BaseLLM | str, session: Session) -> BaseLLM:
    """Return a model of the same type, whose calls go through the session.

    A call is identified by its question: messages, tools, the model of a structured answer, stop
    words. A recorded answer comes back whole (text, tool calls, structured output), with the events
    and the usage of the live call; a streamed answer comes back in its recorded pieces. The
    original is not changed. A model that this session guards already is returned unchanged.

    Args:
        llm: a model of CrewAI's (`LLM(...)`, any `BaseLLM`), or the name of a model.
        session: guards the calls; it must be entered before the first call.

    Raises:
        ContractError: it is not a model, or another session guards it.
    """
    model: Any = create_llm(llm) if isinstance(llm, str) else llm
    if not isinstance(model, BaseLLM):
        raise ContractError(
            f"{type(llm).__name__} is not a model of CrewAI: guard an LLM, or its name"
        )
    guard = _Guard(session, replays=isinstance(model, ReplayModel))
    notes = {name: _noting(getattr(type(model), name), note) for name, note in _NOTES.items()}
    twin: Any = guard.guarded(model, notes)
    if twin is not model:
        count_apart(twin)
    return cast("BaseLLM", twin)


# --- what a model reports along with its answer --------------------------------------------------

_noted: ContextVar[ModelResponse | None] = ContextVar("rollcage_crewai_noted", default=None)


def _note_end(noted: ModelResponse, event: Mapping[str, Any]) -> None:
    noted.usage = dict(event["usage"]) if event.get("usage") else noted.usage
    noted.finish_reason = str(event.get("finish_reason") or "")
    noted.response_id = str(event.get("response_id") or "")


def _note_chunk(noted: ModelResponse, event: Mapping[str, Any]) -> None:
    call: Any = event.get("tool_call")
    if not call:
        noted.chunks.append(["text", event["chunk"]])
        return
    function: Any = call.get("function") or {}
    about = {"index": call.get("index", 0), "id": call.get("id"), "name": function.get("name")}
    noted.chunks.append(["call", event["chunk"], about])


def _note_thinking(noted: ModelResponse, event: Mapping[str, Any]) -> None:
    noted.chunks.append(["thinking", event["chunk"]])


_NOTES: Final[dict[str, Callable[[ModelResponse, Mapping[str, Any]], None]]] = {
    EMIT_END: _note_end,
    EMIT_CHUNK: _note_chunk,
    EMIT_THINKING: _note_thinking,
}


def _noting(
    method: Callable[..., None], note: Callable[[ModelResponse, Mapping[str, Any]], None]
) -> Callable[..., None]:
    """Return a method that emits an event and notes its content; a handler would be late."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        noted = _noted.get()
        if noted is not None:
            note(noted, signature.bind(self, *args, **kwargs).arguments)
        method(self, *args, **kwargs)

    return noting


# --- one call ------------------------------------------------------------------------------------


class _Call(ModelCall):
    """Make one call of a model, and note whether the model itself was called."""

    def __init__(self, guard: _Guard, contract: Contract, llm: Any, asked: dict[str, Any]) -> None:
        rest = asked_besides(asked, llm.stop_sequences)
        request = guard.request(contract, messages_of(asked), rest, llm)
        super().__init__(guard.session, contract, request)
        self._llm = llm
        self._asked = asked
        self._response = ModelResponse("")
        self._live = False

    def around(self) -> contextlib.AbstractContextManager[Any]:
        agent = str(getattr(self._asked.get("from_agent"), "role", None) or "")
        return self.session.place(agent=agent)

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        """Note what the model reports while it runs."""
        self._live = True
        before = _used(self._llm)  # for a model that emits no event
        noted = self._response
        token = _noted.set(noted)
        try:
            yield
        finally:
            _noted.reset(token)
        if noted.usage is None:
            used = {n: v - before.get(n, 0) for n, v in _used(self._llm).items()}
            noted.usage = {n: v for n, v in used.items() if v} or None

    def kept(self, value: Any) -> ModelResponse:
        self._response.value = value
        return self._response

    def answer(self, value: ModelResponse) -> Answer:
        return value.answer

    def given(self, value: ModelResponse) -> Any:
        """Return the answer; a recorded answer comes with everything that CrewAI expects."""
        if not self._live:
            if is_object(value.value):
                value = dataclasses.replace(value, value=self._structured(value.value))
            emit(self._llm, self._asked, value)
        return value.value

    def _structured(self, data: dict[str, Any]) -> Any:
        """Return structured output; without its class, return the text that it came from."""
        for cls in (self._asked.get("response_model"), getattr(self._llm, "response_format", None)):
            if is_model_class(cls):
                return cls.model_validate(data)
        return pydantic.TypeAdapter(dict[str, Any]).dump_json(data).decode()


def _used(llm: BaseLLM) -> dict[str, int]:
    """Return the tokens that a model has used so far."""
    return llm.get_token_usage_summary().model_dump()


class _Guard(GuardedModel):
    framework = "crewai"
    form = FORM
    forms: ClassVar[Mapping[str, BodyForm]] = {"call": "run", "acall": "arun"}

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        contract = self.contract_of(owner.model)
        return _Call(self, contract, owner, ASKED.named(args, kwargs))

    def method(self, body: Callable[..., Any], form: BodyForm) -> Callable[..., Any]:
        """Return a method that CrewAI does not repeat."""
        return without_retries(super().method(body, form))
