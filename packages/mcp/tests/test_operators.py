"""The operations server: a person at the client approves, resolves and undoes, and no model."""

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    ApprovalQueue,
    QueueApprover,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    tool,
    undo_run,
)
from rollcage.errors import ApprovalRequired
from rollcage.trace.recorded import trace_of
from rollcage_mcp.messages import Message, as_notification, as_request, parse
from rollcage_mcp.ops import SCOPES, ops_tools
from rollcage_mcp.serving import ToolServer
from rollcage_views import Step, read_run

ERA = "io.modelcontextprotocol/protocolVersion"
ABLE = "io.modelcontextprotocol/clientCapabilities"
INFO = "io.modelcontextprotocol/clientInfo"
STATELESS = {ERA: "2026-07-28", ABLE: {"elicitation": {"form": {}}}, INFO: {"name": "newer"}}
YES = {"action": "accept", "content": {"decision": "approve", "reason": "fine"}}
NO = {"action": "accept", "content": {"decision": "reject", "reason": "not today"}}
PAID: list[str] = []


@tool(effect="write")
def mcp_pay(to: str) -> None:
    """Pay somebody."""
    PAID.append(to)


def ask(step: StepView) -> Verdict | None:
    return Verdict.ask("may it?") if step.name == "mcp_pay" else None


class Desk:
    """A store where one call waits, and a client of the operations server."""

    def __init__(self, folder: str, by: str = "bob") -> None:
        self.folder = folder
        self.server = ToolServer("ops", ops_tools(SCOPES, store=folder, by=by))
        self.asked: list[Message] = []
        self.says: Callable[[], dict[str, Any]] | None = None
        self._answers: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        PAID.clear()
        with pytest.raises(ApprovalRequired):
            self.work()
        self.id = ApprovalQueue(folder).waiting()[0].id

    def work(self) -> None:
        approver = QueueApprover(self.folder)
        with Session("pays", store=self.folder, gate=[ask], approver=approver, actor="ann"):
            mcp_pay("eve")

    async def take(self, message: Message) -> None:
        if message.kind == "response":
            self._answers[message.id].set_result(message.data)
        elif message.kind == "request":
            self.asked.append(message)
            if self.says is not None:
                reply = {"jsonrpc": "2.0", "id": message.id, **self.says()}
                await self.server.take(parse(orjson.dumps(reply)), self.take)

    async def begin(self, method: str, params: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        number = len(self._answers) + 1
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self.server.take(as_request(number, method, params), self.take)
        return answer

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        answer = await asyncio.wait_for(await self.begin(method, params), 20)
        return answer["result"]

    async def greet(self, **capabilities: Any) -> None:
        client = {"name": "claude-code", "version": "1"}
        await self.request("initialize", {"capabilities": capabilities, "clientInfo": client})

    async def call(self, name: str, meta: Any = None, **arguments: Any) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments, **({} if meta is None else {"_meta": meta})}
        result: dict[str, Any] = await self.request("tools/call", params)
        return result

    @property
    def shown(self) -> str:
        """The text of the one question."""
        (asked,) = self.asked
        assert asked.method == "elicitation/create"
        return str(asked.params["message"])

    @property
    def decided(self) -> tuple[str, str, str] | None:
        queue = ApprovalQueue(self.folder)
        request = queue.get(self.id)
        assert request is not None
        done = queue.decision(request)
        return None if done is None else (done.answer.decision, done.answer.by, done.answer.reason)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(str(tmp_path / "store"))


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def test_a_model_approves_nothing_where_the_client_has_no_dialog(desk: Desk) -> None:
    """The call by which a model approved its own call, under the user's name."""
    await desk.greet()
    result = await desk.call("approve_call", id=desk.id)
    assert result["isError"] is True
    assert "no dialog" in text(result)
    assert f"rollcage approve {desk.id} --store" in text(result)
    assert desk.decided is None
    with pytest.raises(ApprovalRequired):
        desk.work()
    assert (PAID, desk.asked) == ([], [])
    meta = {ERA: "2026-07-28"}
    assert "no dialog" in text(await desk.call("approve_call", meta, id=desk.id))
    direct = {each.name: each for each in ops_tools(SCOPES, store=desk.folder, by="bob")}
    assert "no dialog" in text(await direct["approve_call"].call({"id": desk.id}))


async def test_the_person_at_the_client_sees_the_call_and_approves_it(desk: Desk) -> None:
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    result = await desk.call("approve_call", id=desk.id[:9])
    assert result["isError"] is False
    (asked,) = desk.asked
    assert asked.method == "elicitation/create"
    for said in ("mcp_pay requires approval: may it?", '"to": "eve"', "acts for ann"):
        assert said in asked.params["message"]
    assert desk.decided == ("approved", "bob through claude-code", "fine")
    desk.work()
    assert PAID == ["eve"]
    again = await desk.call("approve_call", id=desk.id)
    assert "no request begins with" in text(again)  # what was decided is on record
    assert len(desk.asked) == 1


@pytest.mark.parametrize(("says", "decided"), [
    ({"result": NO}, ("rejected", "bob through claude-code", "not today")),
    ({"result": {"action": "decline"}}, None),
    ({"result": {"action": "cancel", "content": {"decision": "approve"}}}, None),
    ({"result": {"action": "accept"}}, None),
    ({"result": {"action": "accept", "content": {"decision": "Approve"}}}, None),
    ({"result": {"action": "accept", "content": {"decision": True}}}, None),
    ({"result": {"action": "accept", "content": [1]}}, None),
    ({"result": {}}, None),
    ({"error": {"code": -32601, "message": "no such method"}}, None),
])  # fmt: skip
async def test_all_but_a_clear_yes_approves_nothing(desk: Desk, says: Any, decided: Any) -> None:
    await desk.greet(elicitation={})
    desk.says = lambda: dict(says)
    assert (await desk.call("approve_call", id=desk.id))["isError"] is True
    assert desk.decided == decided
    assert len(desk.asked) == 1


async def test_nobody_is_asked_about_their_own_call(tmp_path: Path) -> None:
    desk = Desk(str(tmp_path / "store"), by="Ann")
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    result = await desk.call("approve_call", id=desk.id)
    assert "requested the call and can't approve it" in text(result)
    assert (desk.asked, desk.decided) == ([], None)


@pytest.mark.parametrize("part", ["", "0123", "../x", "%"])
async def test_an_id_that_means_no_request_is_refused(desk: Desk, part: str) -> None:
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    assert "no request begins" in text(await desk.call("approve_call", id=part))
    assert desk.asked == []


async def test_a_rejection_is_recorded_as_the_agents(desk: Desk) -> None:
    await desk.greet()
    assert (await desk.call("reject_call", id=desk.id, reason="odd"))["isError"] is False
    assert desk.decided == ("rejected", "the agent through claude-code", "odd")


async def test_a_client_without_a_handshake_is_asked_by_the_answer(desk: Desk) -> None:
    asked = await desk.call("approve_call", STATELESS, id=desk.id)
    assert asked["resultType"] == "input_required"
    assert '"to": "eve"' in asked["inputRequests"]["approval"]["params"]["message"]
    assert desk.decided is None
    params = {"name": "approve_call", "arguments": {"id": desk.id}, "_meta": STATELESS}
    made_up = {**params, "requestState": "rollcage1.x", "inputResponses": {"approval": YES}}
    assert (await desk.request("tools/call", made_up))["resultType"] == "input_required"
    state = asked["requestState"]
    other = {**made_up, "requestState": state, "arguments": {"id": desk.id[:9]}}
    assert (await desk.request("tools/call", other))["resultType"] == "input_required"
    assert desk.decided is None
    result = await desk.request("tools/call", {**made_up, "requestState": state})
    assert result["isError"] is False
    assert desk.decided == ("approved", "bob through newer", "fine")
    await desk.server.rest()  # waits for none of those that were not answered


async def test_a_client_that_is_gone_or_cancels_approves_nothing(desk: Desk) -> None:
    await desk.greet(elicitation={})
    asked = asyncio.Event()
    taken = desk.take

    async def take(message: Message) -> None:
        await taken(message)
        asked.set()

    call = as_request(7, "tools/call", {"name": "approve_call", "arguments": {"id": desk.id}})
    await desk.server.take(call, take)
    await asyncio.wait_for(asked.wait(), 20)
    await desk.server.take(as_notification("notifications/cancelled", {"requestId": 7}), take)
    await desk.server.rest()
    await desk.server.take(call, take)  # and nobody is there any more
    await desk.server.rest()
    assert len(desk.asked) == 1
    assert desk.decided is None


# --- resolutions ---------------------------------------------------------------------------------

LOST: list[str] = []


@tool(effect="write", once="mcp wire {to}", secret=["pin"])
def mcp_wire(to: str, pin: str = "0000") -> str:
    """Send money; nobody knows whether it went."""
    LOST.append(to)
    raise ConnectionResetError("the line is dead")


def lose(folder: str) -> str:
    """Make a call of unknown outcome; return its run."""
    LOST.clear()
    with pytest.raises(UnknownOutcome), Session("wires", store=folder) as session:
        mcp_wire("eve\u202e", pin="4711")
    return session.run_id


def step_of(folder: str, run: str, number: int = 1) -> Step:
    found = read_run(trace_of(folder, run)).step(number)
    assert found is not None
    return found


async def test_a_model_resolves_nothing_where_the_client_has_no_dialog(desk: Desk) -> None:
    """The call by which a model let a lost payment be made again, under the user's name."""
    run = lose(desk.folder)
    await desk.greet()
    result = await desk.call("resolve_step", run=run, step=1, happened=False)
    assert result["isError"] is True
    assert "no dialog" in text(result)
    assert f"rollcage resolve {run} 1 --store" in text(result)
    assert text(result).endswith("--did-not-happen` in a terminal")
    assert step_of(desk.folder, run).state == "unknown"
    with pytest.raises(UnknownOutcome), Session("wires", store=desk.folder):
        mcp_wire("eve\u202e", pin="4711")
    assert (LOST, desk.asked) == (["eve\u202e"], [])


@pytest.mark.parametrize("says", [
    {"result": NO},
    {"result": {"action": "decline"}},
    {"result": {"action": "accept", "content": {"decision": True}}},
    {"error": {"code": -32601, "message": "no such method"}},
])  # fmt: skip
async def test_all_but_a_clear_yes_resolves_nothing(desk: Desk, says: Any) -> None:
    run = lose(desk.folder)
    await desk.greet(elicitation={})
    desk.says = lambda: dict(says)
    result = await desk.call("resolve_step", run=run, step=1, happened=False)
    assert result["isError"] is True
    assert step_of(desk.folder, run).state == "unknown"
    assert len(desk.asked) == 1


async def test_the_person_at_the_client_says_that_it_did_not_happen(desk: Desk) -> None:
    run = lose(desk.folder)
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    result = await desk.call("resolve_step", run="@wires", step=1, happened=False)
    assert result["isError"] is False, text(result)
    shown = desk.shown
    for said in (
        "a call did not happen", f"Run {run}, job wires, step 1: mcp_wire", '"to": "eve\\u202e"',
        "runs again when its program asks for it", "effect key mcp wire eve~",
    ):  # fmt: skip
        assert said in shown
    assert "4711" not in shown
    found = step_of(desk.folder, run)
    assert (found.state, found.resolved_by) == ("not_started", "bob through claude-code")


async def test_the_person_at_the_client_confirms_a_result(desk: Desk) -> None:
    run = lose(desk.folder)
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    given = '{"sent": "\u202eno"}'
    result = await desk.call("resolve_step", run=run, step=1, happened=True, result=given)
    assert result["isError"] is False, text(result)
    for said in ("a call happened", "does not run again", '"sent": "\\u202eno"'):
        assert said in desk.shown
    found = step_of(desk.folder, run)
    assert (found.state, found.resolved_by) == ("ran", "bob through claude-code")
    assert (found.outcome or {})["value"] == {"sent": "\u202eno"}


@pytest.mark.parametrize(("arguments", "said"), [
    ({"step": 7, "happened": False}, "has no step 7"),
    ({"step": 1, "happened": False, "result": "1"}, "has no result"),
    ({"step": 1, "happened": True, "result": "{"}, "not JSON"),
    ({"step": 1, "happened": True, "run": "@nothing"}, "no run is named"),
])  # fmt: skip
async def test_nobody_is_asked_about_a_statement_that_cannot_be_made(
    desk: Desk, arguments: dict[str, Any], said: str
) -> None:
    run = lose(desk.folder)
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    result = await desk.call("resolve_step", **{"run": run, **arguments})
    assert said in text(result)
    assert (result["isError"], desk.asked) == (True, [])


async def test_nobody_is_asked_about_a_known_outcome(desk: Desk) -> None:
    await desk.greet(elicitation={})
    with Session("paid", store=desk.folder) as session:
        mcp_pay("ann")
    result = await desk.call("resolve_step", run=session.run_id, step=1, happened=False)
    assert "nothing to resolve" in text(result)
    assert (result["isError"], desk.asked) == (True, [])


# --- undos ---------------------------------------------------------------------------------------

NOTES = """
from pathlib import Path
from rollcage import compensate, tool

@tool(effect="write")
def mcp_unnote(text: str) -> None:
    Path(text).unlink()

@tool(effect="write", undo=lambda args: [compensate(mcp_unnote, text=args["text"])])
def mcp_note(text: str) -> None:
    Path(text).write_text("")
"""


@pytest.fixture
def noted(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write three notes, as files of the working directory; give the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mcp_notes.py").write_text(NOTES)
    served = ops_tools(SCOPES, store=desk.folder, by="bob", tools=["mcp_notes"])
    desk.server = ToolServer("ops", served)
    notes = importlib.import_module("mcp_notes")
    with Session("notes", store=desk.folder) as session:
        for each in ("a", "b", "c"):
            notes.mcp_note(each)
    yield session.run_id
    sys.modules.pop("mcp_notes", None)


def there() -> str:
    """The notes that are there."""
    return "".join(each for each in "abc" if Path(each).exists())


async def test_a_model_undoes_nothing_where_the_client_has_no_dialog(
    desk: Desk, noted: str
) -> None:
    await desk.greet()
    planned = await desk.call("plan_undo", run="@notes")
    assert planned["isError"] is False
    result = await desk.call("undo_run", run="@notes", to=1)
    assert result["isError"] is True
    assert "no dialog" in text(result)
    assert f"`rollcage undo {noted} --to=1 --store" in text(result)
    assert (there(), step_of(desk.folder, noted, 2).undone) == ("abc", None)


@pytest.mark.parametrize("says", [{"result": NO}, {"result": {"action": "cancel"}}])
async def test_an_undo_that_nobody_confirms_is_not_begun(desk: Desk, noted: str, says: Any) -> None:
    await desk.greet(elicitation={})
    desk.says = lambda: dict(says)
    result = await desk.call("undo_run", run=noted)
    assert "did not confirm" in text(result)
    assert (result["isError"], len(desk.asked), there()) == (True, 1, "abc")


async def test_the_person_at_the_client_sees_the_plan_and_confirms_it(
    desk: Desk, noted: str
) -> None:
    await desk.greet(elicitation={})
    desk.says = lambda: {"result": YES}
    result = await desk.call("undo_run", run="@notes", to=1)
    assert result["isError"] is False, text(result)
    for said in (
        f"undo run {noted}, all steps after step 1",
        'step 3, mcp_note {"text": "c"}: reversible',
        'by mcp_unnote {"text": "b"}',
        "key of an undone effect that happens once is free",
    ):
        assert said in desk.shown
    assert there() == "a"
    nothing = await desk.call("undo_run", run="@notes", to=1)
    assert (nothing["isError"], len(desk.asked)) == (False, 1)  # and nobody is asked


async def test_an_undo_does_what_was_confirmed_and_nothing_else(desk: Desk, noted: str) -> None:
    await desk.greet(elicitation={})

    def says() -> dict[str, Any]:
        notes: Any = sys.modules["mcp_notes"]
        undo_run(desk.folder, noted, to=2, tools=[notes.mcp_note, notes.mcp_unnote])
        return {"result": YES}

    desk.says = says
    result = await desk.call("undo_run", run="@notes")
    assert (result["isError"], "expected digest" in text(result)) == (True, True)
    assert there() == "ab"
