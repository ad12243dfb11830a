"""Agents whose tools nobody guards, in a session that lets none of them run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import AgentId, CancellationToken, FunctionCall, SingleThreadedAgentRuntime
from autogen_core.tool_agent import ToolAgent, ToolException
from autogen_core.tools import (
    BaseStreamTool,
    BaseTool,
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolOverride,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel
from rollcage import Blocked, Session, tool
from rollcage_autogen import RollcageWorkbench, as_tools, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

SCRIPT: list[Any] = [[("send", {"text": "a"})], "end"]


class Text(BaseModel):
    text: str


class Said(BaseModel):
    said: str


class Outside:
    """What a bare tool did, and in which forms an agent may have it."""

    def __init__(self) -> None:
        self.sent: list[str] = []

        def send(text: str) -> str:
            """Send a text."""
            self.sent.append(text)
            return "sent"

        self.function = send
        self.tool = FunctionTool(send, description="Send a text.")

    def given(self, form: str) -> dict[str, Any]:
        """Options of an agent."""
        match form:
            case "tools":
                return {"tools": [self.tool]}
            case "static":
                return {"workbench": StaticWorkbench([self.tool])}
            case "overridden":
                inner = FunctionTool(self.function, name="inner", description="Send a text.")
                renamed = {"inner": ToolOverride(name="send")}
                return {"workbench": StaticWorkbench([inner], renamed)}
            case _:
                return {"workbench": Remote(self.sent)}


class Remote(Workbench):
    """A workbench that lists its tools itself, as that of an MCP server does."""

    component_config_schema = None

    def __init__(self, sent: list[str]) -> None:
        self.sent = sent

    async def list_tools(self) -> list[ToolSchema]:
        return [ToolSchema(name="send", description="Send a text.")]

    async def call_tool(self, name: str, arguments: Any = None, *_: Any, **__: Any) -> ToolResult:
        self.sent.append(arguments["text"])
        return ToolResult(name=name, result=[TextResultContent(content="sent")])

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reset(self) -> None: ...

    async def save_state(self) -> dict[str, Any]:
        return {}

    async def load_state(self, state: Any) -> None: ...

    def _to_config(self) -> Any: ...

    @classmethod
    def _from_config(cls, config: Any) -> Any: ...


@pytest.fixture
def outside() -> Outside:
    return Outside()


def refused(lab: Lab, session: Session) -> list[tuple[str, Any, str]]:
    lines = [e for e in lab.lines(session) if e["event"] == "refused"]
    return [(line["name"], line["args"], line["verdict"]["code"]) for line in lines]


REFUSED = [("send", {"text": "a"}, "unguarded")]


@pytest.mark.parametrize("form", ["tools", "static", "overridden", "remote"])
async def test_an_agent_that_nobody_guards_runs_no_tool(
    lab: Lab, within: Any, results: Any, outside: Outside, form: str
) -> None:
    async with lab.session(unguarded="refuse") as session:
        agent = lab.agent(lab.client(*SCRIPT), **outside.given(form))
        ended = await within(agent.run(task="Go."))
    ((text, is_error),) = results(ended)
    assert is_error
    assert "pass" in text.lower()
    assert (outside.sent, refused(lab, session)) == ([], REFUSED)
    # It is for such a session only, and only while that is open.
    async with lab.session(replay="off"):
        await within(lab.agent(lab.client(*SCRIPT), **outside.given(form)).run(task="Go."))
    await within(lab.agent(lab.client(*SCRIPT), **outside.given(form)).run(task="Go."))
    assert outside.sent == ["a", "a"]


async def test_one_that_is_handed_the_conversation_runs_none(
    lab: Lab, within: Any, outside: Outside
) -> None:
    async with lab.session(unguarded="refuse") as session:
        look = FunctionTool(lambda: "seen", name="look", description="Look.")
        first = lab.agent(
            lab.client([("look", {})], [("transfer_to_second", {})]), session, name="first",
            handoffs=["second"], tools=guard_tools([look], session),
        )  # fmt: skip
        script = [*SCRIPT, *["end"] * 8]
        second = lab.agent(lab.client(*script), name="second", **outside.given("tools"))
        team = Swarm([first, second], termination_condition=MaxMessageTermination(8))
        await within(team.run(task="Go."))
    assert (outside.sent, refused(lab, session)) == ([], REFUSED)
    assert [step["name"] for step in lab.steps(session)] == ["look"]


async def test_tools_that_come_between_a_question_and_its_calls_do_not_run(
    lab: Lab, within: Any, results: Any, outside: Outside
) -> None:
    bench = StaticStreamWorkbench([])

    client: Any = lab.client(*SCRIPT)
    answer = client.answer

    def late(*args: Any) -> Any:
        bench._tools.append(outside.tool)
        return answer(*args)

    client.answer = late

    async with lab.session(unguarded="refuse") as session:
        agent = lab.agent(client, session, workbench=bench, max_tool_iterations=1)
        ended = await within(agent.run(task="Go."))
    assert results(ended)[0][1]
    assert (outside.sent, refused(lab, session)) == ([], REFUSED)


async def test_guarded_and_declared_tools_run_beside_bare_ones(
    lab: Lab, within: Any, results: Any, outside: Outside
) -> None:
    def keep(text: str) -> str:
        outside.sent.append(f"kept {text}")
        return "kept"

    declared = tool(name="note")(keep)
    script: list[Any] = [[*SCRIPT[0], ("keep", {"text": "b"}), ("note", {"text": "c"})], "end"]

    async def run(session: Session) -> Any:
        guarded = guard_tools([FunctionTool(keep, description="Keep.")], session)
        tools: Any = [outside.tool, *guarded, *as_tools([declared])]
        return await within(lab.agent(lab.client(*script), tools=tools).run(task="Go."))

    async with lab.session(unguarded="refuse") as session:
        with pytest.raises(Exception, match="no session guards"):  # one of its tools is guarded
            await run(session)
    async with lab.session(unguarded="refuse", replay="off") as session:
        agents = [
            lab.agent(
                lab.client(*script),
                workbench=[
                    StaticWorkbench([outside.tool]),
                    RollcageWorkbench(
                        StaticWorkbench([FunctionTool(keep, description="Keep.")]), session
                    ),
                    StaticWorkbench([*as_tools([declared])]),
                ],
            )
        ]
        with pytest.raises(Exception, match="no session guards"):
            await within(agents[0].run(task="Go."))
    assert outside.sent == []
    async with lab.session(unguarded="refuse", replay="off") as session:
        whole = lab.agent(lab.client([("note", {"text": "c"})], "end"), tools=as_tools([declared]))
        ended = await within(whole.run(task="Go."))
    assert (results(ended), outside.sent) == ([("kept", False)], ["kept c"])
    assert [step["name"] for step in lab.steps(session)] == ["note"]


@pytest.mark.parametrize("effect", ["scope", "write"])
async def test_an_agent_as_a_tool_acts_through_guarded_calls_only(
    lab: Lab, within: Any, outside: Outside, effect: Any
) -> None:
    async with lab.session(unguarded="refuse") as session:
        inner = lab.agent(lab.client(*SCRIPT), name="inner", **outside.given("tools"))
        tools = guard_tools([AgentTool(inner)], session, effects={"inner": effect})
        agent = lab.agent(lab.client([("inner", {"task": "Go."})], "end"), tools=tools)
        await within(agent.run(task="Go."))
    assert outside.sent == ([] if effect == "scope" else ["a"])
    assert refused(lab, session) == (REFUSED if effect == "scope" else [])


async def test_a_team_in_a_thread_of_its_own_runs_none(lab: Lab, outside: Outside) -> None:
    async with lab.session(unguarded="refuse") as session:

        def run() -> None:
            agent = lab.agent(lab.client(*SCRIPT), **outside.given("tools"))
            asyncio.run(RoundRobinGroupChat([agent], max_turns=1).run(task="Go."))

        thread = threading.Thread(target=run)  # it knows no session
        thread.start()
        await asyncio.to_thread(thread.join)
    assert (outside.sent, refused(lab, session)) == ([], REFUSED)


async def test_a_session_inside_of_one_that_refuses_refuses_too(
    lab: Lab, within: Any, outside: Outside
) -> None:
    async with lab.session(unguarded="refuse") as session, lab.session("inner", inner=True):
        agent = lab.agent(lab.client(*SCRIPT), **outside.given("tools"))
        await within(agent.run(task="Go."))
    assert (outside.sent, refused(lab, session)) == ([], REFUSED)


async def test_a_refused_call_is_in_no_way_of_a_resume(
    lab: Lab, within: Any, results: Any, outside: Outside
) -> None:
    script = [[("send", {"text": "b"})], *SCRIPT]

    async def run(session: Session, *, guarded: bool) -> Any:
        async with session:
            agents = [
                lab.agent(lab.client(*part), tools=tools)
                for part, tools in (
                    ([script[0], "end"], guard_tools([outside.tool], session)),
                    (SCRIPT, guard_tools([outside.tool], session) if guarded else [outside.tool]),
                )
            ]
            return [results(await within(each.run(task="Go."))) for each in agents]

    first = lab.session(unguarded="refuse")
    assert [[error for _, error in each] for each in await run(first, guarded=False)] == [
        [False], [True],
    ]  # fmt: skip
    again = lab.session(unguarded="refuse", replay="continue")
    await run(again, guarded=True)
    assert (outside.sent, again.stats.hits, again.run_id) == (["b", "a"], 1, first.run_id)


class Later(BaseTool[Text, Said]):
    """A tool with a method of its own for calls, of a class that is made after the import."""

    def __init__(self, sent: list[str]) -> None:
        super().__init__(Text, Said, "send", "Send a text.")
        self.sent = sent

    async def run(self, args: Text, cancellation_token: CancellationToken) -> Said:
        self.sent.append(args.text)
        return Said(said="sent")

    async def run_json(self, args: Any, *_: Any, **__: Any) -> Any:
        return await self.run(Text.model_validate(args), CancellationToken())


BY_HAND = ["ToolAgent", "run_json", "run", "own run_json", "static", "stream", "remote"]


async def by_hand(form: str, outside: Outside) -> str:
    """Call a bare tool as code does that is no agent; what it hears."""
    token, given = CancellationToken(), {"text": "a"}
    try:
        match form:
            case "ToolAgent":
                runtime = SingleThreadedAgentRuntime()
                await ToolAgent.register(runtime, "tools", lambda: ToolAgent("", [outside.tool]))
                runtime.start()
                try:
                    call = FunctionCall(id="1", name="send", arguments='{"text": "a"}')
                    answer = await runtime.send_message(call, AgentId("tools", "default"))
                finally:
                    await runtime.stop()
                return str(answer.content)
            case "run_json":
                return str(await outside.tool.run_json(given, token, call_id="1"))
            case "run":
                return str(await outside.tool.run(outside.tool.args_type()(text="a"), token))
            case "own run_json":
                return str(await Later(outside.sent).run_json(given, token))
            case "stream":
                bench = StaticStreamWorkbench([outside.tool])
                told = [each async for each in bench.call_tool_stream("send", given)]
                return str(told[-1].to_text())
            case _:
                result = await outside.given(form)["workbench"].call_tool("send", given)
                return str(result.to_text())
    except (Blocked, ToolException) as error:
        return str(getattr(error, "content", error))


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("form", BY_HAND)
async def test_a_bare_tool_that_is_called_by_hand_does_not_run(
    lab: Lab, outside: Outside, form: str, thread: bool
) -> None:
    heard: list[str] = []

    def in_thread() -> None:
        heard.append(asyncio.run(by_hand(form, outside)))

    async with lab.session(unguarded="refuse", gate=[lambda step: None]) as session:
        if thread:  # it knows no session
            running = threading.Thread(target=in_thread)
            running.start()
            await asyncio.to_thread(running.join)
        else:
            heard.append(await by_hand(form, outside))
    assert "send is not guarded" in heard[0]
    assert (outside.sent, refused(lab, session)) == ([], REFUSED)
    async with lab.session(replay="off"):
        await by_hand(form, outside)
    await by_hand(form, outside)
    assert outside.sent == ["a", "a"]


@pytest.mark.parametrize("effect", ["write", "scope"])
async def test_guarded_tools_that_are_called_by_hand_run(
    lab: Lab, outside: Outside, effect: Any
) -> None:
    async def run(session: Session) -> list[Any]:
        async with session:
            effects = {"send": effect}
            (whole,) = guard_tools([outside.tool], session, effects=effects)
            (own,) = guard_tools([Later(outside.sent)], session, effects=effects)
            remote = RollcageWorkbench(Remote(outside.sent), session, effects=effects)
            static = RollcageWorkbench(StaticWorkbench([outside.tool]), session, effects=effects)
            given, token = {"text": "a"}, CancellationToken()
            return [
                await whole.run_json(given, token),
                await own.run_json(given, token),
                (await remote.call_tool("send", given)).to_text(),
                (await static.call_tool("send", given)).to_text(),
            ]

    first = lab.session(unguarded="refuse")
    given = await run(first)
    assert (outside.sent, refused(lab, first)) == (["a"] * 4, [])
    assert given == ["sent", Said(said="sent"), "sent", "sent"]
    assert await run(lab.session(unguarded="refuse", replay="offline")) == given
    assert outside.sent == ["a"] * 4


def test_how_tools_and_workbenches_are_called() -> None:
    """Facts about AutoGen that `bare.py` depends on, and that each method is replaced once."""
    methods: list[Any] = [
        BaseTool.run_json, FunctionTool.run, BaseStreamTool.run_json_stream,
        StaticWorkbench.call_tool, StaticStreamWorkbench.call_tool_stream,
    ]  # fmt: skip
    for method in methods:
        assert not hasattr(method.__wrapped__, "__wrapped__")
    handoff: Any = Handoff(target="b").handoff_tool
    function = handoff._func
    assert function.__module__ == "autogen_agentchat.base._handoff"
