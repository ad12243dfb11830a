"""The shape of what a tool returns is known, whichever type declares it, on each Python."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, NotRequired, Required, TypedDict, TypeVar

import pydantic
import pytest
from rollcage import tool
from rollcage_workflow import PlanInvalid, check, example
from rollcage_workflow.schemas import of_type

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


class Handle:
    """A class of which pydantic knows nothing."""


class Line(TypedDict):
    price: float


class Order(TypedDict, total=False):
    total: Required[int]
    note: str | None
    lines: list[Line]
    handle: Handle
    later: Decimal  # only a type checker sees it
    before: Order


class Paid(Order):
    at: Annotated[str, "a time"]
    by: NotRequired[str]


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
class Closed(TypedDict):
    n: int


class Box(TypedDict, Generic[T]):
    inner: T
    count: int


@dataclasses.dataclass
class Basket:
    order: Order
    lines: list[Line] = dataclasses.field(default_factory=list)


Unready: Any = pydantic.create_model("Unready", missing=("Nowhere", ...))
Lines = typing.NewType("Lines", list[Line])


def told(declared: Any, source: str) -> list[str]:
    """What is found in an expression over a tool's result, of a type."""

    @tool(effect="read", returns=declared)
    def fetch() -> Any:
        raise AssertionError

    steps = {"r": {"call": "fetch"}, "v": {"value": f"={source}"}}
    try:
        check({"name": "plan", "steps": steps}, [fetch])
    except PlanInvalid as error:
        return [f"{each.code} {each.reason}" for each in error.findings]
    return []


@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        (Line, "r.price", "r.pirce"),
        (Order, "r.total + r.lines[0].price", "r.totel"),
        (Order, "r.note.size()", "r.note.x"),
        (Order, "r.handle.x.y + r.later.x", "r.lines[0].pirce"),
        (Order, "r.before.x", "r.befor"),
        (list[Order], "r[0].lines[0].price", "r[0].lines[0].pirce"),
        (Order | None, "r.total", "r.totel"),
        (dict[str, Line], "r.any.price", "r.any.pirce"),
        (tuple[Line, ...], "r[5].price", "r[5].pirce"),
        (tuple[int, Line], "r[1].price", "r[0].price"),
        (Annotated[Line, {}], "r.price", "r.pirce"),
        (Paid, "r.at + r.by + r.lines[0].price", "r.att"),
        (Lines, "r[0].price", "r[0].pirce"),
        (Box[int], "r.inner.x + r.count", "r.outer"),
        (Basket, "r.order.lines[0].price + r.lines[0].price", "r.order.lines[0].pirce"),
        (Basket | Line, "r.whatever", "r[0]"),
        (list[Handle], "r[0].x", "r.x"),
    ],
)
def test_fields_of_all_types_are_known(declared: Any, right: str, wrong: str) -> None:
    assert told(declared, right) == []
    (said,) = told(declared, wrong)
    assert said.startswith("unknown_field")


def test_required_fields_are_told_from_others() -> None:
    for declared, required in ((Order, {"total"}), (Paid, {"total", "at"}), (Line, {"price"})):
        shape, why = of_type(declared)
        assert why is None
        assert set(shape.schema["required"]) == required
    assert of_type(Closed)[0].schema["additionalProperties"] is False


@pytest.mark.parametrize("declared", [Handle, Callable[[], int], Any, typing.TypeVar("S")])
def test_of_a_class_of_its_own_anything_may_be_written(declared: Any) -> None:
    assert told(declared, "r.x[0]") == []


@pytest.mark.parametrize("declared", [Unready, list[Unready]])
def test_a_type_that_lacks_a_part_is_told_with_its_tool(declared: Any) -> None:
    (said,) = told(declared, "r.x[0]")
    assert said.startswith("unknown_result nothing is known of what fetch returns, ")
    assert "not fully defined" in said


def test_the_orders_of_the_example_are_known() -> None:
    tools: dict[str, Any] = {}
    exec(example.TOOLS, tools)  # noqa: S102 - ours
    assert of_type(typing.get_type_hints(tools["open_orders"])["return"])[0].schema["items"]
