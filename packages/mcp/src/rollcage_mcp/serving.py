"""A server of our own: tools for any client, at standard input and output, in both eras."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from rollcage_mcp.asking import Asking, Send, Served, asking_here, serving, without_state
from rollcage_mcp.errors import MessageInvalid, ServerError
from rollcage_mcp.lines import lines, reader_of, writer_of
from rollcage_mcp.messages import Id, Message, as_answer, as_failure, parse

__all__ = ["ServedTool", "ToolServer"]

_log: Final = logging.getLogger("rollcage.mcp")

_HANDSHAKES: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_STATELESS: Final = "2026-07-28"
_CAPABILITIES: Final = {"tools": {"listChanged": False}}
_INVALID_REQUEST: Final = -32600
_INTERNAL: Final = -32603
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602


@dataclasses.dataclass(frozen=True)
class ServedTool:
    """A tool as clients see it.

    Attributes:
        name: its name.
        description: for models.
        parameters: the JSON Schema of its arguments.
        call: its body; returns the result of `tools/call`.
        annotations: its hints about its effect: `readOnlyHint`, `idempotentHint`, …
        listed: whether clients see it.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
    annotations: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    listed: bool = True

    @property
    def definition(self) -> dict[str, Any]:
        """Return the tool's definition for `tools/list`."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": dict(self.parameters),
            "annotations": dict(self.annotations),
        }


class ToolServer:
    """Serves tools to one client.

    Args:
        name: the name of the server.
        tools: its tools.
    """

    def __init__(self, name: str, tools: Sequence[ServedTool]) -> None:
        self._info = {"name": name, "version": "0.1.0"}
        self._tools = {each.name: each for each in tools}
        self._served: dict[Id, Served] = {}
        self._client: Send | None = None
        self._asking = Asking(self._send, self._served)

    async def serve_stdio(self) -> None:
        """Serve the client at standard input and output, until it closes the input."""
        reader = await reader_of(sys.stdin.buffer)
        writer = await writer_of(sys.stdout.buffer)

        async def send(message: Message) -> None:
            await writer.write(message.raw)

        async for line in lines(reader):
            try:
                message = parse(line)
            except MessageInvalid as error:
                failure = as_failure(0, -32700, str(error))
                await writer.write(failure.raw.replace(b'"id":0', b'"id":null', 1))
            else:
                await self.take(message, send)
        await self.rest()

    async def rest(self) -> None:
        """Wait until all requests are answered, except requests that wait for a person."""
        waiting = self._asking.waiting
        self._asking.close()
        tasks = [each.task for each in (*self._served.values(), *waiting) if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, message: Message, send: Send) -> None:
        """Take a message of the client; a request is answered later."""
        self._client = send
        if message.kind == "response":
            self._asking.take(message)
        elif message.kind == "request" and message.id in self._served:
            text = f"the request {message.id!r} is still being answered: take another id"
            await send(as_failure(message.id, _INVALID_REQUEST, text))
        elif message.kind == "request":
            self._begin(message)
        elif message.method == "notifications/cancelled":
            number: Any = message.params.get("requestId")
            known = isinstance(number, str | int) and not isinstance(number, bool)
            served = self._served.get(number) if known else None
            if served is not None and served.task is not None:
                served.task.cancel()

    def _begin(self, message: Message) -> None:
        """Answer a request in the background; an answer of ours in it continues its call."""
        message, carried = without_state(message)
        if carried is not None and self._asking.goes_on(carried[0], message, carried[1]):
            return
        served = self._served[message.id] = Served(message)
        served.task = asyncio.create_task(self._serve(served))

    async def _serve(self, served: Served) -> None:
        message = served.message
        serving.set(served)
        asking_here.set(self._asking)
        try:
            result = await self.answer(message.method, message.params)
            answer = as_answer(served.message.id, result)
        except ServerError as error:
            answer = as_failure(served.message.id, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - no request may stay without an answer
            _log.exception("%.100r could not be answered", message.method)
            text = f"{type(error).__name__}: {error}"
            answer = as_failure(served.message.id, _INTERNAL, text)
        finally:
            self._served.pop(served.message.id, None)
        await self._send(answer)

    async def _send(self, message: Message) -> None:
        assert self._client is not None
        await self._client(message)

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request.

        Raises:
            ServerError: there is no such method or tool, or its arguments are no object.
        """
        match method:
            case "initialize":
                self._asking.met(params)
                asked = params.get("protocolVersion")
                version = asked if asked in _HANDSHAKES else _HANDSHAKES[0]
                return self._hello({"protocolVersion": version, "serverInfo": self._info})
            case "server/discover":
                return self._hello({"supportedVersions": [_STATELESS, *_HANDSHAKES], **_COMPLETE})
            case "ping":
                return {}
            case "tools/list":
                listed = [each.definition for each in self._tools.values() if each.listed]
                return {"tools": listed, **_COMPLETE}
            case "tools/call":
                return await self._call(params)
            case _:
                raise ServerError(_METHOD_NOT_FOUND, f"{method} is not served")

    def _hello(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"capabilities": _CAPABILITIES, **more}

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise ServerError(_INVALID_PARAMS, "arguments have to be an object")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            listed = ", ".join(each.name for each in self._tools.values() if each.listed)
            raise ServerError(_INVALID_PARAMS, f"no tool {name!r}; there are: {listed}")
        return await tool.call(arguments)


_COMPLETE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
