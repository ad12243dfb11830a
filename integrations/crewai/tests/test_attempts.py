"""One agent, again and again: human feedback, tasks at once, and what is left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from crewai.core.providers.human_input import (
    SyncHumanInputProvider,
    reset_provider,
    set_provider,
)
from crewai.tools import BaseTool
from rollcage_crewai import guard_crew

if TYPE_CHECKING:
    from rollcage import Session

    from .conftest import Lab, Scripted

DONE = "Thought: I now can give a great answer\nFinal Answer: done"


class Human(SyncHumanInputProvider):
    """Somebody who says this of the first answer, and is content with the second."""

    def __init__(self, said: str) -> None:
        self.said = [said, ""]

    def _prompt_input(self, crew: Any) -> str:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - static there
        return self.said.pop(0)


def in_order(lab: Lab, *script: Any, native: bool) -> Scripted:
    """A model that goes by how often it was asked: feedback is no message of its own."""
    model = lab.model(native=native)
    make: Any = type(model)

    class InOrder(make):  # type: ignore[misc] # the laboratory's own class, known only when it runs
        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            self.asked.append(messages)
            answer = self.script[len(self.asked) - 1]
            if isinstance(answer, str):
                return answer
            ((name, arguments),) = answer
            function = {"name": name, "arguments": json.dumps(arguments)}
            return [{"id": f"c{len(self.asked)}", "type": "function", "function": function}]

    found: Scripted = InOrder(model="scripted", script=list(script), native=native, asked=[])
    return found


@pytest.mark.parametrize("second", ["a", "b"], ids=["the same call", "another call"])
@pytest.mark.parametrize("native", [True, False])
def test_what_a_human_asks_for_is_done_and_not_answered_from_before(
    lab: Lab, write: BaseTool, written: list[str], second: str, *, native: bool
) -> None:
    """CrewAI counts the iterations of each round of feedback from the start."""

    def call(text: str) -> Any:
        return [("write", {"text": text})] if native else lab.act("write", text=text)

    def kickoff(session: Session | None) -> str:
        model = in_order(lab, call("a"), DONE, call(second), DONE, native=native)
        crew = lab.crew(lab.agent(model, write), task={"human_input": True})
        token = set_provider(Human("once more"))
        try:
            (crew if session is None else guard_crew(crew, session)).kickoff()
        finally:
            reset_provider(token)
        return "\n".join(str(message["content"]) for message in model.asked[-1])

    bare, done = kickoff(None), written[:]  # some versions refuse the same input by themselves
    written.clear()
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            assert kickoff(session) == bare
        assert len(lab.steps(session)) == len(done)
    assert written == done
    assert len(done) == 2 or "reusing the same input" in bare


@pytest.mark.parametrize("native", [True, False])
def test_tools_handed_to_a_running_agent_are_guarded(
    lab: Lab, write: BaseTool, written: list[str], *, native: bool
) -> None:
    """CrewAI does that where another task has the same agent at the same time, then refuses it."""

    def call(text: str) -> Any:
        return [("write", {"text": text})] if native else lab.act("write", text=text)

    model = lab.model(call("a"), call("b"), DONE, native=native)
    with lab.session() as session:
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
        agent: Any = crew.agents[0]
        other = crew.tasks[0].model_copy()

        def another_begins(_: Any) -> None:
            if model.asked:
                agent.create_agent_executor(tools=[write], task=other)

        agent.create_agent_executor(tools=[write], task=crew.tasks[0])
        agent.agent_executor.before_llm_call_hooks.append(another_begins)
        crew.kickoff()
    assert lab.steps(session) == [("write", "ok"), ("write", "ok")]
    assert written == ["a", "b"]


def test_the_originals_are_as_they_were(lab: Lab, write: BaseTool) -> None:
    def known(each: Any) -> dict[str, str]:
        parts = {**vars(each), **(each.__pydantic_private__ or {})}
        return {name: repr(value) for name, value in parts.items() if "llm" not in name}

    boss = lab.agent(
        lab.model([("write", {"text": "a"})], "done"), write, role="boss", allow_delegation=True
    )
    crew = lab.crew(boss, lab.agent(lab.model("idle"), role="other"), task={"tools": [write]})
    originals = [crew, *crew.agents, *crew.tasks, write]
    before = [known(each) for each in originals]
    with lab.session() as session:
        guard_crew(crew, session).kickoff()
    assert lab.steps(session) == [("write", "ok")]
    assert [known(each) for each in originals] == before
