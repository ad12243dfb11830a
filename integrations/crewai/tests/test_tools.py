"""Guarded tools by themselves, and tools of declared functions."""

import asyncio
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
import rollcage
from crewai.tools import BaseTool, tool
from crewai.tools.base_tool import Tool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.tools.tool_failure import ToolFailure, ToolFailureReason
from rollcage import ReplayMiss, StepView, Verdict
from rollcage.errors import ContractError
from rollcage_crewai import as_tools, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab


class Item(pydantic.BaseModel):
    """A part of an order."""

    name: str
    count: int = pydantic.Field(1, alias="howMany")


class Order(BaseTool):
    """A tool by a class, with nested models and aliases."""

    name: str = "Order Things!"
    description: str = "Orders."
    taken: list[Any] = pydantic.Field(default_factory=list)

    def _run(self, items: list[Item], when: datetime, note: str = "none") -> str:
        self.taken.append((items, when, note))
        return f"ordered {len(items)}"


class Both(BaseTool):
    """A tool with an async body beside its own."""

    name: str = "both"
    description: str = "Does both."
    ran: list[str] = pydantic.Field(default_factory=list)

    def _run(self, text: str) -> str:
        self.ran.append(f"sync {text}")
        return text

    async def _arun(self, text: str) -> str:
        self.ran.append(f"async {text}")
        return self._run(text)


class Sized(BaseTool):
    """A tool that is async only."""

    name: str = "sized"
    description: str = "Sizes."

    async def _run(self, text: str) -> int:
        await asyncio.sleep(0)
        return len(text)


def deny(step: StepView) -> Verdict | None:
    return Verdict.deny("not today", code="closed")


def test_a_class_of_tools_stays_what_it_is(lab: "Lab") -> None:
    order = Order()
    with lab.session() as session:
        (guarded,) = guard_tools([order], session)
        assert type(guarded) is Order
        assert guarded.name == "Order Things!"
        assert guarded.formatted_description == order.formatted_description
        raw = {"items": [{"name": "a", "howMany": "3"}], "when": "2026-01-02T03:04:05Z"}
        assert guarded.run(**raw) == "ordered 1"
    (started,) = lab.records(session)
    assert started["name"] == "Order Things!"
    assert started["args"] == {
        "items": [{"name": "a", "count": 3}],
        "when": "2026-01-02T03:04:05Z",
        "note": "none",
    }
    ((items, when, note),) = order.taken
    assert (items, when.year, note) == ([{"name": "a", "count": 3}], 2026, "none")


def test_an_async_tool_is_recorded_and_replayed(lab: "Lab") -> None:
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([Sized()], session)
            assert guarded.run(text="four") == 4
            assert guarded.to_structured_tool().invoke({"text": "seven.."}) == 7


def test_an_async_body_that_calls_the_sync_one_is_one_step(lab: "Lab") -> None:
    both = Both()
    with lab.session() as session:
        (guarded,) = guard_tools([both], session)
        assert asyncio.run(guarded.arun(text="x")) == "x"
        assert guarded.run(text="y") == "y"
    assert both.ran == ["async x", "sync x", "sync y"]
    assert lab.steps(session) == [("both", "ok")] * 2


def test_a_tool_that_runs_itself_in_its_own_way_is_one_step(lab: "Lab") -> None:
    class Own(Tool[..., Any]):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return f"run {self._run(*args, **kwargs)}"

        def _run(self, *args: Any, **kwargs: Any) -> Any:
            return f"body {self.func(*args, **kwargs)}"

    class Args(pydantic.BaseModel):
        text: str

    def same(text: str) -> str:
        return text

    own = Own(name="own", description="Its own.", func=same, args_schema=Args)
    with lab.session() as session:
        (guarded,) = guard_tools([own], session)
        assert guarded.run(text="a") == "run body a"
        assert guarded.to_structured_tool().invoke({"text": "b"}) == "body b"
    assert lab.steps(session) == [("own", "ok")] * 2


def test_a_structured_tool_is_guarded_at_its_function(lab: "Lab") -> None:
    def add(x: int, y: int = 2) -> int:
        """Add."""
        return x + y

    with lab.session() as session:
        (guarded,) = guard_tools([CrewStructuredTool.from_function(add)], session)
        assert guarded.invoke({"x": "1"}) == 3
    assert lab.steps(session) == [("add", "ok")]


def test_positional_arguments_have_their_names(
    lab: "Lab", write: BaseTool, written: list[str]
) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([write], session)
        guarded.run("a")
        assert guarded.run(text="a") == "wrote a, number 2"
    args = [e["args"] for e in lab.records(session)]
    assert args == [{"text": "a"}] * 2


def test_a_tool_without_arguments_takes_what_crewai_lets_through(lab: "Lab") -> None:
    class Anything(BaseTool):
        name: str = "anything"
        description: str = "Takes anything."

        def _run(self, *args: Any, **kwargs: Any) -> str:
            return f"{args} {kwargs}"

    with lab.session() as session:
        (guarded,) = guard_tools([Anything()], session)
        assert guarded.run(a=1) == "() {'a': 1}"
        assert guarded.run("b") == "('b',) {}"
    args = [e["args"] for e in lab.records(session)]
    assert args == [{"a": 1}, {"args": ["b"]}]


def test_a_refusal_is_a_failure_with_its_reason(
    lab: "Lab", write: BaseTool, written: list[str]
) -> None:
    with lab.session(gate=[deny]) as session:
        (guarded,) = guard_tools([write], session)
        failure = guarded.run(text="a")
    assert isinstance(failure, ToolFailure)
    assert (failure.message, failure.code) == ("not today", "closed")
    assert guarded.format_output_for_agent(failure) == "not today (code: closed)"
    assert written == []


def test_arguments_that_a_declared_contract_refuses_run_nothing(
    lab: "Lab", write: BaseTool, written: list[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"words": {"type": "string"}},
        "additionalProperties": False,
    }
    contract = rollcage.Contract(name="write", parameters=schema)
    with lab.session() as session:
        (guarded,) = guard_tools([write], session, contracts={"write": contract})
        failure = guarded.run(text="a")
    assert isinstance(failure, ToolFailure)
    assert failure.reason is ToolFailureReason.INVALID_INPUT
    assert written == []


def test_a_tools_own_failure_is_recorded_and_comes_back(lab: "Lab") -> None:
    @tool
    def book(room: str) -> Any:
        """Book a room."""
        return ToolFailure(message=f"{room} is taken", code="taken", details={"by": ["ann"]})

    given: list[Any] = []
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([book], session)
            given.append(guarded.run(room="12"))
    assert given[0] == given[1]
    assert isinstance(given[1], ToolFailure)


def test_a_halted_session_is_told_and_raised_at_its_end(
    lab: "Lab", write: BaseTool, written: list[str]
) -> None:
    with lab.session(replay="off") as session:
        guard_tools([write], session)[0].run(text="a")
    with pytest.raises(ReplayMiss), lab.session(replay="offline") as session:
        (guarded,) = guard_tools([write], session)
        assert guarded.run(text="b").code == "replay_miss"
        assert guarded.run(text="a").code == "session_halted"
    assert written == ["a"]
    assert write.tool_failure_policy is None


def test_the_original_stays_as_it_is(lab: "Lab", write: BaseTool, written: list[str]) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([write], session)
        assert guard_tools([guarded], session) == [guarded]
        guarded.run(text="a")
        write.run(text="b")
    assert lab.steps(session) == [("write", "ok")]
    assert (guarded.current_usage_count, write.current_usage_count) == (1, 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tools": ["write"]}, "is not a tool of CrewAI"),
        ({"effects": {"wrote": "read"}}, "effects= names wrote; the tools are: write"),
        ({"contracts": {"write": {"colour": 1}}}, "are not options of a tool"),
    ],
)
def test_what_cannot_be_guarded_is_refused(
    lab: "Lab", write: BaseTool, wrong: dict[str, Any], said: str
) -> None:
    with lab.session() as session, pytest.raises(ContractError, match=said):
        guard_tools(wrong.pop("tools", [write]), session, **wrong)


def test_a_guarded_tool_is_not_guarded_again(lab: "Lab", write: BaseTool) -> None:
    with lab.session() as session, lab.session("other", inner=True) as other:
        (guarded,) = guard_tools([write], session)
        with pytest.raises(ContractError, match="another session"):
            guard_tools([guarded], other)
        with pytest.raises(ContractError, match="this session already"):
            guard_tools([guarded], session, effects={"write": "read"})


# --- declared functions --------------------------------------------------------------------------


@rollcage.tool(effect="read", version="3")
def look(place: str, times: int = 1) -> str:
    """Look at a place."""
    return f"saw {place} {times}"


@rollcage.tool(effect="read")
async def alook(place: str) -> str:
    """Look at a place, in time."""
    await asyncio.sleep(0)
    return f"saw {place}"


def test_declared_functions_are_tools_of_crewai(lab: "Lab") -> None:
    with lab.session() as session:
        one, other = as_tools([look, alook], session)
        assert isinstance(one, Tool)
        assert (one.name, one.description) == ("look", "Look at a place.")
        assert one.run(place="a", times="2") == "saw a 2"
        assert other.run(place="b") == "saw b"
    started = lab.records(session)
    assert [(e["name"], e["version"]) for e in started] == [("look", "3"), ("alook", "")]


def test_declared_functions_are_guarded_by_the_session_around(lab: "Lab") -> None:
    one, other = as_tools([look, alook])
    assert one.run(place="a") == "saw a 1"
    with lab.session(gate=[deny]) as session:
        assert one.run(place="a").code == "closed"
        assert other.run(place="b").code == "closed"
    assert lab.steps(session) == [("look", "blocked"), ("alook", "blocked")]


def test_an_undeclared_function_is_refused() -> None:
    with pytest.raises(ContractError, match="is not declared"):
        as_tools([len])


def test_importing_the_adapter_does_not_import_crewai() -> None:
    program = (
        "import sys, rollcage_crewai as adapter\n"
        "assert 'crewai' not in sys.modules\n"
        "assert set(adapter.__all__) <= {*dir(adapter), *adapter._MODULES}\n"
        "try: adapter.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "has no attribute 'nothing'" in done.stdout
