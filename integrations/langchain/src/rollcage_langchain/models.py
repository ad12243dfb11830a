"""Guard models: each call is recorded and replayed by its content, streamed or not."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from rollcage import Session
from rollcage.errors import ContractError
from rollcage_adapter import Answer, BodyForm, GuardedModel, ModelCall

from rollcage_langchain.answers import answer_of, as_chunk
from rollcage_langchain.memory import follow_checkpoints
from rollcage_langchain.private import NATIVE_STREAMS
from rollcage_langchain.replay_model import ReplayModel
from rollcage_langchain.requests import ASKED, FORM, asked_besides
from rollcage_langchain.tools import running

__all__ = ["guard_model"]

M = TypeVar("M", bound=BaseChatModel)

Piece = ChatResult | ChatGenerationChunk


def guard_model(model: M, session: Session) -> M:
    """Return a chat model of the same type, whose calls go through the session.

    A call is identified by its question: messages, tools and other options, stop words. A recorded
    answer comes back whole (text, tool calls, usage, metadata, id), and in its recorded pieces; a
    streamed answer also answers a call that is not streamed, and the other way round. LangChain's
    own cache is not asked. The original is not changed. A model that this session guards already is
    returned as it is.

    Raises:
        ContractError: it is not a chat model, or another session guards it.
    """
    if not isinstance(model, BaseChatModel):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise ContractError(
            f"{type(model).__name__} is not a chat model: guard the model itself, then bind its "
            f"tools"
        )
    follow_checkpoints(session)
    # Both stand in front of `_generate`: an answer of LangChain's cache would be in no log, and
    # an answer from the log needs no limit. The limiter is asked before the model itself is.
    update = {"cache": False, "rate_limiter": None}
    guard = _Guard(session, model)
    # Without native events, LangChain makes events of the chunks of `_stream`.
    return guard.guarded(model, base=BaseChatModel, update=update, hidden=NATIVE_STREAMS)


class _Call(ModelCall):
    def __init__(
        self, guard: _Guard, model: BaseChatModel, messages: Any, stop: Any, options: dict[str, Any]
    ) -> None:
        # A protected method, which providers override to name the model.
        describe: Any = model._get_ls_params  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        params: Mapping[str, Any] = describe(stop=stop, **options)
        contract = guard.contract_of(str(params.get("ls_model_name") or type(model).__name__))
        request = guard.request(contract, messages, asked_besides(stop, options), model)
        super().__init__(guard.session, contract, request)
        self._limiter = guard.limiter

    def before(self) -> None:
        if self._limiter is not None:
            self._limiter.acquire(blocking=True)

    async def abefore(self) -> None:
        if self._limiter is not None:
            await self._limiter.aacquire(blocking=True)

    def answer(self, value: list[Piece]) -> Answer:
        return _answer(value)

    def given(self, value: list[Piece]) -> ChatResult:
        return _whole(value)

    def given_piece(self, piece: Piece) -> ChatGenerationChunk:
        return _chunk(piece)


class _Guard(GuardedModel):
    framework = "langchain"
    form = FORM
    forms: ClassVar[Mapping[str, BodyForm]] = {
        "_generate": "run",
        "_agenerate": "arun",
        "_stream": "stream",
        "_astream": "astream",
    }

    def __init__(self, session: Session, model: BaseChatModel) -> None:
        super().__init__(session, running(), replays=isinstance(model, ReplayModel))
        self.limiter = model.rate_limiter

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Return the call of the session that a call of the model asks for."""
        asked = ASKED.named(args, kwargs)
        return _Call(self, owner, asked.pop("messages"), asked.pop("stop", None), asked)


# --- pieces --------------------------------------------------------------------------------------


def _whole(pieces: list[Piece]) -> ChatResult:
    """Return the answer to a call that is not streamed."""
    if len(pieces) == 1 and isinstance(pieces[0], ChatResult):
        return pieces[0]
    return generate_from_stream(iter(cast("list[ChatGenerationChunk]", pieces)))


def _chunk(piece: Piece) -> ChatGenerationChunk:
    """Return a piece of a streamed call; it is a copy, because LangChain writes into it."""
    if isinstance(piece, ChatGenerationChunk):
        return piece.model_copy(update={"message": piece.message.model_copy()})
    generation = piece.generations[0]
    message = generation.message
    info = {**(piece.llm_output or {}), **message.response_metadata}
    chunk = as_chunk(message.model_copy(update={"response_metadata": info}))
    return ChatGenerationChunk(message=chunk, generation_info=generation.generation_info)


def _answer(pieces: list[Piece]) -> Answer:
    """Return a model's answer for readers without LangChain."""
    if not pieces:
        return Answer()
    info: dict[str, Any] = {}
    messages: list[Any] = []
    for piece in pieces:
        generation = piece.generations[0] if isinstance(piece, ChatResult) else piece
        info |= (piece.llm_output or {}) if isinstance(piece, ChatResult) else {}
        info |= generation.generation_info or {}
        messages.append(generation.message)
    # Chunks are added up, not turned into one message: only chunks hold exactly what the model
    # wrote.
    message = functools.reduce(operator.add, messages)
    return answer_of(message, info) if isinstance(message, AIMessage) else Answer(message.text)
