"""Any workbench can be guarded: a static one, an MCP server's, one of somebody's own."""

import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import Swarm
from autogen_core import CancellationToken, FunctionCall, Image
from autogen_core.models import CreateResult, RequestUsage
from autogen_core.tools import (
    FunctionTool,
    ImageResultContent,
    ParametersSchema,
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolOverride,
    ToolResult,
    ToolSchema,
    Workbench,
)
from PIL import Image as Pictures
from pydantic import BaseModel
from rollcage import (
    Blocked,
    Contract,
    ContractError,
    Halt,
    SessionHalted,
    UnknownOutcome,
    Verdict,
)
from rollcage_autogen import RollcageWorkbench, guard_tools

PARAMETERS: ParametersSchema = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "often": {"type": "integer", "default": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
SCHEMA: ToolSchema = {
    "name": "send",
    "description": "Send a text.",
    "parameters": PARAMETERS,
}


class Bench(Workbench):
    """A workbench of somebody's own, with a tool that sends."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], Any] | None = None) -> None:
        self.sent: list[Any] = []
        self.heard: list[str] = []
        self.broken = False
        self._answer = answer

    async def list_tools(self) -> list[ToolSchema]:
        if self.broken:
            raise ConnectionError("the server is gone")
        return [SCHEMA]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        self.sent.append(arguments)
        if self._answer is not None:
            given: ToolResult = self._answer(arguments or {})
            return given
        return _text(f"sent {len(self.sent)}")

    async def start(self) -> None:
        self.heard.append("start")

    async def stop(self) -> None:
        self.heard.append("stop")

    async def reset(self) -> None:
        self.heard.append("reset")

    async def save_state(self) -> Mapping[str, Any]:
        return {"heard": list(self.heard)}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        self.heard = list(state["heard"])


class StreamingBench(Bench):
    """The same, which tells on the way."""

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        yield "on the way"
        yield await self.call_tool(name, arguments, cancellation_token, call_id)


def _text(text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult(name="send", result=[TextResultContent(content=text)], is_error=is_error)


def add(x: int, y: int = 2) -> list[int]:
    """Add two numbers."""
    return [x + y]


# --- static workbenches --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StaticWorkbench, StaticStreamWorkbench])
async def test_tools_of_a_static_workbench_are_guarded_at_their_bodies(
    lab: Any, kind: type[StaticWorkbench]
) -> None:
    inner = kind([FunctionTool(add, "Adds.")])
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            bench = RollcageWorkbench(inner, session, effects={"add": "pure"})
            assert await bench.list_tools() == await inner.list_tools()
            for result in (
                await bench.call_tool("add", {"x": "1"}, call_id="c"),
                [each async for each in bench.call_tool_stream("add", {"x": "1"})][-1],
            ):
                assert result == await inner.call_tool("add", {"x": "1"})
        step = lab.steps(session)[0]
        assert (step["args"], step["effect"], step["call_id"]) == ({"x": 1, "y": 2}, "pure", "c")
        assert step["outcome"]["value"] == [3]


async def test_a_tool_keeps_its_own_name_under_an_override(lab: Any) -> None:
    inner = StaticWorkbench(
        [FunctionTool(add, "Adds.")], {"add": ToolOverride(name="plus", description="Plus.")}
    )
    with lab.session() as session:
        bench = RollcageWorkbench(inner, session)
        assert (await bench.call_tool("plus", {"x": 1})).to_text() == "[3]"
        assert [tool["name"] for tool in await bench.list_tools()] == ["plus"]
    assert lab.steps(session)[0]["name"] == "add"


async def test_tools_that_are_guarded_already_stay_so(lab: Any) -> None:
    with lab.session() as session:
        inner = StaticWorkbench([*guard_tools([FunctionTool(add, "")], session)])
        await RollcageWorkbench(inner, session).call_tool("add", {"x": 1})
        assert session.stats.calls == 1


async def test_the_state_of_its_tools_is_kept(lab: Any) -> None:
    inner = StaticWorkbench([FunctionTool(add, "")])
    with lab.session() as session:
        bench = RollcageWorkbench(inner, session)
        async with bench:
            state = await bench.save_state()
            await bench.load_state(state)
            await bench.reset()
    assert state == await inner.save_state()


def test_what_can_not_be_guarded_is_refused(lab: Any) -> None:
    wrong: Any = [FunctionTool(add, "")]
    with lab.session() as session:
        with pytest.raises(ContractError, match="guard_tools"):
            RollcageWorkbench(wrong, session)
        with pytest.raises(ContractError, match="effects= names other"):
            RollcageWorkbench(StaticWorkbench([]), session, effects={"other": "read"})


def test_a_guarded_workbench_is_no_configuration(lab: Any) -> None:
    with lab.session() as session:
        bench = RollcageWorkbench(StaticWorkbench([]), session)
        with pytest.raises(ContractError, match="dump the workbench inside"):
            bench.dump_component()


# --- a workbench of somebody's own ---------------------------------------------------------------


async def test_an_own_workbench_is_recorded_by_its_results(lab: Any) -> None:
    inner = Bench()
    call = {"text": "a"}
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            bench = RollcageWorkbench(inner, session)
            assert await bench.list_tools() == [SCHEMA]
            assert (await bench.call_tool("send", call)).to_text() == "sent 1"
            assert (await bench.call_tool("send", call, call_id="x")).to_text() == "sent 2"
        first = lab.steps(session)[0]
        assert first["args"] == {"text": "a", "often": 1}  # with the schema's default
        assert first["outcome"]["value"]["type"] == "autogen.tool_result"
    assert inner.sent == [call, call]


async def test_what_is_declared_of_an_own_workbench_is_checked_when_it_lists(lab: Any) -> None:
    with lab.session() as session:
        bench = RollcageWorkbench(Bench(), session, effects={"sent": "read"})
        with pytest.raises(ContractError, match="effects= names sent; the tools are: send"):
            await bench.list_tools()
        bench = RollcageWorkbench(
            Bench(), session, contracts={"send": {"version": "3", "secret": "text"}}
        )
        await bench.call_tool("send", {"text": "hunter2"})
    assert lab.steps(session)[0]["version"] == "3"
    assert "hunter2" not in repr(lab.lines(session))


async def test_an_unknown_tool_is_an_error_result(lab: Any) -> None:
    with lab.session() as session:
        for inner in (Bench(), StreamingBench(), StaticStreamWorkbench([])):
            bench = RollcageWorkbench(inner, session)
            (streamed,) = [each async for each in bench.call_tool_stream("other", {})]
            for result in (await bench.call_tool("other", {}), streamed):
                assert (result.to_text(), result.is_error) == ("Tool other not found.", True)


async def test_an_error_result_is_recorded_as_an_error(lab: Any) -> None:
    reads: Any = {"effects": {"send": "read"}}
    inner = Bench(lambda _: _text("no route", is_error=True))
    with lab.session() as session:
        result = await RollcageWorkbench(inner, session, **reads).call_tool("send", {"text": "a"})
        assert result == _text("no route", is_error=True)
    assert lab.steps(session)[0]["outcome"]["status"] == "error"
    with lab.session(replay="offline") as session:
        again = await RollcageWorkbench(inner, session, **reads).call_tool("send", {"text": "a"})
        assert again == result
    with lab.session(replay="resume") as session:  # the last failure runs again
        await RollcageWorkbench(inner, session, **reads).call_tool("send", {"text": "a"})
    assert len(inner.sent) == 2


async def test_pictures_come_back(lab: Any) -> None:
    picture = Image(Pictures.new("RGB", (2, 1), "red"))
    given = ToolResult(
        name="send",
        result=[TextResultContent(content="see"), ImageResultContent(content=picture)],
    )
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            bench = RollcageWorkbench(Bench(lambda _: given), session)
            result = await bench.call_tool("send", {"text": "a"})
            assert result.to_text() == given.to_text()


async def test_a_stream_is_recorded_in_its_pieces(lab: Any) -> None:
    inner = StreamingBench()
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            bench = RollcageWorkbench(inner, session)
            pieces = [each async for each in bench.call_tool_stream("send", {"text": "a"})]
            assert pieces == ["on the way", _text("sent 1")]
    with lab.session(replay="offline") as session:
        again = await RollcageWorkbench(inner, session).call_tool("send", {"text": "a"})
        assert again == _text("sent 1")
    with lab.session("plain") as session:
        plain = await RollcageWorkbench(inner, session).call_tool("send", {"text": "b"})
    with lab.session("plain", replay="offline") as session:
        bench = RollcageWorkbench(inner, session)
        assert [e async for e in bench.call_tool_stream("send", {"text": "b"})] == [plain]
    assert len(inner.sent) == 2


async def test_a_stream_that_ends_in_an_error_result(lab: Any) -> None:
    inner = StreamingBench(lambda _: _text("no route", is_error=True))
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            bench = RollcageWorkbench(inner, session)
            pieces = [each async for each in bench.call_tool_stream("send", {"text": "a"})]
        assert pieces[-1] == _text("no route", is_error=True)


class Place(BaseModel):
    city: str


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("some text", "some text"),
        ([1, "a"], "[1, 'a']"),
        ({"a": None}, "{'a': None}"),
        (None, "None"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (Place(city="é"), '{"city":"é"}'),
    ],
)
async def test_what_was_recorded_elsewhere_reads_as_results_do(
    lab: Any, value: Any, text: str
) -> None:
    elsewhere = Contract(name="send", parameters=dict(PARAMETERS), returns=type(value))
    with lab.session() as session:
        session.run_call(elsewhere, {"text": "a"}, lambda **_: value)
    declared = {"send": {"returns": type(value)}}
    with lab.session(replay="offline") as session:
        bench = RollcageWorkbench(Bench(), session, contracts=declared)
        assert (await bench.call_tool("send", {"text": "a"})).to_text() == text


async def test_everything_else_is_left_to_the_workbench(lab: Any) -> None:
    inner = Bench()
    with lab.session() as session:
        async with RollcageWorkbench(inner, session) as bench:
            await bench.reset()
            assert await bench.save_state() == {"heard": ["start", "reset"]}
            await bench.load_state({"heard": ["loaded"]})
    assert inner.heard == ["loaded", "stop"]


async def test_a_listing_that_fails_ends_the_agent_or_is_an_error_result(
    lab: Any, within: Any, results: Any
) -> None:
    inner = Bench(lambda _: _text("sent"))
    with lab.session() as session:
        client = lab.client([("send", {"text": "a"})], "end")
        agent = lab.agent(client, session, workbench=RollcageWorkbench(inner, session))

        def break_it(messages: Any, options: Any) -> Any:
            inner.broken = True
            return type(client).answer(client, messages, options)

        guarded: Any = agent._model_client
        guarded.answer = break_it
        with pytest.raises(ConnectionError):  # at the second question: in the agent's own task
            await within(agent.run(task="Go."))
        assert inner.sent == [{"text": "a"}]  # the call itself was let through


async def test_a_halted_session_ends_an_agent_with_a_plain_model(lab: Any, within: Any) -> None:
    with pytest.raises(Halt):
        async with lab.session() as session:

            def answer(_: Any) -> ToolResult:
                session.halt(Halt("enough"))
                return _text("sent")

            client = lab.client([("send", {"text": "a"})], "end")
            agent = lab.agent(client, workbench=RollcageWorkbench(Bench(answer), session))
            with pytest.raises(SessionHalted):
                await within(agent.run(task="Go."))
            assert len(client.asked) == 1


async def test_parallel_calls_are_one_turn_with_a_plain_model_too(lab: Any) -> None:
    with lab.session() as session:
        calls = [("send", {"text": "a"}), ("send", {"text": "a"})]
        agent = lab.agent(
            lab.client(calls, calls, "end"), workbench=RollcageWorkbench(Bench(), session)
        )
        await agent.run(task="Go.")
    steps = lab.steps(session)
    assert [step["slot"] for step in steps] == [0, 1, 0, 1]
    assert len({step["turn"] for step in steps}) == 2


# --- MCP -----------------------------------------------------------------------------------------

SERVER = str(Path(__file__).with_name("mcp_server.py"))


async def test_an_mcp_servers_tools_are_guarded(
    lab: Any, tmp_path: Path, within: Any, results: Any
) -> None:
    from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

    notes = tmp_path / "notes.txt"
    params = StdioServerParams(command=sys.executable, args=[SERVER, str(notes)])
    script = [
        [("note", {"line": "a"}), ("note", {"line": "a", "mark": "*"})],
        [("fail", {"reason": "no ink"}), ("note", {})],
        "end",
    ]
    seen = []
    for replay in ("off", "offline"):
        async with McpWorkbench(params) as mcp, lab.session(replay=replay) as session:
            client = lab.client(*script)
            agent = lab.agent(client, session, workbench=RollcageWorkbench(mcp, session))
            seen.append(results(await within(agent.run(task="Go."))))
            assert len(client.asked) == (3 if replay == "off" else 0)
        listed, *steps = lab.steps(session)
        assert listed["name"] == "mcp:tools/list"
        assert [(s["name"], s["slot"]) for s in steps] == [("note", 0), ("note", 1), ("fail", 0)]
        assert steps[0]["args"] == {"line": "a", "mark": "-"}
    assert seen[0] == seen[1]
    assert seen[0] == [
        ("noted a", False),
        ("noted a", False),
        ("Error executing tool fail: no ink", True),
        ("note: missing argument 'line'", True),
    ]
    assert notes.read_text(encoding="utf-8") == "- a\n* a\n"


@pytest.mark.parametrize("dies", [False, True], ids=["silent", "gone"])
async def test_an_mcp_server_that_does_not_answer_leaves_a_write_unknown(
    lab: Any, tmp_path: Path, within: Any, dies: bool
) -> None:
    from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

    notes = tmp_path / "notes.txt"
    arguments = [SERVER, str(notes)]
    patience = 60 if dies else 8  # seconds, in which it has to start as well
    params = StdioServerParams(
        command=sys.executable, args=arguments, read_timeout_seconds=patience
    )
    script = [[("vanish", {"line": "a", "dies": dies})], [("note", {"line": "b"})], "end"]
    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            async with McpWorkbench(params) as mcp, lab.session() as session:
                bench = RollcageWorkbench(mcp, session)
                await within(
                    lab.agent(lab.client(*script), session, workbench=bench).run(task="Go.")
                )
    assert notes.read_text(encoding="utf-8") == "- a\n"


async def test_mcp_tools_without_a_workbench_give_their_content_back(
    lab: Any, tmp_path: Path, within: Any
) -> None:
    from autogen_ext.tools.mcp import StdioServerParams, mcp_server_tools

    notes = tmp_path / "notes.txt"
    params = StdioServerParams(command=sys.executable, args=[SERVER, str(notes)])
    originals = {tool.name: tool for tool in await within(mcp_server_tools(params))}
    texts = []
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            (note,) = guard_tools([originals["note"]], session)
            given = await within(note.run_json({"line": "a"}, CancellationToken()))
            texts.append(note.return_value_as_string(given))
    assert texts[0] == texts[1]
    assert "noted a" in texts[0]
    assert notes.read_text(encoding="utf-8") == "- a\n"


@pytest.mark.parametrize("how", ["tools", "static", "own"])
async def test_a_call_that_never_came_to_its_tool_is_on_record(
    lab: Any, within: Any, how: str
) -> None:
    sent: list[str] = []

    def send(text: str, often: int = 1) -> str:
        sent.append(text)
        return "sent"

    tool = FunctionTool(send, description="Send a text.")
    script = [
        [("send", {"often": 2}), ("sned", {"text": "b"}), ("send", {"text": "c"})],
        "end",
    ]
    bench = Bench()
    async with lab.session() as session:
        options: Any = {"tools": guard_tools([tool], session)}
        if how != "tools":
            inner = StaticStreamWorkbench([tool]) if how == "static" else bench
            options = {"workbench": RollcageWorkbench(inner, session)}
        await within(lab.agent(lab.client(*script), session, **options).run(task="Go."))
    assert [*sent, *(each["text"] for each in bench.sent)] == ["c"]
    lines = [e for e in lab.lines(session) if e["event"] == "refused"]
    lines.sort(key=lambda e: e["name"])
    assert [(e["name"], e["verdict"]["code"], e["slot"]) for e in lines] == [
        ("send", "arguments_invalid", 0),
        ("sned", "tool_missing", 1),
    ]
    assert [e["args"] for e in lines] == [{"often": 2}, {"text": "b"}]


async def test_arguments_that_are_no_json_are_on_record(lab: Any, within: Any) -> None:
    broken = CreateResult(
        finish_reason="function_calls",
        content=[FunctionCall(id="c1", name="send", arguments='{"text": ')],
        usage=RequestUsage(prompt_tokens=1, completion_tokens=1),
        cached=False,
    )
    async with lab.session() as session:
        bench = RollcageWorkbench(Bench(), session)
        agent = lab.agent(lab.client(broken, "end"), session, workbench=bench)
        await within(agent.run(task="Go."))
    (line,) = [e for e in lab.lines(session) if e["event"] == "refused"]
    assert (line["name"], line["verdict"]["code"]) == ("send", "arguments_invalid")
    assert line["args"] == {"arguments": '{"text": '}


# --- tools that come later -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["given", "inside"])
async def test_a_tool_that_a_static_workbench_gets_later_is_guarded(
    lab: Any, within: Any, where: str
) -> None:
    sent: list[str] = []

    def early(text: str) -> str:
        return "early"

    def late(text: str) -> str:
        sent.append(text)
        return "late"

    given: Any = StaticStreamWorkbench([FunctionTool(early, description="Early.")])
    no_late = lambda step: Verdict.deny("too late") if step.name == "late" else None  # noqa: E731
    for rules in ([no_late], []):
        async with lab.session(gate=rules, replay="off") as session:
            bench = RollcageWorkbench(given, session)
            holder = given if where == "given" else bench._inner
            holder._tools.append(FunctionTool(late, description="Late."))
            client = lab.client([("late", {"text": "x"})], "end")
            await within(lab.agent(client, session, workbench=bench).run(task="Go."))
            given._tools[1:] = []
        assert [step["name"] for step in lab.steps(session)] == ["late"]
        assert sent == ([] if rules else ["x"])


@pytest.mark.parametrize("late", [False, True], ids=["handed off to", "got later"])
async def test_bare_tools_end_their_agent_where_a_session_refuses_them(
    lab: Any, within: Any, late: bool
) -> None:
    sent: list[str] = []

    def send(text: str) -> str:
        sent.append(text)
        return "sent"

    bare = FunctionTool(send, description="Send a text.")
    async with lab.session(unguarded="refuse") as session:
        script = [[("send", {"text": "a"})], "end"]
        if late:
            other = FunctionTool(lambda: "ok", name="other", description="Do nothing.")
            tools: Any = guard_tools([other], session)
            agent: Any = AssistantAgent("clerk", lab.client(*script), tools=tools)
            agent._workbench[0]._tools.insert(0, bare)
            running: Any = agent
        else:
            first = lab.agent(
                lab.client([("transfer_to_second", {})]), session, name="first",
                handoffs=["second"],
            )  # fmt: skip
            second = lab.agent(lab.client(*script), session, name="second", tools=[bare])
            running = Swarm([first, second], termination_condition=MaxMessageTermination(6))
        with pytest.raises((Blocked, RuntimeError), match="no session guards"):
            await within(running.run(task="Go."))
    assert sent == []
    (line,) = [e for e in lab.lines(session) if e["event"] == "refused"]
    assert (line["name"], line["verdict"]["code"]) == ("send", "unguarded")
