"""A scripted server in this process, and a client that collects what it gets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from rollcage_mcp.conversation import Conversation
from rollcage_mcp.errors import ServerGone
from rollcage_mcp.messages import Message, as_notification, as_request, parse

Tool = Callable[..., Awaitable[Any]]


class Server:
    """A server whose tools are functions; it counts what is done to it.

    A tool gets the server and its arguments; what it gives is the text of its result. `Server.gone`
    breaks the connection off.
    """

    def __init__(self, **tools: Tool) -> None:
        self.tools = tools
        self.said: dict[str, dict[str, Any]] = {}  # more of a tool's definition
        self.seen: list[Message] = []
        self.done: list[Any] = []
        self.starts = 0
        self.out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()
        self.pages = 1
        self.hidden: set[str] = set()  # tools that it does not list, and has
        self.responses: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def response(self) -> dict[str, Any]:
        """The client's next answer to what the server has asked."""
        return await self.responses.get()

    async def connect(self) -> "Server":
        self.starts += 1
        self.out = asyncio.Queue()
        return self

    def methods(self) -> list[str]:
        return [each.method for each in self.seen if each.kind != "response"]

    async def send(self, raw: bytes) -> None:
        message = parse(raw)
        self.seen.append(message)
        if message.kind == "response":
            self.responses.put_nowait(message.data)
        if message.kind == "request":
            task = asyncio.create_task(self._answer(message))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def received(self) -> AsyncIterator[bytes]:
        while (line := await self.out.get()) is not None:
            yield line
        raise ServerGone("the server has ended")

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.gone()

    def gone(self) -> None:
        self.out.put_nowait(None)

    def note(self, method: str, params: Mapping[str, Any]) -> None:
        self.out.put_nowait(as_notification(method, params).raw)

    def asks(self, id: str, method: str, params: Mapping[str, Any]) -> None:  # noqa: A002
        self.out.put_nowait(as_request(id, method, params).raw)

    async def _answer(self, message: Message) -> None:
        reply: dict[str, Any]
        try:
            reply = {"result": await self._result(message)}
        except LookupError as error:
            reply = {"error": {"code": -32602, "message": str(error), "data": {"why": "unknown"}}}
        self.out.put_nowait(orjson.dumps({"jsonrpc": "2.0", "id": message.id, **reply}))

    async def _result(self, message: Message) -> dict[str, Any]:
        if message.method == "initialize":
            return {"protocolVersion": "2025-11-25", "serverInfo": {"name": "scripted"}}
        if message.method == "tools/list":
            return self._listed(int(message.params.get("cursor", 0)))
        if message.method == "tools/call":
            name = message.params["name"]
            if name not in self.tools:
                raise LookupError(f"no tool {name}")
            given = message.params.get("arguments") or {}
            text = await self.tools[name](self, **given)
            return {"content": [{"type": "text", "text": str(text)}], "isError": False}
        return {"of": message.method}

    def _listed(self, page: int) -> dict[str, Any]:
        names = [each for each in self.tools if each not in self.hidden]
        some = names[page :: self.pages] if self.pages > 1 else names
        tools = [
            {"name": each, "inputSchema": {"type": "object"}, **self.said.get(each, {})}
            for each in some
        ]
        more = page + 1 < self.pages
        return {"tools": tools, **({"nextCursor": str(page + 1)} if more else {})}


class Client:
    """A client: what it was sent, and the answers to its requests."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.conversation: Conversation
        self._answers: dict[Any, asyncio.Future[Message]] = {}
        self._last = 0
        self.says: Callable[[Message], dict[str, Any]] | None = None

    async def take(self, message: Message) -> None:
        self.sent.append(message)
        if message.kind == "response":
            self._answers[message.id].set_result(message)
        elif message.kind == "request" and self.says is not None:
            reply = {"jsonrpc": "2.0", "id": message.id, **self.says(message)}
            await self.conversation.take(parse(orjson.dumps(reply)))

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self._last += 1
        self._answers[self._last] = asyncio.get_running_loop().create_future()
        await self.conversation.take(as_request(self._last, method, params))
        return self._last

    async def end(self, number: int) -> dict[str, Any]:
        data = (await asyncio.wait_for(self._answers[number], 20)).data
        return {word: data[word] for word in ("result", "error") if word in data}

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.end(await self.begin(method, params))

    async def note(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        await self.conversation.take(as_notification(method, params))

    async def greet(self, **capabilities: Any) -> dict[str, Any]:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "of a test", "version": "1"},
        }
        answer = await self.request("initialize", params)
        await self.note("notifications/initialized")
        return answer

    async def call(self, name: str, meta: Any = None, **arguments: Any) -> dict[str, Any]:
        return await self.request("tools/call", call_of(name, meta, arguments))

    async def text(self, name: str, **arguments: Any) -> str:
        """What a model reads of a call's result."""
        answer = await self.call(name, **arguments)
        return str(answer["result"]["content"][0]["text"])

    def notes(self) -> list[tuple[str, Any]]:
        return [(each.method, each.params) for each in self.sent if each.kind == "notification"]


def call_of(name: str, meta: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    more = {} if meta is None else {"_meta": meta}
    return {"name": name, "arguments": dict(arguments), **more}


Talk = Callable[..., AbstractAsyncContextManager[Client]]
