"""Agents made by `create_agent`, guarded: what resumes and replays, where each call stands."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool, tool
from rollcage import ApprovalRequired, Session, SessionHalted, StepView, Verdict
from rollcage.errors import ContractError
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

Run = Callable[..., Any]


class Crash(Exception):
    """The agent's process dies."""


# --- resume and replay ---------------------------------------------------------------------------


def test_an_agent_that_died_at_step_nine_goes_on_there(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    steps: list[Any] = [[("write", {"text": f"t{i}"})] for i in range(10)]
    died = run([writer], [*steps[:8], Crash("power cut")])
    assert isinstance(died.error, Crash)
    assert len(written) == 8
    resumed = run([writer], [*steps, "done"])
    assert resumed.error is None
    assert resumed.state["messages"][-1].content == "done"
    assert (resumed.session.stats.hits, resumed.session.stats.misses) == (8, 2)
    assert written == [f"t{i}" for i in range(10)]
    assert resumed.texts[:8] == [f"wrote t{i}, number {i + 1}" for i in range(8)]


def test_a_replayed_run_shows_the_model_what_the_live_one_did(run: Run, lab: Any) -> None:
    @tool
    def give(what: str) -> Any:
        """Give something of each kind."""
        return {"list": [1, "é"], "none": None, "dict": {"a": 1.5}, "text": "x"}[what]

    kinds = ["list", "none", "dict", "text"]
    script: list[Any] = [*([("give", {"what": kind})] for kind in kinds), "done"]
    plain = lab.plain([give], script)
    live = run([give], script)
    replayed = run([give], script, replay="offline")
    shown = [str(m.content) for m in plain["messages"] if m.type == "tool"]
    assert live.texts == replayed.texts == shown
    assert replayed.session.stats.hits == 4


def test_a_run_replays_without_model_and_tools(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    script: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]
    live = run([writer], script, guard=guard_model)
    replayed = run([writer], [], guard=guard_model, replay="offline")
    assert replayed.error is None
    assert replayed.model.seen == []
    assert written == ["a", "b"]
    assert [m.content for m in replayed.state["messages"]] == (
        [m.content for m in live.state["messages"]]
    )
    assert replayed.state["messages"][1].tool_calls == live.state["messages"][1].tool_calls
    assert replayed.session.stats.tokens_saved == 45


# --- parallel calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async", "sync tool in async"])
def test_identical_parallel_calls_keep_their_slots(lab: Any, way: str) -> None:
    run = lab.run if way == "sync" else lab.await_run
    numbers = itertools.count()

    def poll() -> str:
        """Poll."""
        return f"answer {next(numbers)}"

    async def apoll() -> str:
        return poll()

    make = StructuredTool.from_function
    polling = (
        make(coroutine=apoll, name="poll", description="Poll.") if way == "async" else make(poll)
    )
    script: list[Any] = [[("poll", {})] * 5, [("poll", {})] * 2, "done"]
    live = run([polling], script)
    assert sorted(live.texts) == [f"answer {i}" for i in range(7)]
    started = live.steps
    assert [
        (e["turn"], e["slot"]) for e in sorted(started, key=lambda e: (e["turn"], e["slot"]))
    ] == [(started[0]["turn"], i) for i in range(5)] + [(started[-1]["turn"], i) for i in range(2)]
    for _ in range(3):
        replayed = run([polling], script, replay="offline")
        assert replayed.texts == live.texts


def test_calls_are_placed_by_turn_slot_id_and_agent(run: Run, writer: StructuredTool) -> None:
    seen: list[StepView] = []
    script: list[Any] = [[("write", {"text": "a"}), ("write", {"text": "b"})], "done"]
    done = run([writer], script, agent_name="clerk", gate=[seen.append])
    started = {e["args"]["text"]: e for e in done.steps}
    assert started["a"]["turn"] == started["b"]["turn"]
    assert (started["a"]["slot"], started["b"]["slot"]) == (0, 1)
    calls = done.state["messages"][1].tool_calls
    assert [started[text]["call_id"] for text in "ab"] == [call["id"] for call in calls]
    assert {view.agent for view in seen} == {"clerk"}


def ask_first(step: StepView) -> Verdict | None:
    """A rule that wants approval."""
    return Verdict.ask("who said so?") if step.args.get("text") == "b" else None


# --- other agents --------------------------------------------------------------------------------


def delegating(
    lab: Any, session: Session, inner: list[Any], writer: StructuredTool
) -> StructuredTool:
    """A tool that is an agent of its own."""
    tools = guard_tools([writer], session)

    def delegate(job: str) -> str:
        """Let somebody else do it."""
        agent: Any = create_agent(
            lab.model(inner), tools, middleware=[RollcageMiddleware(session)], name="helper"
        )
        state = agent.invoke({"messages": [HumanMessage(job)]})
        return str(state["messages"][-1].content)

    return StructuredTool.from_function(delegate)


def nested(lab: Any, inner: list[Any], writer: StructuredTool, **settings: Any) -> Any:
    """Run an agent that delegates twice."""
    session = lab.session(**settings)
    outer: list[Any] = [[("delegate", {"job": "x"})], [("delegate", {"job": "y"})], "all done"]
    model = lab.model(outer)
    state = error = None
    try:
        with session:
            tools = guard_tools(
                [delegating(lab, session, inner, writer)], session, effects={"delegate": "scope"}
            )
            agent: Any = create_agent(model, tools, middleware=[RollcageMiddleware(session)])
            state = agent.invoke({"messages": [HumanMessage("Go.")]})
    except Exception as caught:  # noqa: BLE001 - the test judges it
        error = caught
    return session, state, error


def test_an_agent_in_a_tool_has_places_of_its_own(
    lab: Any, writer: StructuredTool, written: list[str]
) -> None:
    inner: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "helped"]
    session, state, error = nested(lab, inner, writer)
    assert error is None
    assert state["messages"][-1].content == "all done"
    assert written == ["a", "b", "a", "b"]
    started = lab.steps(session)
    outer = [e["step"] for e in started if e["name"] == "delegate"]
    assert lab.parents(session) == [
        None, outer[0], outer[0], None, outer[1], outer[1],
    ]  # fmt: skip
    assert {e.get("agent") for e in started if e["name"] == "write"} == {"helper"}
    session, _, error = nested(lab, inner, writer, replay="offline")
    assert error is None
    assert session.stats.hits == 2
    assert len(written) == 4


def test_an_agent_in_a_tool_that_is_halted_is_not_taken_for_finished(
    lab: Any, writer: StructuredTool, written: list[str]
) -> None:
    inner: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "helped"]
    session, _, error = nested(lab, inner, writer, gate=[ask_first])
    assert isinstance(error, ApprovalRequired)
    assert written == ["a"]
    assert [e["status"] for e in lab.outcomes(session)] == ["ok"]
    session, state, error = nested(lab, inner, writer)
    assert error is None
    assert state["messages"][-1].content == "all done"
    assert session.stats.hits == 1
    assert written == ["a", "b", "a", "b"]


def test_tools_of_other_middleware_are_guarded_too(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:

    class Brings(AgentMiddleware[Any, Any, Any]):
        def __init__(self) -> None:
            self.tools = [writer]

    script: list[Any] = [[("write", {"text": "a"})], "done"]
    for replay in ("auto", "offline"):
        done = run([], script, middleware=[Brings()], replay=replay)
        assert done.error is None
        assert done.session.stats.calls == 1
    assert written == ["a"]


def test_the_middleware_guards_what_nobody_did_as_it_is_told(
    lab: Any, writer: StructuredTool
) -> None:
    seen: list[StepView] = []
    with lab.session(gate=[seen.append]) as session:
        middleware = RollcageMiddleware(
            session,
            effects={"write": "read"},
            contracts={"write": {"idempotent": True}, "elsewhere": {}},
        )
        script: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]
        agent: Any = create_agent(lab.model(script), [writer], middleware=[middleware])
        agent.invoke({"messages": [HumanMessage("Go.")]})
    assert [(view.effect, view.contract.idempotent) for view in seen] == [("read", True)] * 2


def test_a_tool_that_another_session_guards_is_a_mistake(
    lab: Any, writer: StructuredTool, written: list[str]
) -> None:
    with lab.session("one") as one, lab.session("two") as two:
        agent: Any = create_agent(
            lab.model([[("write", {"text": "a"})]]),
            guard_tools([writer], one),
            middleware=[RollcageMiddleware(two)],
        )
        with pytest.raises(ContractError, match="another session than its agent"):
            agent.invoke({"messages": [HumanMessage("Go.")]})
    assert written == []


def test_an_agent_that_nothing_guards_is_as_ever(
    lab: Any, writer: StructuredTool, written: list[str]
) -> None:
    script: list[Any] = [[("write", {"text": "a"})], "done"]
    before = lab.plain([writer], script)
    with lab.session() as session:
        inside = lab.plain([writer], script)
    assert session.stats.calls == 0
    assert written == ["a", "a"]
    assert [m.type for m in before["messages"]] == [m.type for m in inside["messages"]]


def test_an_agent_streams_its_updates_as_without_us(lab: Any, writer: StructuredTool) -> None:
    script: list[Any] = [[("write", {"text": "a"})], "done"]
    with lab.session() as session:
        agent: Any = create_agent(
            lab.model(script),
            guard_tools([writer], session),
            middleware=[RollcageMiddleware(session)],
        )
        nodes = [n for u in agent.stream({"messages": [HumanMessage("Go.")]}) for n in u]
    assert [node for node in nodes if "Rollcage" not in node] == ["model", "tools", "model"]


def test_nothing_runs_once_the_session_is_left(
    lab: Any, writer: StructuredTool, written: list[str]
) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([writer], session)
    with pytest.raises(Exception, match="left"):
        guarded.invoke({"text": "a"})
    assert written == []
    assert not isinstance(session.halted, SessionHalted)
