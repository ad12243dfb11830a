"""Messages that mean one thing to the gate, and another to a server: none of them passes."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from rollcage import list_runs, open_store
from rollcage.trace.recorded import trace_of
from rollcage_mcp import asking, events
from rollcage_mcp.errors import MessageInvalid, ServerGone
from rollcage_mcp.logs import log_to_stderr
from rollcage_mcp.messages import Message, as_notification, as_request, parse
from rollcage_mcp.ops import ops_tools
from rollcage_mcp.serving import ServedTool, ToolServer
from rollcage_views import read_run
from scripted import Server, Talk


async def do(server: Server, /, **given: Any) -> str:
    server.done.append(given)
    return "done"


@pytest.fixture
def server() -> Server:
    own = Server(do=do)
    own.said["do"] = {"inputSchema": {"properties": {"path": {}, "Both": {}, "both": {}}}}
    return own


CALL = '"params": {"name": "do", "arguments": {}}'
UNSEEN = {
    "a call that nobody answers": f'{{"jsonrpc": "2.0", "method": "tools/call", {CALL}}}',
    "a read that nobody answers": '{"jsonrpc": "2.0", "method": "resources/read", "params": {}}',
    "capitals": f'{{"jsonrpc": "2.0", "id": "x", "method": "Tools/Call", {CALL}}}',
    "a space": f'{{"jsonrpc": "2.0", "id": "x", "method": "tools/call ", {CALL}}}',
    "two methods": f'{{"id": "x", "method": "tools/call", "method": "ping", {CALL}}}',
    "an answer that holds a name twice": '{"id": "x", "result": {"a": 1, "a": 2}}',
    "two methods in a notification": '{"method": "tools/call", "method": "notifications/x"}',
    "a name that comes twice": (
        '{"id": "x", "method": "resources/read", "params": {"uri": "a:1", "uri": "a:2"}}'
    ),
    "twice, once escaped": (
        '{"id": "x", "method": "resources/read", "params": {"uri": "a:1", "\\u0075ri": "a:2"}}'
    ),
    "twice, far below": '{"id": "x", "method": "a", "params": {"b": [{"c": {"d": 1, "d": 2}}]}}',
}


@pytest.mark.parametrize("raw", UNSEEN.values(), ids=UNSEEN)
async def test_what_servers_could_read_otherwise_does_not_pass(
    talk: Talk, server: Server, raw: str
) -> None:
    async with talk(server) as client:
        await client.greet()
        assert await client.request("ping") == {"result": {"of": "ping"}}
        before = len(server.seen)
        answer = client._answers["x"] = asyncio.get_running_loop().create_future()
        await client.conversation.take(parse(raw.encode()))
        await client.request("ping")
        assert len(server.seen) == before + 1
        if '"id"' in raw and "result" not in raw:
            assert (await asyncio.wait_for(answer, 20)).data["error"]["code"] == -32600
    assert server.done == []


@pytest.mark.parametrize(
    "raw",
    [
        '{"id": 1, "method": "ping", "Method": "tools/call"}',
        '{"id": 1, "method": "ping", "PARAMS": {}}',
        '{"id": 1, "result": {}, "Method": "tools/call"}',
        '{"id": 1, "result": {}, "method": "ping"}',
        '{"id": 1, "error": {}, "method": "ping"}',
        '{"id": 1, "re\u017fult": {}, "method": "ping"}',
    ],
)
def test_words_that_others_read_as_a_messages_own(raw: str) -> None:
    with pytest.raises(MessageInvalid):
        parse(raw.encode())


def test_a_line_in_another_encoding_is_refused() -> None:
    for raw in (
        '{"id": 1, "method": "ping"}'.encode("utf-16-le"),
        b'{"id":1,"method":"\xed\xa0\x80"}',
    ):
        with pytest.raises(MessageInvalid):
            parse(raw)


@pytest.mark.parametrize(
    ("arguments", "is_taken"),
    [
        ({"path": "a"}, True),
        ({"both": 1, "Both": 2}, True),  # which this server tells apart
        ({"other": 1}, True),
        ({"Path": "a"}, False),
        ({"path": "a", "PATH": "b"}, False),
        ({"x": 1, "X": 2}, False),
        ({"BOTH": 1}, False),
    ],
)
async def test_arguments_that_differ_by_capitals(
    talk: Talk,
    server: Server,
    arguments: dict[str, Any],
    is_taken: bool,
) -> None:
    async with talk(server) as client:
        await client.greet()
        answer = await client.request("tools/call", {"name": "do", "arguments": arguments})
        assert ("result" in answer) is is_taken
    assert server.done == ([arguments] if is_taken else [])


async def test_parameters_that_differ_by_capitals(talk: Talk, server: Server) -> None:
    async with talk(server) as client:
        await client.greet()
        for odd in ("Name", "ARGUMENTS", "_Meta"):
            answer = await client.request("tools/call", {"name": "do", "arguments": {}, odd: "x"})
            assert "differ by capitals" in answer["error"]["message"]
    assert server.done == []


async def test_a_flood_of_notifications_is_passed_on_and_not_kept(
    talk: Talk, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_NOTED", 1_000)

    async def flood(server: Server) -> str:
        for number in range(200):
            server.note("notifications/message", {"level": "info", "data": number})
        return "done"

    async with talk(Server(flood=flood)) as client:
        await client.greet()
        await client.call("flood")
        assert len(client.notes()) == 200
    opened = open_store(store)
    steps = read_run(trace_of(opened, list_runs(opened, limit=1)[0].run)).steps
    step = next(each for each in steps if each.name == "flood")
    assert 0 < str(step).count("notifications/message") < 20


# --- servers of our own --------------------------------------------------------------------------


async def test_an_id_that_is_used_twice_at_once() -> None:
    goes_on = asyncio.Event()

    async def wait(_: Any) -> dict[str, Any]:
        await goes_on.wait()
        return {"content": []}

    async def fail(_: Any) -> dict[str, Any]:
        raise ValueError("broken")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    own = ToolServer("t", [ServedTool("wait", "", {}, wait), ServedTool("fail", "", {}, fail)])
    for _ in range(2):
        await own.take(as_request(1, "tools/call", {"name": "wait"}), send)
    await own.take(as_request(2, "tools/call", {"name": "fail"}), send)
    await own.take(as_notification("notifications/cancelled", {"requestId": True}), send)
    await asyncio.sleep(0)
    goes_on.set()
    await own.rest()
    answers = [(each.id, each.data.get("error", {}).get("code")) for each in sent]
    assert sorted(answers, key=str) == [(1, -32600), (1, None), (2, -32603)]


async def test_operators_tools_read_runs_of_the_store_alone(store: Any) -> None:
    tools = {each.name: each for each in ops_tools(["read", "undo"], store=str(store), by=None)}
    for name in ("show_run", "plan_undo", "undo_run"):
        for run in ("/home/ann/other/runs/1.jsonl", "other.jsonl", "../x"):
            answer = await tools[name].call({"run": run})
            assert answer["isError"] is True
            assert "only runs of the store" in answer["content"][0]["text"]


def test_nothing_that_is_logged_acts_on_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_stderr()
    logging.getLogger("rollcage.mcp").warning("dropped %s\nx", "\x1b]0;owned\x07\u202e")
    said = capsys.readouterr().err
    assert said.startswith("rollcage: dropped ")
    assert said.endswith("\nx\n")
    assert "\x1b" not in said
    assert "\u202e" not in said


# --- streams of events ---------------------------------------------------------------------------


class Events(httpx.AsyncByteStream):
    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for each in self._parts:
            yield each


async def events_of(*parts: bytes, **headers: str) -> list[str]:
    headers = {"content-type": "text/event-stream", **headers}
    response = httpx.Response(200, headers=headers, stream=Events(*parts))
    return [each.data async for each in events.events_of(response)]


async def test_events_are_bounded_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LONGEST", 100)
    assert await events_of(*[b"data: 12345\n", b"\n"] * 50) == ["12345"] * 50
    assert await events_of(*[b"data: 1\r\n\r", b"\n"] * 50) == ["1"] * 50
    for endless in (b"data: 12345", b"data: 12345\n", b": comment\n", b"x"):
        with pytest.raises(ServerGone, match="longer than"):
            await events_of(*[endless] * 200)


async def test_compressed_events_are_refused() -> None:
    with pytest.raises(ServerGone, match="compressed"):
        await events_of(b"data: 1\n\n", **{"content-encoding": "gzip"})
