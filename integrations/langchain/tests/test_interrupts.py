"""A graph is interrupted outside of any guarded call: its run is paused, and gone on with."""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from rollcage import Session, StepView, Verdict, plan_undo
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

Go = Callable[..., Any]
_END: Any = object()
QUESTION: Any = {"messages": [HumanMessage("Go.", id="question")]}


class PowerCutError(Exception):
    """What ends a run in its middle; nothing answers it."""


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Desk:
    """Graphs that write, ask, and write what was answered; and what they wrote."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.saver: Any = InMemorySaver()
        self.written: list[str] = []
        self.cut = ""

    def tool(self, session: Session) -> StructuredTool:
        def write(text: str) -> str:
            """Write."""
            if text == self.cut:
                raise PowerCutError
            self.written.append(text)
            return f"wrote {text}"

        contracts: Any = {"write": {"raises": PowerCutError}}  # nothing was written by then
        return guard_tools([StructuredTool.from_function(write)], session, contracts=contracts)[0]

    def graph(self, session: Session, *, inside: bool = False) -> Any:
        """Write "first", ask, write the answer, write "last"; it may ask in a graph of its own."""
        tool = self.tool(session)

        def chain(*names: str) -> Any:
            made: Any = StateGraph(State)
            last = START
            for name in names:
                made.add_node(name, nodes[name])
                made.add_edge(last, name)
                last = name
            made.add_edge(last, END)
            return made

        def write(text: str) -> dict[str, list[str]]:
            return {"log": [tool.invoke({"text": text})]}

        nodes: dict[str, Any] = {
            "first": lambda _: write("first"),
            "ask": lambda _: {"log": [f"said {interrupt('what?')}"]},
            "answer": lambda state: write(state["log"][-1]),
            "last": lambda _: write("last"),
        }
        if inside:
            nodes["ask"] = chain("ask", "answer").compile()
            return chain("first", "ask", "last").compile(checkpointer=self.saver)
        return chain("first", "ask", "answer", "last").compile(checkpointer=self.saver)

    def agent(self, session: Session, script: list[Any], *, model: bool = True, **on: Any) -> Any:
        """An agent whose tool waits for a person, by LangChain's own middleware."""
        scripted = self.lab.model(script)
        human = HumanInTheLoopMiddleware(interrupt_on={"write": True})
        return create_agent(
            guard_model(scripted, session) if model else scripted,
            [self.tool(session)],
            middleware=[RollcageMiddleware(session), *on.pop("middleware", [human])],
            checkpointer=self.saver,
        )

    def status(self, session: Session) -> str:
        return str(self.lab.of(session)[-1]["status"])


@pytest.fixture
def desk(lab: Lab) -> Desk:
    return Desk(lab)


@pytest.fixture(params=["sync", "async"])
def go(request: pytest.FixtureRequest) -> Go:
    """In a session of its own, build a graph, let it go on and leave the session; in both ways."""

    def run(session: Session, build: Any, *given: Any, thread: str = "t", **options: Any) -> Any:
        with session:
            graph, said = build(session), None
            for each in given:
                config: Any = {"configurable": {"thread_id": thread}}
                if each is _END:
                    graph.update_state(config, {"log": []}, as_node="last")
                else:
                    said = graph.invoke(each, config, **options)
        return said

    async def arun(session: Session, build: Any, *given: Any, thread: str = "t", **on: Any) -> Any:
        async with session:
            graph, said = build(session), None
            for each in given:
                config: Any = {"configurable": {"thread_id": thread}}
                if each is _END:
                    await graph.aupdate_state(config, {"log": []}, as_node="last")
                else:
                    said = await graph.ainvoke(each, config, **on)
        return said

    if request.param == "sync":
        return run
    return lambda *args, **options: asyncio.run(arun(*args, **options))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_node_of_ones_own_pauses_the_run(
    desk: Desk, go: Go, durability: Literal["sync", "async"], *, inside: bool
) -> None:
    first, second, third = (desk.lab.session() for _ in range(3))

    def build(session: Session) -> Any:
        return desk.graph(session, inside=inside)

    said = go(first, build, {"log": []}, durability=durability)
    assert "__interrupt__" in said
    assert (desk.status(first), desk.written) == ("paused", ["first"])
    assert "thread 't'" in desk.lab.of(first)[-1]["waits"]
    go(second, build, None, durability=durability)  # nobody has answered
    assert (desk.status(second), desk.written) == ("paused", ["first"])
    said = go(third, build, Command(resume="yes"), durability=durability)
    assert "wrote last" in said["log"]
    assert (desk.status(third), desk.written) == ("ok", ["first", "said yes", "last"])
    assert (third.run_id, third.stats.seen, third.stats.misses) == (first.run_id, 1, 2)


def test_a_person_who_is_asked_by_a_middleware_pauses_the_run(desk: Desk, go: Go) -> None:
    script: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]
    sessions: list[Session] = []
    given: Any = QUESTION
    said: Any = None
    for left in (["paused", []], ["paused", ["a"]], ["ok", ["a", "b"]]):
        sessions.append(desk.lab.session())
        said = go(sessions[-1], lambda session: desk.agent(session, script), given)
        assert [desk.status(sessions[-1]), desk.written] == left
        given = Command(resume={"decisions": [{"type": "approve"}]})
    assert said["messages"][-1].text == "done"
    assert {each.run_id for each in sessions} == {sessions[0].run_id}
    # Each answer of the model was asked for once.
    asked = [e for e in desk.lab.events(sessions[-1].run_id) if e.get("effect") == "model"]
    assert len(asked) == 3


def test_nothing_but_the_middleware_need_be_guarded(desk: Desk, go: Go) -> None:
    script: list[Any] = [[("write", {"text": "a"})], "done"]
    first, second = desk.lab.session(), desk.lab.session()

    def build(session: Session) -> Any:
        return desk.agent(session, script, model=False)

    go(first, build, QUESTION)
    go(second, build, Command(resume={"decisions": [{"type": "approve"}]}))
    assert (desk.status(first), desk.status(second), desk.written) == ("paused", "ok", ["a"])
    assert second.run_id == first.run_id


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("may it?") if step.args.get("text") == "a" else None


@pytest.mark.parametrize("kind", ["node", "middleware", "rule"])
@pytest.mark.parametrize("answered", [False, True])
def test_what_waits_no_longer_does_not_pause_the_run(
    desk: Desk, go: Go, kind: str, *, answered: bool
) -> None:
    """It was answered, or the user had something else to say."""
    script: list[Any] = [[("write", {"text": "a"})], "done", "else"]
    session = desk.lab.session(gate=[asks] if kind == "rule" else [])
    if kind == "node":
        second: Any = Command(resume="yes")
        if not answered:  # the thread is brought to its end by hand
            second = _END
        go(session, desk.graph, {"log": []}, second)
    else:

        def build(session: Session) -> Any:
            if kind == "middleware":
                return desk.agent(session, script)
            return create_agent(
                desk.lab.model(script),
                [desk.tool(session)],
                middleware=[RollcageMiddleware(session, interrupt=True)],
                checkpointer=desk.saver,
            )

        decision: Any = {"decisions": [{"type": "approve"}]}
        decision = {"type": "approve"} if kind == "rule" else decision
        instead: Any = {"messages": [HumanMessage("Never mind.")]}
        go(session, build, QUESTION, Command(resume=decision) if answered else instead)
    assert desk.status(session) == "ok"
    assert (
        desk.written
        == ({"node": ["first", "said yes", "last"]}.get(kind, ["a"]))[
            : None if answered else {"node": 1}.get(kind, 0)
        ]
    )


def test_the_run_is_paused_until_the_last_thread_is_answered(desk: Desk, go: Go) -> None:
    first, second, third = (desk.lab.session() for _ in range(3))

    with first:
        for thread in ("1", "2"):
            desk.graph(first).invoke({"log": []}, {"configurable": {"thread_id": thread}})
    assert desk.status(first) == "paused"
    go(second, desk.graph, Command(resume="x"), thread="2")
    assert desk.status(second) == "paused"
    assert "'1'" in desk.lab.of(second)[-1]["waits"]
    go(third, desk.graph, Command(resume="y"), thread="1")
    assert desk.status(third) == "ok"
    assert desk.written == ["first", "first", "said x", "last", "said y", "last"]
    seen_by_undo = plan_undo(desk.lab.store, third.run_id)
    assert len(seen_by_undo.steps) == 6


def test_an_error_after_an_interrupt_is_an_error(desk: Desk) -> None:
    session = desk.lab.session()
    with pytest.raises(PowerCutError), session:
        desk.graph(session).invoke({"log": []}, {"configurable": {"thread_id": "t"}})
        raise PowerCutError
    assert desk.status(session) == "error"
    with desk.lab.session() as later:
        graph = desk.graph(later)
        graph.invoke(Command(resume="yes"), {"configurable": {"thread_id": "t"}})
    assert (desk.status(later), desk.written) == ("ok", ["first", "said yes", "last"])


def test_a_run_that_is_cut_off_after_the_answer_loses_nothing(desk: Desk, go: Go) -> None:
    go(desk.lab.session(), desk.graph, {"log": []})
    for desk.cut in ("said yes", "last"):
        with pytest.raises(PowerCutError):
            given: Any = Command(resume="yes") if desk.cut == "said yes" else None
            go(desk.lab.session(), desk.graph, given)
    desk.cut = ""
    last = desk.lab.session()
    go(last, desk.graph, None)
    assert (desk.status(last), desk.written) == ("ok", ["first", "said yes", "last"])


# --- checkpointers that are sync, async, or closed -----------------------------------------------


def test_a_sync_checkpointer_is_looked_at_by_an_async_session(desk: Desk, tmp_path: Path) -> None:
    session = desk.lab.session()

    async def run() -> None:
        async with session:
            desk.graph(session).invoke({"log": []}, {"configurable": {"thread_id": "t"}})

    with SqliteSaver.from_conn_string(str(tmp_path / "memory")) as desk.saver:
        asyncio.run(run())
    assert desk.status(session) == "paused"


def test_an_async_checkpointer_is_looked_at_by_an_async_session(desk: Desk, tmp_path: Path) -> None:
    session = desk.lab.session()

    async def run() -> None:
        memory = AsyncSqliteSaver.from_conn_string(str(tmp_path / "memory"))
        async with memory as desk.saver, session:
            graph = desk.graph(session)
            await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})

    asyncio.run(run())
    assert desk.status(session) == "paused"


def test_an_async_checkpointer_that_a_sync_session_cannot_await_is_named(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = desk.lab.session()

    async def run() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "memory")) as desk.saver:
            with session:
                graph = desk.graph(session)
                await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})

    with caplog.at_level(logging.WARNING, "rollcage"):
        asyncio.run(run())
    assert desk.status(session) == "ok"
    assert "leave the session of an async one by `async with`: AsyncSqliteSaver" in caplog.text


def test_a_checkpointer_that_was_closed_first_is_named(
    desk: Desk, go: Go, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = str(tmp_path / "memory")
    session = desk.lab.session()
    with caplog.at_level(logging.WARNING, "rollcage"):
        with session, SqliteSaver.from_conn_string(file) as desk.saver:
            desk.graph(session).invoke({"log": []}, {"configurable": {"thread_id": "t"}})
        assert "close the checkpointer after the session" in caplog.text
        caplog.clear()
        stopped = desk.lab.session("async")

        async def run() -> None:
            async with AsyncSqliteSaver.from_conn_string(file) as desk.saver:
                graph = desk.graph(stopped)
                await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "u"}})

        with stopped:
            asyncio.run(run())  # its event loop is gone: asking it would wait for ever
        assert "its event loop has stopped" in caplog.text
    assert (desk.status(session), desk.status(stopped)) == ("ok", "ok")


def test_without_a_checkpointer_nothing_is_looked_at(desk: Desk, go: Go) -> None:
    desk.saver = None
    session = desk.lab.session()
    go(session, lambda s: desk.agent(s, ["done"]), QUESTION)
    assert desk.status(session) == "ok"
