"""The proxy by HTTP among clients that do not read, stall or vanish, and servers that forget."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from rollcage import Session, UnknownOutcome
from rollcage_mcp import http_proxy, http_streams
from rollcage_mcp.conversation import Conversation
from rollcage_mcp.http_streams import Outbox
from rollcage_mcp.http_upstream import HttpServer
from rollcage_mcp.messages import as_answer, as_notification, as_request
from scripted import Client, Server
from served import HELLO, Served, served


async def begin(http: httpx.AsyncClient, there: Served) -> dict[str, str]:
    """Begin a conversation: the headers of its session."""
    hello = await http.post(there.url, content=as_request(0, "initialize", HELLO).raw)
    return {"mcp-session-id": hello.headers["mcp-session-id"]}


def calling(number: int, name: str, **arguments: Any) -> bytes:
    return as_request(number, "tools/call", {"name": name, "arguments": arguments}).raw


@contextlib.asynccontextmanager
async def listening(
    http: httpx.AsyncClient, there: Served, headers: dict[str, str]
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Listen to what the server sends by itself: the messages."""
    async with http.stream("GET", there.url, headers=headers) as answer:
        assert answer.status_code == 200

        async def messages() -> AsyncIterator[dict[str, Any]]:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    yield orjson.loads(line.removeprefix("data:"))

        yield messages()


async def tells(server: Server, text: str) -> str:
    """Tell something that belongs to no request."""
    server.note("notifications/resources/updated", {"uri": text})
    await asyncio.sleep(0)
    return "told"


# --- clients --------------------------------------------------------------------------------------


async def test_one_listens_at_a_time_and_nothing_is_lost_between(store: Path) -> None:
    server = Server(tells=tells)
    async with served(server, store) as there, httpx.AsyncClient(timeout=20) as http:
        headers = await begin(http, there)
        async with listening(http, there, headers):
            second = await http.get(there.url, headers=headers)
            assert second.status_code == 409
        resumed = {**headers, "last-event-id": "7"}  # of a stream that we never numbered
        status = 409
        for _ in range(200):  # who left is not taken for a listener any more
            async with http.stream("GET", there.url, headers=resumed) as answer:
                status = answer.status_code
            if status == 200:
                break
            await asyncio.sleep(0.01)
        assert status == 200
        unknown = await http.get(there.url, headers={"mcp-session-id": "nobody's"})
        assert unknown.status_code == 404


async def test_what_waits_for_a_client_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox()
    note = as_notification("notifications/message", {"data": "x" * 2**20})
    taken = sum(outbox.put(note) for _ in range(200))
    assert taken == 63  # of 64 MiB
    assert outbox.put(as_answer(1, {"whatever": "x" * 2**20}))  # an answer always has room
    for _ in range(10):
        await outbox.get()
    assert outbox.put(note)
    small = Outbox()
    assert sum(small.put(as_notification("x")) for _ in range(2_000)) == http_streams.BEHIND


async def test_a_server_that_asks_a_client_who_never_reads_is_answered(store: Path) -> None:
    answered: list[Any] = []

    async def nags(server: Server) -> str:
        for number in range(http_streams.BEHIND + 50):
            server.asks(f"n-{number}", "sampling/createMessage", {})
        answered.append(await server.response())
        return "nagged"

    server = Server(nags=nags)
    async with served(server, store) as there, httpx.AsyncClient(timeout=20) as http:
        headers = await begin(http, there)
        async with http.stream(
            "POST", there.url, content=calling(1, "nags"), headers=headers
        ) as answer:
            async for line in answer.aiter_lines():
                if "nagged" in line:
                    break
    assert answered[0]["error"]["message"] == "the client does not read what it is asked"


async def test_a_client_that_never_reads_its_stream_holds_up_nobody(store: Path) -> None:
    flooded = asyncio.Event()

    async def floods(server: Server) -> str:
        for number in range(2_000):
            server.note(
                "notifications/message", {"level": "info", "data": "x" * 10_000, "n": number}
            )
        flooded.set()
        return "flooded"

    async def pings(server: Server) -> str:
        return "pong"

    server = Server(floods=floods, pings=pings)
    async with served(server, store) as there, httpx.AsyncClient(timeout=20) as http:
        headers = await begin(http, there)
        raw = calling(1, "floods")
        address = httpx.URL(there.url)
        _, writer = await asyncio.open_connection(address.host, address.port)
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nmcp-session-id: {headers['mcp-session-id']}"
        )
        writer.write(f"{head}\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        await writer.drain()
        await flooded.wait()
        answer = await http.post(there.url, content=calling(2, "pings"), headers=headers)
        assert "pong" in answer.text
        writer.close()


@pytest.mark.parametrize("sent", [
    b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ",
    b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
    b"",
], ids=["headers", "body", "nothing"])  # fmt: skip
async def test_a_client_that_stalls_is_hung_up_on(
    store: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_proxy, "_PATIENCE", 0.2)
    async with served(Server(), store) as there:
        address = httpx.URL(there.url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        said = await asyncio.wait_for(reader.read(), 20)
        assert said == b"" or (said.startswith(b"HTTP/1.1 400") and b"0 seconds" in said)
        assert there.names == []
        writer.close()


async def test_a_client_that_vanishes_in_its_own_request(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(Server(), store) as there:
        address = httpx.URL(there.url)
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
    assert "Exception in ASGI" not in caplog.text


async def test_a_body_of_100_mb_is_refused(store: Path) -> None:
    async with served(Server(), store) as there, httpx.AsyncClient(timeout=60) as http:
        sent = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(100):
                sent += 1
                yield b" " * 1_000_000

        try:
            answer = await http.post(there.url, content=body())
            assert answer.status_code == 400
            assert "longer than 64 MiB" in answer.json()["error"]["message"]
        except httpx.WriteError:  # it may hang up before all of it was sent
            assert sent < 100
        assert there.names == []


async def test_many_conversations_at_once_are_told_apart(store: Path) -> None:
    async def says(server: Server, text: str) -> str:
        await asyncio.sleep(0.01)
        return f"said {text}"

    async with served(Server(says=says), store) as there, httpx.AsyncClient(timeout=60) as http:

        async def talk(number: int) -> list[str]:
            headers = await begin(http, there)
            raws = [calling(slot, "says", text=f"{number}-{slot}") for slot in (1, 2, 3)]
            posts = [http.post(there.url, content=raw, headers=headers) for raw in raws]
            return [answer.text for answer in await asyncio.gather(*posts)]

        for number, answers in enumerate(await asyncio.gather(*map(talk, range(12)))):
            for slot, answer in enumerate(answers, 1):
                assert f"said {number}-{slot}" in answer
                assert f'"id":{slot}' in answer
        assert len(there.names) == 12


async def test_whoever_waits_in_a_conversation_that_is_ended_is_answered(store: Path) -> None:
    """A call, and a listener: neither hangs."""
    began = asyncio.Event()

    async def works(server: Server) -> str:
        began.set()
        await asyncio.sleep(60)
        return "done"

    server = Server(works=works)
    async with served(server, store) as there, httpx.AsyncClient(timeout=20) as http:
        headers = await begin(http, there)
        raw = calling(1, "works")
        post = asyncio.create_task(http.post(there.url, content=raw, headers=headers))
        await began.wait()
        async with listening(http, there, headers) as messages:
            gone = await http.delete(there.url, headers=headers)
            assert gone.status_code == 204
            assert [each async for each in messages] == []
        assert "was ended before that" in (await post).text
        again = await http.delete(there.url, headers=headers)
        assert again.status_code == 404


# --- servers --------------------------------------------------------------------------------------


class Remote:
    """A server by HTTP that is a function: what it answers to each request, in turn."""

    def __init__(self, *answers: httpx.Response | Callable[[Any], httpx.Response]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    def connection(self) -> HttpServer:
        made = HttpServer("http://test/mcp")
        made._client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        return made

    def _answer(self, request: httpx.Request) -> httpx.Response:
        message = orjson.loads(request.content) if request.content else None
        self.asked.append((request.method, dict(request.headers), message))
        if request.method == "DELETE" or (message is not None and "id" not in message):
            return httpx.Response(202)
        if request.method == "GET" and "last-event-id" not in request.headers:
            return httpx.Response(405)
        answer = self.answers.pop(0)
        return answer if isinstance(answer, httpx.Response) else answer(message)

    def methods(self) -> list[str]:
        """What it was asked for, by messages."""
        return [message["method"] for _, _, message in self.asked if message is not None]


def hello(session: str) -> Callable[[Any], httpx.Response]:
    def answer(message: Any) -> httpx.Response:
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x"}}
        headers = {"mcp-session-id": session}
        return httpx.Response(200, json=as_answer(message["id"], result).data, headers=headers)

    return answer


def done(message: Any) -> httpx.Response:
    result = {"content": [{"type": "text", "text": "done"}]}
    return httpx.Response(200, json=as_answer(message["id"], result).data)


def stream(*events: str) -> httpx.Response:
    return httpx.Response(200, text="".join(events), headers={"content-type": "text/event-stream"})


@contextlib.asynccontextmanager
async def talking(store: Path, remote: Remote) -> AsyncIterator[Client]:
    """A conversation with such a server, after the handshake."""
    connection = remote.connection()

    async def connect() -> HttpServer:
        return connection

    client = Client()
    async with Session("far", store=store) as session:
        client.conversation = Conversation(session, connect, client.take)
        await client.greet()
        try:
            yield client
        finally:
            await client.conversation.close()


def listed(message: Any) -> httpx.Response:
    return httpx.Response(200, json=as_answer(message["id"], {"tools": []}).data)


async def test_a_session_that_the_server_forgot_is_begun_anew(store: Path) -> None:
    """404: it did not take the message, which is sent once more, in a new session."""
    forgot = httpx.Response(404, text="session not found")
    remote = Remote(hello("one"), listed, done, forgot, hello("two"), done)
    async with talking(store, remote) as client:
        assert await client.text("send", text="a") == "done"
        assert await client.text("send", text="b") == "done"
    assert remote.methods().count("initialize") == 2
    assert remote.methods().count("tools/call") == 3  # one of them was not taken
    sessions = [
        h.get("mcp-session-id") for _, h, m in remote.asked if m and m["method"] == "tools/call"
    ]
    assert sessions == ["one", "one", "two"]


@pytest.mark.parametrize(("answer", "said"), [
    (httpx.Response(307, headers={"location": "http://other/mcp"}), "name the address itself"),
    (httpx.Response(401, text="who are you"), "401 'who are you'"),
    (httpx.Response(413, text="too much"), "413"),
])  # fmt: skip
async def test_a_message_that_was_not_taken_has_not_happened(
    store: Path, answer: httpx.Response, said: str
) -> None:
    """A write is not in doubt then, and the next one is made."""
    remote = Remote(hello("one"), listed, answer, done)
    async with talking(store, remote) as client:
        refused = await client.call("send", text="a")
        assert said in refused["error"]["message"]
        assert await client.text("send", text="b") == "done"
        assert client.conversation.session.halted is None


EVENT = "id: {id}\nevent: message\ndata: {data}\n\n"


async def test_an_answer_whose_stream_breaks_off_is_gone_on_with(store: Path) -> None:
    """By the number of its last event, as often as it takes; the call is made once."""
    note = as_notification("notifications/message", {"level": "info", "data": "on it"}).raw.decode()

    def finish(number: Any) -> httpx.Response:
        text = as_answer(number, {"content": [{"type": "text", "text": "done"}]}).raw.decode()
        return stream(EVENT.format(id="3", data=text))

    asked: list[Any] = []

    def breaks(message: Any) -> httpx.Response:
        asked.append(message["id"])
        return stream("retry: 10\nid: 1\ndata:\n\n", EVENT.format(id="2", data=note))

    remote = Remote(
        hello("one"), listed, breaks, stream("id: 2\ndata:\n\n"), lambda _: finish(asked[0])
    )
    async with talking(store, remote) as client:
        assert await client.text("send", text="a") == "done"
        assert [method for method, _ in client.notes()] == ["notifications/message"]
    assert remote.methods().count("tools/call") == 1
    resumed = [h["last-event-id"] for method, h, _ in remote.asked if "last-event-id" in h]
    assert resumed == ["2", "2"]


async def test_an_answer_that_never_comes_is_in_doubt(store: Path) -> None:
    broken = [stream("retry: 1\nid: 1\ndata:\n\n"), *[stream("")] * 5]
    remote = Remote(hello("one"), listed, *broken)
    answers: list[Any] = []
    with pytest.raises(UnknownOutcome, match="ServerGone"):
        async with talking(store, remote) as client:
            answers.append(await client.call("send", text="a"))
    assert "did not go on" in answers[0]["error"]["message"]
    assert "rollcage resolve" in answers[0]["error"]["message"]
