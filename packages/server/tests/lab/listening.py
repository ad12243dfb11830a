"""A real server on loopback, and the messages that it sends to who follows a run."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import uvicorn
from mission import World
from rollcage_server import Role

__all__ = ["WAIT", "Message", "messages", "next_message", "serving", "token"]

WAIT = 20.0  # seconds that a slow machine may take


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """A real server in a thread; its address."""
    config = uvicorn.Config(app, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + WAIT
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)  # uvicorn has no event for it
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WAIT)


Message = dict[str, str]


async def messages(answer: httpx.Response) -> AsyncIterator[Message]:
    """The messages of a stream, as a browser reads them."""
    said: Message = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, text = line.partition(": ")
            said[name] = f"{said[name]}\n{text}" if name in said else text
        else:
            if "event" in said:
                yield said
            said = {}


async def next_message(stream: AsyncIterator[Message]) -> Message:
    async with asyncio.timeout(WAIT):
        return await anext(stream)


def token(world: World, role: Role = Role.VIEWER) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.token[role]}"}
