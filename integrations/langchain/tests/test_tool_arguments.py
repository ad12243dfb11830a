"""What of a tool's arguments makes the call, and what is only handed to its body."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    tool,
)
from langgraph.prebuilt import ToolRuntime
from pydantic import Base64Bytes, BaseModel, Json
from rollcage.errors import ArgumentsInvalid
from rollcage_langchain import guard_tools

Call = Callable[..., dict[str, Any]]
"""Makes a tool call as LangChain hands it to a tool."""


class Point(BaseModel):
    """Two numbers."""

    x: int
    y: int = 2


def add(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


def test_validated_arguments_are_not_validated_twice(lab: Any, call: Call) -> None:
    given: list[Any] = []

    @tool
    def take(data: Base64Bytes, what: Json[Any]) -> str:
        """Take things that are another form after validation."""
        given.append((data, what))
        return "taken"

    with lab.session() as session:
        (guarded,) = guard_tools([take], session)
        assert guarded.invoke(call(data="aGk=", what='{"a": 1}')).content == "taken"
    assert given == [(b"hi", {"a": 1})]


def test_injected_arguments_reach_the_body_and_are_no_part_of_the_call(
    lab: Any, call: Call
) -> None:
    given: list[Any] = []

    @tool
    def ask(
        question: str,
        who: Annotated[str, InjectedToolArg],
        call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
    ) -> str:
        """Ask somebody."""
        given.append((who, call_id, config.get("metadata", {})["trace"]))
        return "answer"

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([ask], session)
            config: RunnableConfig = {"metadata": {"trace": replay}}
            message = guarded.invoke(call(question="why", who=replay), config)
            assert message.content == "answer"
        assert lab.args(session) == [{"question": "why"}]
    assert given == [("auto", "call-1", "auto")]


def test_arguments_that_a_dict_schema_does_not_name_are_part_of_the_call(
    lab: Any, call: Call
) -> None:
    @tool(args_schema={"type": "object", "properties": {"x": {"type": "integer"}}})
    def loose(**more: Any) -> str:
        """Take anything."""
        return str(more)

    with lab.session() as session:
        (guarded,) = guard_tools([loose], session)
        guarded.invoke(call(x=1, z=2))
        guarded.invoke(call(x=1, z=3))
    assert lab.args(session) == [{"x": 1, "z": 2}, {"x": 1, "z": 3}]


def test_arguments_that_a_model_lets_pass_are_part_of_the_call(lab: Any, call: Call) -> None:
    class Open(BaseModel, extra="allow"):
        x: int

    def take(**arguments: Any) -> str:
        return str(sorted(arguments))

    opened = StructuredTool(name="take", args_schema=Open, func=take)
    with lab.session() as session:
        (guarded,) = guard_tools([opened], session)
        assert guarded.invoke(call(x=1, z=2)).content == "['x', 'z']"
    assert lab.args(session) == [{"x": 1, "z": 2}]


def test_no_name_of_an_argument_takes_it_out_of_the_call(lab: Any, call: Call) -> None:
    class Open(BaseModel, extra="allow"):
        cls: int

    def act(**given: Any) -> str:
        return str(sorted(given))

    with lab.session() as session:
        made = StructuredTool(name="act", description="Act.", args_schema=Open, func=act)
        (guarded,) = guard_tools([made], session)
        for hidden in ("a", "b"):
            answer = guarded.invoke(call(cls=1, _fields_set=[hidden]))
            assert answer.content == "['_fields_set', 'cls']"
    assert lab.args(session) == [{"cls": 1, "_fields_set": [each]} for each in ("a", "b")]


def test_an_argument_without_an_encoding_is_refused_before_anything_happens(lab: Any) -> None:
    ran: list[Any] = []

    def take(x: Any) -> str:
        """Take it."""
        ran.append(x)
        return "taken"

    with lab.session() as session:
        (guarded,) = guard_tools([StructuredTool.from_function(take)], session)
        with pytest.raises(ArgumentsInvalid, match="x"):
            guarded.invoke({"x": object()})
    assert ran == []


# LangChain warns of it, guarded or not.
@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
def test_parameters_may_be_called_as_pydantic_calls_its_own(lab: Any) -> None:
    class Names(BaseTool):
        name: str = "names"
        description: str = "Takes odd names."

        def _run(self, json: str, copy: int = 1) -> str:
            return f"{json} {copy}"

    with lab.session() as session:
        (guarded,) = guard_tools([Names()], session)
        assert guarded.invoke({"json": "a"}) == "a 1"
    assert lab.args(session) == [{"json": "a", "copy": 1}]


if TYPE_CHECKING:
    from decimal import Decimal as Unknown  # known to type checkers only


def half_known(place: str, runtime: ToolRuntime, more: "Unknown | None" = None) -> str:
    """Look."""
    return f"{place} {more}"


half_known.__annotations__["runtime"] = "ToolRuntime"


def test_an_annotation_that_can_not_be_resolved_hides_no_other(lab: Any) -> None:
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    original = StructuredTool(name="look", args_schema=schema, func=half_known)
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert guarded.invoke({"place": "here", "runtime": object()}) == "here None"
    assert lab.args(session) == [{"place": "here"}]


class Scale:
    """An object that can be called."""

    def __call__(self, x: int, *more: int) -> int:
        return x * 2 + sum(more)


def test_an_object_that_can_be_called_is_a_body(lab: Any) -> None:
    original = StructuredTool(name="scale", args_schema=Point, func=Scale())
    with lab.session() as session:
        guarded: Any = guard_tools([original], session)[0]
        assert guarded.func(1, 2, 3) == 7
    assert lab.args(session)[0]["args"] == [2, 3]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Pydantic v1 ends with Python 3.13")
def test_a_schema_of_pydantic_v1_works(lab: Any, call: Call) -> None:
    from pydantic import v1

    class Old(v1.BaseModel):
        x: int
        y: int = 2

    old: Any = Old
    original = StructuredTool(name="add", args_schema=old, func=add)
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert guarded.invoke(call(x="1")).content == "3"
    assert lab.args(session) == [{"x": 1, "y": 2}]


def test_the_runtime_is_no_part_of_the_call(lab: Any, call: Call) -> None:
    @tool
    def look(place: str, runtime: ToolRuntime) -> str:
        """Look."""
        return f"{place} {runtime.tool_call_id}"

    runtime: Any = ToolRuntime(
        state={}, context=None, config={}, stream_writer=print, tool_call_id="call-1", store=None
    )
    with lab.session() as session:
        (guarded,) = guard_tools([look], session)
        message = guarded.invoke(call(place="here", runtime=runtime))
        assert message.content == "here call-1"
    assert lab.args(session) == [{"place": "here"}]
