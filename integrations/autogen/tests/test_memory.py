"""An agent's saved state is a memory: what it shows as answered is seen, in a later session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool
from rollcage import Halt, Session, StepView, Verdict
from rollcage_autogen import follow_state, guard_tools


class PowerCutError(Exception):
    """Ends a run in its middle."""


WRITTEN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_written() -> None:
    WRITTEN.clear()


def write(text: str) -> str:
    """Write."""
    WRITTEN.append(text)
    return f"wrote {text}"


def calls(*texts: str) -> list[tuple[str, dict[str, Any]]]:
    return [("write", {"text": text}) for text in texts]


def agent_of(lab: Any, session: Session, *script: Any, name: str = "clerk") -> AssistantAgent:
    tools = guard_tools([FunctionTool(write, "Write.")], session)
    agent: AssistantAgent = lab.agent(lab.client(*script), session, name=name, tools=tools)
    return agent


SCRIPT: list[Any] = [calls("a", "b"), calls("c"), calls("d"), "done"]


def text_of(ended: TaskResult) -> str:
    return str(getattr(ended.messages[-1], "content", ""))


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_an_agent_goes_on_from_its_saved_state(lab: Any, turns: int, within: Any) -> None:
    state: Any = None
    with pytest.raises(PowerCutError):
        async with lab.session() as session:
            agent, done = agent_of(lab, session, *SCRIPT), 0
            async for event in agent.run_stream(task="Go."):
                done += isinstance(event, ToolCallExecutionEvent)
                if done == turns:
                    state = await agent.save_state()
                    raise PowerCutError
    before = [*WRITTEN]
    async with lab.session() as session:
        agent = agent_of(lab, session, *SCRIPT)
        await agent.load_state(state)
        ended = await within(agent.run())
    assert sorted(before) == ["a", "b", "c", "d"][: turns + 1]
    assert sorted(WRITTEN) == ["a", "b", "c", "d"]
    assert text_of(ended) == "done"
    assert session.stats.seen == 2 * turns + 1  # each turn's answer and calls
    assert session.stats.hits == 0
    assert lab.lines(session)[-1]["status"] == "ok"


async def test_an_agent_that_starts_afresh_asks_for_all(lab: Any, within: Any) -> None:
    with pytest.raises(PowerCutError):
        async with lab.session() as session:
            await agent_of(lab, session, calls("a"), calls("b"), PowerCutError()).run(task="Go.")
    async with lab.session() as session:
        await within(agent_of(lab, session, calls("a"), calls("b"), "done").run(task="Go."))
    assert WRITTEN == ["a", "b"]
    assert session.stats.seen == 0


async def test_a_team_goes_on_from_its_saved_state(lab: Any, within: Any) -> None:
    def team_of(session: Session, messages: int) -> RoundRobinGroupChat:
        one = agent_of(lab, session, calls("a"), "a is done", calls("c"), "c is done", name="one")
        two = agent_of(lab, session, calls("b"), "b is done", calls("d"), "d is done", name="two")
        end = MaxMessageTermination(messages)
        return RoundRobinGroupChat([one, two], termination_condition=end)

    async with lab.session() as session:
        team = team_of(session, 3)  # the task, and an answer of each
        await within(team.run(task="Go."))
        state = await team.save_state()
        session.pause("until tomorrow")
    assert WRITTEN == ["a", "b"]
    async with lab.session() as session:
        team = team_of(session, 2)
        follow_state(session, state)
        await team.load_state(state)
        await within(team.run())
    assert WRITTEN == ["a", "b", "c", "d"]
    assert session.stats.seen >= 4
    assert lab.lines(session)[-1]["status"] == "ok"


async def test_what_a_team_did_after_its_state_was_saved_is_done_once(
    lab: Any, within: Any
) -> None:
    """It is cut off in the middle of a turn: what the state holds is seen, the rest replayed."""

    def team_of(session: Session, messages: int, third: Any) -> RoundRobinGroupChat:
        script = calls("a"), "a is done", calls("c", "c2"), third
        one = agent_of(lab, session, *script, name="one")
        two = agent_of(lab, session, calls("b"), "b is done", calls("d"), "d is done", name="two")
        return RoundRobinGroupChat(
            [one, two], termination_condition=MaxMessageTermination(messages)
        )

    async with lab.session() as session:
        team = team_of(session, 3, "c is done")
        await within(team.run(task="Go."))
        state = await team.save_state()
        session.pause("until tomorrow")
    with pytest.raises(RuntimeError, match="PowerCutError"):
        async with lab.session() as session:
            team = team_of(session, 2, PowerCutError())
            follow_state(session, state)
            await team.load_state(state)
            await within(team.run())
    assert sorted(WRITTEN) == ["a", "b", "c", "c2"]  # c and c2 are made at the same time
    async with lab.session() as session:
        team = team_of(session, 2, "c is done")
        follow_state(session, state)
        await team.load_state(state)
        await within(team.run())
    assert sorted(WRITTEN) == ["a", "b", "c", "c2", "d"]
    assert (session.stats.seen, session.stats.hits) == (4, 3)
    assert lab.lines(session)[-1]["status"] == "ok"


async def test_a_halt_in_a_saved_state_is_no_answer(
    lab: Any, within: Any, results: Callable[[TaskResult], Any]
) -> None:
    def asks(step: StepView) -> Verdict | None:
        return Verdict.ask("is that so?") if step.args.get("text") == "b" else None

    with pytest.raises(Halt):
        async with lab.session(gate=[asks]) as session:
            agent = agent_of(lab, session, calls("a"), calls("b"), "done")
            try:
                await within(agent.run(task="Go."))
            finally:
                state = await agent.save_state()
    with pytest.raises(Halt, match="never ran"):
        async with lab.session() as session:
            agent = agent_of(lab, session, calls("a"), calls("b"), "done")
            await agent.load_state(state)  # pyright: ignore[reportPossiblyUnboundVariable] - what the block raises, the block itself expects
            await within(agent.run())
    assert WRITTEN == ["a"]  # and nobody was told that it was done
