"""The proxy and servers by HTTP: a client's conversation goes over both, on loopback."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from rollcage import Session
from rollcage_mcp.conversation import Conversation
from rollcage_mcp.errors import ServerGone
from rollcage_mcp.http_upstream import HttpServer
from rollcage_mcp.messages import as_notification, as_request
from scripted import Client, Server
from served import HELLO, served


async def send(server: Server, text: str) -> str:
    server.done.append(text)
    server.note("notifications/progress", {"progressToken": "t", "progress": 1})
    return f"sent {text}, number {len(server.done)}"


async def asks(server: Server) -> str:
    server.asks("s-1", "sampling/createMessage", {"messages": []})
    return str((await server.response())["result"]["text"])


async def test_a_conversation_over_http(store: Path, tmp_path: Path) -> None:
    server = Server(send=send, asks=asks)
    async with served(server, store) as there:

        async def connect() -> HttpServer:
            return HttpServer(there.url)

        client = Client()
        client.says = lambda message: {"result": {"text": "a sample"}}
        async with Session("over http", store=store) as session:
            client.conversation = Conversation(session, connect, client.take)
            await client.greet()
            assert (await client.request("tools/list"))["result"]["tools"][0]["name"] == "send"
            token = {"progressToken": "t"}
            answer = await client.call("send", meta=token, text="a")
            assert answer["result"]["content"][0]["text"] == "sent a, number 1"
            assert client.notes() == [("notifications/progress", {**token, "progress": 1})]
            assert await client.text("asks") == "a sample"
            await client.conversation.close()
    assert server.done == ["a"]
    client = Client()
    async with Session("over http", store=store, replay="offline") as session:
        client.conversation = Conversation(session, None, client.take)
        await client.greet()
        await client.request("tools/list")
        assert await client.text("send", text="a") == "sent a, number 1"


async def test_each_client_has_a_conversation_of_its_own(store: Path) -> None:
    server = Server(send=send)
    async with served(server, store) as there, httpx.AsyncClient() as http:
        ids = []
        for number in (1, 2):
            answer = await http.post(there.url, content=as_request(number, "initialize", HELLO).raw)
            ids.append(answer.headers["mcp-session-id"])
        assert len(set(ids)) == len(there.names) == 2
        headers = {"mcp-session-id": ids[0]}
        gone = await http.delete(there.url, headers=headers)
        assert gone.status_code == 204
        ping = as_request(3, "ping").raw
        again = await http.post(there.url, content=ping, headers=headers)
        assert again.status_code == 404
        assert "begin with initialize" in again.json()["error"]["message"]


async def test_requests_without_a_handshake_are_one_conversation(store: Path) -> None:
    server = Server(send=send)
    async with served(server, store) as there, httpx.AsyncClient() as http:
        for number in (1, 2):
            params = {"name": "send", "arguments": {"text": str(number)}, "_meta": {}}
            raw = as_request(number, "tools/call", params).raw
            answer = await http.post(there.url, content=raw)
            assert f"number {number}" in answer.text
        assert len(there.names) == 1


@pytest.mark.parametrize(("headers", "status"), [
    ({"origin": "http://evil.example"}, 403),
    ({"host": "evil.example"}, 400),
    ({}, 401),
    ({"authorization": "Bearer wrong"}, 401),
    ({"authorization": "Bearer secret"}, 200),
])  # fmt: skip
async def test_who_may_talk_to_it(store: Path, headers: dict[str, str], status: int) -> None:
    server = Server(send=send)
    async with served(server, store, token="secret") as there, httpx.AsyncClient() as http:
        raw = as_request(1, "initialize", HELLO).raw
        answer = await http.post(there.url, content=raw, headers=headers)
        assert answer.status_code == status
        assert len(there.names) == (status == 200)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"jsonrpc": "2.0"}', b'{"id": true, "method": "x"}']
)
async def test_what_is_no_message_is_refused(store: Path, raw: bytes) -> None:
    async with served(Server(), store) as there, httpx.AsyncClient() as http:
        answer = await http.post(there.url, content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == -32700


async def test_a_notification_is_taken_without_an_answer(store: Path) -> None:
    async with served(Server(), store) as there, httpx.AsyncClient() as http:
        hello = await http.post(there.url, content=as_request(1, "initialize", HELLO).raw)
        headers = {"mcp-session-id": hello.headers["mcp-session-id"]}
        raw = as_notification("notifications/initialized").raw
        assert (await http.post(there.url, content=raw, headers=headers)).status_code == 202


@pytest.mark.parametrize("answer", [
    (200, "text/event-stream", b"event: message\ndata: {}\n\n"),
    (200, "application/json", b'{"jsonrpc": "2.0", "id": 99, "result": {}}'),
    (200, "text/html", b"<h1>hello</h1>"),
    (502, "text/plain", b"bad gateway"),
])  # fmt: skip
async def test_a_server_that_does_not_answer_is_gone(answer: tuple[int, str, bytes]) -> None:
    status, kind, body = answer

    async def app(scope: Any, receive: Any, reply: Any) -> None:
        headers = [(b"content-type", kind.encode())]
        await reply({"type": "http.response.start", "status": status, "headers": headers})
        await reply({"type": "http.response.body", "body": body})

    connection = HttpServer("http://test/mcp")
    connection._client = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    with pytest.raises(ServerGone):
        await connection.send(as_request(1, "tools/call", {"name": "x"}).raw)
    await connection.close()


async def test_a_write_that_was_never_sent_has_not_happened(store: Path) -> None:
    """Connection refused: an error, and no unknown outcome."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/mcp"

        async def connect() -> HttpServer:
            return HttpServer(url)

        client = Client()
        async with Session("refused", store=store) as session:
            client.conversation = Conversation(session, connect, client.take)
            answer = await client.call("send", text="a")
            assert "can't be reached" in answer["error"]["message"]
            await client.conversation.close()


# --- clients without a handshake, which are one conversation --------------------------------------


def stateless(number: int, name: str, token: object = None, **arguments: Any) -> bytes:
    meta = {} if token is None else {"progressToken": token}
    params = {"name": name, "arguments": arguments, "_meta": meta}
    return as_request(number, "tools/call", params).raw


async def test_clients_of_the_same_ids_and_tokens_are_told_apart(store: Path) -> None:
    """Each numbers its requests from one, and none may see what another is told."""
    both, goes_on = asyncio.Event(), asyncio.Event()

    async def works(server: Server, text: str) -> str:
        server.done.append(text)
        if len(server.done) == 2:
            both.set()
        await goes_on.wait()
        call = next(each for each in server.seen if f'"{text}"'.encode() in each.raw)
        token = call.meta["progressToken"]
        server.note("notifications/progress", {"progressToken": token, "message": text})
        return f"done {text}"

    server = Server(works=works)
    async with served(server, store) as there, httpx.AsyncClient() as http:
        posts = [
            asyncio.create_task(http.post(there.url, content=stateless(1, "works", 1, text=each)))
            for each in ("ann's", "bob's")
        ]
        await asyncio.wait_for(both.wait(), 20)
        goes_on.set()
        answers = [(await each).text for each in posts]
    for answer, own, other in (
        (answers[0], "ann's", "bob's"),
        (answers[1], "bob's", "ann's"),
    ):
        assert f"done {own}" in answer
        assert '"progressToken":1' in answer
        assert '"id":1' in answer
        assert other not in answer


async def test_a_client_that_drops_its_request_leaves_the_write_to_end(store: Path) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def works(server: Server) -> str:
        began.set()
        await goes_on.wait()
        server.done.append("works")
        return "done"

    server = Server(works=works, send=send)
    async with served(server, store) as there, httpx.AsyncClient() as http:
        post = asyncio.create_task(http.post(there.url, content=stateless(1, "works")))
        await asyncio.wait_for(began.wait(), 20)
        post.cancel()
        await asyncio.gather(post, return_exceptions=True)
        answer = await http.post(there.url, content=stateless(1, "send", text="b"))
        assert "sent b" in answer.text
        goes_on.set()
        answer = await http.post(there.url, content=stateless(1, "send", text="c"))
        assert "sent c" in answer.text
    assert sorted(server.done) == ["b", "c", "works"]


async def test_a_conversation_that_was_halted_is_followed_by_another(store: Path) -> None:
    """A write of unknown outcome ends a conversation, and not a service that lives for days."""

    async def dies(server: Server) -> str:
        server.gone()
        await asyncio.sleep(60)
        return ""

    server = Server(dies=dies, send=send)
    async with served(server, store) as there, httpx.AsyncClient() as http:
        answer = await http.post(there.url, content=stateless(1, "dies"))
        assert answer.json()["error"]["data"] == {"rollcage": "UnknownOutcome"}
        answer = await http.post(there.url, content=stateless(2, "send", text="a"))
        assert "sent a" in answer.text
        assert len(there.names) == 2


async def test_why_no_conversation_can_begin_is_told(store: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    async with served(Server(), store, policy=missing) as there, httpx.AsyncClient() as http:
        for raw in (as_request(1, "initialize", HELLO).raw, stateless(2, "send")):
            answer = await http.post(there.url, content=raw)
            assert answer.status_code == 503
            assert "missing.toml" in answer.json()["error"]["message"]


async def test_notifications_that_nobody_reads_are_dropped_in_the_end(store: Path) -> None:
    async def floods(server: Server) -> str:
        for number in range(3_000):
            server.note("notifications/message", {"level": "info", "data": number})
        return "flooded"

    server = Server(floods=floods)
    async with served(server, store) as there, httpx.AsyncClient() as http:
        hello = await http.post(there.url, content=as_request(1, "initialize", HELLO).raw)
        headers = {"mcp-session-id": hello.headers["mcp-session-id"]}
        raw = as_request(2, "tools/call", {"name": "floods"}).raw
        async with http.stream("POST", there.url, content=raw, headers=headers) as answer:
            lines = [each async for each in answer.aiter_lines() if each.startswith("data:")]
        assert "flooded" in lines[-1]
        assert len(lines) < 3_001
