"""Graphs in processes that are killed at any point of their work: see `test_crashes.py`.

As a program, it forks a child for each job that it reads (a line of JSON), and answers with the
child's exit code. The child opens the session of the job anew, and lets the graph go on from
its last checkpoint where there is one.
"""

import asyncio
import json
import operator
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from rollcage import DidNotHappen, Happened, Session
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Clockwork:
    """Counts the points of a run, and kills the process at one of them."""

    def __init__(self) -> None:
        self.points = 0
        self.deadly = 0

    def tick(self) -> None:
        """One more point."""
        self.points += 1
        if self.points == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)


CLOCKWORK = Clockwork()
tick = CLOCKWORK.tick


class Scripted(BaseChatModel):
    """A model whose answers, ids included, follow from how many it has given."""

    script: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """The script knows the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        tick()
        said = self.script[turn]
        calls = [] if isinstance(said, str) else said
        message = AIMessage(
            said if isinstance(said, str) else "",
            id=f"answer-{turn}",
            tool_calls=[
                {"name": name, "args": args, "id": f"call-{turn}-{i}", "type": "tool_call"}
                for i, (name, args) in enumerate(calls)
            ],
        )
        tick()
        return ChatResult(generations=[ChatGeneration(message=message)])


class Dying:
    """A checkpointer whose process may die around each thing that it stores."""

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        """Store a checkpoint."""
        saver: Any = super()
        tick()
        stored: RunnableConfig = saver.put(*args, **kwargs)
        tick()
        return stored

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        """Store what a task wrote."""
        saver: Any = super()
        tick()
        saver.put_writes(*args, **kwargs)
        tick()


class AsyncDying:
    """The same in asyncio."""

    async def aput(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        """Store a checkpoint."""
        saver: Any = super()
        tick()
        stored: RunnableConfig = await saver.aput(*args, **kwargs)
        tick()
        return stored

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        """Store what a task wrote."""
        saver: Any = super()
        tick()
        await saver.aput_writes(*args, **kwargs)
        tick()


class DyingSaver(Dying, SqliteSaver):
    """One in SQLite."""


class AsyncDyingSaver(AsyncDying, AsyncSqliteSaver):
    """The same in asyncio."""


def in_postgres() -> tuple[Any, Any]:
    """Both in PostgreSQL, for the jobs that have one."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    both = (Dying, PostgresSaver), (AsyncDying, AsyncPostgresSaver)
    return type("DyingPostgresSaver", both[0], {}), type("AsyncDyingPostgresSaver", both[1], {})


class Shop:
    """What is outside: a file to which each effect adds a line."""

    def __init__(self, root: Path) -> None:
        self._file = root / "world"

    @property
    def lines(self) -> list[str]:
        """All effects, in their order."""
        return self._file.read_text().split() if self._file.exists() else []

    def tools(self, session: Session) -> list[StructuredTool]:
        """A tool that writes and one that looks, guarded; the former's probe asks the file."""

        def write(text: str) -> str:
            """Write a text."""
            tick()
            with self._file.open("a") as file:
                file.write(f"{text}\n")
            tick()
            return f"wrote {text}"

        def look(place: str) -> str:
            """Look at a place."""
            tick()
            return f"saw {place}"

        def probe(args: dict[str, Any]) -> Happened | DidNotHappen:
            done = args["text"] in self.lines
            return Happened(f"wrote {args['text']}") if done else DidNotHappen()

        tools = [StructuredTool.from_function(each) for each in (write, look)]
        return guard_tools(
            tools, session, contracts={"write": {"probe": probe}, "look": {"effect": "read"}}
        )


def _write(text: str) -> tuple[str, dict[str, str]]:
    return "write", {"text": text}


def _agent(shop: Shop, session: Session, saver: Any) -> Any:
    """An agent whose turns have one call, or several at once."""
    look: Any = ("look", {"place": "x"})
    script = [
        [_write("a"), _write("b"), look, _write("c")],
        [look],
        [_write("d")],
        [look, _write("e")],
        "done",
    ]
    return create_agent(
        guard_model(Scripted(script=script), session),
        shop.tools(session),
        middleware=[RollcageMiddleware(session)],
        checkpointer=saver,
    )


class State(TypedDict):
    """A state without messages."""

    log: Annotated[list[str], operator.add]


Node = Callable[[Any], dict[str, list[str]]]


def _graph(shop: Shop, session: Session, saver: Any, *, branches: bool = False) -> Any:
    """Nodes at once, a graph as a node and in a node, a fan-out, a loop; no message anywhere."""
    tool = next(each for each in shop.tools(session) if each.name == "write")

    def write(text: str) -> str:
        return str(tool.invoke({"text": text}))

    def node(*texts: str, branch: str = "") -> Node:
        def run(_: Any) -> dict[str, list[str]]:
            if not (branch and branches):
                return {"log": [write(text) for text in texts]}
            with session.branch(branch):
                return {"log": [write(text) for text in texts]}

        return run

    def chain(*nodes: tuple[str, Node]) -> Any:
        graph: Any = StateGraph(State)
        last = START
        for name, run in nodes:
            graph.add_node(name, run)
            graph.add_edge(last, name)
            last = name
        graph.add_edge(last, END)
        return graph

    inner = chain(("one", node("s1")), ("two", node("s2a", "s2b"))).compile()
    called = chain(("one", node("t1")), ("two", node("t2a", "t2b"))).compile()

    def around(_: Any) -> dict[str, list[str]]:
        said = write("before")
        called.invoke({"log": []})
        return {"log": [said, write("after")]}

    def loop(state: State) -> dict[str, list[str]]:
        return {"log": [write(f"loop{sum('loop' in each for each in state['log'])}")]}

    graph: Any = StateGraph(State)
    graph.add_node("first", node("n1"))
    graph.add_node("left", node("l1", "l2", branch="left"))
    graph.add_node("right", node("r1", "r2", branch="right"))
    graph.add_node("inner", inner)
    graph.add_node("around", around)
    graph.add_node("each", lambda sent: node(sent["text"], branch=sent["text"])(sent))
    graph.add_node("loop", loop)
    graph.add_edge(START, "first")
    graph.add_edge("first", "left")
    graph.add_edge("first", "right")
    graph.add_edge(["left", "right"], "inner")
    graph.add_edge("inner", "around")
    graph.add_conditional_edges(
        "around", lambda _: [Send("each", {"text": f"e{i}"}) for i in range(3)], ["each"]
    )
    graph.add_edge("each", "loop")
    graph.add_conditional_edges(
        "loop", lambda state: END if "wrote loop2" in state["log"] else "loop", ["loop", END]
    )
    return graph.compile(checkpointer=saver)


def _branches(shop: Shop, session: Session, saver: Any) -> Any:
    """The same, where what is done at once has branches of its own."""
    return _graph(shop, session, saver, branches=True)


def _workflow(shop: Shop, session: Session, saver: Any) -> Any:
    """The functional API: tasks, and tasks of tasks."""
    tool = next(each for each in shop.tools(session) if each.name == "write")

    def write(text: str) -> str:
        return str(tool.invoke({"text": text}))

    @task
    def one(text: str) -> str:
        return write(text)

    @task
    def several(text: str) -> list[str]:
        return [one(f"{text}1").result(), write(f"{text}2"), one(f"{text}3").result()]

    @entrypoint(checkpointer=saver)
    def workflow(_: str) -> list[str]:
        said = [one("a").result(), write("b"), *several("c").result(), write("d")]
        return [*said, one("e").result(), write("f")]

    return workflow


def _asking(shop: Shop, session: Session, saver: Any) -> Any:
    """A node that asks a person, between writes, and two at once that do."""
    tool = next(each for each in shop.tools(session) if each.name == "write")

    def write(text: str) -> str:
        return str(tool.invoke({"text": text}))

    def ask(name: str) -> Node:
        def run(_: Any) -> dict[str, list[str]]:
            said = write(f"{name}-before")
            return {"log": [said, write(f"{name}-{interrupt(name)}")]}

        return run

    graph: Any = StateGraph(State)
    graph.add_node("first", lambda _: {"log": [write("first")]})
    graph.add_node("ask", ask("ask"))
    graph.add_node("left", lambda _: {"log": [interrupt("left")]})
    graph.add_node("right", ask("right"))
    graph.add_node("last", lambda _: {"log": [write("last")]})
    graph.add_edge(START, "first")
    graph.add_edge("first", "ask")
    graph.add_edge("ask", "left")
    graph.add_edge("ask", "right")
    graph.add_edge(["left", "right"], "last")
    graph.add_edge("last", END)
    return graph.compile(checkpointer=saver)


GRAPHS: dict[str, tuple[Callable[[Shop, Session, Any], Any], Any]] = {
    "agent": (_agent, {"messages": [HumanMessage("Go.", id="question")]}),
    "graph": (_graph, {"log": ["go"]}),
    "branches": (_branches, {"log": ["go"]}),
    "workflow": (_workflow, "go"),
    "asking": (_asking, {"log": ["go"]}),
}


def _play(root: Path, job: dict[str, Any]) -> Any:
    build, question = GRAPHS[job["graph"]]
    shop, store, durability = Shop(root), job.get("store") or str(root / "store"), job["durability"]
    where: str = job.get("memory") or str(root / "memory")
    is_served = "memory" in job
    savers: tuple[Any, Any] = in_postgres() if is_served else (DyingSaver, AsyncDyingSaver)
    if not job["asynchronous"]:
        with savers[0].from_conn_string(where) as saver, Session("job", store=store) as session:
            if is_served:
                saver.setup()
            graph = build(shop, session, saver)
            state = graph.get_state(CONFIG)
            given = _next(state, question)
            return graph.invoke(given, CONFIG, durability=durability)

    async def play() -> Any:
        async with (
            savers[1].from_conn_string(where) as saver,
            Session("job", store=store) as session,
        ):
            if is_served:
                await saver.setup()
            graph = build(shop, session, saver)
            state = await graph.aget_state(CONFIG)
            given = _next(state, question)
            return await graph.ainvoke(given, CONFIG, durability=durability)

    return asyncio.run(play())


def _next(state: Any, question: Any) -> Any:
    """What a graph is given: an answer where it waits for one, a question where it is new."""
    if state.interrupts:
        asked = state.interrupts[0]
        return Command(resume={asked.id: f"answer-to-{asked.value}"})
    return None if state.next or state.values else question


def _said(result: Any) -> Any:
    """What a graph gave, to be compared."""
    messages = result.get("messages") if isinstance(result, dict) else None
    if messages is not None:
        return [[message.type, message.text] for message in messages]
    return sorted(result["log"]) if isinstance(result, dict) else result


def _live(job: dict[str, Any]) -> None:
    """What a child does, to its end, or to its point of death."""
    root = Path(job["root"])
    CLOCKWORK.deadly = job["deadly"]
    result = _play(root, job)
    while isinstance(result, dict) and "__interrupt__" in result:
        result = _play(root, job)  # somebody has an answer, in another session
    said = {"result": _said(result), "points": CLOCKWORK.points}
    (root / "result").write_text(json.dumps(said))


def main() -> None:
    """Fork a child for each job."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _live(job)
                code = 0
            except BaseException:  # noqa: BLE001 - the test reads it
                (Path(job["root"]) / "error").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
