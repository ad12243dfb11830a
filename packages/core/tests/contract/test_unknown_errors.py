"""Errors out of writes: a real client, a real server that performs the call, and no answer."""

import asyncio
import contextlib
import http.client
import socket
import struct
import subprocess
import threading
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
from rollcage import Session, Store, UnknownOutcome, compensate, resolve_step, tool
from rollcage.contract.contract import Contract
from rollcage.contract.unknown_errors import leaves_unknown
from rollcage.errors import ContractError, Halt, SessionHalted

Events = Callable[[str], list[dict[str, Any]]]

SOON = 0.5  # seconds that a client waits
FAILURES = (
    OSError, ValueError, ExceptionGroup, httpx.HTTPError, openai.OpenAIError, aiohttp.ClientError,
    http.client.HTTPException,
)  # fmt: skip


class Server:
    """Performs each request that it has read, and then does not answer it well."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.performed: list[str] = []
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(taken)
            request = b""
            while b"\r\n\r\n" not in request:
                request += taken.recv(65536)
            head, _, body = request.partition(b"\r\n\r\n")
            length = [each for each in head.lower().split(b"\r\n") if b"content-length" in each]
            wanted = int(length[0].split(b":")[1]) if length else 0
            while len(body) < wanted:
                body += taken.recv(65536)
            self.performed.append(head.split(b"\r\n")[0].decode())
            if self.how == "reset":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif self.how == "cut":
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
            if self.how != "silent":
                taken.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for each in self._open:
            each.close()


@pytest.fixture(params=["silent", "closed", "reset", "cut"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    yield server
    server.close()


def by_httpx(url: str) -> str:
    return httpx.post(url, json={"a": 1}, timeout=SOON).text


def by_httpx_read(url: str) -> str:
    with httpx.Client(timeout=SOON) as client, client.stream("POST", url) as response:
        return "".join(response.iter_text())


def by_requests(url: str) -> str:
    return requests.post(url, json={"a": 1}, timeout=SOON).text


def by_openai(url: str) -> str:
    with openai.OpenAI(api_key="none", base_url=url, timeout=SOON, max_retries=0) as client:
        made = client.files.create(file=b"text", purpose="user_data")
    return str(made.id)


def by_urllib(url: str) -> str:
    with urllib.request.urlopen(url, data=b"a", timeout=SOON) as response:  # noqa: S310 - loopback
        return str(response.read())


def by_http_client(url: str) -> str:
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=SOON)
    with contextlib.closing(connection):
        connection.request("POST", "/", body=b"a")
        return str(connection.getresponse().read())


def wrapped(url: str) -> str:
    """A client of somebody's own, with errors of its own."""
    try:
        return by_httpx(url)
    except httpx.HTTPError:
        raise ValueError("the order could not be placed") from None


def twice(url: str) -> str:
    """Tries again by itself, and is refused the second time."""
    try:
        return by_requests(url)
    except requests.RequestException:
        return by_requests(free_url())


SYNC = [
    by_httpx, by_httpx_read, by_requests, by_openai, by_urllib, by_http_client, wrapped, twice,
]  # fmt: skip


async def by_async_httpx(url: str) -> str:
    async with httpx.AsyncClient(timeout=SOON) as client:
        return (await client.post(url, json={"a": 1})).text


async def by_aiohttp(url: str) -> str:
    limit = aiohttp.ClientTimeout(total=None, sock_connect=SOON, sock_read=SOON)
    async with aiohttp.ClientSession(timeout=limit) as client, client.post(url, data=b"a") as said:
        return await said.text()


async def by_async_openai(url: str) -> str:
    async with openai.AsyncOpenAI(
        api_key="none", base_url=url, timeout=SOON, max_retries=0
    ) as client:
        return str((await client.files.create(file=b"text", purpose="user_data")).id)


async def in_a_group(url: str) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(by_async_httpx(url))
    return task.result()


ASYNC = [by_async_httpx, by_aiohttp, by_async_openai, in_a_group]


def free_url() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}/v1"


def status(events: list[dict[str, Any]]) -> list[str]:
    """How each call ended; unknown where nothing is said of that."""
    steps = {e["step"]: e for e in events if e["event"] == "step"}
    steps |= {e["step"]: e for e in events if e["event"] == "outcome"}
    return [e.get("outcome", {"status": "unknown"})["status"] for e in steps.values()]


@pytest.mark.parametrize("client", SYNC)
def test_a_write_that_nobody_answered_is_not_made_again(
    store: Store, events: Events, server: Server, client: Any
) -> None:
    order = tool(name="order", effect="write")(client)
    with pytest.raises(UnknownOutcome, match="rollcage resolve"), Session("a", store=store) as one:
        with pytest.raises(FAILURES) as raised:
            order(server.url)
        assert not isinstance(raised.value, UnknownOutcome), "the body sees its own error"
        for _ in range(3):  # whoever tries again: a model, a middleware
            with pytest.raises(SessionHalted):
                order(server.url)
    assert len(server.performed) == 1
    assert status(events(one.run_id)) == ["unknown"]
    with pytest.raises(UnknownOutcome), Session("a", store=store):
        order(server.url)
    assert len(server.performed) == 1
    resolve_step(store, one.run_id, 1, happened=True, result="placed")
    with Session("a", store=store):
        assert order(server.url) == "placed"
    assert len(server.performed) == 1


@pytest.mark.parametrize("client", ASYNC)
async def test_an_async_write_that_nobody_answered_is_not_made_again(
    store: Store, events: Events, server: Server, client: Any
) -> None:
    order = tool(name="order", effect="write")(client)
    with pytest.raises(UnknownOutcome):
        async with Session("a", store=store) as one:
            with pytest.raises(FAILURES):
                await order(server.url)
            with pytest.raises(SessionHalted):
                await order(server.url)
    with pytest.raises(UnknownOutcome):
        async with Session("a", store=store):
            await order(server.url)
    assert len(server.performed) == 1
    assert status(events(one.run_id)) == ["unknown"]  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects


@pytest.mark.parametrize("client", [*SYNC[:-1], *ASYNC])
async def test_where_nobody_listens_nothing_was_sent(
    store: Store, events: Events, client: Any
) -> None:
    order = tool(name="order", effect="write")(client)
    with Session("a", store=store) as session:
        for _ in range(2):
            with pytest.raises(FAILURES):
                await session.acall(order, url=free_url())
    assert status(events(session.run_id)) == ["error", "error"]


@pytest.fixture
def full() -> Iterator[str]:
    """A server that takes no more connections: one to it is never made."""
    with contextlib.ExitStack() as held:
        listening = held.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


@pytest.mark.parametrize(
    "client", [by_httpx, by_requests, by_openai, by_async_httpx, by_aiohttp, by_async_openai]
)
async def test_a_connection_that_was_not_made_in_time_sent_nothing(
    store: Store, events: Events, full: str, client: Any
) -> None:
    order = tool(name="order", effect="write")(client)
    with Session("a", store=store) as session, pytest.raises(FAILURES):
        await session.acall(order, url=full)
    assert status(events(session.run_id)) == ["error"]


@pytest.mark.parametrize("client", [by_httpx, by_requests, by_openai, by_urllib, by_async_httpx])
async def test_a_name_that_nobody_knows(
    store: Store, events: Events, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    order = tool(name="order", effect="write")(client)
    with Session("a", store=store) as session, pytest.raises(FAILURES):
        await session.acall(order, url="http://nowhere.invalid/v1")
    assert status(events(session.run_id)) == ["error"]


def test_a_process_that_took_too_long(store: Store, tmp_path: Path) -> None:
    done = tmp_path / "done"

    @tool(effect="write")
    def deploy() -> int:
        started = ["sh", "-c", f"echo x >> {done}; sleep 60"]
        return subprocess.run(started, timeout=2, check=True).returncode

    for _ in range(2):
        with pytest.raises(UnknownOutcome), Session("a", store=store):
            deploy()
    assert done.read_text() == "x\n"


# --- what is declared ----------------------------------------------------------------------------


def test_what_the_contract_names_is_an_error(store: Store, events: Events) -> None:
    @tool(effect="write", raises=[requests.Timeout])
    def order() -> None:
        raise requests.Timeout("asked, and nothing was there")

    with Session("a", store=store) as session:
        for _ in range(2):
            with pytest.raises(requests.Timeout):
                order()
    assert status(events(session.run_id)) == ["error", "error"]


def test_what_the_contract_adds_is_unknown(store: Store, events: Events) -> None:
    class BackendBusy(Exception):
        pass

    @tool(effect="write", unknown_on=[BackendBusy])
    def order() -> None:
        try:
            raise BackendBusy
        except BackendBusy as error:
            raise ValueError("try later") from error

    session = Session("a", store=store)
    with pytest.raises(UnknownOutcome), session, pytest.raises(ValueError, match="try later"):
        order()
    assert status(events(session.run_id)) == ["unknown"]


def test_one_that_is_declared_both_ways_is_refused() -> None:
    def order() -> None: ...

    with pytest.raises(ContractError, match=r"OSError is in raises= .* and in unknown_on="):
        Contract.of(order, raises=[OSError], unknown_on=[OSError])
    with pytest.raises(ContractError, match="unknown_on=3 is not an exception type"):
        Contract.of(order, unknown_on=[3])


# --- where it meets the rest ---------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "read", "scope"])
def test_what_changes_nothing_has_failed(store: Store, events: Events, effect: Any) -> None:
    look = tool(name="look", effect=effect)(by_requests)
    server = Server("closed")
    with Session("a", store=store) as session:
        with pytest.raises(requests.ConnectionError):
            look(server.url)
        with pytest.raises(requests.ConnectionError):
            look(server.url + "/other")
    server.close()
    assert status(events(session.run_id)) == ["error", "error"]


def test_a_write_inside_of_a_write_leaves_both_unknown(store: Store, events: Events) -> None:
    server = Server("closed")
    order = tool(name="order", effect="write")(by_httpx)

    @tool(effect="write")
    def outer() -> str:
        return order(server.url)

    with (
        pytest.raises(UnknownOutcome),
        Session("a", store=store) as session,
        contextlib.suppress(httpx.HTTPError),
    ):
        outer()
    server.close()
    assert status(events(session.run_id)) == ["unknown", "unknown"]
    assert len(server.performed) == 1


def test_a_stream_that_broke_off(store: Store, events: Events) -> None:
    server = Server("cut")

    def upload(url: str) -> Iterator[str]:
        with httpx.stream("POST", url, timeout=SOON) as response:
            yield from response.iter_text()

    contract = Contract.of(upload, effect="write")
    with (
        pytest.raises(UnknownOutcome),
        Session("a", store=store) as session,
        contextlib.suppress(httpx.HTTPError),
    ):
        list(session.stream(contract, {"url": server.url}, upload))
    server.close()
    assert status(events(session.run_id)) == ["unknown"]


def test_a_transaction_stays_as_it_is_until_that_is_known(store: Store) -> None:
    server = Server("closed")
    world: list[str] = []

    def gone(args: dict[str, Any]) -> Any:
        return [compensate(remove, what=args["what"])]

    @tool(effect="write")
    def remove(what: str) -> None:
        world.remove(what)

    @tool(effect="write", undo=gone)
    def put(what: str) -> None:
        world.append(what)

    order = tool(name="order", effect="write")(by_httpx)
    session = Session("a", store=store)
    with pytest.raises(UnknownOutcome), session, session.transaction():
        put("x")
        order(server.url)
    server.close()
    assert world == ["x"]
    with pytest.raises(Halt), Session("a", store=store) as session, session.transaction():
        put("x")
        order(server.url)
    assert len(server.performed) == 1
    assert world == ["x"], "it was given back"


async def test_a_late_end_says_no_more_than_the_call(store: Store, events: Events) -> None:
    """A sync body outlives its cancelled call, and then runs into its own timeout."""
    began, go = threading.Event(), threading.Event()

    @tool(effect="write")
    def slow() -> None:
        began.set()
        go.wait(60)
        raise httpx.ReadTimeout("no answer")

    with pytest.raises(UnknownOutcome):
        async with Session("a", store=store) as session:
            task = asyncio.ensure_future(session.acall(slow))
            await asyncio.to_thread(began.wait, 60)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            go.set()
            await asyncio.to_thread(lambda: None)
    assert "step.resolved" not in [e["event"] for e in events(session.run_id)]  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects


# --- each library's own --------------------------------------------------------------------------


def made(name: str, module: str, said: str = "said", **fields: Any) -> Exception:
    """An error of a library that is not installed here."""
    error: Exception = type(name, (Exception,), {"__module__": module, **fields})(said)
    return error


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def rpc(status: str, details: str = "") -> Exception:
    code = types.SimpleNamespace(name=status)
    return made("RpcError", "grpc", code=lambda _: code, details=lambda _: details)


def of_mcp(code: int) -> Exception:
    return made("McpError", "mcp.shared.exceptions", error=types.SimpleNamespace(code=code))


def postgres(said: str, state: str | None = None) -> Exception:
    return made("OperationalError", "psycopg", said, sqlstate=state)


REFUSED = ConnectionRefusedError(111, "Connection refused")
LOST = postgres("consuming input failed: server closed the connection unexpectedly")
UNREACHED = postgres("connection failed: connection to server at x failed: refused")

UNKNOWN_ONES = [
    ConnectionResetError(),
    BrokenPipeError(),
    OSError(113, "No route to host"),
    http.client.RemoteDisconnected("closed"),
    asyncio.IncompleteReadError(b"", 3),
    ExceptionGroup("several", [ValueError(), ExceptionGroup("more", [TimeoutError()])]),
    chained(RuntimeError(), chained(KeyError(), TimeoutError())),
    requests.ConnectionError("said nothing"),
    openai.APIConnectionError(request=httpx.Request("POST", "http://x")),
    chained(openai.APITimeoutError(httpx.Request("POST", "http://x")), httpx.ReadTimeout("")),
    rpc("DEADLINE_EXCEEDED"),
    rpc("UNAVAILABLE", "Socket closed"),
    of_mcp(408),
    LOST,
    postgres("terminating connection", "57P01"),
    made("ReadTimeoutError", "botocore.exceptions"),
    made("APIConnectionError", "anthropic"),
    made("ServiceResponseError", "azure.core.exceptions"),
    made("AutoReconnect", "pymongo.errors"),
    made("TimeoutException", "selenium.common.exceptions"),
    made("GatewayTimeout", "some.client"),
    made("DBAPIError", "sqlalchemy.exc", connection_invalidated=True),
]
SETTLED_ONES = [
    REFUSED,
    ValueError("no such account"),
    FileNotFoundError(2, "No such file"),
    OSError(28, "No space left on device"),
    chained(RuntimeError(), REFUSED),
    chained(openai.APITimeoutError(httpx.Request("POST", "http://x")), httpx.ConnectTimeout("")),
    chained(requests.ConnectionError(), REFUSED),
    requests.HTTPError("404"),
    httpx.PoolTimeout(""),
    rpc("INVALID_ARGUMENT"),
    rpc("UNAVAILABLE", "failed to connect to all addresses; last error: ..."),
    of_mcp(-32602),
    UNREACHED,
    made("UniqueViolation", "psycopg.errors"),
    postgres("canceling statement", "57014"),
    made("ConnectTimeoutError", "botocore.exceptions"),
    made("EndpointConnectionError", "botocore.exceptions"),
    made("ServerSelectionTimeoutError", "pymongo.errors"),
    chained(made("DBAPIError", "sqlalchemy.exc", connection_invalidated=False), UNREACHED),
    subprocess.CalledProcessError(1, "false"),
]


@pytest.mark.parametrize("error", UNKNOWN_ONES, ids=repr)
def test_nobody_can_tell(error: BaseException) -> None:
    assert leaves_unknown(error)


@pytest.mark.parametrize("error", SETTLED_ONES, ids=repr)
def test_it_did_not_happen(error: BaseException) -> None:
    assert not leaves_unknown(error)


def test_an_error_that_holds_itself() -> None:
    error = ValueError()
    error.__cause__ = KeyError()
    error.__cause__.__context__ = error
    assert not leaves_unknown(error)


def test_a_first_attempt_counts_where_the_second_was_refused() -> None:
    refused = chained(httpx.ConnectTimeout(""), TimeoutError())
    assert not leaves_unknown(refused)
    assert refused.__cause__ is not None
    refused.__cause__.__context__ = httpx.ReadTimeout("")
    assert leaves_unknown(refused)
