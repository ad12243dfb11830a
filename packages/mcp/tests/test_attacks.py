"""A conversation under attack: odd messages, odd moments, parties that go away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from rollcage import Approval, StepView, Verdict, list_runs, open_store
from rollcage.trace.recorded import trace_of
from rollcage_mcp.approving import ClientApprover
from rollcage_mcp.conversation import Conversation, ServerDeclarations
from rollcage_mcp.errors import MessageInvalid
from rollcage_mcp.messages import as_request, parse
from rollcage_mcp.pack import Pack
from rollcage_views import read_run
from scripted import Client, Server, Talk, call_of


async def anything(server: Server, /, **given: Any) -> str:
    server.done.append(given)
    return f"number {len(server.done)}"


async def ask_raw(client: Client, raw: str) -> dict[str, Any]:
    """What a line of the client is answered, as it is."""
    message = parse(raw.encode())
    client._answers[message.id] = asyncio.get_running_loop().create_future()
    await client.conversation.take(message)
    return (await asyncio.wait_for(client._answers[message.id], 20)).data


def line(arguments: str) -> str:
    params = f'{{"name": "do", "arguments": {arguments}}}'
    return f'{{"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": {params}}}'


@pytest.mark.parametrize("odd", [[1], {}, None, "nobody's", 1.5])
async def test_a_cancellation_of_nothing_changes_nothing(talk: Talk, odd: Any) -> None:
    async with talk(Server(do=anything)) as client:
        await client.greet()
        await client.note("notifications/cancelled", {"requestId": odd})
        assert await client.text("do") == "number 1"


@pytest.mark.parametrize("number", [2**64, -(2**70), 123456789012345678901234567890])
async def test_large_integers_are_not_rounded(talk: Talk, store: Any, number: int) -> None:
    """Rounded, two calls that differ would be one to a policy, and to a replay."""
    server = Server(do=anything)
    async with talk(server) as client:
        await client.greet()
        await ask_raw(client, line(f'{{"n": {number}}}'))
    assert server.done == [{"n": number}]
    assert [str(number) in str(each.args) for each in steps(store) if each.name == "do"] == [True]


@pytest.mark.parametrize("arguments", ['{"n": 1e999}', '{"n": NaN}', '{"n": -Infinity}'])
def test_numbers_that_are_none_are_refused(arguments: str) -> None:
    with pytest.raises(MessageInvalid, match="no JSON"):
        parse(line(arguments).encode())


@pytest.mark.parametrize("arguments", [
    '{"$rollcage": 1}',
    '{"mcp:more": {"name": "other"}}',
    '{"deep": ' + "[" * 900 + "]" * 900 + "}",
])  # fmt: skip
async def test_arguments_that_mean_something_to_the_proxy_are_refused(
    talk: Talk, arguments: str
) -> None:
    async def edit(request: Any) -> Approval:
        return Approval.edit(dict(request.args), by="ann")

    server = Server(do=anything, other=anything)
    rules = [lambda step: Verdict.ask("may it?") if step.name == "do" else None]
    async with talk(server, gate=rules, approver=edit) as client:
        await client.greet()
        answer = await ask_raw(client, line(arguments))
        assert "error" in answer or answer["result"]["isError"] is True
    assert server.done == []


async def test_what_is_gated_is_what_is_sent(talk: Talk) -> None:
    """A key that comes twice, and words beside the message's own, are no way around a rule."""
    server = Server(do=anything)
    async with talk(server) as client:
        await client.greet()
        raw = line('{"to": "evil", "to": "good"}')[:-1] + ', "more": {"name": "other"}}'
        await ask_raw(client, raw)
    assert b"evil" not in server.seen[-1].raw
    assert b"more" not in server.seen[-1].raw
    assert server.done == [{"to": "good"}]


@pytest.mark.parametrize("meta", [[1], "x", None, {"progressToken": [1]}])
async def test_an_odd_meta_is_the_servers_to_judge(talk: Talk, meta: Any) -> None:
    async with talk(Server(do=anything)) as client:
        await client.greet()
        answer = await client.request("tools/call", {"name": "do", "_meta": meta})
        assert answer["result"]["isError"] is False


async def test_a_tool_cant_pass_for_a_read(talk: Talk) -> None:
    server = Server(**{"mcp:tools/list": anything})
    async with talk(server) as client:
        await client.greet()
        assert "can't be called" in (await client.call("mcp:tools/list"))["error"]["message"]
    assert server.done == []


async def test_ids_that_look_alike_are_two(talk: Talk) -> None:
    goes_on = asyncio.Event()

    async def slow(server: Server, text: str) -> str:
        await goes_on.wait()
        return text

    async with talk(Server(slow=slow)) as client:
        await client.greet()
        for each in (1000, "1000"):
            client._answers[each] = asyncio.get_running_loop().create_future()
            params = call_of("slow", None, {"text": repr(each)})
            await client.conversation.take(as_request(each, "tools/call", params))
        goes_on.set()
        for each in (1000, "1000"):
            answer = await asyncio.wait_for(client._answers[each], 20)
            assert repr(each) in str(answer.data["result"])


async def test_a_page_of_tools_is_not_the_whole_list(talk: Talk, store: Any) -> None:
    server = Server(a=anything, b=anything, c=anything)
    server.pages = 3
    server.said["c"] = {"annotations": {"readOnlyHint": True}}
    async with talk(server, declared=ServerDeclarations(trust=True)) as client:
        await client.greet()
        await client.request("tools/list")
        await client.call("c")
    assert server.methods().count("tools/list") == 4
    assert [each.effect for each in steps(store) if each.name == "c"] == ["read"]


async def test_a_pack_that_does_not_fit_lets_no_call_through(talk: Talk) -> None:
    """Not even when the client has listed the tools before, and was told."""
    pack = Pack.parse('[tools.missing]\neffect = "read"\n', "p.toml")
    server = Server(do=anything)
    async with talk(server, declared=ServerDeclarations(pack)) as client:
        await client.greet()
        assert "no such tool" in (await client.request("tools/list"))["error"]["message"]
        assert "no such tool" in (await client.call("do"))["error"]["message"]
    assert server.done == []


async def test_tools_that_change_between_calls_replay(talk: Talk) -> None:
    async def change(server: Server) -> str:
        server.said["do"] = {"description": "other"}
        server.note("notifications/tools/list_changed", {})
        return "changed"

    async def story(client: Client) -> list[Any]:
        await client.greet()
        return [await client.call(each) for each in ("do", "change", "do")]

    server = Server(do=anything, change=change)
    async with talk(server) as client:
        live = await story(client)
    assert server.methods().count("tools/list") == 2
    async with talk(None, replay="offline") as client:
        assert await story(client) == live


async def test_a_server_that_had_ended_before_a_call_leaves_nothing_in_doubt(
    talk: Talk, store: Any
) -> None:
    server = Server(do=anything)
    with pytest.raises(RuntimeError, match="power cut"):
        async with talk(server) as client:
            await client.greet()
            await client.call("do", text="a")
            server.gone()
            await asyncio.sleep(0.02)
            for _ in range(2):
                assert (await client.call("do", text="b"))["error"]["code"] == -32001
            raise RuntimeError("power cut")
    again = Server(do=anything)
    async with talk(again) as client:
        await client.greet()
        await client.call("do", text="a")
        assert await client.text("do", text="b") == "number 1"
    assert again.done == [{"text": "b"}]
    assert [each.state for each in steps(store) if each.name == "do"] == ["ran", "ran"]


def steps(store: Any) -> Any:
    opened = open_store(store)
    return read_run(trace_of(opened, list_runs(opened, limit=1)[0].run)).steps


async def test_a_call_that_is_cancelled_while_the_server_is_greeted(talk: Talk) -> None:
    """The handshake goes on: the next call finds a server that was greeted, once."""
    with pytest.raises(RuntimeError, match="power cut"):
        async with talk(Server(do=anything)) as client:
            await client.greet()
            raise RuntimeError("power cut")
    greeted, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(Server):
        async def _result(self, message: Any) -> dict[str, Any]:
            if message.method == "initialize":
                greeted.set()
                await goes_on.wait()
            return await super()._result(message)

    server = Slow(do=anything)
    async with talk(server) as client:
        await client.greet()
        number = await client.begin("tools/call", call_of("do", None, {"text": "a"}))
        await asyncio.wait_for(greeted.wait(), 20)
        await client.note("notifications/cancelled", {"requestId": number})
        goes_on.set()
        assert await client.text("do", text="b") == "number 1"
    assert server.methods()[:2] == ["initialize", "notifications/initialized"]
    assert server.methods().count("initialize") == 1
    assert server.done == [{"text": "b"}]


# --- approvals -----------------------------------------------------------------------------------


def ask(step: StepView) -> Verdict | None:
    return Verdict.ask("may it?") if step.args.get("text") == "x" else None


async def met_client(client: Client) -> None:
    """Wait until the client was asked something."""
    while not any(each.kind == "request" for each in client.sent):  # noqa: ASYNC110 - simple
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def asked(talk: Talk, server: Server, **more: Any) -> AsyncIterator[tuple[Any, int]]:
    """A conversation in which the person at the client is being asked about a call."""
    approver = ClientApprover()
    met: Callable[[Conversation], None] = approver.met
    async with talk(server, gate=[ask], approver=approver, met=met, **more) as client:
        await client.greet(elicitation={})
        number = await client.begin("tools/call", call_of("do", None, {"text": "x"}))
        async with asyncio.timeout(20):
            await met_client(client)
        yield client, number


async def test_a_call_is_cancelled_while_it_waits_for_approval(talk: Talk, store: Any) -> None:
    server = Server(do=anything)
    async with asked(talk, server) as (client, number):
        question = client.sent[-1]
        await client.note("notifications/cancelled", {"requestId": number})
        assert await client.text("do", text="b") == "number 1"
        told = [each for each in client.notes() if each[0] == "notifications/cancelled"]
        assert [each[1]["requestId"] for each in told] == [question.id]
    assert server.done == [{"text": "b"}]
    assert "unknown" not in {each.state for each in steps(store)}


async def test_a_client_that_leaves_an_approval_open_is_not_waited_for(
    talk: Talk, store: Any
) -> None:
    server = Server(do=anything)
    async with asyncio.timeout(30), asked(talk, server, grace=3_600.0):
        pass
    assert server.done == []
    assert "unknown" not in {each.state for each in steps(store)}


async def test_a_client_without_a_dialog_is_not_asked(talk: Talk) -> None:
    server, approver = Server(do=anything), ClientApprover()
    async with talk(server, gate=[ask], approver=approver, met=approver.met) as client:
        await client.greet()
        assert "--queue SECONDS" in await client.text("do", text="x")
        assert not any(each.kind == "request" for each in client.sent)
    assert server.done == []


@pytest.mark.parametrize("content", [[1], "approve", 3, {"decision": ["approve"]}])
async def test_an_odd_answer_is_no_approval(talk: Talk, content: Any) -> None:
    server, approver = Server(do=anything), ClientApprover()
    async with talk(server, gate=[ask], approver=approver, met=approver.met) as client:
        client.says = lambda _: {"result": {"action": "accept", "content": content}}
        await client.greet(elicitation={})
        assert await client.text("do", text="x") == "not approved"
    assert server.done == []


async def test_a_dialog_shows_no_secret(talk: Talk) -> None:
    pack = Pack.parse('[tools.do]\neffect = "write"\nsecret = ["password"]\n', "p.toml")
    server, approver = Server(do=anything), ClientApprover()
    server.said["do"] = {"inputSchema": {"properties": {"text": {}, "password": {}}}}
    more: dict[str, Any] = {"declared": ServerDeclarations(pack), "met": approver.met}
    async with talk(server, gate=[ask], approver=approver, **more) as client:
        client.says = lambda _: {"result": {"action": "accept", "content": {"decision": "approve"}}}
        await client.greet(elicitation={})
        await client.call("do", text="x", password="hunter2")
        assert not any(b"hunter2" in each.raw for each in client.sent)
    assert server.done == [{"text": "x", "password": "hunter2"}]
