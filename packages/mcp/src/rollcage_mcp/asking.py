"""What the proxy asks of a client on its own behalf, by a request or by its answer to a call."""

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
"""Takes what goes to the client."""

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
    cancelled: bool = False  # by the client, who wants no answer any more
    in_doubt: bool = False  # a write that was cancelled in the server
    value: Any = None  # what the body gave
    response: Message | None = None  # what the server answered
    notes: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    noted: int = 0  # bytes of the server's notifications
    carried: tuple[str, Any] | None = None  # a state of ours that came with it, and the answers

    def note(self, message: Message) -> None:
        """Keep a notification of the server for a replay; of a flood, its beginning."""
        self.noted += len(message.raw)
        if self.noted <= _NOTED:
            self.notes.append({"method": message.method, "params": message.params})

    @property
    def token(self) -> object:
        """By what the server's progress is known to be that of this request."""
        return self.message.meta.get("progressToken")


serving: contextvars.ContextVar[Served] = contextvars.ContextVar("rollcage-mcp-call")
"""The request that is being answered in this context."""


asking_here: contextvars.ContextVar[Asking | None] = contextvars.ContextVar(
    "rollcage-mcp-client", default=None
)
"""By which the client of a server of our own is asked; None where no client is there."""


def without_state(message: Message) -> tuple[Message, tuple[str, Any] | None]:
    """A request without what it carries back to us; and that: a state of ours, and the answers."""
    state = message.params.get("requestState")
    if message.method != "tools/call" or not is_ours(state):
        return message, None
    own = ("requestState", "inputResponses")
    params = {name: each for name, each in message.params.items() if name not in own}
    carried = (str(state), message.params.get("inputResponses"))
    return as_request(message.id, message.method, params), carried


def call_of(message: Message) -> dict[str, Any]:
    """What a tool call asks for: its tool and arguments."""
    return {"name": message.params.get("name"), "arguments": message.params.get("arguments")}


class Asking:
    """Asks a client, and waits for what the person there says.

    Args:
        send: takes what goes to the client.
        served: the client's requests that are being answered, by their ids; one that is answered by
            a question leaves them, and comes back with the client's next one.
    """

    def __init__(self, send: Send, served: dict[Id, Served]) -> None:
        self._send = send
        self._served = served
        self._client: Mapping[str, Any] = {}  # what `initialize` was told of it
        self._can_elicit = False  # whether it has a dialog
        self._asked: dict[Id, asyncio.Future[Message]] = {}
        self._paused: dict[str, Served] = {}  # that wait for an answer, by their states
        self._is_over = False

    # --- for the conversation --------------------------------------------------------------------

    def met(self, params: Mapping[str, Any]) -> None:
        """Note what the client says of itself in `initialize`."""
        info, able = params.get("clientInfo"), params.get("capabilities")
        self._client = cast("Mapping[str, Any]", info) if isinstance(info, dict) else {}
        self._can_elicit = isinstance(able, dict) and isinstance(able.get("elicitation"), dict)

    def take(self, response: Message) -> bool:
        """Take a response of the client; False where it is none to us."""
        asked = self._asked.pop(response.id, None)
        if asked is not None and not asked.done():
            asked.set_result(response)
        return asked is not None

    def goes_on(self, state: str, message: Message, reply: Any) -> bool:
        """Go on with the call that waits under this state; False where none does, or another one.

        Args:
            state: what the client has carried back.
            message: the call, made again.
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
        """The calls that were answered by a question, and are not made again yet."""
        return [*self._paused.values()]

    def close(self) -> None:
        """Wait for nothing any more: nobody is there to answer."""
        self._is_over = True
        for question in self._asked.values():
            question.cancel()

    # --- for an approver -------------------------------------------------------------------------

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the client something on the proxy's own behalf.

        Raises:
            ServerError: it answers with an error.
        """
        # The server can't guess the id, so no answer to it is taken for the answer to this.
        request = as_request(f"rollcage-{secrets.token_hex(16)}", method, params)
        self._check_there()
        answer = self._asked[request.id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(request)
            return result_of(await answer)
        except asyncio.CancelledError:
            if not self._is_over:  # the dialog is of no use any more
                note = {"requestId": request.id, "reason": "the call was cancelled"}
                await self._send(as_notification("notifications/cancelled", note))
            raise
        finally:
            self._asked.pop(request.id, None)

    async def require(self, question: Mapping[str, Any], state: str) -> Any:
        """Ask by the answer to the call that is being made: the client makes it again.

        Args:
            question: the parameters of `elicitation/create`.
            state: what the client carries back.

        Returns:
            What the client answers, by the names of what was asked.
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
        """What came back with the call that is being made: a state, and the answers."""
        served = serving.get()
        carried, served.carried = served.carried, None
        return carried

    @property
    def has_requests(self) -> bool:
        """Whether the client takes requests; of those without a handshake, none does."""
        return not isinstance(serving.get().message.meta.get(_ERA), str)

    @property
    def asker(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether whoever makes the call has a dialog, and what it has said of itself."""
        if self.has_requests:
            return self._can_elicit, self._client
        meta = serving.get().message.meta
        able, info = meta.get(f"{_OF}clientCapabilities"), meta.get(f"{_OF}clientInfo")
        named = cast("Mapping[str, Any]", info) if isinstance(info, dict) else {}
        return isinstance(able, dict) and isinstance(able.get("elicitation"), dict), named
