"""Conversations with a scripted server, and the store of core's tests."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import files  # noqa: F401 - pytest finds it here
from rollcage import Session, Store, list_runs, open_store
from rollcage.trace.chain import parse
from rollcage_mcp.conversation import Conversation, ServerDeclarations
from scripted import Client, Server, Talk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store; whatever a test leaves in it can be read."""
    found = open_store(tmp_path / "runs")
    yield found
    for each in list_runs(found):
        parse(found.read(each.run), each.run)


@pytest.fixture
def talk(store: Store) -> Talk:
    """Opens a conversation with a server (None: there is none), in a session of these settings."""

    @contextlib.asynccontextmanager
    async def opened(
        server: Server | None,
        *,
        name: str = "talk",
        declared: ServerDeclarations = ServerDeclarations(),  # noqa: B008 - immutable
        grace: float = 5.0,
        met: Callable[[Conversation], None] = lambda _: None,
        **settings: Any,
    ) -> AsyncIterator[Client]:
        client = Client()
        async with Session(name, store=store, **settings) as session:
            connect = None if server is None else server.connect
            client.conversation = Conversation(session, connect, client.take, declared=declared)
            met(client.conversation)
            try:
                yield client
            finally:
                await client.conversation.close(grace)

    return opened
