"""Guarded models: each call is recorded and replayed by its content, streamed or not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
)
from rollcage import Contract, Session
from rollcage.adapter import Running, is_object, model_contract, swapped
from rollcage.errors import ContractError

from rollcage_autogen.answers import answer_of, whole
from rollcage_autogen.calls import agent_name, answered, check_guarded
from rollcage_autogen.replay_model import ReplayModel
from rollcage_autogen.requests import canonical_request

__all__ = ["guard_model"]

M = TypeVar("M", bound=ChatCompletionClient)

_GUARD: Final = "__rollcage_model_guard__"


def guard_model(client: M, session: Session) -> M:
    """A model client of the same type, whose calls go through the session.

    A call is told from others by what is asked: messages, tools and other options. A recorded
    answer comes back whole (content, thought, usage, finish reason), and in the pieces in which it
    came; one that was streamed also answers a call that is not, and the other way round. Each
    answer says where the calls that it asks for stand; and once the session is halted, the next
    question ends the agent. The original stays as it is. A client that this session guards already
    is given back.

    Raises:
        ContractError: no model client, or one that another session guards.
    """
    if not isinstance(client, ChatCompletionClient):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise ContractError(f"{type(client).__name__} is no ChatCompletionClient of AutoGen")
    own = getattr(type(client), _GUARD, None)
    if isinstance(own, _ModelGuard):
        if own.session is session:
            return client
        raise ContractError(f"{type(client).__name__} is guarded by another session already")
    guard = _ModelGuard(session, replays=isinstance(client, ReplayModel))
    cls: Any = type(client)
    members = {
        _GUARD: guard,
        "create": _create(guard, cls.create),
        "create_stream": _create_stream(guard, cls.create_stream),
    }
    return swapped(client, members)


class _ModelGuard:
    """What stands between a model and whoever asks it.

    The value of a step is a list of pieces: the texts of a stream and its result, or only that.
    """

    def __init__(self, session: Session, *, replays: bool) -> None:
        self.session = session
        self.running = Running()
        self._replays = replays
        self._contracts: dict[str, Contract] = {}

    def call(self, client: Any, messages: Any, options: Mapping[str, Any]) -> Any:
        """A call's contract, named for the model, and its arguments.

        Raises:
            CancelledError: the call's token was cancelled: the agent ends as it would have.
            Blocked: the agent has tools that nobody guards, and the session refuses those.
        """
        check_guarded(self.session)
        token = options.get("cancellation_token")
        if token is not None and token.is_cancelled():
            raise asyncio.CancelledError
        name = _model_name(client)
        contract = self._contracts.get(name)
        if contract is None:
            contract = model_contract(name, "autogen", replays=self._replays)
            self._contracts[name] = contract
        return contract, canonical_request(messages, options)

    def placed(self, messages: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Whose call this is. What its messages show as answered, nobody will ask for again."""
        name = agent_name()
        answered = (
            result.call_id
            for message in messages
            if isinstance(message, FunctionExecutionResultMessage)
            for result in message.content
        )
        self.session.seen({name: answered})
        return self.session.place(agent=name, conversation=name)


def _model_name(client: Any) -> str:
    """The model's name, where the client says it: none of them does so in public."""
    for place in ("_create_args", "_raw_config"):
        found: Any = getattr(client, place, None)
        if is_object(found) and isinstance(found.get("model"), str):
            return str(found["model"])
    return type(client).__name__


def _create(guard: _ModelGuard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def create(self: Any, messages: Any, **options: Any) -> CreateResult:
        if guard.running.here:
            result: CreateResult = await method(self, messages, **options)
            return result

        async def body(**_: Any) -> list[CreateResult]:
            with guard.running.body():
                return [await method(self, messages, **options)]

        contract, request = guard.call(self, messages, options)
        with guard.placed(messages):
            pieces = await guard.session.arun(
                contract, request, body, kind="model", answer=answer_of
            )
        found = whole(pieces)
        answered(found, guard.session)
        return found

    return create


def _create_stream(guard: _ModelGuard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def create_stream(
        self: Any, messages: Any, **options: Any
    ) -> AsyncIterator[str | CreateResult]:
        def inside() -> Any:
            return method(self, messages, **options)

        if guard.running.here:
            async for piece in inside():  # it is closed with the step that it is a part of
                yield piece
            return

        async def body(**_: Any) -> AsyncIterator[str | CreateResult]:
            with guard.running.body():
                async with contextlib.aclosing(inside()) as pieces:
                    async for piece in pieces:
                        yield piece

        contract, request = guard.call(self, messages, options)
        with guard.placed(messages):
            pieces: Any = guard.session.astream(
                contract, request, body, kind="model", answer=answer_of
            )
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, CreateResult):
                    answered(piece, guard.session)
                yield piece

    return create_stream
