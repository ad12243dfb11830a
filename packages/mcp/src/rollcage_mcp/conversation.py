"""A client's conversation with a server: passed messages, steps, and interruptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from rollcage import Session
from rollcage.errors import RollcageError
from rollcage_adapter import HALTED, REFUSED

from rollcage_mcp.asked import oddity
from rollcage_mcp.asking import Asking, Send, Served, call_of, without_state
from rollcage_mcp.contracts import READS
from rollcage_mcp.errors import ServerError, ServerGone
from rollcage_mcp.greeted import GreetedServer
from rollcage_mcp.listing import ServerDeclarations
from rollcage_mcp.messages import (
    Id,
    Message,
    as_answer,
    as_failure,
    as_notification,
    text_result,
)
from rollcage_mcp.server_questions import marked_request, marked_response
from rollcage_mcp.steps import FAILED, GONE, Steps
from rollcage_mcp.upstream import Transport

__all__ = ["GRACE", "Conversation", "Send", "ServerDeclarations"]

_log: Final = logging.getLogger("rollcage.mcp")

GRACE: Final = 10.0
"""Seconds for running calls when the client is gone."""

_DOUBLED: Final = -32600
_INTERNAL: Final = -32603
_QUIET: Final = {"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
"""Requests with an empty answer, which a proxy without a server gives itself."""


class Conversation:
    """Serves one client: its requests are steps of a session, other messages pass.

    Args:
        session: already entered.
        connect: starts the server, or connects to it; None without a server (a replay).
        send: takes messages to the client.
        declared: the declarations of the server's tools.
    """

    def __init__(
        self,
        session: Session,
        connect: Callable[[], Awaitable[Transport]] | None,
        send: Send,
        *,
        declared: ServerDeclarations = ServerDeclarations(),  # noqa: B008 - immutable
    ) -> None:
        self.session = session
        self._send = send
        self._server = GreetedServer(connect, self._from_server)
        self._served: dict[Id, Served] = {}
        self._named = declared.name
        self.asking = Asking(send, self._served)
        self._steps = Steps(session, self._server, self.asking, declared)

    # --- from the client -------------------------------------------------------------------------

    async def take(self, message: Message) -> None:
        """Take a message of the client; its requests are answered later."""
        odd = oddity(message)
        if odd:
            _log.warning("refused a message of the client: %s", odd)
            if message.kind == "request":
                await self._send(as_failure(message.id, _DOUBLED, odd))
        elif message.kind == "response":
            if not self.asking.take(message):
                await self._server.pass_on(message)
        elif message.kind == "notification":
            if message.method == "notifications/cancelled":
                await self._cancel(message)
            else:
                await self._server.pass_on(message)
        elif message.id in self._served:
            text = f"the request {message.id!r} is still being answered: take another id"
            await self._send(as_failure(message.id, _DOUBLED, text))
        else:
            await self._begin(message)

    async def _begin(self, message: Message) -> None:
        """Answer a request in the background; an answer of ours in it continues its call."""
        message, carried = without_state(message)
        if carried is not None and self.asking.goes_on(carried[0], message, carried[1]):
            return
        served = Served(message, carried=carried)
        self._served[message.id] = served
        served.task = asyncio.create_task(self._serve(served))

    async def _cancel(self, message: Message) -> None:
        """Cancel a request of the client, which expects no answer."""
        number: Any = message.params.get("requestId")
        known = isinstance(number, str | int) and not isinstance(number, bool)
        served = self._served.get(number) if known else None
        if served is None or served.task is None or served.cancelled:
            return
        served.cancelled = True
        if served.asks:
            await self._server.pass_on(message)
        if not (served.asks and served.is_write):
            served.task.cancel()  # recorded as not started, or for a read as cut off
            return
        # It is unknown whether the server stops in time: until it answers, the call is running.
        served.in_doubt = True
        self._steps.doubts.append(call_of(served.message))

    # --- from the server -------------------------------------------------------------------------

    async def _from_server(self, message: Message) -> None:
        if message.kind == "notification":
            if message.method == "notifications/tools/list_changed":
                self._steps.listing.forget()
            served = self._about(message)
            if served is not None:
                served.note(message)
                if served.cancelled:
                    return
        await self._send(marked_request(message, self._named))

    def _about(self, note: Message) -> Served | None:
        """Return the request of a notification; None if it is not certain."""
        asking = [each for each in self._served.values() if each.asks]
        if note.method == "notifications/progress":
            token = note.params.get("progressToken")
            asking = [each for each in asking if each.token == token]
        return asking[0] if len(asking) == 1 else None

    # --- a request -------------------------------------------------------------------------------

    async def _serve(self, served: Served) -> None:
        message = served.message
        try:
            answer = await self._answer(served)
        except asyncio.CancelledError:
            if not served.cancelled:
                raise
            return
        finally:
            self._served.pop(served.message.id, None)
            if served.in_doubt and served.response is not None:
                self._steps.doubts.remove(call_of(message))
        if not served.cancelled:
            await self._send(answer)

    async def _answer(self, served: Served) -> Message:
        message = served.message
        try:
            value = await self._value(served)
        except ServerError as error:
            return as_failure(served.message.id, error.code, error.message, error.data)
        except REFUSED as error:
            if message.method == "tools/call":  # the model reads it, and continues
                return as_answer(served.message.id, text_result(str(error), is_error=True))
            return as_failure(served.message.id, FAILED, str(error), _named(error))
        except ServerGone as error:
            # for example by a write of unknown outcome: possibly this one
            halted = self.session.halted
            if halted is None:
                return as_failure(served.message.id, GONE, str(error))
            return as_failure(served.message.id, FAILED, f"{error}: {halted}", _named(halted))
        except (*HALTED, RollcageError) as error:
            return as_failure(served.message.id, FAILED, str(error), _named(error))
        except Exception as error:  # noqa: BLE001 - no request may stay without an answer
            _log.exception("%s could not be answered", message.method)
            return as_failure(served.message.id, _INTERNAL, f"{type(error).__name__}: {error}")
        if isinstance(value, Message):
            return marked_response(value, self._named)
        if served.response is None:  # a replay
            await self._give_notes(served, value)
        elif value is served.value:
            return marked_response(served.response, self._named)  # else in the server's own bytes
        return marked_response(as_answer(served.message.id, value["result"]), self._named)

    async def _value(self, served: Served) -> Any:
        message = served.message
        gone = self._server.gone
        if gone is not None and self.session.halted is None:  # not sent, so not recorded
            raise gone
        if message.method == "tools/call":
            return await self._steps.call(served)
        if message.method in READS:
            return await self._steps.read(served)
        if self._server.is_live:
            await self._server.ready()
            return await self._server.request(message)
        if message.method in _QUIET:
            return as_answer(message.id, {})
        text = f"{message.method} is not recorded, and no server is there to answer it"
        return as_failure(message.id, -32601, text)

    async def _give_notes(self, served: Served, value: Mapping[str, Any]) -> None:
        """Send the server's recorded messages again, in their order."""
        for note in value.get("notifications", ()):
            params = dict(note["params"])
            if "progressToken" in params:
                if served.token is None:
                    continue
                params["progressToken"] = served.token
            await self._send(as_notification(note["method"], params))

    # --- the end ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether no call can reach the server any more."""
        return self.session.halted is not None or self._server.gone is not None

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """Return the requests that are being answered."""
        all_of_them = [*self._served.values(), *self.asking.waiting]
        return [each.task for each in all_of_them if each.task is not None]

    async def close(self, grace: float = 0.0) -> None:
        """Let running requests end within a time (seconds) after the client is gone, then stop.

        A write that has not ended then is recorded with an unknown outcome.
        """
        self.asking.close()
        tasks = self.under_way
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.close()


def _named(error: BaseException) -> dict[str, Any]:
    return {"rollcage": type(error).__name__}
