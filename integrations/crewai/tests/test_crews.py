"""Guarded crews: both ways to call a tool, retries, delegation, caches, and how a crew ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from crewai import Agent, Crew, Task
from crewai.hooks.dispatch import HookAborted
from crewai.process import Process
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailurePolicy
from rollcage import ApprovalRequired, ReplayMiss, StepView, Verdict
from rollcage.errors import ContractError
from rollcage_crewai import guard_crew, guard_model, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

DONE = "Thought: I now can give a great answer\nFinal Answer: done"


def deny(step: StepView) -> Verdict | None:
    return Verdict.deny("not today") if step.name in ("write", "fail") else None


def ask(step: StepView) -> Verdict | None:
    return Verdict.ask("somebody has to read this") if step.args.get("text") == "b" else None


def texts(model: Any) -> str:
    """All that a model read at its last message."""
    return "\n".join(str(message["content"]) for message in model.asked[-1])


# --- agents without native calls -----------------------------------------------------------------


def test_calls_written_as_text_are_recorded_and_replayed(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    script = [lab.act("write", text="a"), lab.act("write", text="b"), DONE]
    for replay, steps in (("off", "ok"), ("offline", "replayed")):
        model = lab.model(*script, native=False)
        with lab.session(replay=replay) as session:
            output = lab.kickoff(guard_crew(lab.crew(lab.agent(model, write)), session))
        assert output.raw == "done"
        assert lab.steps(session) == [("write", steps)] * 2
        assert "wrote b, number 2" in texts(model)
    assert written == ["a", "b"]


@pytest.mark.parametrize("guarded_by_hand", [False, True])
def test_a_tool_that_raises_runs_once_and_reads_as_without_us(
    lab: Lab, fail: BaseTool, written: list[str], *, guarded_by_hand: bool
) -> None:
    script = [lab.act("fail", text="a"), DONE]
    plain = lab.model(*script, native=False)
    lab.crew(lab.agent(plain, fail)).kickoff()
    assert written == ["a"] * 6  # CrewAI's own retries
    written.clear()
    model = lab.model(*script, native=False)
    with lab.session() as session:
        tools = guard_tools([fail], session) if guarded_by_hand else [fail]
        guard_crew(lab.crew(lab.agent(model, *tools)), session).kickoff()
    assert written == ["a"]
    assert lab.steps(session) == [("fail", "error")]
    assert texts(model) == texts(plain)


def test_without_a_guarded_crew_a_tool_that_raises_runs_once_all_the_same(
    lab: Lab, fail: BaseTool, written: list[str]
) -> None:
    model = lab.model(lab.act("fail", text="a"), DONE, native=False)
    with lab.session() as session:
        lab.crew(lab.agent(model, *guard_tools([fail], session))).kickoff()
    assert written == ["a"]
    assert lab.steps(session) == [("fail", "error")]
    assert "no a today" in texts(model)


def test_what_fails_behind_the_body_does_not_run_it_again(lab: Lab, written: list[str]) -> None:
    @tool
    def save(text: str) -> str:
        """Save a text."""
        written.append(text)
        return "saved"

    def broken(*_: Any) -> bool:
        raise ZeroDivisionError

    save.cache_function = broken
    model = lab.model(lab.act("save", text="a"), DONE, native=False)
    with lab.session() as session:
        guard_crew(lab.crew(lab.agent(model, save)), session).kickoff()
    assert written == ["a"]
    assert lab.steps(session) == [("save", "ok")]


def test_a_refusal_written_as_text_is_told_once(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = lab.model(lab.act("write", text="a"), DONE, native=False)
    with lab.session(gate=[deny]) as session:
        guard_crew(lab.crew(lab.agent(model, write)), session).kickoff()
    assert written == []
    assert lab.steps(session) == [("write", "blocked")]
    assert "not today" in texts(model)


def test_a_halted_session_ends_an_agent_without_native_calls(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    script = [lab.act("write", text="a"), lab.act("write", text="b"), DONE]
    model = lab.model(*script, native=False)
    with pytest.raises(ApprovalRequired), lab.session(gate=[ask]) as session:
        guard_crew(lab.crew(lab.agent(model, write)), session).kickoff()
    assert written == ["a"]
    assert len(model.asked) == 2


# --- tasks that are started over -----------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_task_is_not_started_over_once_a_tool_was_called(
    lab: Lab, write: BaseTool, written: list[str], *, native: bool, asynchronous: bool
) -> None:
    first: Any = [("write", {"text": "a"})] if native else lab.act("write", text="a")
    model = lab.model(first, ConnectionError("no model"), native=native)
    with pytest.raises(ConnectionError, match="no model"), lab.session() as session:
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
        asyncio.run(crew.akickoff()) if asynchronous else crew.kickoff()
    assert written == ["a"]
    assert len(model.asked) == 2
    resumed = lab.model(first, "done" if native else DONE, native=native)
    with lab.session() as session:
        assert lab.kickoff(guard_crew(lab.crew(lab.agent(resumed, write)), session)).raw == "done"
    assert written == ["a"]
    assert lab.steps(session) == [("write", "replayed")]


def test_a_task_whose_model_fails_before_any_tool_is_started_over(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = lab.model(ConnectionError("no model"))
    with pytest.raises(ConnectionError), lab.session() as session:
        guard_crew(lab.crew(lab.agent(model, write)), session).kickoff()
    assert len(model.asked) == 3


def test_a_crew_may_be_started_anew_by_hand(lab: Lab, write: BaseTool, written: list[str]) -> None:
    model = lab.model([("write", {"text": "a"})], ConnectionError("no model"))
    with lab.session() as session:
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
        with pytest.raises(ConnectionError):
            crew.kickoff()
        model.script[1] = "done"
        assert lab.kickoff(crew).raw == "done"
    assert written == ["a", "a"]  # asked for twice, by the one who started it


# --- what CrewAI brings itself -------------------------------------------------------------------


def test_delegation_is_a_scope_around_the_coworkers_calls(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    order = {"task": "Write it.", "context": "None.", "coworker": "writer"}

    def crew() -> Crew:
        boss = lab.agent(
            lab.model([("delegate_work_to_coworker", order)], "all done"),
            role="boss",
            allow_delegation=True,
        )
        writer = lab.agent(
            lab.model([("write", {"text": "a"})], "it is written"), write, role="writer"
        )
        return lab.crew(boss, writer)

    with lab.session() as session:
        assert lab.kickoff(guard_crew(crew(), session)).raw == "all done"
    started = lab.records(session)
    assert [(e["name"], e["effect"], e.get("parent")) for e in started] == [
        ("Delegate work to coworker", "scope", None),
        ("write", "write", 0),
    ]
    assert [e["agent"] for e in started] == ["boss", "writer"]
    with lab.session(replay="offline") as session:
        assert lab.kickoff(guard_crew(crew(), session)).raw == "all done"
    assert written == ["a"]


def test_a_manager_that_crewai_makes_is_guarded(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    order = {"question": "Is it?", "context": "None.", "coworker": "writer"}
    manager = lab.model([("ask_question_to_coworker", order)], "managed")
    writer = lab.agent(lab.model([("write", {"text": "a"})], "it is"), write, role="writer")
    crew = lab.crew(writer, process=Process.hierarchical, manager_llm=manager)
    with lab.session() as session:
        guarded = guard_crew(crew, session)
        assert lab.kickoff(guarded).raw == "managed"
    assert lab.steps(session) == [("Ask question to coworker", "ok"), ("write", "ok")]
    assert crew.manager_agent is None


def test_tools_of_a_task_are_guarded(lab: Lab, write: BaseTool, written: list[str]) -> None:
    agent = lab.agent(lab.model([("write", {"text": "a"})], "done"))
    with lab.session() as session:
        guard_crew(lab.crew(agent, task={"tools": [write]}), session).kickoff()
    assert lab.steps(session) == [("write", "ok")]


def test_tasks_keep_their_context(lab: Lab, write: BaseTool) -> None:
    agent = lab.agent(lab.model([("write", {"text": "a"})], "first done"), write)
    first = Task(description="Go.", expected_output="A text.", agent=agent)
    other = lab.model("second done")
    reader = lab.agent(other, role="reader")
    second = Task(description="Read.", expected_output="A text.", agent=reader, context=[first])
    with lab.session() as session:
        crew = guard_crew(
            Crew(agents=[agent, reader], tasks=[first, second], tracing=False), session
        )
        assert lab.kickoff(crew).raw == "second done"
    assert "first done" in texts(other)
    assert crew.tasks[1].context == [crew.tasks[0]]
    assert crew.tasks[0].output is not None
    assert first.output is None


def test_tasks_that_run_at_once_have_worlds_of_their_own(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    def crew() -> Crew:
        agents: list[Any] = []
        for n in range(3):
            calls = [[("write", {"text": f"{n}{each}"})] for each in "ab"]
            model = lab.model(*calls, f"done {n}")
            agents.append(lab.agent(model, write, role=f"actor {n}"))
        tasks = [
            Task(description="Go.", expected_output="A text.", agent=agent, async_execution=n < 2)
            for n, agent in enumerate(agents)
        ]
        return Crew(agents=agents, tasks=tasks, tracing=False)

    for replay in ("off", "offline", "offline"):
        with lab.session(replay=replay) as session:
            assert lab.kickoff(guard_crew(crew(), session)).raw == "done 2"
        branches = {each["branch"] for each in lab.records(session) if each["name"] == "write"}
        assert branches == {"task 1", "task 2", ""}
    assert len(written) == 6


def test_copies_of_a_guarded_crew_are_guarded(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    agent = lab.agent(lab.model([("write", {"text": "a"})], "done"), write)
    with lab.session() as session:
        crew = guard_crew(lab.crew(agent), session)
        outputs: list[Any] = crew.kickoff_for_each([{"n": 1}, {"n": 2}])
    assert [output.raw for output in outputs] == ["done"] * 2
    assert lab.steps(session) == [("write", "ok")] * 2


def test_a_copy_of_a_guarded_agent_in_no_guarded_crew_runs_nothing(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = lab.model([("write", {"text": "a"})], "done")
    with lab.session() as session:
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
        with pytest.raises(ContractError, match="pass its crew through guard_crew"):
            copy: Any = crew.agents[0].copy()
            lab.crew(copy).kickoff()
    assert written == []


def test_guarding_a_crew_again_builds_no_class_again(lab: Lab) -> None:
    """Pydantic takes tens of milliseconds for one, and a service guards a crew a request."""
    crew = lab.crew(lab.agent(lab.model("done")), lab.agent(lab.model("done")))
    with lab.session() as session:
        agents: list[Any] = [*guard_crew(crew, session).agents]
        agents += guard_crew(crew, session).copy().agents
    assert len({id(agent.executor_class) for agent in agents}) == 1


def test_result_as_answer_ends_the_agent(lab: Lab, write: BaseTool) -> None:
    write.result_as_answer = True
    for replay in ("off", "offline"):
        model = lab.model([("write", {"text": "a"})])
        with lab.session(replay=replay) as session:
            output = lab.kickoff(guard_crew(lab.crew(lab.agent(model, write)), session))
        assert output.raw == "wrote a, number 1"


def test_a_refused_tool_is_no_answer(lab: Lab, write: BaseTool) -> None:
    write.result_as_answer = True
    model = lab.model([("write", {"text": "a"})], "I was told not to")
    with lab.session(gate=[deny]) as session:
        output = lab.kickoff(guard_crew(lab.crew(lab.agent(model, write)), session))
    assert output.raw == "I was told not to"


def test_a_usage_limit_counts_replayed_calls(lab: Lab, write: BaseTool, written: list[str]) -> None:
    write.max_usage_count = 1
    calls: Any = [("write", {"text": "a"}), ("write", {"text": "b"})]
    for replay in ("off", "offline"):
        model = lab.model(calls, "done")
        with lab.session(replay=replay) as session:
            guard_crew(lab.crew(lab.agent(model, write)), session).kickoff()
        assert len(lab.steps(session)) == 1
        assert "reached its usage limit" in texts(model)
    assert written == ["a"]
    assert write.current_usage_count == 0


@pytest.mark.parametrize("native", [True, False])
def test_what_the_tool_cache_answers_is_no_step(
    lab: Lab, write: BaseTool, written: list[str], *, native: bool
) -> None:
    def said(text: str) -> Any:
        return [("write", {"text": text})] if native else lab.act("write", text=text)

    end = "done" if native else DONE
    for replay in ("off", "offline"):
        model = lab.model(said("a"), said("b"), said("a"), end, native=native)
        with lab.session(replay=replay) as session:
            guard_crew(lab.crew(lab.agent(model, write), cache=True), session).kickoff()
        assert len(lab.steps(session)) == 2
        assert texts(model).count("wrote a, number 1") == 2
    assert written == ["a", "b"]


def test_a_guarded_crew_starts_with_an_empty_cache(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = lab.model([("write", {"text": "a"})], "done")
    crew = lab.crew(lab.agent(model, write), cache=True)
    crew.kickoff()
    with lab.session() as session:
        guard_crew(crew, session).kickoff()
    assert lab.steps(session) == [("write", "ok")]
    assert written == ["a", "a"]


# --- how a crew ends -----------------------------------------------------------------------------


def test_a_call_that_needs_approval_ends_the_crew_and_a_resume_goes_on(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    script: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]
    model = lab.model(*script)
    with pytest.raises(ApprovalRequired), lab.session(gate=[ask]) as session:
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
        with pytest.raises(ToolExecutionFailedError, match="approval_required"):
            crew.kickoff()
        with pytest.raises(HookAborted, match="the session was halted"):
            crew.kickoff()
    assert len(model.asked) == 2
    with lab.session() as session:
        guard_crew(lab.crew(lab.agent(lab.model(*script), write)), session).kickoff()
    assert lab.steps(session) == [("write", "replayed"), ("write", "ok")]
    assert written == ["a", "b"]


def test_the_users_own_failure_policy_does_not_keep_a_halted_crew_going(
    lab: Lab, write: BaseTool
) -> None:
    write.tool_failure_policy = ToolFailurePolicy.IGNORE
    model = lab.model([("write", {"text": "b"})], "done")
    with pytest.raises(ApprovalRequired), lab.session(gate=[ask]) as session:
        guard_crew(lab.crew(lab.agent(model, write)), session).kickoff()
    assert len(model.asked) == 1


def test_a_guarded_model_ends_a_crew_that_nobody_guarded(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    with lab.session(replay="off") as session:
        model = guard_model(lab.model([("write", {"text": "a"})], "done"), session)
        lab.crew(lab.agent(model, *guard_tools([write], session))).kickoff()
    other = lab.model([("write", {"text": "x"})], "done")
    with pytest.raises(ReplayMiss), lab.session(replay="offline") as session:
        model = guard_model(other, session)
        tools = guard_tools([write], session)
        lab.crew(lab.agent(model, *tools, goal="something else")).kickoff()
    assert other.asked == []
    assert written == ["a"]


def test_kickoff_async_is_guarded_as_well(lab: Lab, write: BaseTool, written: list[str]) -> None:
    for replay in ("off", "offline"):
        model = lab.model([("write", {"text": "a"})], "done")
        with lab.session(replay=replay) as session:
            crew = guard_crew(lab.crew(lab.agent(model, write)), session)
            output: Any = asyncio.run(crew.kickoff_async())
        assert output.raw == "done"
    assert written == ["a"]


# --- misuse --------------------------------------------------------------------------------------


def test_a_crew_is_guarded_once(lab: Lab, write: BaseTool) -> None:
    crew = lab.crew(lab.agent(lab.model("done"), write))
    with lab.session() as session, lab.session("other", inner=True) as other:
        guarded = guard_crew(crew, session)
        assert type(guarded) is type(crew)
        assert guard_crew(guarded, session) is guarded
        with pytest.raises(ContractError, match="this session already"):
            guard_crew(guarded, session, effects={"write": "read"})
        with pytest.raises(ContractError, match="another session already"):
            guard_crew(guarded, other)


def test_a_tool_of_another_session_runs_nothing(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    with lab.session() as session, lab.session("other", inner=True) as other:
        tools = guard_tools([write], other)
        model = lab.model([("write", {"text": "a"})], "done")
        with pytest.raises(ContractError, match="another session than its agent"):
            guard_crew(lab.crew(lab.agent(model, *tools)), session).kickoff()
    assert written == []


def test_an_agent_that_runs_its_tools_itself_is_refused(lab: Lab) -> None:
    class Foreign(Agent):
        executor_class: Any = None

    agent = Foreign(role="x", goal="x", backstory="x", llm=lab.model("done"))
    with lab.session() as session, pytest.raises(ContractError, match="runs its tools itself"):
        guard_crew(lab.crew(agent), session)


def test_declarations_reach_the_tools(lab: Lab, write: BaseTool) -> None:
    model = lab.model([("write", {"text": "a"})], "done")
    with lab.session() as session:
        guard_crew(
            lab.crew(lab.agent(model, write)),
            session,
            effects={"write": "read"},
            contracts={"write": {"version": "2"}},
        ).kickoff()
    (started,) = lab.records(session)
    assert (started["effect"], started["version"]) == ("read", "2")


def test_a_name_that_no_tool_of_the_crew_has_is_refused(lab: Lab, write: BaseTool) -> None:
    """A misspelt name would leave a secret undeclared."""
    crew = lab.crew(lab.agent(lab.model("done"), write))
    with lab.session() as session:
        with pytest.raises(ContractError, match="contracts= names wirte"):
            guard_crew(crew, session, contracts={"wirte": {"secret": "text"}})
        guard_crew(crew, session, effects={"write": "read", "Search memory": "read"})
        crew.agents[0].mcps = ["https://example.invalid/mcp"]  # its tools are known later
        guard_crew(crew, session, effects={"look": "read"})


@pytest.mark.parametrize("native", [True, False])
def test_the_tools_own_failure_policy_does_not_keep_a_halted_agent_going(
    lab: Lab, write: BaseTool, written: list[str], *, native: bool
) -> None:
    write.tool_failure_policy = ToolFailurePolicy.IGNORE
    call: Any = [("write", {"text": "b"})] if native else lab.act("write", text="b")
    model = lab.model(call, DONE, native=native)
    with pytest.raises(ApprovalRequired), lab.session(gate=[ask]) as session:
        lab.crew(lab.agent(model, *guard_tools([write], session))).kickoff()
    assert (len(model.asked), written) == (1, [])


# --- calls that never came to a tool -------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_a_call_that_crewai_refuses_is_on_record(
    lab: Any, write: BaseTool, written: list[str], native: bool
) -> None:
    def says(name: str, **arguments: Any) -> Any:
        return [(name, arguments)] if native else lab.act(name, **arguments)

    script = [says("write", text=["a"]), says("launch", text="b"), says("write", text="c"), "end"]
    if not native:
        script[-1] = "Thought: done\nFinal Answer: end"
    with lab.session() as session:
        crew = lab.crew(lab.agent(lab.model(*script, native=native), write))
        lab.kickoff(guard_crew(crew, session))
    assert written == ["c"]
    lines = [e for e in lab.lines(session) if e["event"] == "refused"]
    assert [(e["name"], e["verdict"]["code"]) for e in lines] == [
        ("write", "arguments_invalid"),
        ("launch", "tool_missing"),
    ]
    assert [e["args"] for e in lines] == [{"text": ["a"]}, {"text": "b"}]
    assert all(e["agent"] == "actor" for e in lines)
    assert lab.steps(session) == [("write", "ok")]


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_strict_refuses_what_crewai_would_coerce(lab: Any, native: bool) -> None:
    ran: list[int] = []

    @tool
    def count(n: int) -> str:
        """Count."""
        ran.append(n)
        return "counted"

    def says(**arguments: Any) -> Any:
        return [("count", arguments)] if native else lab.act("count", **arguments)

    end = "end" if native else "Thought: done\nFinal Answer: end"
    with lab.session(strict=True) as session:
        model = lab.model(says(n="3"), says(n=3), end, native=native)
        lab.kickoff(guard_crew(lab.crew(lab.agent(model, count)), session))
    assert ran == [3]
    (line,) = [e for e in lab.lines(session) if e["event"] == "refused"]
    assert (line["args"], line["verdict"]["code"]) == ({"n": "3"}, "arguments_invalid")
    assert "n: a value of type str was given, int is wanted" in line["verdict"]["reason"]
