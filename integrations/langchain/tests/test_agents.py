"""Agents made by `create_agent`, guarded: what resumes, what is refused, how a halt ends them."""

import itertools
from collections.abc import Callable
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from rollcage import ApprovalRequired, Halt, ReplayMiss, Session, SessionHalted, StepView, Verdict
from rollcage.errors import ContractError
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

Run = Callable[..., Any]


class Crash(Exception):
    """The agent's process dies."""


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, lab: Any) -> Run:
    """Run an agent, in both ways."""
    return lab.run if request.param == "sync" else arun(lab)


def arun(lab: Any) -> Run:
    """The asynchronous way, for a test that is not."""
    import asyncio

    return lambda *args, **settings: asyncio.run(lab.arun(*args, **settings))


def writer(ran: list[str]) -> StructuredTool:
    """A tool that notes what it wrote."""

    def write(text: str) -> str:
        """Write a text."""
        ran.append(text)
        return f"wrote {text}, number {len(ran)}"

    return StructuredTool.from_function(write)


# --- resume and replay ---------------------------------------------------------------------------


def test_an_agent_that_died_at_step_nine_goes_on_there(run: Run) -> None:
    ran: list[str] = []
    steps: list[Any] = [[("write", {"text": f"t{i}"})] for i in range(10)]
    died = run([writer(ran)], [*steps[:8], Crash("power cut")])
    assert isinstance(died.error, Crash)
    assert len(ran) == 8
    resumed = run([writer(ran)], [*steps, "done"])
    assert resumed.error is None
    assert resumed.state["messages"][-1].content == "done"
    assert (resumed.session.stats.hits, resumed.session.stats.misses) == (8, 2)
    assert ran == [f"t{i}" for i in range(10)]
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


def test_a_run_replays_without_model_and_tools(run: Run) -> None:
    ran: list[str] = []
    script: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]
    live = run([writer(ran)], script, guard=guard_model)
    replayed = run([writer(ran)], [], guard=guard_model, replay="offline")
    assert replayed.error is None
    assert replayed.model.seen == []
    assert ran == ["a", "b"]
    assert [m.content for m in replayed.state["messages"]] == (
        [m.content for m in live.state["messages"]]
    )
    assert replayed.state["messages"][1].tool_calls == live.state["messages"][1].tool_calls
    assert replayed.session.stats.tokens_saved == 45


# --- parallel calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async", "sync tool in async"])
def test_identical_parallel_calls_keep_their_slots(lab: Any, way: str) -> None:
    run = lab.run if way == "sync" else arun(lab)
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
    started = live.named("step.started")
    assert [
        (e["turn"], e["slot"]) for e in sorted(started, key=lambda e: (e["turn"], e["slot"]))
    ] == [(started[0]["turn"], i) for i in range(5)] + [(started[-1]["turn"], i) for i in range(2)]
    for _ in range(3):
        replayed = run([polling], script, replay="offline")
        assert replayed.texts == live.texts


def test_calls_are_placed_by_turn_slot_id_and_agent(run: Run) -> None:
    ran: list[str] = []
    seen: list[StepView] = []
    script: list[Any] = [[("write", {"text": "a"}), ("write", {"text": "b"})], "done"]
    done = run([writer(ran)], script, agent_name="clerk", rules=[seen.append])
    started = {e["args"]["text"]: e for e in done.named("step.started")}
    assert started["a"]["turn"] == started["b"]["turn"]
    assert (started["a"]["slot"], started["b"]["slot"]) == (0, 1)
    calls = done.state["messages"][1].tool_calls
    assert [started[text]["call_id"] for text in "ab"] == [call["id"] for call in calls]
    assert {view.agent for view in seen} == {"clerk"}


# --- refusals ------------------------------------------------------------------------------------


def no_writing(step: StepView) -> Verdict | None:
    """A rule."""
    return Verdict.deny("nothing is written on a Sunday") if step.name == "write" else None


def broken(step: StepView) -> Verdict | None:
    """A rule with a bug."""
    raise ZeroDivisionError


@pytest.mark.parametrize(("rule", "said"), [(no_writing, "Sunday"), (broken, "ZeroDivisionError")])
def test_a_denied_call_is_answered_with_an_error_and_runs_nothing(
    run: Run, rule: Any, said: str
) -> None:
    ran: list[str] = []
    done = run([writer(ran)], [[("write", {"text": "a"})], "I see"], rules=[rule])
    assert done.error is None
    assert ran == []
    answer = done.state["messages"][2]
    assert isinstance(answer, ToolMessage)
    assert answer.status == "error"
    assert said in str(answer.content)
    assert done.state["messages"][-1].content == "I see"
    assert done.session.stats.blocked == 1


def test_arguments_without_an_encoding_are_answered_with_an_error(run: Run) -> None:
    ran: list[Any] = []

    @tool
    def take(x: Any) -> str:
        """Take it."""
        ran.append(x)
        return "taken"

    done = run([take], [[("take", {"x": {1: object()}})], "I see"])
    assert done.error is None
    assert ran == []
    assert done.state["messages"][2].status == "error"


def test_a_crash_in_our_own_hook_runs_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def crash(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Session, "place", crash)
    done = run([writer(ran)], [[("write", {"text": "a"})], "done"])
    assert isinstance(done.error, ZeroDivisionError)
    assert ran == []


# --- halted sessions -----------------------------------------------------------------------------


def ask_first(step: StepView) -> Verdict | None:
    """A rule that wants approval."""
    return Verdict.ask("who said so?") if step.args.get("text") == "b" else None


def test_a_halted_session_ends_the_agent_and_nothing_runs_after_it(run: Run) -> None:
    ran: list[str] = []
    steps: list[Any] = [[("write", {"text": text})] for text in "abc"]
    done = run([writer(ran)], [*steps, "done"], rules=[ask_first])
    assert isinstance(done.error, ApprovalRequired)
    assert ran == ["a"]
    assert len(done.model.seen) == 2
    assert done.state is not None  # the agent itself came to an end
    assert done.state["messages"][-1].status == "error"
    assert "who said so?" in done.state["messages"][-1].content
    assert done.events[-1]["status"] == "halted"


def test_siblings_of_the_call_that_halts_finish(lab: Any) -> None:
    ran: list[str] = []
    calls = [("write", {"text": text}) for text in ("a", "b")]
    done = lab.run([writer(ran)], [calls, "done"], rules=[ask_first])
    assert isinstance(done.error, ApprovalRequired)
    assert [e["outcome"]["status"] for e in done.named("step.finished")] == ["ok"] * len(ran)


def keeping(sessions: list[Session]) -> Callable[..., Any]:
    """A `guard` that guards no model, and lets the test know the session."""

    def guard(model: Any, session: Session) -> Any:
        sessions.append(session)
        return model

    return guard


def test_a_session_halted_beforehand_asks_no_model(run: Run) -> None:
    class Stop(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> None:
            stopped[0].halt(Halt("enough"))

    stopped: list[Session] = []
    ran: list[str] = []
    done = run(
        [writer(ran)],
        [[("write", {"text": "a"})], "done"],
        guard=keeping(stopped),
        middleware=[Stop()],
    )
    assert isinstance(done.error, Halt)
    assert str(done.error) == "enough"
    assert (ran, done.model.seen) == ([], [])


def test_a_session_halted_between_our_hooks_asks_no_model(run: Run) -> None:
    sessions: list[Session] = []

    class Stop(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:
            sessions[0].halt(Halt("enough"))

    done = run(
        [writer([])],
        ["done"],
        guard=keeping(sessions),
        middleware=[Stop()],
    )
    assert str(done.error) == "enough"
    assert done.model.seen == []


def test_an_offline_miss_names_what_differs_and_ends_the_agent(run: Run) -> None:
    ran: list[str] = []
    run([writer(ran)], [[("write", {"text": "a"})], "done"])
    done = run([writer(ran)], [[("write", {"text": "b"})], "done"], replay="offline")
    assert isinstance(done.error, ReplayMiss)
    assert "text" in str(done.error)
    assert ran == ["a"]


# --- what tools give and take --------------------------------------------------------------------


class Named(AgentState[Any]):
    """A state with a field of its own."""

    user: NotRequired[str]


def test_commands_replay_under_the_id_of_the_call_at_hand(run: Run) -> None:
    ran: list[str] = []

    @tool
    def rename(user: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Rename the user."""
        ran.append(call_id)
        return Command(
            update={"user": user, "messages": [ToolMessage("renamed", tool_call_id=call_id)]}
        )

    script: list[Any] = [[("rename", {"user": "ann"})], "done"]
    live = run([rename], script, state_schema=Named)
    replayed = run([rename], script, state_schema=Named, replay="offline")
    assert len(ran) == 1
    for done in (live, replayed):
        assert done.error is None
        assert done.state["user"] == "ann"
        call = done.state["messages"][1].tool_calls[0]
        assert done.state["messages"][2].tool_call_id == call["id"]
    ids = [each.state["messages"][1].tool_calls[0]["id"] for each in (live, replayed)]
    assert ids[0] != ids[1]
    assert live.state["messages"][2].content == replayed.state["messages"][2].content


def test_own_messages_and_lists_of_them_replay_too(run: Run) -> None:
    @tool
    def both(runtime: ToolRuntime) -> Any:
        """Give a message and a command."""
        call_id = runtime.tool_call_id
        assert call_id is not None
        message = ToolMessage("said", tool_call_id=call_id, artifact={"raw": b"1"})
        return [message, Command(update={"user": "ann"})]

    @tool
    def say(runtime: ToolRuntime) -> ToolMessage:
        """Give a message."""
        assert runtime.tool_call_id is not None
        return ToolMessage("said", tool_call_id=runtime.tool_call_id, artifact=(1, 2))

    script: list[Any] = [[("both", {})], [("say", {})], "done"]
    for replay in ("auto", "offline"):
        done = run([both, say], script, state_schema=Named, replay=replay)
        assert done.error is None
        assert done.state["user"] == "ann"
        tools = [m for m in done.state["messages"] if m.type == "tool"]
        assert [m.artifact for m in tools] == [{"raw": b"1"}, (1, 2)]


def test_return_direct_ends_the_agent_in_replay_too(run: Run) -> None:
    @tool(return_direct=True)
    def finish(text: str) -> str:
        """Finish."""
        return text

    script: list[Any] = [[("finish", {"text": "that is it"})], "never"]
    for replay in ("auto", "offline"):
        done = run([finish], script, replay=replay)
        assert done.state["messages"][-1].content == "that is it"
        assert len(done.model.seen) == 1


def test_state_store_and_runtime_are_injected_and_are_no_part_of_the_call(run: Run) -> None:
    seen: list[Any] = []

    @tool
    def look(
        place: str,
        user: Annotated[str, InjectedState("user")],
        state: Annotated[dict[str, Any], InjectedState],
        store: Annotated[Any, InjectedStore],
        runtime: ToolRuntime,
    ) -> str:
        """Look."""
        found = store.get(("places",), place)
        seen.append((user, len(state["messages"]), found.value, runtime.state["user"]))
        return "seen"

    class User(AgentMiddleware[Any, Any, Any]):
        state_schema = Named

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"user": "ann"}

    store = InMemoryStore()
    store.put(("places",), "here", {"sunny": True})
    script: list[Any] = [[("look", {"place": "here"})], "done"]
    for replay in ("auto", "offline"):
        done = run([look], script, middleware=[User()], agent_store=store, replay=replay)
        assert done.error is None
        (step,) = [e for e in done.events if e["event"] in ("step.started", "step.replayed")]
        assert step["args"] == {"place": "here"}
    assert seen == [("ann", 2, {"sunny": True}, "ann")]


def test_a_value_that_data_cannot_hold_says_so_and_halts_the_replay(run: Run) -> None:
    class Thing:
        """Not data."""

    @tool(response_format="content_and_artifact")
    def make() -> tuple[str, Any]:
        """Make a thing."""
        return "made", Thing()

    script: list[Any] = [[("make", {})], "done"]
    live = run([make], script)
    assert live.error is None
    (finished,) = live.named("step.finished")
    assert "Thing has no encoding" in finished["outcome"]["lossy"]
    replayed = run([make], script, replay="offline")
    assert "Thing has no encoding" in str(replayed.error)


# --- other agents --------------------------------------------------------------------------------


def delegating(lab: Any, session: Session, inner: list[Any], ran: list[str]) -> StructuredTool:
    """A tool that is an agent of its own."""
    tools = guard_tools([writer(ran)], session)

    def delegate(job: str) -> str:
        """Let somebody else do it."""
        agent: Any = create_agent(
            lab.model(inner), tools, middleware=[RollcageMiddleware(session)], name="helper"
        )
        state = agent.invoke({"messages": [HumanMessage(job)]})
        return str(state["messages"][-1].content)

    return StructuredTool.from_function(delegate)


def nested(lab: Any, inner: list[Any], ran: list[str], **settings: Any) -> Any:
    """Run an agent that delegates twice."""
    session = lab.session(**settings)
    outer: list[Any] = [[("delegate", {"job": "x"})], [("delegate", {"job": "y"})], "all done"]
    model = lab.model(outer)
    state = error = None
    try:
        with session:
            tools = guard_tools(
                [delegating(lab, session, inner, ran)], session, effects={"delegate": "scope"}
            )
            agent: Any = create_agent(model, tools, middleware=[RollcageMiddleware(session)])
            state = agent.invoke({"messages": [HumanMessage("Go.")]})
    except Exception as caught:  # noqa: BLE001 - the test judges it
        error = caught
    return session, state, error, lab.events(session.run_id)


def test_an_agent_in_a_tool_has_places_of_its_own(lab: Any) -> None:
    ran: list[str] = []
    inner: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "helped"]
    _, state, error, events = nested(lab, inner, ran)
    assert error is None
    assert state["messages"][-1].content == "all done"
    assert ran == ["a", "b", "a", "b"]
    started = [e for e in events if e["event"] == "step.started"]
    outer = [e["step"] for e in started if e["name"] == "delegate"]
    assert [e.get("parent") for e in started] == [
        None, outer[0], outer[0], None, outer[1], outer[1],
    ]  # fmt: skip
    assert {e.get("agent") for e in started if e["name"] == "write"} == {"helper"}
    session, _, error, _ = nested(lab, inner, ran, replay="offline")
    assert error is None
    assert session.stats.hits == 2
    assert len(ran) == 4


def test_an_agent_in_a_tool_that_is_halted_is_not_taken_for_finished(lab: Any) -> None:
    ran: list[str] = []
    inner: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "helped"]
    _, _, error, events = nested(lab, inner, ran, rules=[ask_first])
    assert isinstance(error, ApprovalRequired)
    assert ran == ["a"]
    finished = [e for e in events if e["event"] == "step.finished"]
    assert [e["outcome"]["status"] for e in finished] == ["ok", "unknown"]
    session, state, error, _ = nested(lab, inner, ran)
    assert error is None
    assert state["messages"][-1].content == "all done"
    assert session.stats.hits == 1
    assert ran == ["a", "b", "a", "b"]


def test_tools_of_other_middleware_are_guarded_too(run: Run) -> None:
    ran: list[str] = []

    class Brings(AgentMiddleware[Any, Any, Any]):
        def __init__(self) -> None:
            self.tools = [writer(ran)]

    script: list[Any] = [[("write", {"text": "a"})], "done"]
    for replay in ("auto", "offline"):
        done = run([], script, middleware=[Brings()], replay=replay)
        assert done.error is None
        assert done.session.stats.calls == 1
    assert ran == ["a"]


def test_the_middleware_guards_what_nobody_did_as_it_is_told(lab: Any) -> None:
    ran: list[str] = []
    seen: list[StepView] = []
    with lab.session(rules=[seen.append]) as session:
        middleware = RollcageMiddleware(
            session,
            effects={"write": "read"},
            contracts={"write": {"idempotent": True}, "elsewhere": {}},
        )
        script: list[Any] = [[("write", {"text": "a"})], [("write", {"text": "b"})], "done"]
        agent: Any = create_agent(lab.model(script), [writer(ran)], middleware=[middleware])
        agent.invoke({"messages": [HumanMessage("Go.")]})
    assert [(view.effect, view.contract.idempotent) for view in seen] == [("read", True)] * 2


def test_a_tool_that_another_session_guards_is_a_mistake(lab: Any) -> None:
    ran: list[str] = []
    with lab.session("one") as one, lab.session("two") as two:
        agent: Any = create_agent(
            lab.model([[("write", {"text": "a"})]]),
            guard_tools([writer(ran)], one),
            middleware=[RollcageMiddleware(two)],
        )
        with pytest.raises(ContractError, match="another session than its agent"):
            agent.invoke({"messages": [HumanMessage("Go.")]})
    assert ran == []


def test_an_agent_that_nothing_guards_is_as_ever(lab: Any) -> None:
    script: list[Any] = [[("write", {"text": "a"})], "done"]
    ran: list[str] = []
    before = lab.plain([writer(ran)], script)
    with lab.session() as session:
        inside = lab.plain([writer(ran)], script)
    assert session.stats.calls == 0
    assert ran == ["a", "a"]
    assert [m.type for m in before["messages"]] == [m.type for m in inside["messages"]]


def test_an_agent_streams_its_updates_as_without_us(lab: Any) -> None:
    script: list[Any] = [[("write", {"text": "a"})], "done"]
    with lab.session() as session:
        agent: Any = create_agent(
            lab.model(script),
            guard_tools([writer([])], session),
            middleware=[RollcageMiddleware(session)],
        )
        nodes = [n for u in agent.stream({"messages": [HumanMessage("Go.")]}) for n in u]
    assert [node for node in nodes if "Rollcage" not in node] == ["model", "tools", "model"]


def test_nothing_runs_once_the_session_is_left(lab: Any) -> None:
    ran: list[str] = []
    with lab.session() as session:
        (guarded,) = guard_tools([writer(ran)], session)
    with pytest.raises(Exception, match="left"):
        guarded.invoke({"text": "a"})
    assert ran == []
    assert not isinstance(session.halted, SessionHalted)
