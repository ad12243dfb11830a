"""Guarded models: each call is recorded and replayed by its content, streamed or not."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.rate_limiters import BaseRateLimiter
from rollcage import Contract, Session
from rollcage.adapter import Answer, model_contract, swapped
from rollcage.errors import ContractError

from rollcage_langchain.answers import answer_of, as_chunk
from rollcage_langchain.checkpoints import follow_checkpoints
from rollcage_langchain.replay_model import ReplayModel
from rollcage_langchain.requests import canonical_request
from rollcage_langchain.tools import running

__all__ = ["guard_model"]

M = TypeVar("M", bound=BaseChatModel)

Piece = ChatResult | ChatGenerationChunk
_GUARD: Final = "__rollcage_model_guard__"
_NATIVE_STREAMS: Final = ("_stream_chat_model_events", "_astream_chat_model_events")


def guard_model(model: M, session: Session) -> M:
    """A chat model of the same type, whose calls go through the session.

    A call is told from others by what is asked: messages, tools and other options, stop words.
    A recorded answer comes back whole (text, tool calls, usage, metadata, id), and in the pieces
    in which it came; one that was streamed also answers a call that is not, and the other way
    round. LangChain's own cache is not asked. The original stays as it is. A model that this
    session guards already is given back.

    Raises:
        ContractError: no chat model, or one that another session guards.
    """
    if not isinstance(model, BaseChatModel):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise ContractError(
            f"{type(model).__name__} is no chat model: guard the model itself, then bind its tools"
        )
    own = getattr(type(model), _GUARD, None)
    if isinstance(own, _ModelGuard):
        if own.session is session:
            return model
        raise ContractError(f"{type(model).__name__} is guarded by another session already")
    follow_checkpoints(session)
    guard = _ModelGuard(session, model.rate_limiter)
    members: dict[str, Any] = {_GUARD: guard}
    for name, wrap in _WRAPPERS.items():
        method = getattr(type(model), name)
        if method is not getattr(BaseChatModel, name):  # those of the base call the other two
            members[name] = wrap(guard, method)
    # Both stand in front of `_generate`: what LangChain's cache answers would be in no trace, and
    # an answer from the trace needs no limit. The limiter is asked before the model itself is.
    update = {"cache": False, "rate_limiter": None}
    # Without native events, LangChain makes them of the chunks of `_stream`.
    return swapped(model, members, update=update, hidden=_NATIVE_STREAMS)


class _ModelGuard:
    """What stands between a model and whoever asks it.

    The value of a step is a list of pieces: the chunks of a stream, or one whole result.
    """

    def __init__(self, session: Session, limiter: BaseRateLimiter | None) -> None:
        self.session = session
        self.running = running()
        self._limiter = limiter
        self._contracts: dict[str, Contract] = {}

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        """Around the model itself."""
        with self.running.body():
            if self._limiter is not None:
                self._limiter.acquire(blocking=True)
            yield

    @contextlib.asynccontextmanager
    async def abody(self) -> AsyncGenerator[None]:
        """Around the model itself, in asyncio."""
        with self.running.body():
            if self._limiter is not None:
                await self._limiter.aacquire(blocking=True)
            yield

    def call(
        self, model: BaseChatModel, messages: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Contract, dict[str, Any]]:
        """A call's contract, named for the model, and its arguments."""
        options = dict(zip(("stop", "run_manager"), args, strict=False)) | kwargs
        options.pop("run_manager", None)
        stop = options.pop("stop", None)
        # Protected, and what providers override to say which model this is.
        describe: Any = model._get_ls_params  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        params: Mapping[str, Any] = describe(stop=stop, **options)
        name = str(params.get("ls_model_name") or type(model).__name__)
        contract = self._contracts.get(name)
        if contract is None:
            replays = isinstance(model, ReplayModel)
            contract = model_contract(name, "langchain", replays=replays)
            self._contracts[name] = contract
        return contract, canonical_request(messages, stop, options)


def _generate(guard: _ModelGuard, method: Callable[..., ChatResult]) -> Callable[..., ChatResult]:
    @functools.wraps(method)
    def guarded(self: BaseChatModel, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        if guard.running.here:
            return method(self, messages, *args, **kwargs)

        def body(**_: Any) -> list[Piece]:
            with guard.body():
                return [method(self, messages, *args, **kwargs)]

        contract, request = guard.call(self, messages, args, kwargs)
        return _whole(guard.session.run(contract, request, body, kind="model", answer=_answer))

    return guarded


def _agenerate(guard: _ModelGuard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def guarded(self: BaseChatModel, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        if guard.running.here:
            return cast("ChatResult", await method(self, messages, *args, **kwargs))

        async def body(**_: Any) -> list[Piece]:
            async with guard.abody():
                return [await method(self, messages, *args, **kwargs)]

        contract, request = guard.call(self, messages, args, kwargs)
        pieces = await guard.session.arun(contract, request, body, kind="model", answer=_answer)
        return _whole(pieces)

    return guarded


def _stream(
    guard: _ModelGuard, method: Callable[..., Iterator[ChatGenerationChunk]]
) -> Callable[..., Iterator[ChatGenerationChunk]]:
    @functools.wraps(method)
    def guarded(
        self: BaseChatModel, messages: Any, *args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        if guard.running.here:
            yield from method(self, messages, *args, **kwargs)
            return

        def body(**_: Any) -> Iterator[Piece]:
            with guard.body():
                yield from method(self, messages, *args, **kwargs)

        contract, request = guard.call(self, messages, args, kwargs)
        for piece in guard.session.stream(contract, request, body, kind="model", answer=_answer):
            yield _chunk(piece)

    return guarded


def _astream(
    guard: _ModelGuard, method: Callable[..., AsyncIterator[ChatGenerationChunk]]
) -> Callable[..., AsyncIterator[ChatGenerationChunk]]:
    @functools.wraps(method)
    async def guarded(
        self: BaseChatModel, messages: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        if guard.running.here:
            async for chunk in method(self, messages, *args, **kwargs):
                yield chunk
            return

        async def body(**_: Any) -> AsyncIterator[Piece]:
            async with guard.abody():
                async for chunk in method(self, messages, *args, **kwargs):
                    yield chunk

        contract, request = guard.call(self, messages, args, kwargs)
        pieces = guard.session.astream(contract, request, body, kind="model", answer=_answer)
        async for piece in pieces:
            yield _chunk(piece)

    return guarded


_WRAPPERS: Final[dict[str, Callable[[_ModelGuard, Any], Any]]] = {
    "_generate": _generate,
    "_agenerate": _agenerate,
    "_stream": _stream,
    "_astream": _astream,
}


# --- pieces --------------------------------------------------------------------------------------


def _whole(pieces: list[Piece]) -> ChatResult:
    """The answer to a call that is not streamed."""
    if len(pieces) == 1 and isinstance(pieces[0], ChatResult):
        return pieces[0]
    return generate_from_stream(iter(cast("list[ChatGenerationChunk]", pieces)))


def _chunk(piece: Piece) -> ChatGenerationChunk:
    """A piece for a call that is streamed; a copy, for LangChain writes into what it is given."""
    if isinstance(piece, ChatGenerationChunk):
        return piece.model_copy(update={"message": piece.message.model_copy()})
    generation = piece.generations[0]
    message = generation.message
    info = {**(piece.llm_output or {}), **message.response_metadata}
    chunk = as_chunk(message.model_copy(update={"response_metadata": info}))
    return ChatGenerationChunk(message=chunk, generation_info=generation.generation_info)


def _answer(pieces: list[Piece]) -> Answer:
    """What a model answered, for readers without LangChain."""
    if not pieces:
        return Answer()
    info: dict[str, Any] = {}
    messages: list[Any] = []
    for piece in pieces:
        generation = piece.generations[0] if isinstance(piece, ChatResult) else piece
        info |= (piece.llm_output or {}) if isinstance(piece, ChatResult) else {}
        info |= generation.generation_info or {}
        messages.append(generation.message)
    # Chunks are added up, not made one message: only they hold what the model wrote, as it did.
    message = functools.reduce(operator.add, messages)
    return answer_of(message, info) if isinstance(message, AIMessage) else Answer(message.text)
