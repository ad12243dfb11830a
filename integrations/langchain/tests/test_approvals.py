"""A rule asks: the graph is interrupted, and goes on with the decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool, Tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command
from rollcage import (
    Approval,
    ApprovalRequest,
    ApprovalRequired,
    Session,
    StepView,
    Verdict,
)
from rollcage_langchain import RollcageMiddleware, guard_tools, tool_node_wrappers

if TYPE_CHECKING:
    from .conftest import Lab

QUESTION: Any = {"messages": [("user", "Go.")]}
CONFIG: Any = {"configurable": {"thread_id": "1"}}
BOTH = [("write", {"text": "safe"}), ("write", {"text": "risky"})]
Invoke = Callable[[Any, Any], Any]


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if step.args.get("text") == "risky" else None


@pytest.fixture(params=["sync", "async"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """Invoke a graph, in both ways."""
    if request.param == "sync":
        return lambda graph, given: graph.invoke(given, CONFIG)
    return lambda graph, given: asyncio.run(graph.ainvoke(given, CONFIG))


def texts(state: Any) -> list[str]:
    return [message.text for message in state["messages"] if message.type == "tool"]


def agent_of(lab: Lab, session: Session, writer: StructuredTool, script: list[Any]) -> Any:
    return create_agent(
        lab.model(script),
        guard_tools([writer], session),
        middleware=[RollcageMiddleware(session, interrupt=True)],
        checkpointer=InMemorySaver(),
    )


def test_an_approved_call_runs_and_its_sibling_ran_once(
    lab: Lab, writer: StructuredTool, written: list[str], invoke: Invoke
) -> None:
    with lab.session(gate=[asks]) as session:
        agent = agent_of(lab, session, writer, [BOTH, "done"])
        paused = invoke(agent, QUESTION)
        (asked,) = paused["__interrupt__"]
        assert asked.value == {
            "type": "tool_approval",
            "tool_call_id": paused["messages"][1].tool_calls[1]["id"],
            "name": "write",
            "args": {"text": "risky"},
            "description": "is that so?",
        }
        assert (written, session.halted) == (["safe"], None)
        state = invoke(agent, Command(resume={"type": "approve", "by": "ann"}))
    assert written == ["safe", "risky"]
    assert state["messages"][-1].text == "done"
    events = lab.events(session.run_id)
    (decided,) = [e for e in events if e["event"] == "decided"]
    began = [e for e in lab.steps(session) if "waits" not in e]
    assert [(e["slot"], e.get("approval")) for e in began] == [(0, None), (1, decided["id"])]
    assert (decided["decision"], decided["by"]) == ("approved", "ann")


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        ({"type": "reject", "message": "not today"}, "not today"),
        ({"type": "reject"}, "the call was not approved"),
        ({"type": "edit"}, "does not say how"),
        ({"type": "edit", "edited_action": {"name": "write", "args": "x"}}, "does not say how"),
        (
            {"type": "edit", "edited_action": {"name": "erase", "args": {"text": "mild"}}},
            "can't be edited to one of another tool",
        ),
        ({"type": "edit", "edited_action": {"args": {}}}, "text: Field required"),
        ({"type": "edit", "edited_action": {"args": {"text": "x", "to": 1}}}, "no argument 'to'"),
        ({"type": "respond"}, "the decision was none of"),
        ("yes", "the decision was none of"),
    ],
)
def test_anything_but_an_approval_refuses(
    lab: Lab, writer: StructuredTool, written: list[str], decision: Any, said: str
) -> None:
    with lab.session(gate=[asks]) as session:
        agent = agent_of(lab, session, writer, [BOTH, "done"])
        agent.invoke(QUESTION, CONFIG)
        state = agent.invoke(Command(resume=decision), CONFIG)
    assert written == ["safe"]
    ran, refused = texts(state)
    assert ran == "wrote safe, number 1"
    assert said in refused


EDITED: Any = {"type": "edit", "edited_action": {"name": "write", "args": {"text": "mild"}}}


@pytest.mark.parametrize(
    ("decision", "answer", "ran"),
    [
        (EDITED, "wrote mild, number 2", ["safe", "mild"]),
        ({"type": "respond", "message": "I did it by hand"}, "I did it by hand", ["safe"]),
    ],
    ids=["edit", "respond"],
)
def test_a_call_may_be_edited_or_answered(
    lab: Lab,
    writer: StructuredTool,
    written: list[str],
    invoke: Invoke,
    decision: Any,
    answer: str,
    ran: list[str],
) -> None:
    with lab.session(gate=[asks]) as session:
        agent = agent_of(lab, session, writer, [BOTH, "done"])
        invoke(agent, QUESTION)
        state = invoke(agent, Command(resume={**decision, "by": "ann"}))
    assert texts(state) == ["wrote safe, number 1", answer]
    assert [m.status for m in state["messages"] if m.type == "tool"] == ["success"] * 2
    assert (written, state["messages"][-1].text) == (ran, "done")
    (said,) = [e for e in lab.events(session.run_id) if e["event"] == "decided"]
    assert (said["decision"], said["by"]) == (f"{decision['type']}ed", "ann")
    with lab.session(gate=[asks], replay="resume") as session:
        again = agent_of(lab, session, writer, [BOTH, "done"]).invoke(QUESTION, CONFIG)
    assert "__interrupt__" not in again  # nobody is asked twice
    assert (texts(again), written) == (texts(state), ran)


def test_what_langgraph_injects_stays_where_a_call_is_edited(lab: Lab) -> None:
    def count(
        text: str, state: Annotated[dict[str, Any], InjectedState], *, times: int = 1
    ) -> tuple[str, int]:
        """Count the messages so far."""
        return f"{text * times} after {len(state['messages'])}", times

    counter = StructuredTool.from_function(count, response_format="content_and_artifact")
    calls = [("count", {"text": "risky", "times": 5})]
    edited: Any = {"type": "edit", "edited_action": {"args": {"text": "ha", "times": "2"}}}
    for decision, answer, artifact in (
        (edited, "haha after 2", 2),
        ({"type": "respond", "message": "many"}, "many", None),
    ):
        with lab.session(gate=[asks], replay="off") as session:
            agent = agent_of(lab, session, counter, [calls, "done"])
            agent.invoke(QUESTION, CONFIG)
            state = agent.invoke(Command(resume=decision), CONFIG)
        assert texts(state) == [answer]
        assert [m.artifact for m in state["messages"] if m.type == "tool"] == [artifact]


def test_a_tool_that_is_called_by_place_is_edited(lab: Lab) -> None:
    single = Tool("shout", lambda text: str(text).upper(), "Shout.")
    asked: list[ApprovalRequest] = []

    def each(_: StepView) -> Verdict:
        return Verdict.ask("may it?")

    def approver(request: ApprovalRequest) -> Approval:
        asked.append(request)
        (name,) = request.args
        return (
            Approval.edit({name: "ho"}, by="ann")
            if len(asked) == 1
            else Approval.respond("no", by="ann")
        )

    with lab.session(gate=[each], approver=approver) as session:
        (shout,) = guard_tools([single], session)
        assert shout.invoke("hi") == "HO"
        assert shout.invoke("hi") == "no"


def test_two_at_once_are_decided_one_by_one(
    lab: Lab, writer: StructuredTool, written: list[str], invoke: Invoke
) -> None:
    def each(step: StepView) -> Verdict | None:
        return Verdict.ask(str(step.args["text"]))

    with lab.session(gate=[each]) as session:
        agent = agent_of(lab, session, writer, [BOTH, "done"])
        paused = invoke(agent, QUESTION)
        decisions = {
            asked.id: {"type": "approve" if asked.value["description"] == "risky" else "reject"}
            for asked in paused["__interrupt__"]
        }
        assert len(decisions) == 2
        invoke(agent, Command(resume=decisions))
    assert written == ["risky"]


def test_a_plain_tool_node_runs_no_sibling_again(
    lab: Lab, writer: StructuredTool, written: list[str], invoke: Invoke
) -> None:
    message = AIMessage(
        "",
        id="m1",
        tool_calls=[
            {"name": name, "args": args, "id": f"c{i}"} for i, (name, args) in enumerate(BOTH)
        ],
    )
    with lab.session(gate=[asks]) as session:
        wrappers = tool_node_wrappers(session, interrupt=True)
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode(guard_tools([writer], session), **wrappers))
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        node = graph.compile(checkpointer=InMemorySaver())
        invoke(node, {"messages": [message]})
        assert written == ["safe"]
        state = invoke(node, Command(resume={"type": "approve"}))
    assert written == ["safe", "risky"]
    assert texts(state) == ["wrote safe, number 1", "wrote risky, number 2"]
    assert session.stats.misses == 2


def test_the_sessions_approver_is_asked_where_the_graph_is_not(
    lab: Lab, writer: StructuredTool, written: list[str]
) -> None:
    settings: dict[str, Any] = {"gate": [asks], "approver": lambda _: Approval(True, by="bob")}
    ran = lab.run([writer], [BOTH, "done"], **settings)
    assert ran.error is None
    assert sorted(written) == ["risky", "safe"]


def test_with_nobody_to_ask_the_agent_ends(
    lab: Lab, writer: StructuredTool, written: list[str]
) -> None:
    ran = lab.run([writer], [[("write", {"text": "risky"})], "done"], gate=[asks])
    assert isinstance(ran.error, ApprovalRequired)
    assert (written, len(ran.model.seen)) == ([], 1)
