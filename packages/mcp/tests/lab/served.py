"""A scripted server behind a proxy that is served by HTTP, on loopback."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from rollcage import Session
from rollcage_mcp.conversation import Conversation, Send
from rollcage_mcp.guards import named_guards
from rollcage_mcp.http_proxy import Impatient, proxy_app
from scripted import Server

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}


class Served:
    """A scripted server behind a proxy that is served."""

    def __init__(
        self,
        server: Server,
        store: Any,
        token: str | None,
        policy: str | None = None,
        **settings: Any,
    ) -> None:
        self.server = server
        self.url = ""
        self.names: list[str] = []

        @contextlib.asynccontextmanager
        async def talk(send: Send) -> AsyncIterator[Conversation]:
            self.names.append(f"conversation {len(self.names)}")
            own = Server(**server.tools)
            own.done = server.done
            gate: Any = named_guards(policy=policy, facade=None)
            async with Session(self.names[-1], store=store, gate=gate, **settings) as session:
                conversation = Conversation(session, own.connect, send)
                try:
                    yield conversation
                finally:
                    await conversation.close()

        self.app = proxy_app(talk, token=token, hosts=("127.0.0.1",))


@contextlib.asynccontextmanager
async def served(
    server: Server, store: Any, token: str | None = None, **settings: Any
) -> AsyncIterator[Served]:
    it = Served(server, store, token, **settings)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        it.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        config = uvicorn.Config(
            it.app, log_level="error", timeout_graceful_shutdown=1, http=Impatient
        )
        runs = uvicorn.Server(config)
        task = asyncio.create_task(runs.serve([listening]))
        try:
            yield it
        finally:
            runs.should_exit = True
            await task
