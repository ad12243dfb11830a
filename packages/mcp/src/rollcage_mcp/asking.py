"""The proxy's own questions to a client, by a request or as the answer to a call."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from rollcage_mcp.messages import Id, Message, as_answer, as_notification, as_request, result_of
from rollcage_mcp.sealed import is_ours

__all__ = ["Asking", "Send", "Served", "asking_here", "call_of", "serving", "without_state"]

Send = Callable[[Message], Awaitable[None]]
"""Takes messages to the client."""

_OF: Final = "io.modelcontextprotocol/"
_NOTED: Final = 4 * 1024 * 1024  # bytes of the notifications that are kept with one call
_ERA: Final = f"{_OF}protocolVersion"


@dataclasses.dataclass(eq=False)
class Served:
    """A request of the client while it is being answered."""

    message: Message
    task: asyncio.Task[None] | None = None
    is_write: bool = False
    asks: bool = False  # the server was asked
    cancelled: bool = False  # by the client, which expects no answer
    in_doubt: bool = False  # a write that the client cancelled while the server executes it
    value: Any = None  # the body's result
    response: Message | None = None  # the server's answer
    notes: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    noted: int = 0  # bytes of the server's notifications
    # the proxy's own state that came with it, and the answers
    carried: tuple[str, Any] | None = None

    def note(self, message: Message) -> None:
        """Keep a notification of the server for a replay; of a flood, only its beginning."""
        self.noted += len(message.raw)
        if self.noted <= _NOTED:
            self.notes.append({"method": message.method, "params": message.params})

    @property
    def token(self) -> object:
        """Return the token that links the server's progress to this request."""
        return self.message.meta.get("progressToken")


serving: contextvars.ContextVar[Served] = contextvars.ContextVar("rollcage-mcp-call")
"""The request that is being answered in this context."""


asking_here: contextvars.ContextVar[Asking | None] = contextvars.ContextVar(
    "rollcage-mcp-client", default=None
)
"""The means to ask the client of a server of our own; None without a client."""


def without_state(message: Message) -> tuple[Message, tuple[str, Any] | None]:
    """Split a request from the state that it returns to the proxy, and from the answers."""
    state = message.params.get("requestState")
    if message.method != "tools/call" or not is_ours(state):
        return message, None
    own = ("requestState", "inputResponses")
    params = {name: each for name, each in message.params.items() if name not in own}
    carried = (str(state), message.params.get("inputResponses"))
    return as_request(message.id, message.method, params), carried


def call_of(message: Message) -> dict[str, Any]:
    """Return the tool and the arguments of a tool call."""
    return {"name": message.params.get("name"), "arguments": message.params.get("arguments")}


class Asking:
    """Asks a client, and waits for the person's answer.

    Args:
        send: takes messages to the client.
        served: the client's requests that are being answered, by their ids; a request that is
            answered
            by a question is removed, and comes back with the client's next one.
    """

    def __init__(self, send: Send, served: dict[Id, Served]) -> None:
        self._send = send
        self._served = served
        self._client: Mapping[str, Any] = {}  # the client's description in `initialize`
        self._can_elicit = False  # whether it has a dialog
        self._asked: dict[Id, asyncio.Future[Message]] = {}
        self._paused: dict[str, Served] = {}  # requests that wait for an answer, by their states
        self._is_over = False

    # --- for the conversation --------------------------------------------------------------------

    def met(self, params: Mapping[str, Any]) -> None:
        """Note the client's description of itself in `initialize`."""
        info, able = params.get("clientInfo"), params.get("capabilities")
        self._client = cast("Mapping[str, Any]", info) if isinstance(info, dict) else {}
        self._can_elicit = isinstance(able, dict) and isinstance(able.get("elicitation"), dict)

    def take(self, response: Message) -> bool:
        """Take a response of the client; return False if it answers no question of ours."""
        asked = self._asked.pop(response.id, None)
        if asked is not None and not asked.done():
            asked.set_result(response)
        return asked is not None

    def goes_on(self, state: str, message: Message, reply: Any) -> bool:
        """Continue the call that waits under this state; return False if none does, or another one.

        Args:
            state: the state that the client returned.
            message: the repeated call.
            reply: the person's answer.
        """
        waits = self._paused.get(state)
        if waits is None or self._asked[state].done():
            return False
        if call_of(waits.message) != call_of(message):
            return False
        waits.message = message
        self._served[message.id] = waits
        self._asked[state].set_result(as_answer(message.id, {"said": reply}))
        return True

    @property
    def waiting(self) -> list[Served]:
        """Return the calls that were answered by a question, and are not repeated yet."""
        return [*self._paused.values()]

    def close(self) -> None:
        """Stop all waits: no client is there to answer."""
        self._is_over = True
        for question in self._asked.values():
            question.cancel()

    # --- for an approver -------------------------------------------------------------------------

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the client a question of the proxy's own.

        Raises:
            ServerError: the client answers with an error.
        """
        # The server can't guess the id, so its answers can't be taken for the client's.
        request = as_request(f"rollcage-{secrets.token_hex(16)}", method, params)
        self._check_there()
        answer = self._asked[request.id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(request)
            return result_of(await answer)
        except asyncio.CancelledError:
            if not self._is_over:  # the dialog is no longer of use
                note = {"requestId": request.id, "reason": "the call was cancelled"}
                await self._send(as_notification("notifications/cancelled", note))
            raise
        finally:
            self._asked.pop(request.id, None)

    async def require(self, question: Mapping[str, Any], state: str) -> Any:
        """Ask by the answer to the current call: the client repeats the call.

        Args:
            question: the parameters of `elicitation/create`.
            state: the state that the client returns.

        Returns:
            The client's answers, by the names of the fields.
        """
        served = serving.get()
        self._check_there()
        answer = self._asked[state] = asyncio.get_running_loop().create_future()
        self._paused[state] = served
        inputs = {"approval": {"method": "elicitation/create", "params": dict(question)}}
        result = {"resultType": "input_required", "inputRequests": inputs, "requestState": state}
        del self._served[served.message.id]
        await self._send(as_answer(served.message.id, result))
        try:
            return (await answer).data["result"]["said"]
        finally:
            self._paused.pop(state, None)
            self._asked.pop(state, None)

    def _check_there(self) -> None:
        if self._is_over:
            raise asyncio.CancelledError("the client is gone")

    def carried(self) -> tuple[str, Any] | None:
        """Return the state and the answers that came with the current call."""
        served = serving.get()
        carried, served.carried = served.carried, None
        return carried

    @property
    def has_requests(self) -> bool:
        """Whether the client takes requests; clients without a handshake don't."""
        return not isinstance(serving.get().message.meta.get(_ERA), str)

    @property
    def asker(self) -> tuple[bool, Mapping[str, Any]]:
        """Return whether the current caller has a dialog, and its description of itself."""
        if self.has_requests:
            return self._can_elicit, self._client
        meta = serving.get().message.meta
        able, info = meta.get(f"{_OF}clientCapabilities"), meta.get(f"{_OF}clientInfo")
        named = cast("Mapping[str, Any]", info) if isinstance(info, dict) else {}
        return isinstance(able, dict) and isinstance(able.get("elicitation"), dict), named
