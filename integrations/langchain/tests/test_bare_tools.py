"""Tools that are run past the session, and calls that a plain tool node refuses."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from rollcage import Options, Session, current_step
from rollcage import tool as declared
from rollcage.errors import Blocked
from rollcage_langchain import RollcageMiddleware, as_tools, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

Run = Callable[..., Any]
Answer = Callable[[Any, Any], Any]
SCRIPT: list[Any] = [[("write", {"text": "a"})], "done"]


class Behind(AgentMiddleware[Any, Any, Any]):
    """A middleware that answers a tool call in its own way."""

    def __init__(self, answer: Answer, aanswer: Answer) -> None:
        super().__init__()
        self._answer, self._aanswer = answer, aanswer

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self._answer(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await self._aanswer(request, handler)


class Bench:
    """A bare tool, and middlewares that run it in many ways."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ran: list[str] = []

        def write(text: str) -> str:
            """Write a text, past the policy."""
            self.ran.append(text)
            return f"wrote {text}"

        async def awrite(text: str) -> str:
            return write(text)

        self.function = write
        self.bare: BaseTool = StructuredTool.from_function(write)
        self.both: BaseTool = StructuredTool.from_function(write, awrite)

    def _fresh(self, request: Any, tool: BaseTool) -> Any:
        return ToolCallRequest(
            tool_call=request.tool_call, tool=tool, state=request.state, runtime=request.runtime
        )

    def fresh(self, tool: BaseTool | None = None) -> Behind:
        """It builds a request of its own."""
        each = tool or self.bare

        async def aanswer(request: Any, handler: Any) -> Any:
            return await handler(self._fresh(request, each))

        return Behind(lambda request, handler: handler(self._fresh(request, each)), aanswer)

    def invoked(self, tool: BaseTool | None = None) -> Behind:
        """It invokes the tool."""
        each = tool or self.bare

        async def aanswer(request: Any, _: Any) -> Any:
            return await each.ainvoke(request.tool_call)

        return Behind(lambda request, _: each.invoke(request.tool_call), aanswer)

    def run(self) -> Behind:
        """It runs the tool, and makes the message itself."""

        def message(request: Any, text: str) -> ToolMessage:
            return ToolMessage(text, tool_call_id=request.tool_call["id"])

        async def aanswer(request: Any, _: Any) -> Any:
            return message(request, await self.both.arun(request.tool_call["args"]))

        return Behind(
            lambda request, _: message(request, self.bare.run(request.tool_call["args"])), aanswer
        )

    def threaded(self) -> Behind:
        """It runs the tool in a thread of its own, which knows this context."""

        def answer(request: Any, _: Any) -> Any:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                context = contextvars.copy_context()
                return pool.submit(context.run, self.bare.invoke, request.tool_call).result()

        async def aanswer(request: Any, _: Any) -> Any:
            return await asyncio.to_thread(answer, request, _)

        return Behind(answer, aanswer)

    def silent(self) -> Behind:
        """It invokes the tool with callbacks of its own, which are none."""

        async def aanswer(request: Any, _: Any) -> Any:
            nobody = AsyncCallbackManager([])
            return await self.bare.ainvoke(request.tool_call, {"callbacks": nobody})

        def answer(request: Any, _: Any) -> Any:
            return self.bare.invoke(request.tool_call, {"callbacks": CallbackManager([])})

        return Behind(answer, aanswer)

    def asked(self) -> Behind:
        """It asks an agent of its own, whose tools are bare."""
        question: Any = {"messages": [HumanMessage("Go.")]}

        def agent() -> Any:
            return create_agent(self.lab.model(SCRIPT), [self.bare])

        def message(request: Any, state: Any) -> ToolMessage:
            return ToolMessage(state["messages"][-1].text, tool_call_id=request.tool_call["id"])

        async def aanswer(request: Any, _: Any) -> Any:
            return message(request, await agent().ainvoke(question))

        return Behind(lambda request, _: message(request, agent().invoke(question)), aanswer)

    def swallowed(self) -> Behind:
        """It takes no refusal for an answer."""
        message = "all is well"

        def answer(request: Any, _: Any) -> Any:
            try:
                return self.bare.invoke(request.tool_call)
            except Exception:  # noqa: BLE001 - what it does
                return ToolMessage(message, tool_call_id=request.tool_call["id"])

        async def aanswer(request: Any, _: Any) -> Any:
            try:
                return await self.bare.ainvoke(request.tool_call)
            except Exception:  # noqa: BLE001 - what it does
                return ToolMessage(message, tool_call_id=request.tool_call["id"])

        return Behind(answer, aanswer)


@pytest.fixture
def bench(lab: Lab) -> Bench:
    return Bench(lab)


SHAPES = ["fresh", "invoked", "run", "threaded", "silent", "asked", "swallowed"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bare_tool_that_a_middleware_runs_does_not_run(
    bench: Bench, run: Run, shape: str
) -> None:
    middleware = [getattr(bench, shape)()]
    for replay in ("auto", "offline"):
        done = run([bench.bare], SCRIPT, middleware=middleware, replay=replay)
        assert done.error is None
        assert bench.ran == []
        (line,) = done.refused
        assert (line["name"], line["verdict"]["code"], line["args"]) == (
            "write",
            "unguarded",
            {"text": "a"},
        )
        (text,) = done.texts
        assert text == "all is well" if shape == "swallowed" else "guard_tools first" in text
        assert done.steps == []


@pytest.mark.parametrize("shape", ["fresh", "invoked"])
def test_a_guarded_one_that_a_middleware_runs_is_a_step(bench: Bench, run: Run, shape: str) -> None:
    given: list[Any] = []

    class Late(AgentMiddleware[Any, Any, Any]):
        """It has its tool guarded as it is called."""

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            guarded = guard_tools([bench.bare], given[-1])[0]
            return getattr(bench, shape)(guarded).wrap_tool_call(request, handler)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            guarded = guard_tools([bench.bare], given[-1])[0]
            return await getattr(bench, shape)(guarded).awrap_tool_call(request, handler)

    def remember(model: Any, session: Session) -> Any:
        given.append(session)
        return model

    for replay in ("auto", "offline"):
        done = run([bench.bare], SCRIPT, middleware=[Late()], replay=replay, guard=remember)
        assert (done.error, done.texts, bench.ran) == (None, ["wrote a"], ["a"])
        assert len(done.steps) == 1


def test_a_declared_one_that_a_middleware_runs_is_a_step(bench: Bench, run: Run) -> None:
    (tool,) = as_tools([declared(name="write")(bench.function)])
    done = run([bench.bare], SCRIPT, middleware=[bench.invoked(tool)])
    assert (done.error, done.texts, bench.ran) == (None, ["wrote a"], ["a"])
    assert [e["slot"] for e in done.steps] == [0]


def test_a_bare_tool_of_another_session_is_refused(bench: Bench, run: Run) -> None:
    with bench.lab.session("another") as another:
        tool = guard_tools([bench.bare], another)[0]
        done = run([bench.bare], SCRIPT, middleware=[bench.invoked(tool)])
    assert ("guard_tools first" in done.texts[0], bench.ran) == (True, [])


def test_what_a_guarded_body_runs_is_its_own_business(bench: Bench, run: Run) -> None:
    def write(text: str) -> str:
        """Write, by another tool."""
        assert current_step() is not None
        return str(bench.bare.invoke({"text": text}))

    done = run([StructuredTool.from_function(write)], SCRIPT)
    assert (done.error, done.texts, bench.ran) == (None, ["wrote a"], ["a"])
    assert len(done.steps) == 1


def test_a_retry_does_not_get_past_a_refusal(bench: Bench, run: Run) -> None:
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0, on_failure="continue")
    done = run([bench.bare], SCRIPT, middleware=[retry, bench.fresh()])
    assert (done.error, bench.ran) == (None, [])
    assert {line["verdict"]["code"] for line in done.refused} == {"unguarded"}


def test_a_run_that_was_refused_goes_on_once_the_middleware_is_mended(
    bench: Bench, run: Run
) -> None:
    calls: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]

    class Sometimes(Behind):
        def __init__(self) -> None:
            def fresh(request: Any) -> bool:
                return bool(request.tool_call["args"]["text"] == "b")

            bare = bench.fresh()

            async def aanswer(request: Any, handler: Any) -> Any:
                if fresh(request):
                    return await bare.awrap_tool_call(request, handler)
                return await handler(request)

            super().__init__(
                lambda request, handler: (
                    bare.wrap_tool_call(request, handler) if fresh(request) else handler(request)
                ),
                aanswer,
            )

    first = run([bench.bare], calls, middleware=[Sometimes()])
    assert bench.ran == ["a"]
    again = run([bench.bare], calls, replay="continue")
    assert (again.error, bench.ran) == (None, ["a", "b"])
    assert (again.session.run_id, again.session.stats.hits) == (first.session.run_id, 1)


# --- agents without the guard --------------------------------------------------------------------


def node_of(tools: list[Any], **options: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile()


def asks(*calls: tuple[str, dict[str, Any]]) -> Any:
    asked = [{"name": name, "args": args, "id": f"c{i}"} for i, (name, args) in enumerate(calls)]
    return {"messages": [AIMessage("", id="m", tool_calls=asked)]}


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Invoke a node, in both ways."""
    if request.param == "sync":
        return lambda node, given: node.invoke(given)
    return lambda node, given: asyncio.run(node.ainvoke(given))


def test_a_session_that_refuses_the_unguarded_refuses_bare_tools_in_any_graph(
    bench: Bench, ask: Callable[..., Any]
) -> None:
    with bench.lab.session() as session:
        ask(node_of([bench.bare]), asks(("write", {"text": "a"})))
    assert bench.ran == ["a"]
    with bench.lab.session(options=Options(unguarded="refuse"), replay="off") as session:
        with pytest.raises(Blocked, match="give the agent RollcageMiddleware"):
            ask(node_of([bench.bare]), asks(("write", {"text": "b"})))
        both = [bench.bare, guard_tools([StructuredTool.from_function(bench.function, name="w")],
                                        session)[0]]  # fmt: skip
        state = ask(
            node_of(both, handle_tool_errors=True),
            asks(("write", {"text": "b"}), ("w", {"text": "c"})),
        )
    assert bench.ran == ["a", "c"]
    assert [m.status for m in state["messages"][1:]] == ["error", "success"]
    lines = [e for e in bench.lab.events(session.run_id) if e["event"] == "refused"]
    assert [(line["name"], line["verdict"]["code"]) for line in lines] == [
        ("write", "unguarded")
    ] * 2
    ask(node_of([bench.bare]), asks(("write", {"text": "d"})))  # no session is open
    assert bench.ran == ["a", "c", "d"]


def test_nor_does_a_middleware_before_the_guard_run_one(
    bench: Bench, ask: Callable[..., Any]
) -> None:
    with bench.lab.session(options=Options(unguarded="refuse")) as session:
        agent = create_agent(
            bench.lab.model(SCRIPT),
            [bench.bare],
            middleware=[bench.swallowed(), RollcageMiddleware(session)],
        )
        state = ask(agent, {"messages": [HumanMessage("Go.")]})
    assert (state["messages"][-2].text, bench.ran) == ("all is well", [])


def test_a_bare_thread_knows_of_a_session_that_refuses(bench: Bench) -> None:
    with bench.lab.session(options=Options(unguarded="refuse")) as session:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(bench.bare.invoke, {"text": "a"})
            with pytest.raises(Blocked, match="write is not guarded where it was run"):
                asked.result()
        write = guard_tools([bench.bare], session)[0]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(write.invoke, {"text": "b"}).result() == "wrote b"
    assert bench.ran == ["b"]


@pytest.mark.parametrize("effect", ["scope", "write"])
def test_an_agent_as_a_tool_acts_through_guarded_calls_only(bench: Bench, effect: Any) -> None:
    def ask(what: str) -> str:
        """Ask an agent whose tools are bare."""
        return str(node_of([bench.bare], handle_tool_errors=True).invoke(
            asks(("write", {"text": what})))["messages"][-1].text
        )  # fmt: skip

    with bench.lab.session(options=Options(unguarded="refuse")) as session:
        given: Any = {"ask": effect}
        tool = guard_tools([StructuredTool.from_function(ask)], session, effects=given)[0]
        said = tool.invoke({"what": "a"})
    assert ("is not guarded" in said, bench.ran) == (
        (True, []) if effect == "scope" else (False, ["a"])
    )


# --- arguments that LangChain refuses ------------------------------------------------------------


class Number(pydantic.BaseModel):
    number: int


class Doubling(BaseTool):
    """A tool with methods for a body."""

    name: str = "double"
    description: str = "Double it."
    args_schema: Any = Number

    def _run(self, number: int) -> int:
        return 2 * number


def refused(bench: Bench, session: Session) -> list[tuple[Any, ...]]:
    lines = [e for e in bench.lab.events(session.run_id) if e["event"] == "refused"]
    return [
        (line["name"], line["args"], line["verdict"]["code"], line.get("call_id")) for line in lines
    ]


@pytest.mark.parametrize("handled", [False, True, "what?"])
def test_arguments_that_a_plain_node_refuses_are_on_record(
    bench: Bench, ask: Callable[..., Any], *, handled: bool | str
) -> None:
    @tool
    def count(number: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Count."""
        bench.ran.append(str(number))
        return f"{number} after {len(state['messages'])}"

    calls: list[Any] = [
        ("count", {"number": "many"}),
        ("double", {"number": []}),
        ("double", {"number": 4}),
    ]
    bare = [count, Doubling()]
    for each in bare:
        each.handle_validation_error = handled
    for replay in ("auto", "offline"):
        with bench.lab.session(replay=replay) as session:
            tools = guard_tools(bare, session)
            assert [type(each).__name__ for each in tools] == ["StructuredTool", "Doubling"]
            state = ask(node_of(tools), asks(*calls))
        assert [m.status for m in state["messages"][1:]] == ["error", "error", "success"]
        assert sorted(refused(bench, session)) == [
            ("count", {"number": "many"}, "arguments_invalid", "c0"),
            ("double", {"number": []}, "arguments_invalid", "c1"),
        ]
    assert bench.ran == []


def test_so_are_those_of_tools_that_are_called_by_hand(bench: Bench) -> None:
    def shouting(text: str) -> str:
        return text.upper()

    with bench.lab.session() as session:
        shout, write = guard_tools([Tool("shout", shouting, "Shout."), bench.bare], session)
        with pytest.raises(ToolException, match="Too many arguments"):
            shout.invoke({"a": "1", "b": "2"})
        with pytest.raises(pydantic.ValidationError):
            write.invoke({"txt": "a"})
        assert (shout.invoke("hi"), write.invoke({"text": "a"})) == ("HI", "wrote a")
    assert refused(bench, session) == [
        ("shout", {"a": "1", "b": "2"}, "arguments_invalid", None),
        ("write", {"txt": "a"}, "arguments_invalid", None),
    ]


# --- facts about LangChain -----------------------------------------------------------------------


def test_a_callback_that_raises_keeps_a_tool_from_running(bench: Bench) -> None:
    """A fact that `bare.py` depends on."""

    class No(BaseCallbackHandler):
        raise_error = True
        run_inline = True

        def on_tool_start(self, *_: Any, **__: Any) -> None:
            raise PermissionError

    config: Any = {"callbacks": [No()]}
    with pytest.raises(PermissionError):
        bench.bare.invoke({"text": "a"}, config)
    with pytest.raises(PermissionError):
        asyncio.run(bench.both.ainvoke({"text": "a"}, config))
    assert bench.ran == []


ALONE = """
import sys
from langchain_core.tools import StructuredTool
from rollcage import Blocked
from rollcage import Options, Session
import rollcage_langchain

tool = StructuredTool.from_function(lambda text: sys.exit("it ran"), name="t", description="t")
with Session("all of it", store=sys.argv[1], options=Options(unguarded="refuse")):
    try:
        tool.invoke({"text": "a"})
    except Blocked:
        print("refused")
"""


def test_importing_the_adapter_is_enough(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ALONE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr
