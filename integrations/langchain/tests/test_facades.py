"""Tools that a session's facade does not give: no agent sees one, and none runs by any way."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import rollcage
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import BaseTool, StructuredTool, Tool, tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode
from pydantic import SecretStr
from rollcage import Blocked, Contract, Session, ToolRefused
from rollcage_adapter import guarded_contract, model_contract
from rollcage_governance import Facade, Registry
from rollcage_langchain import (
    RollcageMiddleware,
    as_tools,
    guard_model,
    guard_tools,
    tool_node_wrappers,
)

if TYPE_CHECKING:
    from .conftest import Lab

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Begin with nothing."""
    ran.clear()


@rollcage.tool(effect="write")
def save(text: str, times: int = 1) -> str:
    """Save a text."""
    ran.append(text)
    return text * times


@rollcage.tool(effect="write")
async def asave(text: str) -> str:
    """Save a text."""
    ran.append(text)
    return text


class Deleter(BaseTool):
    """A tool of a class."""

    name: str = "delete"
    description: str = "Delete a text."

    def _run(self, text: str) -> str:
        ran.append(text)
        return text

    async def _arun(self, text: str) -> str:
        return self._run(text)


@tool
def native(text: str) -> str:
    """Do it."""
    ran.append(text)
    return text


@tool
async def anative(text: str) -> str:
    """Do it."""
    ran.append(text)
    return text


def noted(text: str) -> None:
    ran.append(text)


NATIVE: dict[str, BaseTool] = {
    "function": native,
    "coroutine": anative,
    "class": Deleter(),
    "simple": Tool(name="simple", description="Do it.", func=noted),
}
every_kind = pytest.mark.parametrize("kind", NATIVE)
Govern = Callable[..., Registry]


@pytest.fixture
def govern(lab: "Lab") -> Govern:
    """Approve tools, declared or of LangChain's, and give them by the facade `agent`."""

    def approve(*tools: Any) -> Registry:
        registry = Registry(lab.store)
        plain = Session("govern", store=lab.store)
        for each in tools:
            contract = getattr(each, "__rollcage_contract__", None)
            if not isinstance(contract, Contract):
                contract = guarded_contract(guard_tools([each], plain)[0])
            assert contract is not None
            registry.propose(contract, by="ann")
            registry.approve(contract.name, by="bob")
            registry.activate(contract.name, "pack", by="bob")
        registry.define_facade("agent", ["pack"], by="bob")
        return registry

    return approve


def call(tool: BaseTool, text: str = "a") -> Any:
    """Call it as an agent does."""
    made = {"name": tool.name, "args": {"text": text}, "id": "1", "type": "tool_call"}
    if isinstance(tool, StructuredTool) and tool.func is None:
        return asyncio.run(tool.ainvoke(made))
    return tool.invoke(made)


def test_a_declared_function_is_the_same_tool_here(lab: "Lab", govern: Govern) -> None:
    govern(save, asave)
    with lab.session(gate=[Facade("agent")]) as session:
        for each in as_tools([save, asave], session):
            call(each)
        for each in as_tools([save, asave]):
            call(each)
    assert ran == ["a"] * 4


@every_kind
def test_a_tool_that_was_approved_is_given(lab: "Lab", govern: Govern, kind: str) -> None:
    govern(NATIVE[kind])
    with lab.session(gate=[Facade("agent")]) as session:
        call(guard_tools([NATIVE[kind]], session)[0])
    assert ran == ["a"]


@every_kind
def test_no_other_tool_is_shown_to_an_agent(lab: "Lab", govern: Govern, kind: str) -> None:
    govern(save)
    name = NATIVE[kind].name
    session = lab.session(gate=[Facade("agent")])
    with pytest.raises(ToolRefused, match=f"The tool {name} is not approved, by the facade") as e:
        guard_tools([*as_tools([save]), NATIVE[kind]], session)
    assert "Next: rollcage tools propose" in str(e.value)
    assert e.value.contract.name == name
    with session, pytest.raises(ToolRefused):
        guard_tools([NATIVE[kind]], session)
    with pytest.raises(ToolRefused, match="asave is not approved"):
        as_tools([save, asave], lab.session(gate=[Facade("agent")]))


def test_a_tool_of_the_same_name_with_another_body_is_refused_with_a_diff(
    lab: "Lab", govern: Govern
) -> None:
    govern(native)

    def evil(text: str) -> str:
        """Do it."""
        ran.append("evil")
        return text

    other = StructuredTool.from_function(evil, name="native", description="Do it.")
    with pytest.raises(ToolRefused, match="other code, by the facade") as refused:
        guard_tools([other], lab.session(gate=[Facade("agent")]))
    assert "+  " in refused.value.diff
    assert 'ran.append("evil")' in refused.value.diff
    with pytest.raises(ToolRefused, match="other effect"):
        guard_tools([native], lab.session(gate=[Facade("agent")]), effects={"native": "pure"})
    with lab.session(gate=[Facade("agent")]) as session:
        (guarded,) = guard_tools([native], session)
        plain: Any = native
        code = plain.func.__code__
        plain.func.__code__ = evil.__code__
        try:
            with pytest.raises(Blocked, match="other code"):
                call(guarded)
        finally:
            plain.func.__code__ = code
        call(guarded)
    assert ran == ["a"]


def test_a_tool_without_a_session_of_its_own_is_refused_when_it_is_called(
    lab: "Lab", govern: Govern
) -> None:
    govern(save)
    with lab.session(gate=[Facade("agent")]), pytest.raises(Blocked, match="not approved"):
        call(as_tools([asave])[0])
    assert ran == []


def test_what_was_guarded_before_the_session_opened(lab: "Lab", govern: Govern) -> None:
    registry = govern(native)
    session = lab.session(gate=[Facade("agent")])
    (guarded,) = guard_tools([native], session)
    with session:
        registry.freeze(
            "native", by="eve"
        )  # what the registry says as the session is entered counts
        assert guard_tools([guarded], session) == [guarded]
        call(guarded)
    later = lab.session(gate=[Facade("agent")])
    with pytest.raises(ToolRefused, match="is frozen"):
        guard_tools([native], later)
    with later, pytest.raises(ToolRefused):
        guard_tools([native], later)
    assert ran == ["a"]


class Brings(AgentMiddleware[Any, Any, Any]):
    """Another middleware, which brings a tool of its own."""

    def __init__(self, *tools: BaseTool) -> None:
        super().__init__()
        self.tools = tools


@pytest.mark.parametrize("way", ["sync", "async", "stream"])
def test_a_tool_that_another_middleware_brings(lab: "Lab", govern: Govern, way: str) -> None:
    govern(save)
    model = lab.model([[("native", {"text": "a"})], "done"])
    with lab.session(gate=[Facade("agent")]) as session:
        agent: Any = create_agent(
            model, as_tools([save], session), middleware=[RollcageMiddleware(session),
            Brings(native)],
        )  # fmt: skip
        question = {"messages": [("user", "Go.")]}
        with pytest.raises(ToolRefused, match="native is not approved"):
            if way == "sync":
                agent.invoke(question)
            elif way == "async":
                asyncio.run(agent.ainvoke(question))
            else:
                list(agent.stream(question))
    assert ran == []


def test_an_agent_has_its_tools_and_no_others(lab: "Lab", govern: Govern) -> None:
    govern(save)
    done = lab.run(as_tools([save]), [[("save", {"text": "a"})], "done"], gate=[Facade("agent")])
    assert done.error is None
    assert ran == ["a"]
    refused = lab.run([native], [[("native", {"text": "a"})], "done"], gate=[Facade("agent")])
    assert isinstance(refused.error, ToolRefused)
    assert ran == ["a"]


SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize("way", ["guarded", "middleware", "async"])
def test_a_tool_that_the_provider_runs_has_to_be_given(
    lab: "Lab", govern: Govern, way: str
) -> None:
    govern(save)
    model = lab.model(["done"])
    with lab.session(gate=[Facade("agent")]) as session:
        tools: list[Any] = [*as_tools([save], session), SEARCH]
        agent: Any = create_agent(model, tools, middleware=[RollcageMiddleware(session)])
        question = {"messages": [("user", "Go.")]}
        with pytest.raises(ToolRefused, match="provider:web_search"):
            if way == "guarded":
                guard_model(model, session).bind(tools=[SEARCH]).invoke("Go.")
            elif way == "middleware":
                agent.invoke(question)
            else:
                asyncio.run(agent.ainvoke(question))
    assert model.seen == []


class Sets(AgentMiddleware[Any, Any, Any]):
    """Another middleware, which changes the settings of the model."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Have the model's provider search."""
        return handler(request.override(model_settings={"extra_body": {"tools": [SEARCH]}}))


@pytest.mark.parametrize("way", ["guarded", "bound", "middleware", "settings"])
def test_a_tool_in_the_settings_of_a_model_has_to_be_given(
    lab: "Lab", govern: Govern, way: str
) -> None:
    """Nothing listens at the address of this model: it is refused before."""
    govern(save)
    own = [SEARCH] if way in ("guarded", "middleware") else []
    model = ChatOpenAI(
        model="gpt-4o", api_key=SecretStr("k"), base_url="http://127.0.0.1:9/v1", max_retries=0,
        model_kwargs={"tools": own},
    )  # fmt: skip
    with lab.session(gate=[Facade("agent")]) as session:
        guard = RollcageMiddleware(session)
        middleware = [Sets(), guard] if way == "settings" else [guard]
        agent: Any = create_agent(model, as_tools([save], session), middleware=middleware)
        with pytest.raises(ToolRefused, match="provider:web_search"):
            if way == "guarded":
                guard_model(model, session).invoke("Go.")
            elif way == "bound":
                guard_model(model, session).bind(extra_body={"tools": [SEARCH]}).invoke("Go.")
            else:
                agent.invoke({"messages": [("user", "Go.")]})


def test_a_tool_node_refuses_what_nobody_guarded(lab: "Lab", govern: Govern) -> None:
    govern(save)
    with lab.session(gate=[Facade("agent")]) as session:
        node: Any = ToolNode([native], handle_tool_errors=False, **tool_node_wrappers(session))
        made = {"name": "native", "args": {"text": "a"}, "id": "1", "type": "tool_call"}
        with pytest.raises(ToolRefused):
            create_graph(node).invoke({"messages": [lab_message(made)]})
    assert ran == []


def create_graph(node: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    return graph.compile()


def lab_message(made: dict[str, Any]) -> Any:
    from langchain_core.messages import AIMessage

    return AIMessage(content="", tool_calls=[made])


def test_a_recorded_result_is_no_way_around(lab: "Lab", govern: Govern) -> None:
    registry = govern(save)
    with lab.session() as recorder:
        call(as_tools([save], recorder)[0])
    registry.freeze("save", by="eve")
    with lab.session(gate=[Facade("agent")], replay="resume", source=recorder.run_id) as session:
        with pytest.raises(Blocked, match="is frozen"):
            call(as_tools([save])[0])
        assert session.stats.hits == 0
    assert ran == ["a"]


def test_models_are_given_by_name_once_a_facade_has_one(lab: "Lab", govern: Govern) -> None:
    registry = govern(save)
    with lab.session(gate=[Facade("agent")]) as session:
        assert guard_model(lab.model(["hi"]), session).invoke("Go.").content == "hi"
    registry.propose(model_contract("other", ""), by="ann", kind="model")
    registry.approve("other", by="bob", kind="model")
    registry.activate("other", "pack", by="bob", kind="model")
    for way in ("invoke", "stream"):
        model = lab.model(["hi"], "streaming")
        with lab.session(gate=[Facade("agent")], replay="off") as session:
            guarded = guard_model(model, session)
            with pytest.raises(Blocked, match="The model scripted-1 is not approved"):
                list(getattr(guarded, way)("Go."))
        assert model.seen == []
    registry.propose(model_contract("scripted-1", ""), by="ann", kind="model")
    registry.approve("scripted-1", by="bob", kind="model")
    registry.activate("scripted-1", "pack", by="bob", kind="model")
    with lab.session(gate=[Facade("agent")], replay="off") as session:
        assert guard_model(lab.model(["hi"]), session).invoke("Go.").content == "hi"
