"""Functions declared with `@rollcage.tool` as CrewAI's tools: with a session, and with any."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest
import rollcage
from crewai.tools.base_tool import Tool
from crewai.tools.tool_failure import ToolExecutionFailedError
from rollcage import ApprovalRequired, StepView, Verdict
from rollcage_crewai import as_tools, guard_crew, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

DONE = "Thought: I now can give a great answer\nFinal Answer: done"


def ask(_: StepView) -> Verdict | None:
    return Verdict.ask("really?")


def deny(_: StepView) -> Verdict | None:
    return Verdict.deny("not today")


@pytest.fixture
def declared(written: list[str]) -> Tool[..., Any]:
    """A declared function as a tool that belongs to no session."""

    @rollcage.tool(effect="write")
    def note(text: str) -> str:
        """Note a text."""
        written.append(text)
        if text == "bad":
            raise ValueError("no bad text")
        return f"noted {text}"

    (native,) = as_tools([note])
    return native


def test_guarding_one_guards_it_once(
    lab: Lab, declared: Tool[..., Any], written: list[str]
) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([declared], session)
        assert guarded.run(text="a") == "noted a"
    assert lab.steps(session) == [("note", "ok")]
    assert written == ["a"]


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded crew", "plain crew"])
@pytest.mark.parametrize("native", [True, False])
def test_one_serves_session_after_session(
    lab: Lab, declared: Tool[..., Any], written: list[str], *, native: bool, guarded: bool
) -> None:
    def call(text: str) -> Any:
        return [("note", {"text": text})] if native else lab.act("note", text=text)

    def play(name: str, *ended: type[Exception], **settings: Any) -> tuple[Any, Any]:
        model = lab.model(call("a"), call("b"), DONE, native=native)
        crew = lab.crew(lab.agent(model, declared))
        session = lab.session(name, **settings)
        with contextlib.suppress(ApprovalRequired), session, contextlib.suppress(*ended):
            (guard_crew(crew, session) if guarded else crew).kickoff()
        return model, session

    _, session = play("done")
    assert lab.steps(session) == [("note", "ok"), ("note", "ok")]
    model, _ = play("halted", ToolExecutionFailedError, gate=[ask])
    assert len(model.asked) == 1
    model, session = play("denied", gate=[deny])
    assert len(model.asked) == 3  # an earlier session's halt does not end the agents of this one
    assert lab.steps(session) == [("note", "blocked"), ("note", "blocked")]
    assert written == ["a", "b"]


def test_one_that_raises_runs_once_for_a_call_written_as_text(
    lab: Lab, declared: Tool[..., Any], written: list[str]
) -> None:
    model = lab.model(lab.act("note", text="bad"), DONE, native=False)
    with lab.session() as session:
        lab.crew(lab.agent(model, declared)).kickoff()
    assert written == ["bad"]
    assert lab.steps(session) == [("note", "error")]


def test_a_wrapper_around_a_declared_function_runs_and_its_call_is_nested(
    lab: Lab, declared: Tool[..., Any]
) -> None:
    inner = declared.func

    @functools.wraps(inner)
    def loudly(text: str) -> str:
        return str(inner(text=text)).upper()

    with lab.session() as session:
        (guarded,) = guard_tools([declared.model_copy(update={"func": loudly})], session)
        assert guarded.run(text="a") == "NOTED A"
    parents = [e.get("parent") for e in lab.records(session)]
    assert parents == [None, 0]
