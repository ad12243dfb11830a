"""Guard models: each call is recorded and replayed by its content, streamed or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
)
from rollcage import Contract, Session
from rollcage.errors import ContractError
from rollcage_adapter import Answer, BodyForm, GuardedModel, ModelCall

from rollcage_autogen.answers import answer_of, whole
from rollcage_autogen.bare import check_guarded
from rollcage_autogen.private import model_name
from rollcage_autogen.replay_model import ReplayModel
from rollcage_autogen.requests import ASKED, FORM, asked_besides
from rollcage_autogen.turns import agent_name, answered

__all__ = ["guard_model"]

M = TypeVar("M", bound=ChatCompletionClient)


def guard_model(client: M, session: Session) -> M:
    """Return a model client of the same type, whose calls go through the session.

    A call is identified by its question: messages, tools and other options. A recorded answer comes
    back whole (content, thought, usage, finish reason), and in its recorded pieces; a streamed
    answer also answers a call that is not streamed, and the other way round. Each answer gives its
    tool calls their places; once the session is halted, the next question ends the agent. The
    original is not changed. A client that this session guards already is returned unchanged.

    Raises:
        ContractError: it is not a model client, or another session guards it.
    """
    if not isinstance(client, ChatCompletionClient):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise ContractError(f"{type(client).__name__} is not a ChatCompletionClient of AutoGen")
    return _Guard(session, replays=isinstance(client, ReplayModel)).guarded(client)


class _Call(ModelCall):
    """Make one call of a client; its answer gives its tool calls their places."""

    def __init__(
        self, guard: _Guard, contract: Contract, client: Any, asked: dict[str, Any]
    ) -> None:
        self._messages: Sequence[Any] = asked.pop("messages")
        request = guard.request(contract, self._messages, asked_besides(asked), client)
        super().__init__(guard.session, contract, request)

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Name the agent of the call, and forget the calls whose answers its messages show."""
        name = agent_name()
        answered = (
            result.call_id
            for message in self._messages
            if isinstance(message, FunctionExecutionResultMessage)
            for result in message.content
        )
        self.session.seen({name: answered})
        return self.session.place(agent=name)

    def answer(self, value: Any) -> Answer:
        return answer_of(value)

    def given(self, value: Any) -> CreateResult:
        result: CreateResult = self.given_piece(whole(value))
        return result

    def given_piece(self, piece: Any) -> Any:
        if isinstance(piece, CreateResult):
            answered(piece, self.session)
        return piece


class _Guard(GuardedModel):
    framework = "autogen"
    form = FORM
    forms: ClassVar[Mapping[str, BodyForm]] = {"create": "arun", "create_stream": "astream"}

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Return the call of the session that a call of the client asks for.

        Raises:
            CancelledError: the call's token was cancelled: the agent ends as it would have.
            Blocked: the agent has unguarded tools, and the session refuses them.
        """
        asked = ASKED.named(args, kwargs)
        check_guarded(self.session)
        token = asked.get("cancellation_token")
        if token is not None and token.is_cancelled():
            raise asyncio.CancelledError
        return _Call(self, self.contract_of(model_name(owner)), owner, asked)
