"""A client's conversation with a server, through a session: what it asks for becomes steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from rollcage import Contract, Session
from rollcage.adapter import HALTED, REFUSED, Instead, exposes
from rollcage.errors import RollcageError

from rollcage_mcp.asked import MORE, arguments_of, as_result, check_names, oddity
from rollcage_mcp.asking import Asking, Send, Served, call_of, serving
from rollcage_mcp.contracts import OWN, READS, read_contract, tool_function
from rollcage_mcp.errors import ServerError, ServerGone
from rollcage_mcp.listing import Declared, Listing, definitions_of
from rollcage_mcp.messages import (
    Id,
    Message,
    as_answer,
    as_failure,
    as_notification,
    as_request,
    result_of,
    text_result,
)
from rollcage_mcp.sealed import is_ours
from rollcage_mcp.upstream import Connection, Upstream

__all__ = ["GRACE", "Conversation", "Declared", "Send"]

_log: Final = logging.getLogger("rollcage.mcp")

GRACE: Final = 10.0
"""Seconds that a call may go on when the client is gone."""

_FAILED: Final = -32000  # of JSON-RPC: an error of the implementation
_GONE: Final = -32001
_DOUBLED: Final = -32600
_INTERNAL: Final = -32603
_PAGES: Final = 1_000  # of a list of tools
_QUIET: Final = {"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
"""Requests whose answer says nothing: a proxy without a server gives it itself."""


class Conversation:
    """Serves one client: its requests are steps of a session, all else passes.

    Args:
        session: entered by now.
        connect: starts the server, or connects to it; None where there is none (a replay).
        send: takes what goes to the client.
        declared: of the server's tools.
    """

    def __init__(
        self,
        session: Session,
        connect: Callable[[], Awaitable[Connection]] | None,
        send: Send,
        *,
        declared: Declared = Declared(),  # noqa: B008 - immutable
    ) -> None:
        self.session = session
        self._send = send
        self._is_live = connect is not None
        self._upstream = Upstream(connect or _nowhere, self._from_server)
        self._served: dict[Id, Served] = {}
        self.asking = Asking(send, self._served)
        self._doubts: list[dict[str, Any]] = []
        self._listing = Listing(declared, self)
        self._meta: dict[str, Any] = {}
        self._hello: Message | None = None
        self._is_greeted = False
        self._opening: asyncio.Task[None] | None = None

    # --- from the client -------------------------------------------------------------------------

    async def take(self, message: Message) -> None:
        """Take a message of the client; its requests are answered by and by."""
        odd = oddity(message)
        if odd:
            _log.warning("refused a message of the client: %s", odd)
            if message.kind == "request":
                await self._send(as_failure(message.id, _DOUBLED, odd))
        elif message.kind == "response":
            if not self.asking.take(message):
                await self._pass_on(message)
        elif message.kind == "notification":
            if message.method == "notifications/cancelled":
                await self._cancel(message)
            else:
                await self._pass_on(message)
        elif message.id in self._served:
            text = f"the request {message.id!r} is still being answered: take another id"
            await self._send(as_failure(message.id, _DOUBLED, text))
        else:
            await self._begin(message)

    async def _begin(self, message: Message) -> None:
        """Have a request answered; one that carries an answer of ours goes on where it was."""
        state = message.params.get("requestState")
        if message.method != "tools/call" or not is_ours(state):
            served = Served(message)
        else:
            own = ("requestState", "inputResponses")
            params = {name: each for name, each in message.params.items() if name not in own}
            carried = (str(state), message.params.get("inputResponses"))
            message = as_request(message.id, message.method, params)
            if self.asking.goes_on(str(state), message, carried[1]):
                return
            served = Served(message, carried=carried)
        self._served[message.id] = served
        served.task = asyncio.create_task(self._serve(served))

    async def _pass_on(self, message: Message) -> None:
        if self._upstream.is_up:
            with contextlib.suppress(ServerGone, ServerError):  # whoever waits is told
                await self._upstream.send(message)

    async def _cancel(self, message: Message) -> None:
        """The client wants a request cancelled: it waits for it no more, whatever comes."""
        number: Any = message.params.get("requestId")
        known = isinstance(number, str | int) and not isinstance(number, bool)
        served = self._served.get(number) if known else None
        if served is None or served.task is None or served.cancelled:
            return
        served.cancelled = True
        if served.asks:
            await self._pass_on(message)
        if not (served.asks and served.is_write):
            served.task.cancel()  # recorded as not started, or of a read as cut off
            return
        # Whether the server stops in time, nobody knows: until it answers, the call is under way.
        served.in_doubt = True
        self._doubts.append(call_of(served.message))

    # --- from the server -------------------------------------------------------------------------

    async def _from_server(self, message: Message) -> None:
        if message.kind == "notification":
            if message.method == "notifications/tools/list_changed":
                self._listing.forget()
            served = self._about(message)
            if served is not None:
                served.note(message)
                if served.cancelled:
                    return
        await self._send(message)

    def _about(self, note: Message) -> Served | None:
        """Which request a notification is about; None where that is not certain."""
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
                self._doubts.remove(call_of(message))
        if not served.cancelled:
            await self._send(answer)

    async def _answer(self, served: Served) -> Message:
        message = served.message
        try:
            value = await self._value(served)
        except ServerError as error:
            return as_failure(served.message.id, error.code, error.message, error.data)
        except REFUSED as error:
            if message.method == "tools/call":  # the model reads it, and goes on
                return as_answer(served.message.id, text_result(str(error), is_error=True))
            return as_failure(served.message.id, _FAILED, str(error), _named(error))
        except ServerGone as error:
            halted = self.session.halted  # by a write of unknown outcome: that this one is, say
            if halted is None:
                return as_failure(served.message.id, _GONE, str(error))
            return as_failure(served.message.id, _FAILED, f"{error}: {halted}", _named(halted))
        except (*HALTED, RollcageError) as error:
            return as_failure(served.message.id, _FAILED, str(error), _named(error))
        except Exception as error:  # noqa: BLE001 - no request may stay without an answer
            _log.exception("%s could not be answered", message.method)
            return as_failure(served.message.id, _INTERNAL, f"{type(error).__name__}: {error}")
        if isinstance(value, Message):
            return value
        if value is served.value and served.response is not None:
            return served.response  # as the server wrote it
        await self._give_notes(served, value)
        return as_answer(served.message.id, value["result"])

    async def _value(self, served: Served) -> Any:
        message = served.message
        gone = self._upstream.gone
        if gone is not None and self.session.halted is None:  # not sent, so not recorded
            raise gone
        if message.method == "tools/call":
            return await self._tool_call(served)
        if message.method in READS:
            return await self._read(served)
        if self._is_live:
            await self._go_live()
            return await self._upstream.request(message)
        if message.method in _QUIET:
            return as_answer(message.id, {})
        text = f"{message.method} is not recorded, and no server is there to answer it"
        return as_failure(message.id, -32601, text)

    async def _give_notes(self, served: Served, value: Mapping[str, Any]) -> None:
        """Send again what the server sent while it was at work, in its order."""
        for note in value.get("notifications", ()):
            params = dict(note["params"])
            if "progressToken" in params:
                if served.token is None:
                    continue
                params["progressToken"] = served.token
            await self._send(as_notification(note["method"], params))

    # --- steps -----------------------------------------------------------------------------------

    async def _read(self, served: Served) -> Any:
        message = served.message
        params = {name: each for name, each in message.params.items() if name != "_meta"}
        if message.method == "initialize":
            self._hello = message
            self.asking.met(params)
            params = {"protocolVersion": params.get("protocolVersion")}  # any client's will do
        value = await self.session.arun(read_contract(message.method), params, self._body(served))
        if message.method == "tools/list":
            self._listing.learn(params.get("cursor"), value["result"])
            return self._exposed(value)
        return value

    async def _tool_call(self, served: Served) -> Any:
        message = served.message
        name, given = message.params.get("name"), message.params.get("arguments")
        if not isinstance(name, str) or not isinstance(given, dict | None):
            raise ServerError(-32602, "tools/call wants a name, and arguments that are an object")
        if given and MORE in given:  # an edited call would take it for parameters beside these
            raise ServerError(-32602, f"an argument can't be called {MORE!r}")
        if name.startswith(OWN):
            raise ServerError(-32602, f"a tool can't be called {name!r}: {OWN} is for reads")
        self._note_meta(message)
        serving.set(served)
        contract = await self._contract(name)
        served.is_write = contract.effect == "write"
        arguments = arguments_of(message)
        check_names(arguments, contract)
        if call_of(message) in self._doubts:
            text = (
                f"{name} was cancelled while it ran, and the server has not said whether it has "
                f"happened: the same call is not made again in this conversation"
            )
            self.session.refused(contract, arguments, reason=text, code="in_doubt")
            return as_answer(message.id, text_result(text, is_error=True))
        instead = Instead(self._edited(served), as_result)
        return await self.session.arun(contract, arguments, self._body(served), instead=instead)

    def _body(self, served: Served) -> Callable[..., Any]:
        async def body(**_: Any) -> dict[str, Any]:
            message = served.message
            if message.method == "tools/call":  # what was gated, and nothing that hides beside it
                message = as_request(message.id, message.method, message.params)
            return await self._asked_of_server(served, message)

        return body

    def _edited(self, served: Served) -> Callable[..., Any]:
        async def body(**arguments: Any) -> dict[str, Any]:
            params = {**served.message.params, "arguments": arguments}
            params |= arguments.pop(MORE, {})
            request = as_request(served.message.id, "tools/call", params)
            return await self._asked_of_server(served, request)

        return body

    async def _asked_of_server(self, served: Served, request: Message) -> dict[str, Any]:
        """What the server answers to a request: the body of its step."""
        await self._go_live(request)
        if self._upstream.gone is not None:
            raise ServerError(_GONE, f"it was not sent: {self._upstream.gone}")
        served.asks = True
        response = await self._upstream.request(request)
        if served.cancelled and "error" in response.data:
            await asyncio.get_running_loop().create_future()  # it says no more than that it stopped
        served.response = response
        value: dict[str, Any] = {"result": result_of(response)}
        if served.notes:
            value["notifications"] = served.notes
        served.value = value
        return value

    async def _go_live(self, request: Message | None = None) -> None:
        """Have the server started, and greeted as the client has greeted us.

        Raises:
            ServerGone: it can't be reached.
        """
        opening = self._opening
        if opening is None or opening.done():
            if self._upstream.is_up and (self._is_greeted or self._hello is None):
                return
            opening = self._opening = asyncio.create_task(self._open(request))
        await asyncio.shield(opening)  # others wait for it, too, when this one is cancelled

    async def _open(self, request: Message | None) -> None:
        await self._upstream.start()
        if self._is_greeted or self._hello is None:
            return
        if request is not self._hello:
            hello = as_request(f"rollcage-{secrets.token_hex(8)}", "initialize", self._hello.params)
            result_of(await self._upstream.request(hello))
            await self._upstream.send(as_notification("notifications/initialized"))
        self._is_greeted = True

    # --- tools -----------------------------------------------------------------------------------

    async def _contract(self, name: str) -> Contract:
        """The contract of a tool; the server is asked for its tools where the client did not."""
        listing, cursor = self._listing, None
        for _ in range(_PAGES):
            if listing.is_whole:
                break
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            own = f"rollcage-{secrets.token_hex(8)}"
            request = as_request(own, "tools/list", {**params, **self._meta})
            contract, body = read_contract("tools/list"), self._body(Served(request))
            page = (await self.session.arun(contract, params, body))["result"]
            listing.learn(cursor, page)
            cursor = page.get("nextCursor")
        else:
            raise ServerError(_FAILED, f"the server's list of tools has more than {_PAGES} pages")
        return listing.contracts.get(name) or listing.contract_of({"name": name})

    def _note_meta(self, message: Message) -> None:
        """Ask the server by the client's own `_meta`; without a handshake, each request has one."""
        meta = {name: each for name, each in message.meta.items() if name != "progressToken"}
        self._meta = {"_meta": meta} if meta else {}

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a tool that changes nothing, for a pack: no step.

        Raises:
            ServerError: the server answers with an error.
            ServerGone: it can't be reached.
        """
        await self._go_live()
        params = {"name": name, "arguments": dict(arguments), **self._meta}
        request = as_request(f"rollcage-{secrets.token_hex(8)}", "tools/call", params)
        return result_of(await self._upstream.request(request))

    def function(self, name: str) -> Callable[..., Any]:
        """A tool as a function with its contract, for a compensation."""
        return tool_function(self._listing.contracts[name], name, self)

    def _exposed(self, value: dict[str, Any]) -> dict[str, Any]:
        """A page of the server's list with the tools that the session's facade gives."""
        if self.session.facade is None:
            return value
        listed = [
            each
            for each in definitions_of(value["result"])
            if self._listing.is_of(each)
            and exposes(self.session, self._listing.contracts[each["name"]])
        ]
        rest = {name: each for name, each in value["result"].items() if name.casefold() != "tools"}
        return {**value, "result": {**rest, "tools": listed}}

    # --- the end ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether no call of it can reach the server any more."""
        return self.session.halted is not None or self._upstream.gone is not None

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """The requests that are being answered now."""
        all_of_them = [*self._served.values(), *self.asking.waiting]
        return [each.task for each in all_of_them if each.task is not None]

    async def close(self, grace: float = 0.0) -> None:
        """The client is gone: let what is under way end within a while (seconds), then stop.

        A write that has not ended by then is recorded as one of unknown outcome.
        """
        self.asking.close()
        tasks = self.under_way
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._upstream.close()


def _named(error: BaseException) -> dict[str, Any]:
    return {"rollcage": type(error).__name__}


async def _nowhere() -> Connection:
    raise ServerGone("no server is there: this is a replay")
