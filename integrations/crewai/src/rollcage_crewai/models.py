"""Guarded models: each call is recorded and replayed by its content, streamed or not."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast, overload

import pydantic
from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import BaseLLM, llm_call_context
from crewai.utilities.llm_utils import create_llm
from rollcage import Contract, Session
from rollcage.adapter import Running, is_model_class, is_object, model_contract, swapped
from rollcage.errors import ContractError

from rollcage_crewai.replay_model import ReplayModel
from rollcage_crewai.requests import asked_with, canonical_request
from rollcage_crewai.values import Response, register, requests_of

__all__ = ["guard_model"]

M = TypeVar("M", bound=BaseLLM)

_GUARD: Final = "__rollcage_model_guard__"

register()


@overload
def guard_model(llm: M, session: Session) -> M: ...
@overload
def guard_model(llm: str, session: Session) -> BaseLLM: ...
def guard_model(llm: BaseLLM | str, session: Session) -> BaseLLM:
    """A model of the same type, whose calls go through the session.

    A call is told from others by what is asked: messages, tools, the model of a structured answer,
    stop words. A recorded answer comes back whole (text, tool calls, structured output), with the
    events and the usage of the live call; one that was streamed, in the pieces in which it came.
    The original stays as it is. A model that this session guards already is given back.

    Args:
        llm: a model of CrewAI's (`LLM(...)`, any `BaseLLM`), or the name of one.
        session: guards the calls; it must be entered before the first one.

    Raises:
        ContractError: no model, or one that another session guards.
    """
    model: Any = create_llm(llm) if isinstance(llm, str) else llm
    if not isinstance(model, BaseLLM):
        raise ContractError(
            f"{type(llm).__name__} is no model of CrewAI: guard an LLM, or its name"
        )
    cls: Any = type(model)
    own = getattr(cls, _GUARD, None)
    if isinstance(own, _ModelGuard):
        if own.session is session:
            return model
        raise ContractError(f"{cls.__name__} is guarded by another session already")
    guard = _ModelGuard(session)
    members: dict[str, Any] = {_GUARD: guard}
    for name, wrap in _WRAPPERS.items():
        members[name] = wrap(guard, getattr(cls, name))
    for name, note in _NOTES.items():
        members[name] = _noting(getattr(cls, name), note)
    twin: Any = swapped(model, members)
    twin._token_usage = dict(model._token_usage)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - CrewAI counts in place
    return cast("BaseLLM", twin)


# --- what a model tells beside its answer --------------------------------------------------------

_noted: ContextVar[Response | None] = ContextVar("rollcage_crewai_noted", default=None)


def _note_end(noted: Response, said: Mapping[str, Any]) -> None:
    noted.usage = dict(said["usage"]) if said.get("usage") else noted.usage
    noted.finish_reason = str(said.get("finish_reason") or "")
    noted.response_id = str(said.get("response_id") or "")


def _note_chunk(noted: Response, said: Mapping[str, Any]) -> None:
    call: Any = said.get("tool_call")
    if not call:
        noted.chunks.append(["text", said["chunk"]])
        return
    function: Any = call.get("function") or {}
    about = {"index": call.get("index", 0), "id": call.get("id"), "name": function.get("name")}
    noted.chunks.append(["call", said["chunk"], about])


def _note_thinking(noted: Response, said: Mapping[str, Any]) -> None:
    noted.chunks.append(["thinking", said["chunk"]])


_NOTES: Final[dict[str, Callable[[Response, Mapping[str, Any]], None]]] = {
    "_emit_call_completed_event": _note_end,
    "_emit_stream_chunk_event": _note_chunk,
    "_emit_thinking_chunk_event": _note_thinking,
}


def _noting(
    method: Callable[..., None], note: Callable[[Response, Mapping[str, Any]], None]
) -> Callable[..., None]:
    """A method that emits an event, and notes what it says; handlers on the bus would be late."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        noted = _noted.get()
        if noted is not None:
            note(noted, signature.bind(self, *args, **kwargs).arguments)
        method(self, *args, **kwargs)

    return noting


# --- one call ------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _Call:
    """One call of a model: what is asked, and whether the model itself was."""

    llm: Any
    asked: dict[str, Any]
    contract: Contract
    request: dict[str, Any]
    live: bool = False

    @property
    def agent(self) -> str:
        """Whose call it is."""
        return str(getattr(self.asked.get("from_agent"), "role", None) or "")

    @contextlib.contextmanager
    def noted(self) -> Generator[Response]:
        """Around the model itself: note what it tells."""
        self.live = True
        before = dict(self.llm._token_usage)  # noqa: SLF001 - where there is no event
        noted = Response("")
        token = _noted.set(noted)
        try:
            yield noted
        finally:
            _noted.reset(token)
        if noted.usage is None:
            used = {n: v - before.get(n, 0) for n, v in self.llm._token_usage.items()}  # noqa: SLF001
            noted.usage = {n: v for n, v in used.items() if v} or None

    def give(self, response: Response) -> Any:
        """The answer; that of a recorded call with all that CrewAI expects to come with it."""
        if self.live:
            return response.value
        value = response.value
        if is_object(value):
            value = self._structured(value)
        who = {name: self.asked.get(name) for name in ("from_task", "from_agent")}
        messages, llm = self.asked["messages"], self.llm
        with llm_call_context():
            tools = {name: self.asked.get(name) for name in ("tools", "available_functions")}
            llm._emit_call_started_event(messages=messages, **tools, **who)  # noqa: SLF001 - what a model of CrewAI's does
            self._stream(response, who)
            if response.usage:
                llm._track_token_usage_internal(response.usage)  # noqa: SLF001
            kind = LLMCallType.TOOL_CALL if requests_of(value) else LLMCallType.LLM_CALL
            llm._emit_call_completed_event(  # noqa: SLF001
                response=value,
                call_type=kind,
                messages=messages,
                usage=response.usage,
                finish_reason=response.finish_reason or None,
                response_id=response.response_id or None,
                **who,
            )
        return value

    def _structured(self, data: dict[str, Any]) -> Any:
        """Structured output; without its class, it is the text that it came from."""
        for cls in (self.asked.get("response_model"), getattr(self.llm, "response_format", None)):
            if is_model_class(cls):
                return cls.model_validate(data)
        return pydantic.TypeAdapter(dict[str, Any]).dump_json(data).decode()

    def _stream(self, response: Response, who: dict[str, Any]) -> None:
        told = {**who, "response_id": response.response_id or None}
        written: dict[Any, str] = {}
        for kind, piece, *rest in response.chunks:
            if kind == "thinking":
                self.llm._emit_thinking_chunk_event(chunk=piece, **told)  # noqa: SLF001
            elif kind == "text":
                self.llm._emit_stream_chunk_event(chunk=piece, **told)  # noqa: SLF001
            else:
                index, name = rest[0].get("index", 0), rest[0].get("name")
                written[index] = written.get(index, "") + piece
                call = {
                    "id": rest[0].get("id"),
                    "function": {"name": name, "arguments": written[index]},
                    "type": "function",
                    "index": index,
                }
                self.llm._emit_stream_chunk_event(  # noqa: SLF001
                    chunk=piece, tool_call=call, call_type=LLMCallType.TOOL_CALL, **told
                )


class _ModelGuard:
    """What stands between a model and whoever asks it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.running = Running()
        self._contracts: dict[str, Contract] = {}

    def call(self, llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """What is asked by a call."""
        asked = asked_with(args, kwargs)
        contract = self._contracts.get(llm.model)
        if contract is None:
            replays = isinstance(llm, ReplayModel)
            contract = model_contract(llm.model, "crewai", replays=replays)
            self._contracts[llm.model] = contract
        return _Call(llm, asked, contract, canonical_request(asked, llm.stop_sequences))


def _answer(response: Response) -> Any:
    return response.answer


def _call(guard: _ModelGuard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if guard.running.here:
            return method(self, *args, **kwargs)
        call = guard.call(self, args, kwargs)

        def body(**_: Any) -> Response:
            with guard.running.body(), call.noted() as noted:
                noted.value = method(self, *args, **kwargs)
            return noted

        with guard.session.place(agent=call.agent):
            response = guard.session.run(
                call.contract, call.request, body, kind="model", answer=_answer
            )
        return call.give(response)

    return _marked(guarded)


def _acall(guard: _ModelGuard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if guard.running.here:
            return await method(self, *args, **kwargs)
        call = guard.call(self, args, kwargs)

        async def body(**_: Any) -> Response:
            with guard.running.body(), call.noted() as noted:
                noted.value = await method(self, *args, **kwargs)
            return noted

        with guard.session.place(agent=call.agent):
            response = await guard.session.arun(
                call.contract, call.request, body, kind="model", answer=_answer
            )
        return call.give(response)

    return _marked(guarded)


def _marked(guarded: Any) -> Callable[..., Any]:
    """CrewAI wraps each `call` in retries of its own; those of the model itself are inside."""
    guarded._crewai_rate_limit_wrapped = True  # noqa: SLF001 - CrewAI's own mark
    marked: Callable[..., Any] = guarded
    return marked


_WRAPPERS: Final[dict[str, Callable[[_ModelGuard, Any], Any]]] = {"call": _call, "acall": _acall}
