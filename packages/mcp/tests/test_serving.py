"""Servers of our own: operations by scope, and declared functions through a session."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Approval, ApprovalQueue, QueueApprover, Session, StepView, Verdict, tool
from rollcage.errors import ApprovalRequired
from rollcage_mcp.errors import ServerError
from rollcage_mcp.exposed import exposed_tools
from rollcage_mcp.messages import Message, as_notification, as_request
from rollcage_mcp.ops import SCOPES, ops_tools
from rollcage_mcp.serving import ServedTool, ToolServer

TIDY: list[str] = []


@tool(effect="write")
def mcp_tidy(room: str, times: int = 1) -> list[str]:
    """Tidy a room."""
    TIDY.append(room)
    return [room] * times


@tool(effect="read")
async def mcp_peek(room: str) -> str:
    """Look into a room."""
    if room == "cellar":
        raise LookupError("it is dark")
    return f"{room}: {TIDY.count(room)}"


def text(result: dict[str, Any]) -> str:
    assert result["resultType"] == "complete"
    return str(result["content"][0]["text"])


async def call(server: ToolServer, name: str, /, **arguments: Any) -> dict[str, Any]:
    return await server.answer("tools/call", {"name": name, "arguments": arguments})


async def test_declared_functions_are_served_guarded(store: Path) -> None:
    TIDY.clear()

    def no_attic(step: StepView) -> Verdict | None:
        return Verdict.deny("not the attic") if step.args.get("room") == "attic" else None

    async with Session("served", store=store, gate=[no_attic]) as session:
        server = ToolServer("t", exposed_tools([mcp_tidy, mcp_peek], session))
        listed = (await server.answer("tools/list", {}))["tools"]
        hints = {each["name"]: each["annotations"]["readOnlyHint"] for each in listed}
        assert hints == {"mcp_tidy": False, "mcp_peek": True}
        assert listed[0]["inputSchema"]["required"] == ["room"]
        assert text(await call(server, "mcp_tidy", room="hall", times=2)) == '["hall","hall"]'
        assert text(await call(server, "mcp_peek", room="hall")) == "hall: 1"
        for name, arguments, said in (
            ("mcp_tidy", {"room": "attic"}, "not the attic"),
            ("mcp_tidy", {"rom": "hall"}, "room: Field required"),
            ("mcp_peek", {"room": "cellar"}, "LookupError: it is dark"),
        ):
            result = await call(server, name, **arguments)
            assert result["isError"] is True
            assert said in text(result)
        with pytest.raises(ServerError, match="no tool 'mcp_peak'; there are: mcp_tidy, mcp_peek"):
            await call(server, "mcp_peak")
    assert TIDY == ["hall"]


@pytest.mark.parametrize(("method", "has"), [
    ("initialize", "protocolVersion"),
    ("server/discover", "supportedVersions"),
    ("tools/list", "tools"),
])  # fmt: skip
async def test_clients_of_each_era_are_greeted(method: str, has: str) -> None:
    assert has in await ToolServer("t", []).answer(method, {"protocolVersion": "1999-01-01"})


async def test_a_cancelled_call_is_not_answered() -> None:
    began, sent = asyncio.Event(), []

    async def sleeps(arguments: Any) -> dict[str, Any]:
        began.set()
        await asyncio.sleep(60)
        return {}

    async def send(message: Message) -> None:
        sent.append(message)

    server = ToolServer("t", [ServedTool("sleeps", "", {"type": "object"}, sleeps)])
    await server.take(as_request(1, "tools/call", {"name": "sleeps"}), send)
    await began.wait()
    await server.take(as_notification("notifications/cancelled", {"requestId": 1}), send)
    await server.take(as_request(2, "nonsense"), send)
    await server.rest()
    assert [each.id for each in sent] == [2]
    assert sent[0].data["error"]["code"] == -32601


async def test_operations_are_there_by_scope(store: Any) -> None:
    def names(*scopes: Any) -> set[str]:
        return {each.name for each in ops_tools(scopes, store="x", by="ann")}

    assert names("read") == {"list_runs", "show_run", "diff_runs", "plan_undo", "list_approvals"}
    assert names("undo") == {"undo_run"}
    assert names("approve") == {"approve_call", "reject_call"}
    assert names("resolve") == {"resolve_step"}


async def test_operators_look_at_runs_and_at_what_waits(tmp_path: Path) -> None:
    TIDY.clear()
    folder = str(tmp_path / "store")

    def ask(step: StepView) -> Verdict | None:
        return Verdict.ask("may it?") if step.effect == "write" else None

    def work() -> None:
        approver = QueueApprover(folder)
        with Session("ops", store=folder, gate=[ask], approver=approver, actor="ann"):
            mcp_tidy("hall")

    with pytest.raises(ApprovalRequired):
        work()
    waiting = ApprovalQueue(folder).waiting()[0].id
    server = ToolServer("ops", ops_tools(SCOPES, store=folder, by="bob"))
    listed = orjson.loads(text(await call(server, "list_approvals")))["approvals"]
    assert [each["id"] for each in listed] == [waiting]
    ApprovalQueue(folder).decide(waiting, Approval(True, "bob"))
    work()
    assert TIDY == ["hall"]
    runs = orjson.loads(text(await call(server, "list_runs", name="ops")))["runs"]
    assert [each["status"] for each in runs] == ["ok"]  # one run, of two attempts
    shown = orjson.loads(text(await call(server, "show_run", run="@ops")))
    assert shown["run"]["name"] == "ops"


@pytest.mark.parametrize(("name", "arguments", "said"), [
    ("show_run", {"run": "--help"}, "--help"),
    ("show_run", {"run": 1}, "has to be of type string"),
    ("show_run", {}, "'run' is missing"),
    ("show_run", {"run": "a", "store": "/etc"}, "no argument 'store'"),
    ("show_run", {"run": "a\0b"}, "NUL"),
    ("undo_run", {"run": "latest", "to": True}, "has to be of type integer"),
    ("list_runs", {"name": "x --store=/etc"}, '"runs": []'),
])  # fmt: skip
async def test_what_a_client_says_is_no_option(
    tmp_path: Path, name: str, arguments: dict[str, Any], said: str
) -> None:
    folder = str(tmp_path / "store")
    with Session("ops", store=folder):
        pass
    server = ToolServer("ops", ops_tools(SCOPES, store=folder, by="ann"))
    result = await call(server, name, **arguments)
    assert said in text(result)
    assert result["isError"] is (name != "list_runs")
