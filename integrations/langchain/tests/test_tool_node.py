"""A plain `ToolNode`, guarded by its wrappers."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel
from rollcage import ApprovalRequired, StepView, Verdict
from rollcage_langchain import guard_tools, tool_node_wrappers

Ask = Callable[[Any, Any], Any]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Ask a graph, in both ways."""
    if request.param == "sync":
        return lambda graph, state: graph.invoke(state)
    return lambda graph, state: asyncio.run(graph.ainvoke(state))


def calls(*names: str, id: str | None = None) -> AIMessage:  # noqa: A002 - as a message has it
    """A message that calls tools without arguments."""
    return AIMessage(
        "",
        id=id,
        tool_calls=[
            {"name": name, "args": {}, "id": f"call-{i}", "type": "tool_call"}
            for i, name in enumerate(names)
        ],
    )


def graph_of(node: ToolNode) -> Any:
    """A graph that is this node only."""
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile()


def plain_graph() -> Any:
    """A graph to be, whose state is a dict."""
    schema: Any = dict
    return StateGraph(schema)


def polling() -> StructuredTool:
    """A tool whose every execution gives the next number."""
    numbers = itertools.count()

    def poll() -> str:
        """Poll."""
        return f"answer {next(numbers)}"

    return StructuredTool.from_function(poll)


def answers(messages: Any) -> list[str]:
    """What the tools answered."""
    return [str(m.content) for m in messages if isinstance(m, ToolMessage)]


def test_identical_calls_keep_their_slots(lab: Any, ask: Ask) -> None:
    texts = []
    for replay in ("auto", "offline", "offline"):
        with lab.session(replay=replay) as session:
            node = ToolNode(guard_tools([polling()], session), **tool_node_wrappers(session))
            state = ask(graph_of(node), {"messages": [calls(*["poll"] * 4)]})
            texts.append(answers(state["messages"]))
    assert sorted(texts[0]) == [f"answer {i}" for i in range(4)]
    assert texts[1] == texts[2] == texts[0]


def test_tools_that_nobody_guarded_are_guarded(lab: Any, ask: Ask) -> None:
    seen: list[StepView] = []
    with lab.session(gate=[seen.append]) as session:
        wrappers = tool_node_wrappers(
            session, effects={"poll": "read"}, contracts={"poll": {"risk": "low"}}
        )
        ask(graph_of(ToolNode([polling()], **wrappers)), {"messages": [calls("poll")]})
    assert [(view.effect, view.contract.risk) for view in seen] == [("read", "low")]


def test_a_denied_call_is_answered_with_an_error(lab: Any, ask: Ask) -> None:
    def no(step: StepView) -> Verdict:
        return Verdict.deny("not today")

    with lab.session(gate=[no]) as session:
        node = ToolNode([polling()], **tool_node_wrappers(session))
        state = ask(graph_of(node), {"messages": [calls("poll")]})
    answer = state["messages"][-1]
    assert (answer.content, answer.status, answer.name) == ("not today", "error", "poll")


def test_a_halted_session_ends_the_graph(lab: Any, ask: Ask) -> None:
    def hold(step: StepView) -> Verdict:
        return Verdict.ask("who said so?")

    session = lab.session(gate=[hold])
    with pytest.raises(ApprovalRequired), session:
        node = ToolNode([polling()], **tool_node_wrappers(session))
        for _ in range(2):
            state = ask(graph_of(node), {"messages": [calls("poll")]})
            assert answers(state["messages"]) == []  # a halt answers no call
    assert session.stats.misses == 0


def test_a_tool_that_the_node_does_not_know_is_langgraphs_to_answer(lab: Any, ask: Ask) -> None:
    with lab.session() as session:
        node = ToolNode([polling()], **tool_node_wrappers(session))
        state = ask(graph_of(node), {"messages": [calls("nobody")]})
    assert "nobody is not a valid tool" in state["messages"][-1].content


@pytest.mark.parametrize("form", ["dict", "list", "model", "own key"])
def test_turns_are_told_from_each_other_in_any_form_of_state(lab: Any, form: str) -> None:
    class State(BaseModel):
        messages: list[Any]

    make: Any = {
        "dict": lambda m: {"messages": m},
        "list": lambda m: m,
        "model": lambda m: State(messages=m),
        "own key": lambda m: {"history": m},
    }[form]
    key: dict[str, Any] = {"messages_key": "history"} if form == "own key" else {}
    texts = []
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            node = ToolNode([polling()], **tool_node_wrappers(session, **key), **key)
            graph = plain_graph()  # a node runs in a graph only
            results: list[Any] = []

            def play(_: Any, node: Any = node, results: list[Any] = results) -> dict[str, Any]:
                ids = (None, None, "given")  # messages without ids are distinguished, too
                messages = [make([calls("poll", "poll", id=each)]) for each in ids]
                results.extend(node.invoke(each) for each in messages)
                return {}

            graph.add_node("play", play)
            graph.add_edge(START, "play")
            graph.compile().invoke({})
            texts.append(
                [answers(r if form == "list" else next(iter(r.values()))) for r in results]
            )
        steps = [e for e in lab.events(session.run_id) if "turn" in e and "slot" in e]
        assert [e["slot"] for e in sorted(steps, key=lambda e: (e["turn"], e["slot"]))] == [
            0,
            1,
        ] * 3
        assert len({e["turn"] for e in steps}) == 3
    assert texts[0] == texts[1]


def test_a_call_outside_of_any_message_is_guarded_as_well(lab: Any) -> None:
    with lab.session() as session:
        node = ToolNode([polling()], **tool_node_wrappers(session))
        graph = plain_graph()
        one = calls("poll").tool_calls
        graph.add_node("play", lambda _: node.invoke(one) and {})
        graph.add_edge(START, "play")
        graph.compile().invoke({})
    assert session.stats.misses == 1


def test_calls_with_the_same_id_come_in_the_order_of_their_arrival(lab: Any) -> None:
    message = calls("poll", "poll")
    for call in message.tool_calls:
        call["id"] = "same"
    with lab.session() as session:
        node = ToolNode([polling()], **tool_node_wrappers(session))
        graph_of(node).invoke({"messages": [message]})
    started = lab.steps(session)
    assert sorted(e["slot"] for e in started) == [0, 1]
