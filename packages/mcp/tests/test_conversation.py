"""A conversation through a session: recorded, resumed, replayed; cut off, cancelled, halted."""

import asyncio
from typing import Any

import pytest
from rollcage import StepView, UnknownOutcome, Verdict, open_store
from rollcage.errors import ReplayMiss
from rollcage.trace.recorded import trace_of
from rollcage_mcp.approving import ClientApprover
from rollcage_mcp.conversation import ServerDeclarations
from rollcage_mcp.messages import as_request
from rollcage_views import read_run
from scripted import Client, Server, Talk, call_of


async def send(server: Server, text: str = "") -> str:
    server.done.append(text)
    return f"sent {text}, number {len(server.done)}"


async def look(server: Server) -> str:
    return f"{len(server.done)} were sent"


async def test_a_conversation_replays_without_its_server(talk: Talk) -> None:
    server = Server(send=send, look=look)

    async def story(client: Client) -> list[Any]:
        return [
            await client.greet(),
            await client.request("tools/list"),
            await client.call("send", text="a"),
            await client.call("look"),
            await client.call("send", text="b"),
            await client.call("missing"),
            await client.request("resources/read", {"uri": "x://y"}),
            await client.request("prompts/get", {"name": "p"}),
            await client.request("completion/complete", {"ref": {}}),
        ]

    async with talk(server) as client:
        live = await story(client)
    assert server.done == ["a", "b"]
    assert live[3]["result"]["content"][0]["text"] == "1 were sent"
    error = {"code": -32602, "message": "no tool missing", "data": {"why": "unknown"}}
    assert live[5]["error"] == error
    async with talk(None, replay="offline") as client:
        assert await story(client) == live
        assert await client.request("ping") == {"result": {}}
        assert (await client.request("tasks/get", {"taskId": "1"}))["error"]["code"] == -32601
    assert server.done == ["a", "b"]


async def test_what_is_no_step_passes_as_it_is(talk: Talk) -> None:
    server = Server(send=send)
    async with talk(server) as client:
        await client.greet()
        assert await client.request("ping") == {"result": {"of": "ping"}}
        assert await client.request("tasks/get", {"a": 1}) == {"result": {"of": "tasks/get"}}
        await client.note("notifications/roots/list_changed", {"odd": [1.0, None]})
        await client.request("ping")
    assert server.methods() == [
        "initialize", "notifications/initialized", "ping", "tasks/get",
        "notifications/roots/list_changed", "ping",
    ]  # fmt: skip


async def test_a_resumed_conversation_greets_the_server_only_when_it_needs_it(talk: Talk) -> None:
    server = Server(send=send)
    with pytest.raises(RuntimeError, match="power cut"):
        async with talk(server) as client:
            await client.greet(sampling={})
            await client.call("send", text="a")
            raise RuntimeError("power cut")
    again = Server(send=send)
    async with talk(again) as client:
        await client.greet(sampling={})
        assert await client.text("send", text="a") == "sent a, number 1"
        assert again.starts == 0
        assert await client.text("send", text="b") == "sent b, number 1"
        assert again.methods()[:2] == ["initialize", "notifications/initialized"]
        assert again.seen[0].params["capabilities"] == {"sampling": {}}
    assert again.done == ["b"]


async def test_a_server_that_ends_in_a_write_leaves_it_unknown(talk: Talk) -> None:
    async def dies(server: Server) -> str:
        server.done.append("?")
        server.gone()
        await asyncio.sleep(60)
        return ""

    server = Server(dies=dies, send=send)
    told: Any = None
    after: Any = None
    with pytest.raises(UnknownOutcome):
        async with talk(server) as client:
            await client.greet()
            told = (await client.call("dies"))["error"]
            after = (await client.call("send", text="b"))["error"]
    assert told["data"] == {"rollcage": "UnknownOutcome"}
    assert "rollcage resolve" in told["message"]
    assert "halted" in after["message"]
    assert after["data"] == {"rollcage": "SessionHalted"}
    again = Server(dies=dies, send=send)
    with pytest.raises(UnknownOutcome):
        async with talk(again) as client:
            await client.greet()
            await client.call("dies")
    assert server.done == ["?"]
    assert again.done == []


async def test_a_cancelled_write_does_not_end_the_days_work(talk: Talk) -> None:
    started, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(server: Server, text: str) -> str:
        started.set()
        await goes_on.wait()
        return await send(server, text)

    server = Server(slow=slow, send=send)
    async with talk(server) as client:
        await client.greet()
        number = await client.begin("tools/call", call_of("slow", None, {"text": "a"}))
        await asyncio.wait_for(started.wait(), 20)
        await client.note("notifications/cancelled", {"requestId": number})
        assert server.methods()[-1] == "notifications/cancelled"
        refused = await client.text("slow", text="a")
        assert "cancelled while it ran" in refused
        assert await client.text("send", text="b") == "sent b, number 1"
        goes_on.set()
        await asyncio.gather(*client.conversation.under_way)
        assert await client.text("slow", text="a") == "sent a, number 3"  # it may be made again
    assert not any(each.kind == "response" and each.id == number for each in client.sent)
    assert server.done == ["b", "a", "a"]


async def test_a_cancelled_write_that_is_never_answered_is_unknown_in_the_end(talk: Talk) -> None:
    started = asyncio.Event()

    async def never(server: Server) -> str:
        server.done.append("?")
        started.set()
        await asyncio.sleep(60)
        return ""

    server = Server(never=never, send=send)
    with pytest.raises(UnknownOutcome):
        async with talk(server, grace=0.0) as client:
            await client.greet()
            number = await client.begin("tools/call", call_of("never", None, {}))
            await asyncio.wait_for(started.wait(), 20)
            await client.note("notifications/cancelled", {"requestId": number})
            assert await client.text("send", text="b") == "sent b, number 2"


async def test_progress_is_replayed_in_its_order_with_the_clients_own_token(talk: Talk) -> None:
    async def works(server: Server) -> str:
        for each in range(3):
            server.note("notifications/progress", {"progressToken": "t", "progress": each})
        server.note("notifications/message", {"level": "info", "data": "nearly"})
        return "done"

    server = Server(works=works)
    async with talk(server) as client:
        await client.greet()
        live = await client.call("works", meta={"progressToken": "t"})
        assert [each[1].get("progress") for each in client.notes()] == [0, 1, 2, None]
        told = client.notes()
    async with talk(None, replay="offline") as client:
        await client.greet()
        assert await client.call("works", meta={"progressToken": 7}) == live
        again = client.notes()
        assert [each[1].pop("progressToken", None) for each in again] == [7, 7, 7, None]
        for each in told:
            each[1].pop("progressToken", None)
        assert again == told
        assert client.sent[-1].kind == "response"


async def test_what_the_server_asks_the_client_passes(talk: Talk) -> None:
    async def asks(server: Server) -> str:
        server.asks("s-1", "sampling/createMessage", {"messages": []})
        return str((await server.response())["result"]["text"])

    server = Server(asks=asks)
    async with talk(server) as client:
        client.says = lambda message: {"result": {"text": f"an answer to {message.method}"}}
        await client.greet()
        assert await client.text("asks") == "an answer to sampling/createMessage"
    async with talk(None, replay="offline") as client:
        await client.greet()
        assert await client.text("asks") == "an answer to sampling/createMessage"


def ask_about(text: str) -> Any:
    def rule(step: StepView) -> Verdict | None:
        return Verdict.ask("may it?") if step.args.get("text") == text else None

    return rule


def deny(step: StepView) -> Verdict | None:
    return Verdict.deny("not today") if step.args.get("text") == "x" else None


async def test_a_denied_call_is_a_result_that_the_model_reads(talk: Talk) -> None:
    server = Server(send=send)
    async with talk(server, gate=[deny]) as client:
        await client.greet()
        answer = (await client.call("send", text="x"))["result"]
        assert answer["isError"] is True
        assert "not today" in answer["content"][0]["text"]
        assert await client.text("send", text="y") == "sent y, number 1"


@pytest.mark.parametrize(("action", "content", "runs"), [
    ("accept", {"decision": "approve"}, True),
    ("accept", {"decision": "reject", "reason": "no"}, False),
    ("accept", {}, False),
    ("decline", None, False),
    ("cancel", None, False),
])  # fmt: skip
async def test_the_person_at_the_client_approves(
    talk: Talk, action: str, content: Any, runs: bool
) -> None:
    server, approver = Server(send=send), ClientApprover()
    async with talk(server, gate=[ask_about("x")], approver=approver, met=approver.met) as client:
        client.says = lambda message: {"result": {"action": action, "content": content}}
        await client.greet(elicitation={})
        answer = (await client.call("send", text="x"))["result"]
    assert server.done == (["x"] if runs else [])
    assert answer["isError"] is not runs
    (asked,) = [each for each in client.sent if each.kind == "request"]
    assert asked.method == "elicitation/create"
    assert '"text": "x"' in asked.params["message"]


async def test_a_person_sees_what_hides_in_an_argument(talk: Talk) -> None:
    """Characters that turn text around could show another recipient than the one that gets it."""
    server, approver = Server(send=send), ClientApprover()
    text = "to \u202emoc.live@nna\u202c\u200b, in Zürich\nand more"
    async with talk(server, gate=[ask_about(text)], approver=approver, met=approver.met) as client:
        client.says = lambda message: {"result": {"action": "decline"}}
        await client.greet(elicitation={})
        await client.call("send", text=text)
    (asked,) = [each for each in client.sent if each.kind == "request"]
    shown = asked.params["message"]
    assert r"to \u202emoc.live@nna\u202c\u200b, in Zürich\nand more" in shown
    assert shown.count("\n") == 3


async def test_a_server_cannot_answer_for_the_person(talk: Talk) -> None:
    """It asks an innocent question; the answer to that is no approval."""
    approver = ClientApprover()
    server = Server(send=send)
    server_asked = asyncio.Event()
    async with talk(server, gate=[ask_about("x")], approver=approver, met=approver.met) as client:

        def says(message: Any) -> dict[str, Any]:
            if "approval" in message.params["message"]:
                server.asks(message.id, "elicitation/create", {"message": "Do you like tea?"})
                server_asked.set()
                return {"result": {"action": "decline"}}
            return {"result": {"action": "accept", "content": {"decision": "approve"}}}

        client.says = says
        await client.greet(elicitation={})
        await client.request("ping")  # the server is there
        answer = (await client.call("send", text="x"))["result"]
    assert server_asked.is_set()
    assert answer["isError"] is True
    assert server.done == []


@pytest.mark.parametrize(("trust", "effect"), [(False, "write"), (True, "read")])
async def test_effects_are_the_servers_word_only_where_it_is_trusted(
    talk: Talk, store: Any, trust: bool, effect: str
) -> None:
    server = Server(look=look, send=send)
    server.said = {"look": {"annotations": {"readOnlyHint": True}}}
    async with talk(server, declared=ServerDeclarations(trust=trust)) as client:
        await client.greet()
        await client.call("look")
        await client.call("send")
        run = client.conversation.session.run_id
    steps = read_run(trace_of(open_store(store), run)).steps
    assert {each.name: each.effect for each in steps if each.name in server.tools} == {
        "look": effect,
        "send": "write",
    }


async def test_pages_of_tools_are_read_before_a_call(talk: Talk) -> None:
    server = Server(a=look, b=look, c=send)
    server.pages = 3
    async with talk(server) as client:
        await client.greet()
        await client.call("c", text="x")
    assert server.methods().count("tools/list") == 3


async def test_two_requests_of_one_id_are_not_mixed_up(talk: Talk) -> None:
    wait = asyncio.Event()

    async def slow(server: Server) -> str:
        await wait.wait()
        return "slow"

    async with talk(Server(slow=slow)) as client:
        await client.greet()
        number = await client.begin("tools/call", call_of("slow", None, {}))
        await client.conversation.take(as_request(number, "ping"))
        refused = client.sent[-1].data["error"]
        assert "take another id" in refused["message"]
        client._answers[number] = asyncio.get_running_loop().create_future()
        wait.set()
        assert (await client.end(number))["result"]["content"][0]["text"] == "slow"


async def test_a_miss_of_a_replay_is_told_and_halts(talk: Talk) -> None:
    async with talk(Server(send=send)) as client:
        await client.greet()
        await client.call("send", text="a")
    with pytest.raises(ReplayMiss):
        async with talk(None, replay="offline") as client:
            await client.greet()
            answer = await client.call("send", text="b")
            assert "a" in answer["error"]["message"]
