"""Functions declared with `@rollcage.tool`, as tools of LangChain."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import rollcage
from langchain_core.tools import (
    StructuredTool,
)
from rollcage import current_step
from rollcage.errors import ContractError, OutputDrift
from rollcage_langchain import as_tools, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

Call = Callable[..., dict[str, Any]]
"""Makes a tool call as LangChain hands it to a tool."""


def add(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


@rollcage.tool(effect="read", raises=[LookupError])
def fetch(city: str, days: int = 1) -> str:
    """Look at the weather."""
    return f"{city} {days} {current_step() is not None}"


@rollcage.tool
async def post(text: str) -> str:
    """Post it."""
    return f"posted {text}"


def test_declared_functions_become_tools_with_their_contracts_schema() -> None:
    one, two = as_tools([fetch, post])
    assert (one.name, one.description) == ("fetch", "Look at the weather.")
    assert set(one.args) == {"city", "days"}
    assert (one.func is None, one.coroutine is None) == (False, True)
    assert (two.func is None, two.coroutine is None) == (True, False)


def test_they_are_guarded_by_the_session_around_them(lab: Any) -> None:
    (made, _) = as_tools([fetch, post])
    assert made.invoke({"city": "Lima"}) == "Lima 1 False"
    with lab.session() as session:
        assert made.invoke({"city": "Lima", "days": "2"}) == "Lima 2 True"
    assert lab.args(session) == [{"city": "Lima", "days": 2}]


async def test_they_are_guarded_once_by_the_session_that_is_given(lab: Any) -> None:
    for replay in ("auto", "offline"):
        async with lab.session(replay=replay) as session:
            one, two = as_tools([fetch, post], session)
            assert await two.ainvoke({"text": "hi"}) == "posted hi"
            assert await one.ainvoke({"city": "Lima"}) == "Lima 1 True"
        started = [e for e in lab.events(session.run_id) if e["event"] == "step"]
        assert [e["name"] for e in started] == ["post", "fetch"]
        assert session.stats.calls == 2


def test_a_declared_function_in_an_existing_tool_keeps_its_contract(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([StructuredTool.from_function(fetch)], session)
        guarded.invoke({"city": "Lima"})
    (started,) = lab.steps(session)
    assert started["effect"] == "read"


def test_a_function_without_a_declaration_is_refused() -> None:
    with pytest.raises(ContractError, match=r"@rollcage\.tool"):
        as_tools([add])


def test_a_users_own_wrapper_around_a_declared_function_is_not_skipped(lab: Any) -> None:
    loud: list[str] = []

    @functools.wraps(fetch)
    def logged(city: str, days: int = 1) -> str:
        loud.append(city)
        return fetch(city, days)

    with lab.session() as session:
        (guarded,) = guard_tools([StructuredTool.from_function(logged)], session)
        assert guarded.invoke({"city": "Lima"}) == "Lima 1 True"
    assert loud == ["Lima"]


@rollcage.tool(effect="read", returns=float)
def rate(currency: str) -> Any:
    """Look up a rate, from a service that began to answer with texts."""
    return f"1,08 {currency}"


@rollcage.tool(effect="read")
def annotated_rate(currency: str) -> float:
    """The same, of which the type is no more than an annotation."""
    found: Any = f"1,08 {currency}"
    return found  # type: ignore[no-any-return] # wrong on purpose


def test_the_declared_output_of_a_tool_counts_in_langchain_too(lab: Lab) -> None:
    with lab.session() as session:
        withheld, reported = as_tools([rate, annotated_rate], session)
        with pytest.raises(OutputDrift, match="output_wrong_type"):
            withheld.invoke({"currency": "USD"})
        assert reported.invoke({"currency": "USD"}) == "1,08 USD"
    drifts = [outcome["drift"] for outcome in lab.outcomes(session)]
    assert [each.get("reported", False) for each in drifts] == [False, True]
