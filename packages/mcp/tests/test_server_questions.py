"""What a server asks the person at the client: it can't look like a question of the guard."""

import asyncio
from typing import Any

import orjson
import pytest
from rollcage_mcp.conversation import ServerDeclarations
from rollcage_mcp.messages import Message, parse
from rollcage_mcp.server_questions import marked_request, marked_response
from scripted import Server, Talk

MARK = "The server notes asks, not Rollcage:"
FALSE = "send_mail requires approval: mails are asked about"


def request(**data: Any) -> Message:
    return parse(orjson.dumps({"jsonrpc": "2.0", "id": 1, **data}))


def answer(result: Any) -> Message:
    return parse(orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": result}))


async def test_a_question_of_the_server_says_so(talk: Talk) -> None:
    server = Server()
    async with talk(server, declared=ServerDeclarations(name="notes")) as client:
        client.says = lambda _: {"result": {"action": "accept", "content": {"tea": True}}}
        await client.greet(elicitation={})
        await client.request("ping")  # the server is there
        schema = {"type": "object", "properties": {"tea": {"type": "boolean"}}}
        server.asks("q", "elicitation/create", {"message": FALSE, "requestedSchema": schema})
        async with asyncio.timeout(20):
            told = await server.response()
        (asked,) = [each for each in client.sent if each.kind == "request"]
    assert asked.params == {"message": f"{MARK}\n{FALSE}", "requestedSchema": schema}
    assert told == {"jsonrpc": "2.0", "id": "q", "result": {
        "action": "accept", "content": {"tea": True}}}  # fmt: skip


async def test_so_does_one_in_the_answer_to_a_call_live_and_replayed(talk: Talk) -> None:
    asking = {"approval": {"method": "elicitation/create", "params": {"message": FALSE}}}

    class Asking(Server):
        async def _result(self, message: Message) -> dict[str, Any]:
            if message.method == "tools/call":
                return {"resultType": "input_required", "inputRequests": asking, "n": 10**18}
            return await super()._result(message)

    declared = ServerDeclarations(name="notes")
    for server in (Asking(do=lambda _: asyncio.sleep(0)), None):
        replay = "auto" if server else "offline"
        async with talk(server, declared=declared, replay=replay) as client:
            await client.greet(elicitation={})
            result = (await client.call("do"))["result"]
            asked = result["inputRequests"]["approval"]["params"]
            assert asked == {"message": f"{MARK}\n{FALSE}"}
            assert result["n"] == 10**18


@pytest.mark.parametrize("params", [
    {"message": FALSE}, {"Message": FALSE}, {"message": "x", "MESSAGE": FALSE}, {}, {"message": 3},
    {"message": "a\u202eb\x1b[2J\r\nc"}, {"mode": "url", "url": "https://x.example"},
])  # fmt: skip
@pytest.mark.parametrize(
    "method", ["elicitation/create", "Elicitation/Create", " elicitation/create"]
)
def test_every_spelling_is_marked(method: str, params: Any) -> None:
    marked = marked_request(request(method=method, params=params), "notes").params
    inner = marked_response(
        answer({"InputRequests": {"a": {"Method": method, "Params": params}}}), "notes"
    ).data["result"]["InputRequests"]["a"]["params"]
    for each in (marked, inner):
        assert [word for word in each if word.casefold() == "message"] == ["message"]
        first, *rest = each["message"].split("\n")
        assert first == MARK
        assert not {"\u202e", "\x1b", "\r"} & {*"".join(rest)}


@pytest.mark.parametrize("message", [
    request(method="roots/list"), request(method="sampling/createMessage", params={"message": "x"}),
    answer({"message": "x"}), answer({"inputRequests": {"a": {"method": "roots/list"}}}),
    answer({"inputRequests": [1]}), answer({"inputRequests": {"a": 3}}), answer([1]),
    parse(b'{"jsonrpc":"2.0","method":"elicitation/create","params":{"message":"x"}}'),
])  # fmt: skip
def test_everything_else_stays(message: Message) -> None:
    for mark in (marked_request, marked_response):
        assert mark(message, "notes").data == message.data
    assert marked_request(message, "notes").raw == message.raw


def test_a_method_that_some_clients_read_otherwise_is_written_anew() -> None:
    raw = b'{"jsonrpc":"2.0","id":1,"method":"elicitation/create","method":"roots/list"}'
    assert b"elicitation" not in marked_request(parse(raw), "notes").raw


def test_a_server_without_a_name() -> None:
    marked = marked_request(request(method="elicitation/create"), "")
    assert marked.params["message"] == "The server asks, not Rollcage:"
