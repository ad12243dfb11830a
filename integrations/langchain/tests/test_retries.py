"""LangChain's own retries, around a write whose server performed it and did not answer."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import StructuredTool, ToolException
from rollcage import UnknownOutcome

Run = Callable[..., Any]

SCRIPT: list[Any] = [[("order", {"what": "a"})], [("order", {"what": "a"})], "done"]


class Silent:
    """A server that performs each request and never answers."""

    def __init__(self) -> None:
        self.performed: list[bytes] = []
        self._taken: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self._taken.append(taken)
            self.performed.append(taken.recv(65536))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for each in self._taken:
            each.close()


@pytest.fixture
def server() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


def ordering(url: str, *, wrapped: bool) -> StructuredTool:
    def order(what: str) -> str:
        """Order something."""
        try:
            return httpx.get(f"{url}/{what}", timeout=0.3).text
        except httpx.HTTPError as error:
            if wrapped:
                raise ToolException("the shop did not answer") from error
            raise

    async def aorder(what: str) -> str:
        """Order something."""
        async with httpx.AsyncClient(timeout=0.3) as client:
            try:
                return (await client.get(f"{url}/{what}")).text
            except httpx.HTTPError as error:
                if wrapped:
                    raise ToolException("the shop did not answer") from error
                raise

    return StructuredTool.from_function(
        order, coroutine=aorder, name="order", handle_tool_error=wrapped
    )


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "as a ToolException"])
@pytest.mark.parametrize("on_failure", ["continue", "error"])
def test_a_retry_middleware_does_not_get_past_it(
    run: Run, server: Silent, on_failure: Any, wrapped: bool
) -> None:
    tool = ordering(server.url, wrapped=wrapped)
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0, on_failure=on_failure)
    done = run([tool], SCRIPT, middleware=[retry])
    assert isinstance(done.error, UnknownOutcome)
    assert len(server.performed) == 1
    assert done.outcomes == []
    assert done.events[-1]["status"] == "halted"
    again = run([tool], SCRIPT, middleware=[retry])
    assert isinstance(again.error, UnknownOutcome)
    assert len(server.performed) == 1


def test_one_that_can_not_have_happened_is_tried_again(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0)
    done = run([ordering(url, wrapped=False)], [SCRIPT[0], "done"], middleware=[retry])
    assert done.error is None
    assert [e["status"] for e in done.outcomes] == ["error"] * 4
