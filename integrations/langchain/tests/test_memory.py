"""A graph with a checkpointer goes on by itself: what its checkpoints hold is seen, not lost."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from rollcage import (
    Diverged,
    Halt,
    Options,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    abandon_run,
    compensate,
    tool,
)
from rollcage_langchain import (
    RollcageMiddleware,
    follow_checkpoints,
    guard_model,
    guard_tools,
)
from rollcage_policy import Policy

if TYPE_CHECKING:
    from .conftest import Lab

QUESTION: Any = {"messages": [HumanMessage("Go.", id="question")]}
CONFIG: Any = {"configurable": {"thread_id": "t"}}
Go = Callable[..., Any]


class PowerCutError(Exception):
    """What ends a run in its middle; nothing answers it."""


class Line:
    """What is outside: each write adds to it; it breaks down before one of them."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.cut: str | None = None

    def tools(self) -> list[StructuredTool]:
        """A tool that writes, one that cuts the power, and one that looks."""

        def write(text: str) -> str:
            """Write."""
            self.written.append(text)
            return f"wrote {text}"

        def look(place: str) -> str:
            """Look."""
            if place == self.cut:
                raise PowerCutError
            return f"saw {place}"

        return [StructuredTool.from_function(each) for each in (write, look)]


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def saver() -> InMemorySaver:
    return InMemorySaver()


@pytest.fixture(params=["sync", "async"])
def go(request: pytest.FixtureRequest) -> Go:
    """Let a graph go on, in both ways."""
    if request.param == "sync":
        return lambda graph, given=None, **o: graph.invoke(given, CONFIG, **o)
    return lambda graph, given=None, **o: asyncio.run(graph.ainvoke(given, CONFIG, **o))


def write(*texts: str) -> list[tuple[str, dict[str, Any]]]:
    return [("write", {"text": text}) for text in texts]


def look(place: str) -> list[tuple[str, dict[str, Any]]]:
    return [("look", {"place": place})]


def agent_of(
    lab: Lab, session: Session, line: Line, saver: Any, script: list[Any], **options: Any
) -> Any:
    """An agent whose tools and model are guarded."""
    interrupt = options.pop("interrupt", False)
    middleware = [RollcageMiddleware(session, interrupt=interrupt), *options.pop("middleware", [])]
    return create_agent(
        guard_model(lab.model(script), session),
        guard_tools(line.tools(), session, effects={"look": "read"}),
        middleware=middleware,
        checkpointer=saver,
        **options,
    )


SCRIPT: list[Any] = [write("a", "b"), write("c"), look("x"), write("d"), "done"]


def cut_off(lab: Lab, line: Line, saver: Any, go: Go, **settings: Any) -> Session:
    """A run of `SCRIPT` that ends in its third turn."""
    line.cut = "x"
    session = lab.session(**settings)
    with pytest.raises(PowerCutError), session:
        go(agent_of(lab, session, line, saver, SCRIPT), QUESTION)
    assert sorted(line.written) == ["a", "b", "c"]
    line.cut = None
    return session


def test_what_its_checkpoints_hold_is_seen(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    cut_off(lab, line, saver, go)
    with lab.session() as session:
        state = go(agent_of(lab, session, line, saver, SCRIPT))
    assert state["messages"][-1].text == "done"
    assert sorted(line.written) == ["a", "b", "c", "d"]
    # Three answers of the model and three writes are seen; the look is run, for it had failed.
    assert (session.stats.seen, session.stats.hits, session.stats.misses) == (6, 0, 4)
    events = lab.events(session.run_id)
    steps = {e["step"]: e for e in events if e["event"] == "step"}
    replayed = [span for e in lab.of(session) for span in e.get("replayed", ())]
    seen = [steps[n] for first, last in replayed for n in range(first, last + 1)]
    assert sorted(e["args"]["text"] for e in seen if e["effect"] != "model") == ["a", "b", "c"]
    assert {e["memory"][0] for e in steps.values()} == {"t"}
    assert events[-1]["status"] == "ok"


def test_a_trace_with_seen_steps_is_a_full_source(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    cut_off(lab, line, saver, go)
    with lab.session() as session:
        go(agent_of(lab, session, line, saver, SCRIPT))
    line.written.clear()
    with lab.session(replay="offline") as again:  # and a graph without a memory asks for all
        state = go(agent_of(lab, again, line, InMemorySaver(), SCRIPT), QUESTION)
    assert (line.written, again.stats.misses, again.stats.seen) == ([], 0, 0)
    assert state["messages"][-1].text == "done"


def test_generation_after_generation(lab: Lab, line: Line, saver: InMemorySaver, go: Go) -> None:
    places = ["p", "q", "r"]
    script: list[Any] = [each for p in places for each in (write(f"w{p}"), look(p))] + ["done"]
    given: Any = QUESTION
    for line.cut in places:
        with pytest.raises(PowerCutError), lab.session() as session:
            go(agent_of(lab, session, line, saver, script), given)
        given = None
    line.cut = None
    with lab.session() as session:
        state = go(agent_of(lab, session, line, saver, script))
    assert line.written == ["wp", "wq", "wr"]
    assert state["messages"][-1].text == "done"
    args = [e["args"] for e in lab.events(session.run_id) if e.get("name") == "write"]
    assert [each["text"] for each in args] == line.written


def test_an_undo_sees_all_of_the_job(lab: Lab, saver: InMemorySaver, go: Go) -> None:
    line = Line()

    @tool
    def erase(text: str) -> None:
        """Undo it."""
        line.written.remove(text)

    @tool(undo=lambda args: [compensate(erase, text=args["text"])], raises=[PowerCutError])
    def note(text: str) -> str:
        """Write."""
        if text == line.cut:
            raise PowerCutError
        line.written.append(text)
        return f"wrote {text}"

    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    def graph() -> Any:
        made: Any = StateGraph(State)
        last = START
        for name in "abcd":
            made.add_node(name, lambda _, name=name: {"log": [note(text=name)]})
            made.add_edge(last, name)
            last = name
        made.add_edge(last, END)
        return made.compile(checkpointer=saver)

    line.cut = "c"
    with pytest.raises(PowerCutError), lab.session(options=Options(tools=[note, erase])) as session:
        follow_checkpoints(session)
        go(graph(), {"log": []})
    line.cut = None
    with lab.session(options=Options(tools=[note, erase])) as session:
        follow_checkpoints(session)
        go(graph())
        assert (line.written, session.stats.seen) == (["a", "b", "c", "d"], 2)
        report = session.undo(to=1)
    assert report.complete
    assert line.written == ["a"]


# --- halts and refusals --------------------------------------------------------------------------


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if step.args.get("text") == "c" else None


def test_a_halt_is_no_answer(lab: Lab, line: Line, saver: InMemorySaver, go: Go) -> None:
    script: list[Any] = [write("a"), write("c"), "done"]
    with pytest.raises(Halt), lab.session(gate=[asks]) as session:
        state = go(agent_of(lab, session, line, saver, script), QUESTION)
    assert state["messages"][-1].type == "ai"  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects
    assert state["messages"][-1].tool_calls  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects
    with lab.session() as session:  # the rule is gone
        state = go(agent_of(lab, session, line, saver, script))
    assert (line.written, state["messages"][-1].text) == (["a", "c"], "done")


def test_a_halt_that_somebody_swallows_is_no_answer(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    script: list[Any] = [write("a"), write("c"), "done"]
    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0, on_failure="continue")
    with pytest.raises(Halt), lab.session(gate=[asks]) as session:
        state = go(agent_of(lab, session, line, saver, script, middleware=[retry]), QUESTION)
    assert state["messages"][-1].tool_calls  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects


def test_a_refusal_is_an_answer(lab: Lab, line: Line, saver: InMemorySaver, go: Go) -> None:
    def denies(step: StepView) -> Verdict | None:
        return Verdict.deny("not today") if step.args.get("text") == "c" else None

    line.cut = "x"
    with pytest.raises(PowerCutError), lab.session(gate=[denies]) as session:
        go(agent_of(lab, session, line, saver, SCRIPT), QUESTION)
    line.cut = None
    with lab.session() as session:
        state = go(agent_of(lab, session, line, saver, SCRIPT))
    said = [m.text for m in state["messages"] if m.type == "tool"]
    assert said[2] == "not today"
    assert sorted(line.written) == ["a", "b", "d"]


def test_an_unknown_step_is_never_seen(lab: Lab, saver: InMemorySaver) -> None:
    done: list[str] = []

    @tool
    def send(text: str) -> str:
        """Send it; nobody answers."""
        done.append(text)
        raise TimeoutError

    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    def first(_: State) -> dict[str, list[str]]:
        with contextlib.suppress(Exception):  # a node that swallows all
            send(text="a")
        return {"log": ["sent"]}

    made: Any = StateGraph(State)
    made.add_node("first", first)
    made.add_node("second", lambda _: {"log": [send(text="b")]})
    made.add_edge(START, "first")
    made.add_edge("first", "second")
    graph = made.compile(checkpointer=saver)
    with pytest.raises(UnknownOutcome), lab.session() as session:
        follow_checkpoints(session)
        graph.invoke({"log": []}, CONFIG)
    with pytest.raises((Diverged, UnknownOutcome)), lab.session() as session:
        follow_checkpoints(session)
        graph.invoke(None, CONFIG)
    assert done == ["a"]


# --- interrupts ----------------------------------------------------------------------------------


def test_an_interrupted_run_is_paused_and_gone_on_with(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    script: list[Any] = [write("a"), write("b", "c"), write("d"), "done"]
    with lab.session(gate=[asks]) as session:
        paused = go(agent_of(lab, session, line, saver, script, interrupt=True), QUESTION)
        assert "__interrupt__" in paused
    assert lab.events(session.run_id)[-1]["status"] == "paused"
    assert line.written == ["a", "b"]
    with lab.session(gate=[asks]) as session:
        agent = agent_of(lab, session, line, saver, script, interrupt=True)
        state = go(agent, Command(resume={"type": "approve", "by": "ann"}))
    assert (line.written, state["messages"][-1].text) == (["a", "b", "c", "d"], "done")
    assert lab.of(session)[-1]["status"] == "ok"
    assert session.stats.seen == 4  # a and b, and the answers that asked for them


def test_a_decision_in_the_same_session_ends_the_pause(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    with lab.session(gate=[asks]) as session:
        agent = agent_of(lab, session, line, saver, [write("c"), "done"], interrupt=True)
        go(agent, QUESTION)
        assert session.paused
        go(agent, Command(resume={"type": "approve"}))
        assert not session.paused
    assert lab.events(session.run_id)[-1]["status"] == "ok"


# --- graphs that go back, and threads ------------------------------------------------------------


def test_a_thread_that_goes_back_leaves_orphans(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    cut_off(lab, line, saver, go)
    with pytest.raises(Diverged, match=r"\(write\)"), lab.session() as session:
        agent = agent_of(lab, session, line, saver, [write("a", "b"), write("other"), "done"])
        after_ab = next(
            each
            for each in agent.get_state_history(CONFIG)
            if [m.type for m in each.values.get("messages", [])][-1:] == ["tool"]
            and len(each.values["messages"]) == 4
        )
        fork = agent.update_state(after_ab.config, {"messages": [HumanMessage("Else.", id="e")]})
        agent.invoke(None, fork)
    assert "other" not in line.written


def test_threads_of_one_session_are_told_apart(lab: Lab, saver: InMemorySaver) -> None:
    line = Line()
    script: list[Any] = [write("a"), look("x"), write("b"), "done"]
    threads: list[Any] = [{"configurable": {"thread_id": each}} for each in ("1", "2")]
    with lab.session() as session:
        agent = agent_of(lab, session, line, saver, script)
        for each in threads:
            with pytest.raises(GraphRecursionError):
                agent.invoke(QUESTION, {**each, "recursion_limit": 2})
        session.pause("for another day")
    with lab.session() as session:
        agent = agent_of(lab, session, line, saver, script)
        for each in threads:
            assert agent.invoke(None, each)["messages"][-1].text == "done"
    assert line.written == ["a", "a", "b", "b"]


def test_a_graph_that_starts_afresh_asks_for_all(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    cut_off(lab, line, saver, go)
    with lab.session() as session:  # its memory is gone
        go(agent_of(lab, session, line, InMemorySaver(), SCRIPT), QUESTION)
    assert sorted(line.written) == ["a", "b", "c", "d"]
    assert (session.stats.seen, session.stats.hits) == (0, 6)


def test_an_agent_as_a_tool_goes_on_inside(lab: Lab, line: Line, saver: InMemorySaver) -> None:
    inner_script: list[Any] = [write("i1"), look("x"), write("i2"), "inner done"]
    outer_script: list[Any] = [write("o1"), [("ask", {"what": "it"})], write("o2"), "done"]

    def build(session: Session) -> Any:
        inner = create_agent(
            guard_model(lab.model(inner_script), session),
            guard_tools(line.tools(), session, effects={"look": "read"}),
            middleware=[RollcageMiddleware(session)],
        )

        def ask(what: str) -> str:
            """Ask the other agent."""
            question: Any = {"messages": [("user", what)]}
            return str(inner.invoke(question)["messages"][-1].text)

        tools = [*line.tools(), StructuredTool.from_function(ask)]
        return create_agent(
            guard_model(lab.model(outer_script), session),
            guard_tools(tools, session, effects={"look": "read", "ask": "scope"}),
            middleware=[RollcageMiddleware(session)],
            checkpointer=saver,
        )

    line.cut = "x"
    with pytest.raises(PowerCutError), lab.session() as session:
        build(session).invoke(QUESTION, CONFIG)
    line.cut = None
    with lab.session() as session:
        state = build(session).invoke(None, CONFIG)
    assert line.written == ["o1", "i1", "i2", "o2"]
    assert state["messages"][-1].text == "done"


# --- the gate ------------------------------------------------------------------------------------


def test_what_was_seen_counts_and_keeps_its_labels(
    lab: Lab, saver: InMemorySaver, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        'version = 1\nname = "p"\ndefault = "allow"\n[labels]\nlook = ["untrusted"]\n'
        '[[limits.rules]]\nid = "few"\ncalls = 3\ntools = ["write"]\n'
        '[[rules]]\nid = "taint"\ntools = ["write"]\nwhen = \'"untrusted" in labels\'\n'
        'decision = "deny"\nreason = "tainted"\n'
    )
    line = Line()
    script: list[Any] = [
        look("secret-place"), write("a"), look("x"),
        write("saw secret-place"), write("b"), write("c"), write("d"), "done",
    ]  # fmt: skip
    line.cut = "x"
    with pytest.raises(PowerCutError), lab.session(gate=[Policy.load(file)]) as session:
        agent_of(lab, session, line, saver, script).invoke(QUESTION, CONFIG)
    line.cut = None
    with lab.session(gate=[Policy.load(file)]) as session:
        agent_of(lab, session, line, saver, script).invoke(None, CONFIG)
    assert line.written == ["a", "b", "c"]  # what was looked at is tainted; the limit is three


def test_the_key_by_which_a_checkpointer_is_handed_on(saver: InMemorySaver) -> None:
    """A fact about LangGraph that `memory.py` depends on."""
    found: list[Any] = []

    class State(TypedDict):
        x: int

    def node(_: State) -> dict[str, int]:
        given = get_config()["configurable"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - wrong on purpose
        found.append(given["__pregel_checkpointer"])
        assert set(given["checkpoint_map"]) == {""}
        assert ":" in given["checkpoint_ns"]
        return {"x": 1}

    made: Any = StateGraph(State)
    made.add_node("n", node)
    made.add_edge(START, "n")
    made.compile(checkpointer=saver).invoke({"x": 0}, CONFIG)
    assert isinstance(found[0], BaseCheckpointSaver)


def test_a_graph_that_had_finished_makes_no_call_and_its_run_can_be_closed(
    lab: Lab, line: Line, saver: InMemorySaver, go: Go
) -> None:
    script: list[Any] = [write("a"), "done"]
    with pytest.raises(PowerCutError), lab.session() as first:
        go(agent_of(lab, first, line, saver, script), QUESTION)
        raise PowerCutError  # the graph is done, the session is not
    with lab.session() as idle:
        state = go(agent_of(lab, idle, line, saver, script))
    assert state["messages"][-1].text == "done"
    assert idle.stats.calls == 0
    assert lab.of(idle)[-1]["status"] == "partial"
    abandon_run(idle.store, idle.run_id)
    with lab.session() as afresh:
        go(agent_of(lab, afresh, line, saver, script))
    assert (idle.run_id, afresh.run_id != first.run_id) == (first.run_id, True)
    assert line.written == ["a"]


def test_histories_by_hand_are_seen_by_their_ids(lab: Lab, line: Line, go: Go) -> None:
    line.cut = "x"
    with pytest.raises(PowerCutError), lab.session() as session:
        agent: Any = create_agent(
            lab.model(SCRIPT),
            guard_tools(line.tools(), session, effects={"look": "read"}),
            middleware=[RollcageMiddleware(session)],
        )
        kept: list[Any] = []
        for part in agent.stream(QUESTION, stream_mode="values"):
            kept[:] = part["messages"]
    line.cut = None
    assert isinstance(kept[-1], AIMessage)  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects
    with lab.session() as session:
        agent = create_agent(
            lab.model(SCRIPT),
            guard_tools(line.tools(), session, effects={"look": "read"}),
            middleware=[RollcageMiddleware(session)],
        )
        agent.invoke({"messages": kept[:-1]})  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects
    assert sorted(line.written) == ["a", "b", "c", "d"]
