"""Approval by the answer to a call, for clients that take no requests (2026-07-28)."""

from typing import Any

import pytest
from rollcage import StepView, Verdict
from rollcage_mcp.approving import ClientApprover
from scripted import Client, Server, Talk

ERA = "io.modelcontextprotocol/protocolVersion"
ABLE = "io.modelcontextprotocol/clientCapabilities"
META = {ERA: "2026-07-28", ABLE: {"elicitation": {"form": {}}}}
YES = {"approval": {"action": "accept", "content": {"decision": "approve", "reason": "fine"}}}
NO = {"approval": {"action": "accept", "content": {"decision": "reject", "reason": "not today"}}}
KEY = b"k" * 32


async def send(server: Server, text: str) -> str:
    server.done.append(text)
    return f"sent {text}"


def ask(step: StepView) -> Verdict | None:
    return Verdict.ask("may it?") if step.name == "send" else None


def settings(key: bytes = KEY) -> dict[str, Any]:
    approver = ClientApprover(lambda: key)
    return {"gate": [ask], "approver": approver, "met": approver.met}


async def call(client: Client, text: str, **more: Any) -> dict[str, Any]:
    params = {"name": "send", "arguments": {"text": text}, "_meta": META, **more}
    result: dict[str, Any] = (await client.request("tools/call", params))["result"]
    return result


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


@pytest.mark.parametrize(("said", "done"), [
    (YES, ["a"]),
    (NO, []),
    ({}, []),
    (None, []),
    ([1], []),
    ({"approval": {"action": "cancel"}}, []),
    ({"other": YES["approval"]}, []),
])  # fmt: skip
async def test_the_client_makes_the_call_again_with_the_answer(
    talk: Talk, said: Any, done: list[str]
) -> None:
    server = Server(send=send)
    async with talk(server, **settings()) as client:
        asked = await call(client, "a")
        assert asked["resultType"] == "input_required"
        question = asked["inputRequests"]["approval"]
        assert question["method"] == "elicitation/create"
        assert '"text": "a"' in question["params"]["message"]
        assert server.done == []
        state = asked["requestState"]
        answer = await call(client, "a", requestState=state, inputResponses=said)
        assert answer["isError"] is not bool(done)
        again = await call(client, "b")  # the next call is asked about by itself
        assert again["resultType"] == "input_required"
    assert server.done == done
    assert not any(b"requestState" in each.raw for each in server.seen)


async def test_it_goes_on_when_the_proxy_was_started_again_in_between(talk: Talk) -> None:
    server = Server(send=send)
    state: Any = None
    with pytest.raises(RuntimeError, match="power cut"):
        async with talk(server, **settings()) as client:
            state = (await call(client, "a"))["requestState"]
            raise RuntimeError("power cut")
    async with talk(server, **settings()) as client:
        answer = await call(client, "a", requestState=state, inputResponses=YES)
        assert text(answer) == "sent a"
        # Made again after that, the same call is another one: its state is used up.
        more = await call(client, "a", requestState=state, inputResponses=YES)
        assert more["resultType"] == "input_required"
    assert server.done == ["a"]


@pytest.mark.parametrize("attack", ["forged", "other key", "other call", "cut", "made up"])
async def test_a_state_counts_for_its_own_call_alone(talk: Talk, attack: str) -> None:
    server = Server(send=send)
    state: Any = None
    with pytest.raises(RuntimeError, match="power cut"):
        async with talk(server, **settings()) as client:
            state = str((await call(client, "a"))["requestState"])
            raise RuntimeError("power cut")
    at = len("rollcage1.") + 4
    state = {
        "forged": state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :],
        "cut": state[:-8],
        "made up": "rollcage1.é",
    }.get(attack, state)
    key = b"o" * 32 if attack == "other key" else KEY
    async with talk(server, **settings(key)) as client:
        name = "b" if attack == "other call" else "a"
        answer = await call(client, name, requestState=state, inputResponses=YES)
        assert answer["resultType"] == "input_required"  # asked anew
    assert server.done == []


async def test_an_answer_to_one_call_is_none_to_another_that_waits(talk: Talk) -> None:
    server = Server(send=send)
    async with talk(server, **settings()) as client:
        state = (await call(client, "a"))["requestState"]
        other = await call(client, "b", requestState=state, inputResponses=YES)
        assert other["resultType"] == "input_required"
        assert server.done == []
        assert text(await call(client, "a", requestState=state, inputResponses=YES)) == "sent a"
    assert server.done == ["a"]


async def test_a_state_of_the_servers_own_reaches_it(talk: Talk) -> None:
    server = Server(send=send)
    approver = ClientApprover()
    async with talk(server, approver=approver, met=approver.met) as client:
        await call(client, "a", requestState="theirs", inputResponses={"x": {}})
    assert server.seen[-1].params["requestState"] == "theirs"
