"""A client's requests as steps of a session: tool calls, and reads of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from rollcage import Contract, Session
from rollcage_adapter import Instead, exposes, facades_of, refused_by

from rollcage_mcp.asked import MORE, arguments_of, as_result, check_names
from rollcage_mcp.asking import Asking, Served, call_of, serving
from rollcage_mcp.contracts import (
    GREETINGS,
    OWN,
    PINNED_LISTS,
    instructions_contract,
    read_contract,
    tool_function,
)
from rollcage_mcp.errors import ServerError
from rollcage_mcp.greeted import GreetedServer
from rollcage_mcp.listing import Listing, ServerDeclarations, definitions_of
from rollcage_mcp.messages import Message, as_answer, as_request, result_of, text_result

__all__ = ["FAILED", "GONE", "Steps"]

_log: Final = logging.getLogger("rollcage.mcp")

FAILED: Final = -32000  # of JSON-RPC: an error of the implementation
GONE: Final = -32001
_PAGES: Final = 1_000  # of a list of tools
_LOST: Final = object()  # no page follows the last page read


class Steps:
    """Answers a client's calls and reads by steps of its session.

    Args:
        session: the session of the conversation.
        server: answers requests that are not recorded.
        asking: gets the client's description.
        declared: the declarations of the server's tools.

    Attributes:
        listing: the server's tools.
        doubts: cancelled writes whose server has not answered yet.
    """

    def __init__(
        self, session: Session, server: GreetedServer, asking: Asking, declared: ServerDeclarations
    ) -> None:
        self._session = session
        self._server = server
        self._asking = asking
        self._pins = declared.pins
        self.listing = Listing(declared, self)
        self.doubts: list[dict[str, Any]] = []
        self._cursors: dict[str, object] = {}  # of the next page, by the method that lists it

    async def read(self, served: Served) -> Any:
        """Return the server's answer to a read. Raises the session's and the server's errors."""
        message = served.message
        params = {name: each for name, each in message.params.items() if name != "_meta"}
        if message.method == "initialize":
            self._server.hello = message
            self._asking.met(params)
            params = {"protocolVersion": params.get("protocolVersion")}  # the same for any client
        value = await self._session.arun_call(
            read_contract(message.method), params, self._body(served)
        )
        if message.method == "tools/list":
            await self._learn(params.get("cursor"), value["result"])
            return self._exposed(value)
        if message.method in PINNED_LISTS:
            return await self._as_listed(message.method, params.get("cursor"), value)
        return await self._greeted(value) if message.method in GREETINGS else value

    async def call(self, served: Served) -> Any:
        """Return the result of a tool. Raises the session's and the server's errors."""
        message = served.message
        name, given = message.params.get("name"), message.params.get("arguments")
        if not isinstance(name, str) or not isinstance(given, dict | None):
            raise ServerError(-32602, "tools/call wants a name, and arguments that are an object")
        if given and MORE in given:  # an edited call would take it for further parameters
            raise ServerError(-32602, f"an argument can't be called {MORE!r}")
        if name.startswith(OWN):
            raise ServerError(-32602, f"a tool can't be called {name!r}: {OWN} is for reads")
        self._server.note_meta(message)
        serving.set(served)
        contract = await self._contract(name)
        served.is_write = contract.effect == "write"
        arguments = arguments_of(message)
        check_names(arguments, contract)
        if call_of(message) in self.doubts:
            text = (
                f"{name} was cancelled while it ran, and the server has not said whether it "
                f"happened: the same call is not made again in this conversation"
            )
            return self._refused(message, contract, arguments, text, "in_doubt")
        if self._pins is not None:
            definition = self.listing.definition_of(name)
            changed = await asyncio.to_thread(self._pins.change_of, name, definition)
            if changed:
                _log.warning("refused a call: %s", changed)
                return self._refused(message, contract, arguments, changed, "tool_changed")
        instead = Instead(self._edited(served), as_result)
        return await self._session.arun_call(
            contract, arguments, self._body(served), instead=instead
        )

    def _refused(
        self,
        message: Message,
        contract: Contract,
        arguments: Mapping[str, Any],
        text: str,
        code: str,
    ) -> Message:
        """Record a refused call; return the answer, which the model reads."""
        self._session.refused(contract, arguments, reason=text, code=code)
        return as_answer(message.id, text_result(text, is_error=True))

    def _body(self, served: Served) -> Callable[..., Any]:
        async def body(**_: Any) -> dict[str, Any]:
            message = served.message
            # only the gated arguments, and nothing hidden beside them
            if message.method == "tools/call":
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
        """Return the server's answer to a request: the body of its step."""
        await self._server.ready(request)
        if self._server.gone is not None:
            raise ServerError(GONE, f"it was not sent: {self._server.gone}")
        served.asks = True
        response = await self._server.request(request)
        if served.cancelled and "error" in response.data:
            # its only further message is that it stopped
            await asyncio.get_running_loop().create_future()
        served.response = response
        value: dict[str, Any] = {"result": result_of(response)}
        if served.notes:
            value["notifications"] = served.notes
        served.value = value
        return value

    # --- tools -----------------------------------------------------------------------------------

    async def _contract(self, name: str) -> Contract:
        """Return the contract of a tool; list the server's tools if the client did not."""
        listing, cursor = self.listing, None
        for _ in range(_PAGES):
            if listing.is_whole:
                break
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            request = self._server.own_request("tools/list", params)
            contract, body = read_contract("tools/list"), self._body(Served(request))
            page = (await self._session.arun_call(contract, params, body))["result"]
            await self._learn(cursor, page)
            cursor = page.get("nextCursor")
        else:
            raise ServerError(FAILED, f"the server's list of tools has more than {_PAGES} pages")
        return listing.contracts.get(name) or listing.contract_of({"name": name})

    async def _learn(self, cursor: object, page: Mapping[str, Any]) -> None:
        """Learn a page of the server's list, and pin it. Raises `PackInvalid` and `StoreError`."""
        self.listing.learn(cursor, page)
        if self._pins is not None:
            whole = self.listing.is_whole
            await asyncio.to_thread(self._pins.listed, definitions_of(page), is_whole=whole)

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a tool that changes nothing, for a pack: no step.

        Raises:
            ServerError: the server answers with an error.
            ServerGone: the server can't be reached.
        """
        return await self._server.ask("tools/call", {"name": name, "arguments": dict(arguments)})

    def function(self, name: str) -> Callable[..., Any]:
        """Return a tool as a function with its contract, for a compensation."""
        return tool_function(self.listing.contracts[name], name, self)

    async def _greeted(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the server's handshake, if its instructions to the model were approved.

        Raises:
            ServerError: the session's facade does not give the instructions, or another form of
                them; without a facade, they were changed since the server was first used. The
                text is only logged: the client may show an error to the model.
        """
        contract = instructions_contract(value["result"])
        facades = facades_of(self._session)
        if not facades:
            return value if self._pins is None else await self._as_pinned(value, contract)
        refusal = None if contract is None else refused_by(facades, contract)
        if contract is not None and refusal is not None:
            _log.warning("the client does not get what the server instructs: %s", refusal)
            message = (
                str(refusal).replace(f"\n{refusal.diff}\n", " ") if refusal.diff else str(refusal)
            )
            self._session.refused(contract, {}, reason=message, code=refusal.verdict_code)
            raise ServerError(FAILED, message)
        return {**value}  # newly written: in the server's own bytes, a name may come twice

    async def _as_pinned(self, value: dict[str, Any], contract: Contract | None) -> dict[str, Any]:
        assert self._pins is not None
        text = "" if contract is None else contract.description
        await asyncio.to_thread(self._pins.greeted, text)
        changed = self._pins.change_of_instructions(text)
        if changed:
            _log.warning("the client does not get what the server instructs: %s", changed)
            told = contract or f"{OWN}instructions"
            self._session.refused(told, {}, reason=changed, code="tool_changed")
            raise ServerError(FAILED, changed)
        return {**value}

    async def _as_listed(
        self, method: str, cursor: object, value: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a page of the server's prompts or resources, without changed definitions.

        An omitted definition is logged, and recorded as refused. With a facade, and without a
        server, all are given.
        """
        pins = self._pins
        if pins is None or facades_of(self._session):
            return value
        kind, field, name = PINNED_LISTS[method]
        page: Mapping[str, Any] = value["result"]
        entries = definitions_of(page, field, name)
        follows = cursor is None or cursor == self._cursors.get(method, _LOST)
        self._cursors[method] = page.get("nextCursor") if follows else _LOST
        whole = self._cursors[method] is None
        await asyncio.to_thread(pins.listed, entries, is_whole=whole, kind=kind)
        new = next((each for each in entries if not pins.accepts(each, kind)), None)
        changed = ""
        if new is not None:  # this reads the pins again
            changed = await asyncio.to_thread(pins.change_of, new[name], new, kind)
        given = [each for each in entries if pins.accepts(each, kind)]
        others = len(entries) - len(given) - 1
        if changed:
            more = f" Left out with it: {others} more." if others else ""
            _log.warning("the client does not get what the server lists: %s%s", changed, more)
            reason = f"{changed}{more}"
            self._session.refused(read_contract(method), {}, reason=reason, code="tool_changed")
        rest = {word: each for word, each in page.items() if word.casefold() != field.casefold()}
        return {**value, "result": {**rest, field: given}}

    def _exposed(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the server's list with the tools that a model may see.

        A facade gives them; without one, they are the accepted ones.
        """
        pins, has_facade = self._pins, bool(facades_of(self._session))
        if not has_facade and pins is None:
            return value
        listed = [
            each
            for each in definitions_of(value["result"])
            if self.listing.is_of(each)
            and exposes(self._session, self.listing.contracts[each["name"]])
            and (pins is None or pins.accepts(each))
        ]
        rest = {name: each for name, each in value["result"].items() if name.casefold() != "tools"}
        return {**value, "result": {**rest, "tools": listed}}
