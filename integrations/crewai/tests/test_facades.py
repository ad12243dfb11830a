"""Tools that a session's facade does not give: no agent sees one, and none runs by any way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import rollcage
from crewai import LLM
from crewai.tools import BaseTool, tool
from rollcage import Blocked, Contract, Session, ToolRefused
from rollcage_adapter import guarded_contract, model_contract
from rollcage_crewai import as_tools, guard_crew, guard_model, guard_tools
from rollcage_governance import Facade, Registry

if TYPE_CHECKING:
    from .conftest import Lab

DONE = "Thought: I now can give a great answer\nFinal Answer: done"
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


def made() -> BaseTool:
    @tool
    def native(text: str) -> str:
        """Do it."""
        ran.append(text)
        return text

    return native


def amade() -> BaseTool:
    @tool
    async def native(text: str) -> str:
        """Do it."""
        ran.append(text)
        return text

    return native


NATIVE: dict[str, Callable[[], BaseTool]] = {"function": made, "coroutine": amade, "class": Deleter}
every_kind = pytest.mark.parametrize("kind", NATIVE)
every_way = pytest.mark.parametrize("native", [True, False], ids=["calls", "text"])
Govern = Callable[..., Registry]


@pytest.fixture
def govern(lab: Lab) -> Govern:
    """Approve tools, declared or of CrewAI's, and give them by the facade `agent`."""

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


def script(lab: Lab, *names: str, native: bool) -> Any:
    """A model that calls these tools, one after the other, and ends."""
    if native:
        return lab.model(*([(name, {"text": "a"})] for name in names), "done")
    return lab.model(*(lab.act(name, text="a") for name in names), DONE, native=False)


def texts(model: Any) -> str:
    return "\n".join(str(message["content"]) for message in model.asked[-1])


def test_a_declared_function_is_the_same_tool_here(lab: Lab, govern: Govern) -> None:
    govern(save, asave)
    with lab.session(gate=[Facade("agent")]) as session:
        for each in (*as_tools([save, asave], session), *as_tools([save, asave])):
            each.run(text="a")
    assert ran == ["a"] * 4


@every_kind
def test_a_tool_that_was_approved_is_given(lab: Lab, govern: Govern, kind: str) -> None:
    govern(NATIVE[kind]())
    with lab.session(gate=[Facade("agent")]) as session:
        (guarded,) = guard_tools([NATIVE[kind]()], session)
        guarded.run(text="a")
        guarded.to_structured_tool().invoke({"text": "b"})
    assert ran == ["a", "b"]


@every_kind
def test_no_other_tool_is_shown_to_an_agent(lab: Lab, govern: Govern, kind: str) -> None:
    govern(save)
    tool = NATIVE[kind]()
    with pytest.raises(ToolRefused, match=f"The tool {tool.name} is not approved") as refused:
        guard_tools([tool], lab.session(gate=[Facade("agent")]))
    assert "Next: rollcage tools propose" in str(refused.value)
    with lab.session(gate=[Facade("agent")]) as session, pytest.raises(ToolRefused):
        guard_tools([tool.to_structured_tool()], session)
    with pytest.raises(ToolRefused, match="asave is not approved"):
        as_tools([save, asave], lab.session(gate=[Facade("agent")]))


def test_a_tool_of_the_same_name_with_another_body(lab: Lab, govern: Govern) -> None:
    govern(made())
    with pytest.raises(ToolRefused, match="other code") as refused:
        guard_tools([amade()], lab.session(gate=[Facade("agent")]))
    assert "+async def native" in refused.value.diff
    with lab.session(gate=[Facade("agent")]) as session:
        native: Any = made()
        (guarded,) = guard_tools([native], session)
        native.func.__code__ = (lambda text: ran.append("evil")).__code__
        assert "other code" in str(guarded.run(text="a"))
    assert ran == []


def test_a_tool_without_a_session_of_its_own(lab: Lab, govern: Govern) -> None:
    govern(save)
    with lab.session(gate=[Facade("agent")]):
        (unguarded,) = as_tools([asave])
        assert "The tool asave is not approved" in str(unguarded.run(text="a"))
    assert ran == []


@every_way
def test_a_crew_has_its_tools(lab: Lab, govern: Govern, *, native: bool) -> None:
    govern(save, made())
    model = script(lab, "save", "native", native=native)
    with lab.session(gate=[Facade("agent")]) as session:
        crew = lab.crew(lab.agent(model, made(), *as_tools([save])))
        assert lab.kickoff(guard_crew(crew, session)).raw == "done"
        assert lab.steps(session) == [("save", "ok"), ("native", "ok")]
    assert ran == ["a", "a"]


@every_way
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_crew_with_another_tool_does_not_begin(
    lab: Lab, govern: Govern, way: str, *, native: bool
) -> None:
    govern(save)
    model = script(lab, "native", native=native)
    with lab.session(gate=[Facade("agent")]) as session:
        crew = guard_crew(lab.crew(lab.agent(model, made(), *as_tools([save]))), session)
        with pytest.raises(ToolRefused, match="The tool native is not approved"):
            if way == "sync":
                crew.kickoff()
            else:
                asyncio.run(crew.kickoff_async())
    assert ran == []
    assert model.asked == []


@every_way
def test_what_crewai_adds_has_to_be_approved_as_well(
    lab: Lab, govern: Govern, *, native: bool
) -> None:
    govern(save)
    model = script(lab, "save", native=native)
    with lab.session(gate=[Facade("agent")]) as session:
        one = lab.agent(model, *as_tools([save]), allow_delegation=True)
        two = lab.agent(model, role="helper")
        with pytest.raises(ToolRefused, match=r"The tool \w*(delegate|Delegate)\w*"):
            guard_crew(lab.crew(one, two), session).kickoff()
    assert ran == []


@every_way
def test_a_crew_without_a_guard_is_refused_call_by_call(
    lab: Lab, govern: Govern, *, native: bool
) -> None:
    govern(save)
    model = script(lab, "asave", native=native)
    with lab.session(gate=[Facade("agent")]):
        lab.crew(lab.agent(model, *as_tools([asave]))).kickoff()
    assert ran == []
    assert "The tool asave is not approved" in texts(model)


def test_models_are_given_by_name_once_a_facade_has_one(lab: Lab, govern: Govern) -> None:
    registry = govern(save)
    with lab.session(gate=[Facade("agent")]) as session:
        assert (
            guard_model(lab.model("hi"), session).call([{"role": "user", "content": "x"}]) == "hi"
        )
    registry.propose(model_contract("other", ""), by="ann", kind="model")
    registry.approve("other", by="bob", kind="model")
    registry.activate("other", "pack", by="bob", kind="model")
    model = lab.model("hi")
    with (
        lab.session(gate=[Facade("agent")], replay="off") as session,
        pytest.raises(Blocked, match="The model scripted is not approved"),
    ):
        guard_model(model, session).call([{"role": "user", "content": "x"}])
    assert model.asked == []


SEARCH = {"type": "web_search_preview"}


@pytest.mark.parametrize("settings", [
    {"additional_params": {"tools": [SEARCH]}},
    {"tools": [SEARCH]},
    {"extra_body": {"tools": [SEARCH]}},
    {"api": "responses", "builtin_tools": ["web_search"]},
])  # fmt: skip
def test_a_tool_in_the_settings_of_a_model_has_to_be_given(
    lab: Lab, govern: Govern, settings: dict[str, Any]
) -> None:
    """Nothing listens at the address of this model: it is refused before."""
    govern(save)
    address: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0}
    model = LLM(model="gpt-4o", api_key="k", **address, **settings)
    with lab.session(gate=[Facade("agent")]) as session:
        guarded = guard_model(model, session)
        with pytest.raises(ToolRefused, match="provider:web_search"):
            guarded.call([{"role": "user", "content": "Go."}])
        with pytest.raises(ToolRefused, match="provider:web_search"):
            asyncio.run(guarded.acall([{"role": "user", "content": "Go."}]))
