"""Work that LangGraph starts over within one session: what it had done is done once."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
import rollcage
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from rollcage import Diverged, Options, Session, plan_undo
from rollcage_langchain import (
    RollcageMiddleware,
    follow_checkpoints,
    guard_model,
    guard_tools,
)

if TYPE_CHECKING:
    from .conftest import Lab

RETRY = RetryPolicy(initial_interval=0, jitter=False, max_attempts=4)
CONFIG: Any = {"configurable": {"thread_id": "1"}}
SAVERS: list[Any] = [lambda: None, InMemorySaver]


class FlakyError(ConnectionError):
    """What a retry policy repeats a node for."""


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Desk:
    """Graphs over a tool that writes and one that looks; and what they wrote."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.written: list[str] = []
        self.taken: list[str] = []
        self.looks = 0
        self.failures = 0

    def tools(self, session: Session) -> tuple[StructuredTool, StructuredTool]:
        def write(text: str) -> str:
            """Write."""
            self.written.append(text)
            return f"wrote {text}, number {len(self.written)}"

        def look() -> int:
            """Look."""
            self.looks += 1
            return self.looks

        contracts: Any = {"look": {"effect": "read"}}
        tools = [StructuredTool.from_function(each) for each in (write, look)]
        first, second = guard_tools(tools, session, contracts=contracts)
        return first, second

    def fails(self, times: int) -> None:
        """Fail, the first few times."""
        self.failures += 1
        if self.failures <= times:
            raise FlakyError


def chain(*nodes: tuple[str, Any], **retried: RetryPolicy) -> Any:
    graph: Any = StateGraph(State)
    last = START
    for name, run in nodes:
        graph.add_node(name, run, retry_policy=retried.get(name))
        graph.add_edge(last, name)
        last = name
    graph.add_edge(last, END)
    return graph


@pytest.fixture
def desk(lab: Lab) -> Desk:
    return Desk(lab)


@pytest.fixture(params=["sync", "async"])
def go(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def run(graph: Any, given: Any) -> Any:
        if request.param == "sync":
            return graph.invoke(given, CONFIG)
        return asyncio.run(graph.ainvoke(given, CONFIG))

    return run


@pytest.mark.parametrize("saver", SAVERS, ids=["no checkpointer", "checkpointer"])
def test_a_retried_node_makes_no_write_twice(desk: Desk, go: Any, saver: Any) -> None:
    with desk.lab.session() as session:
        write, look = desk.tools(session)

        def work(_: Any) -> dict[str, list[str]]:
            said = [write.invoke({"text": "a"}), str(look.invoke({})), write.invoke({"text": "b"})]
            desk.fails(3)
            return {"log": said}

        state = go(chain(("work", work), work=RETRY).compile(checkpointer=saver()), {"log": []})
    assert desk.written == ["a", "b"]
    assert state["log"] == ["wrote a, number 1", "1", "wrote b, number 2"]
    stats = session.stats  # each of four tries asks for all three
    assert (stats.calls, stats.hits, stats.misses) == (12, 9, 3)
    assert desk.lab.args(session) == [{"text": "a"}, {}, {"text": "b"}]
    with desk.lab.session(replay="offline") as session:  # where nothing fails any more
        write, look = desk.tools(session)
        again = go(chain(("work", work), work=RETRY).compile(), {"log": []})
    assert again == state
    assert (session.stats.hits, desk.written) == (3, ["a", "b"])


def test_what_failed_last_is_tried_again(desk: Desk, go: Any) -> None:
    """A failure that the node went on from is one in each attempt, as it is in a resume."""
    tried: list[str] = []

    def ask(text: str) -> str:
        """Ask."""
        tried.append(text)
        if tried.count(text) < 3:
            raise ValueError(text)
        return text

    with desk.lab.session() as session:
        write, _ = desk.tools(session)
        tool = StructuredTool.from_function(ask)
        (asking,) = guard_tools([tool], session, contracts={"ask": {"effect": "read"}})

        def work(_: Any) -> dict[str, list[str]]:
            with pytest.raises(ValueError, match="early"):
                asking.invoke({"text": "early"})
            said = write.invoke({"text": "a"})
            try:
                return {"log": [said, asking.invoke({"text": "late"})]}
            except ValueError as error:
                raise FlakyError from error

        go(chain(("work", work), work=RETRY).compile(), {"log": []})
    assert tried == ["early", "late", "late", "late"]
    assert desk.written == ["a"]


def test_identical_calls_are_as_many_as_they_were(desk: Desk, go: Any) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def work(_: Any) -> dict[str, list[str]]:
            said = []
            for _i in range(3):
                said.append(write.invoke({"text": "same"}))
                desk.fails(2)
            return {"log": said}

        state = go(chain(("work", work), work=RETRY).compile(), {"log": []})
    assert state["log"] == [f"wrote same, number {n}" for n in (1, 2, 3)]


def test_an_interrupted_node_writes_once_in_one_session(desk: Desk, go: Any) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def ask(_: Any) -> dict[str, list[str]]:
            before = write.invoke({"text": "before"})
            said = interrupt("first?")
            between = write.invoke({"text": said})
            return {"log": [before, between, write.invoke({"text": interrupt("second?")})]}

        graph = chain(("ask", ask)).compile(checkpointer=InMemorySaver())
        assert go(graph, {"log": []})["__interrupt__"]
        assert go(graph, Command(resume="one"))["__interrupt__"]
        state = go(graph, Command(resume="two"))
    assert desk.written == ["before", "one", "two"]
    assert [each.partition(",")[0] for each in state["log"]] == [
        "wrote before", "wrote one", "wrote two",
    ]  # fmt: skip
    plan = plan_undo(desk.lab.store, session.run_id)
    assert len(plan.steps) == 3


def test_an_interrupt_inside_of_a_tool_runs_its_own_calls_once(desk: Desk, go: Any) -> None:
    """The tool is begun anew; what it did through guarded calls is not."""
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def order(what: str) -> str:
            """Order, once somebody has agreed."""
            booked: str = write.invoke({"text": f"book {what}"})
            if interrupt(f"order {what}?") == "yes":
                write.invoke({"text": f"pay {what}"})
            return booked

        tool = StructuredTool.from_function(order)
        (ordering,) = guard_tools([tool], session, effects={"order": "scope"})
        model = guard_model(desk.lab.model([[("order", {"what": "tea"})], "done"]), session)
        middleware = [RollcageMiddleware(session)]
        agent = create_agent(model, [ordering], middleware=middleware, checkpointer=InMemorySaver())
        assert go(agent, {"messages": [HumanMessage("Go.", id="q")]})["__interrupt__"]
        state = go(agent, Command(resume="yes"))
    assert state["messages"][-1].text == "done"
    assert desk.written == ["book tea", "pay tea"]


def test_a_graph_that_failed_goes_on_in_the_same_session(desk: Desk, go: Any) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def work(_: Any) -> dict[str, list[str]]:
            said = write.invoke({"text": "a"})
            desk.fails(1)
            return {"log": [said]}

        graph = chain(("work", work)).compile(checkpointer=InMemorySaver())
        with pytest.raises(FlakyError):
            go(graph, {"log": []})
        assert go(graph, None)["log"] == ["wrote a, number 1"]
    assert desk.written == ["a"]


@pytest.mark.parametrize("saver", SAVERS, ids=["no checkpointer", "checkpointer"])
@pytest.mark.parametrize("inner", [None, False], ids=["inherits", "without"])
@pytest.mark.parametrize("rounds", [0, 1, 2], ids=["is the node", "once", "twice"])
def test_a_graph_inside_of_a_retried_node_writes_once(
    desk: Desk, go: Any, saver: Any, inner: Any, rounds: int
) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def first(_: Any) -> dict[str, list[str]]:
            return {"log": [write.invoke({"text": "a"})]}

        def second(_: Any) -> dict[str, list[str]]:
            said = write.invoke({"text": "b"})
            desk.fails(3)
            return {"log": [said]}

        graph = chain(("first", first), ("second", second)).compile(checkpointer=inner)

        async def arun(_: Any) -> dict[str, list[str]]:
            for _i in range(rounds):
                await graph.ainvoke({"log": []})
            return {"log": []}

        def run(_: Any) -> dict[str, list[str]]:
            for _i in range(rounds):
                graph.invoke({"log": []})
            return {"log": []}

        is_async = go.__closure__[0].cell_contents.param == "async"
        node = graph if rounds == 0 else arun if is_async else run
        go(chain(("node", node), node=RETRY).compile(checkpointer=saver()), {"log": []})
    assert desk.written == ["a", "b"] * max(rounds, 1)


def test_tasks_at_once_are_retried_each_by_itself(desk: Desk, go: Any) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)
        failed: set[str] = set()

        def each(sent: dict[str, str]) -> dict[str, list[str]]:
            with session.branch(sent["text"]):
                said = [write.invoke({"text": f"{sent['text']}{i}"}) for i in (1, 2)]
                said.append(write.invoke({"text": "same"}))
            if sent["text"] not in failed:
                failed.add(sent["text"])
                raise FlakyError
            return {"log": said}

        graph: Any = StateGraph(State)
        graph.add_node("each", each, retry_policy=RETRY)
        graph.add_conditional_edges(
            START, lambda _: [Send("each", {"text": t}) for t in "xyz"], ["each"]
        )
        graph.add_edge("each", END)
        go(graph.compile(checkpointer=InMemorySaver()), {"log": []})
    assert sorted(desk.written) == sorted([f"{t}{i}" for t in "xyz" for i in (1, 2)] + ["same"] * 3)


def test_a_task_of_the_functional_api_is_retried(desk: Desk) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def one(text: str) -> Any:
            said = write.invoke({"text": text})
            desk.fails(2)
            return said

        tasks: Any = task(retry_policy=RETRY)
        work = tasks(one)

        @entrypoint(checkpointer=InMemorySaver())
        def workflow(_: str) -> list[str]:
            return [work("a").result(), write.invoke({"text": "b"}), interrupt("?")]

        workflow.invoke("go", CONFIG)
        said = workflow.invoke(Command(resume="c"), CONFIG)
    assert said == ["wrote a, number 1", "wrote b, number 2", "c"]
    assert desk.written == ["a", "b"]


def test_a_loop_is_no_attempt(desk: Desk, go: Any) -> None:
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def again(_: Any) -> dict[str, list[str]]:
            return {"log": [write.invoke({"text": "tick"})]}

        graph: Any = StateGraph(State)
        graph.add_node("again", again)
        graph.add_edge(START, "again")
        graph.add_conditional_edges(
            "again", lambda state: END if len(state["log"]) == 3 else "again", ["again", END]
        )
        go(graph.compile(checkpointer=InMemorySaver()), {"log": []})
        go(graph.compile(), {"log": []})  # asked for once more, it does all once more
    assert desk.written == ["tick"] * 6


def test_what_was_undone_is_done_again(desk: Desk, go: Any) -> None:
    @rollcage.tool
    def take(text: str) -> None:
        """Undo it."""
        desk.taken.append(text)

    @rollcage.tool(undo=lambda args: [rollcage.compensate(take, text=args["text"])])
    def put(text: str) -> str:
        """Put."""
        desk.written.append(text)
        return text

    with desk.lab.session(options=Options(tools=[put, take])) as session:
        follow_checkpoints(session)

        def work(_: Any) -> dict[str, list[str]]:
            first = put(text="first")
            with session.transaction("pay"):
                said = put(text="a")
                desk.fails(2)
            return {"log": [first, said]}

        go(chain(("work", work), work=RETRY).compile(), {"log": []})
    assert desk.written == ["first", "a", "a", "a"]
    assert desk.taken == ["a", "a"]


def test_an_attempt_that_writes_something_else_halts(desk: Desk, go: Any) -> None:
    def play(session: Session) -> None:
        write, _ = desk.tools(session)

        def work(_: Any) -> dict[str, list[str]]:
            said = write.invoke({"text": f"at {desk.failures}"})
            desk.fails(1)
            return {"log": [said]}

        go(chain(("work", work), work=RETRY).compile(), {"log": []})

    session = desk.lab.session()
    halted = pytest.raises(Diverged, match=r"lie ahead: 1 \(write\)")
    with halted as caught, session:
        play(session)
    assert caught.value.orphans == ((session.run_id, 1),)
    assert desk.written == ["at 0"]
    desk.failures = 0
    with desk.lab.session(replay="off", on_divergence="warn") as session:
        play(session)
    assert desk.written == ["at 0", "at 0", "at 1"]


def test_what_says_which_attempt_it_is(desk: Desk) -> None:
    """Facts about LangGraph that `memory.py` depends on."""
    found: list[tuple[Any, int]] = []

    def work(_: Any) -> dict[str, list[str]]:
        given = get_config()["configurable"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - LangGraph sets it
        info = given["__pregel_runtime"].execution_info
        found.append((given["__pregel_scratchpad"].subgraph_counter, info.node_attempt))
        desk.fails(1)
        return {"log": [interrupt("?")]}

    graph = chain(("work", work), work=RETRY).compile(checkpointer=InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    graph.invoke(Command(resume="yes"), CONFIG)
    (first, one), (second, two), (third, once) = found
    assert (one, two, once) == (1, 2, 1)
    assert first is second
    assert first is not third


def test_a_thread_that_is_taken_back_makes_its_calls_anew(desk: Desk, go: Any) -> None:
    """Whoever goes back to a checkpoint wants what came after it done once more."""
    with desk.lab.session() as session:
        write, _ = desk.tools(session)

        def work(_: Any) -> dict[str, list[str]]:
            return {"log": [write.invoke({"text": "a"})]}

        graph = chain(("work", work)).compile(checkpointer=InMemorySaver())
        go(graph, {"log": []})
        before = next(each for each in graph.get_state_history(CONFIG) if each.next == ("work",))
        graph.invoke(None, before.config)
    assert desk.written == ["a", "a"]
