"""However a call ends, its agent ends too: nothing waits for ever."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest
from autogen_agentchat.messages import ToolCallRequestEvent
from autogen_core import CancellationToken
from autogen_core.tools import (
    BaseStreamTool,
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel
from rollcage import (
    ApprovalRequired,
    Halt,
    ReplayMiss,
    Session,
    SessionHalted,
    StepView,
    UnknownOutcome,
    Verdict,
)
from rollcage_autogen import RollcageWorkbench, guard_tools

DEADLINE = 20.0
Make = Callable[[Callable[..., Any], Session], dict[str, Any]]


class Args(BaseModel):
    text: str = "a"


class Streaming(BaseStreamTool[Args, Any, Any]):
    """A tool that says that it began, and then does something."""

    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__(Args, str, "act", "Act.")
        self._act = act

    async def run(self, args: Args, cancellation_token: CancellationToken) -> str:
        raise NotImplementedError

    async def run_stream(
        self, args: Args, cancellation_token: CancellationToken
    ) -> AsyncGenerator[str, None]:
        done = self._act(args.text)
        yield str(await done if asyncio.iscoroutine(done) else done)


class Bench(Workbench):
    """A workbench of somebody's own, which lets out whatever its tool raises."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    async def list_tools(self) -> list[ToolSchema]:
        return [FunctionTool(plain, "Act.", name="act").schema]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        done = self._act(**(arguments or {}))
        if asyncio.iscoroutine(done):
            assert cancellation_token is not None
            done = await cancellation_token.link_future(asyncio.ensure_future(done))
        return ToolResult(name=name, result=[TextResultContent(content=str(done))])

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reset(self) -> None: ...

    async def save_state(self) -> Mapping[str, Any]:
        return {}

    async def load_state(self, state: Mapping[str, Any]) -> None: ...


def plain(text: str) -> str:
    return f"did {text}"


def by_tools(act: Callable[..., Any], session: Session) -> dict[str, Any]:
    return {"tools": guard_tools([FunctionTool(act, "Act.", name="act")], session)}


def by_streaming_tool(act: Callable[..., Any], session: Session) -> dict[str, Any]:
    return {"tools": guard_tools([Streaming(act)], session)}


def by_static_workbench(act: Callable[..., Any], session: Session) -> dict[str, Any]:
    inner = StaticWorkbench([FunctionTool(act, "Act.", name="act")])
    return {"workbench": RollcageWorkbench(inner, session)}


def by_streaming_workbench(act: Callable[..., Any], session: Session) -> dict[str, Any]:
    inner = StaticStreamWorkbench([Streaming(act)])
    return {"workbench": RollcageWorkbench(inner, session)}


def by_workbench(act: Callable[..., Any], session: Session) -> dict[str, Any]:
    return {"workbench": RollcageWorkbench(Bench(act), session)}


MAKERS = [by_tools, by_streaming_tool, by_static_workbench, by_streaming_workbench, by_workbench]


@pytest.fixture(params=MAKERS, ids=lambda make: str(make.__name__))
def make(request: pytest.FixtureRequest) -> Make:
    """Each way to give an agent a guarded tool `act`."""
    found: Make = request.param
    return found


async def test_it_is_done(lab: Any, make: Make, within: Any, results: Any) -> None:
    with lab.session() as session:
        agent = lab.agent(
            lab.client([("act", {"text": "b"})], "end"), session, **make(plain, session)
        )
        ended = await within(agent.run(task="Go."))
    assert results(ended) == [("did b", False)]
    assert ended.messages[-1].content == "end"


async def test_it_raises(lab: Any, make: Make, within: Any, results: Any) -> None:
    def act(text: str) -> str:
        raise ValueError(f"no {text}")

    with lab.session() as session:
        agent = lab.agent(
            lab.client([("act", {"text": "b"})], "end"), session, **make(act, session)
        )
        ended = await within(agent.run(task="Go."))
    assert results(ended) == [("no b", True)]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_it_raises_what_is_no_exception(
    lab: Any, make: Make, within: Any, kind: type[BaseException]
) -> None:
    def act(text: str) -> str:
        raise kind

    with pytest.raises(UnknownOutcome, match=kind.__name__):
        async with lab.session() as session:
            client = lab.client([("act", {"text": "b"})], "end")
            agent = lab.agent(client, session, **make(act, session))
            with pytest.raises(SessionHalted):
                await within(agent.run(task="Go."))
            assert len(client.asked) == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_an_exit_in_a_tool_that_only_reads_halts_too(
    lab: Any, within: Any, kind: type[BaseException]
) -> None:
    async def act(text: str) -> str:
        raise kind("now")

    with pytest.raises(Halt, match="act raised") as halted:
        async with lab.session() as session:
            tools = guard_tools([FunctionTool(act, "Act.")], session, effects={"act": "read"})
            agent = lab.agent(lab.client([("act", {"text": "b"})], "end"), session, tools=tools)
            with pytest.raises(SessionHalted):
                await within(agent.run(task="Go."))
    assert isinstance(halted.value.__cause__, kind)


async def test_a_cancellation_of_the_tools_own_is_an_error(
    lab: Any, within: Any, results: Any
) -> None:
    async def act(text: str) -> str:
        raise asyncio.CancelledError

    with lab.session() as session:
        tools = guard_tools([FunctionTool(act, "Act.")], session, effects={"act": "read"})
        agent = lab.agent(lab.client([("act", {"text": "b"})], "end"), session, tools=tools)
        ended = await within(agent.run(task="Go."))
    assert results(ended) == [("act was cancelled", True)]


async def test_it_times_out(lab: Any, make: Make, within: Any) -> None:
    def act(text: str) -> str:
        raise TimeoutError("no answer")

    with pytest.raises(UnknownOutcome):
        async with lab.session() as session:
            client = lab.client([("act", {"text": "b"})], "end")
            agent = lab.agent(client, session, **make(act, session))
            with pytest.raises(SessionHalted):
                await within(agent.run(task="Go."))


def no_acting(step: StepView) -> Verdict | None:
    return Verdict.deny("not today") if step.kind == "tool" else None


async def test_it_is_denied(lab: Any, make: Make, within: Any, results: Any) -> None:
    ran: list[str] = []

    def act(text: str) -> str:
        ran.append(text)
        return "acted"

    with lab.session(gate=[no_acting]) as session:
        client = lab.client([("act", {"text": "b"}), ("act", {"text": "c"})], "end")
        agent = lab.agent(client, session, **make(act, session))
        ended = await within(agent.run(task="Go."))
    assert ran == []
    assert results(ended) == [("not today", True)] * 2
    assert ended.messages[-1].content == "end"


@pytest.mark.parametrize("wrong", [{"other": 1}, {"text": {"deep": 1}}, {}])
async def test_its_arguments_do_not_fit(
    lab: Any, within: Any, results: Any, wrong: dict[str, Any]
) -> None:
    for make in (by_tools, by_static_workbench):
        with lab.session(replay="off") as session:
            client = lab.client([("act", wrong)], "end")
            agent = lab.agent(client, session, **make(plain, session))
            ended = await within(agent.run(task="Go."))
        ((text, is_error),) = results(ended)
        assert is_error
        assert "text" in text
        assert lab.steps(session) == []


async def test_a_workbench_refuses_arguments_that_do_not_fit(
    lab: Any, within: Any, results: Any
) -> None:
    with lab.session() as session:
        client = lab.client([("act", {"other": 1})], "end")
        agent = lab.agent(client, session, **by_workbench(plain, session))
        ended = await within(agent.run(task="Go."))
    assert results(ended) == [("act: missing argument 'text'", True)]


@pytest.mark.parametrize("arguments", ["no json", "[1]", "null", '"text"'])
async def test_its_arguments_are_no_object(
    lab: Any, make: Make, within: Any, results: Any, arguments: str
) -> None:
    from autogen_core import FunctionCall
    from autogen_core.models import CreateResult, RequestUsage

    broken = CreateResult(
        finish_reason="function_calls",
        content=[FunctionCall(id="1", name="act", arguments=arguments)],
        usage=RequestUsage(1, 1),
        cached=False,
    )
    with lab.session() as session:
        agent = lab.agent(lab.client(broken, "end"), session, **make(plain, session))
        ended = await within(agent.run(task="Go."))
    assert ended.messages[-1].content == "end"


async def test_the_session_was_halted_before(lab: Any, make: Make, within: Any) -> None:
    with pytest.raises(Halt, match="enough"):
        async with lab.session() as session:
            client = lab.client([("act", {"text": "b"})], "end")
            agent = lab.agent(client, session, **make(plain, session))
            session.halt(Halt("enough"))
            with pytest.raises(SessionHalted, match="enough"):
                await within(agent.run(task="Go."))
            assert client.asked == []


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded model", "plain model"])
async def test_the_session_is_halted_while_it_runs(
    lab: Any, make: Make, within: Any, *, guarded: bool
) -> None:
    with pytest.raises(Halt, match="enough"):
        async with lab.session() as session:

            def act(text: str) -> str:
                session.halt(Halt("enough"))
                return "acted"

            calls = [("act", {"text": "b"}), ("act", {"text": "c"})]
            client = lab.client(calls, "end")
            own = session if guarded else None
            agent = lab.agent(client, own, **make(act, session))
            with pytest.raises(SessionHalted, match="enough"):
                await within(agent.run(task="Go."))
            assert len(client.asked) == 1


async def test_nothing_is_recorded_offline(lab: Any, make: Make, within: Any) -> None:
    with lab.session() as session:
        agent = lab.agent(
            lab.client([("act", {"text": "b"})], "end"), session, **make(plain, session)
        )
        await within(agent.run(task="Go."))
    with pytest.raises(ReplayMiss, match="text"):
        async with lab.session(replay="offline") as session:
            client = lab.client([("act", {"text": "other"})], "end")
            agent = lab.agent(client, None, **make(plain, session))
            with pytest.raises(SessionHalted):
                await within(agent.run(task="Go."))


async def test_its_outcome_is_unknown(lab: Any, make: Make, within: Any) -> None:
    def act(text: str) -> str:
        raise TimeoutError

    for asked in (1, 0):
        with pytest.raises(UnknownOutcome):
            async with lab.session() as session:
                client = lab.client([("act", {"text": "b"})], "end")
                agent = lab.agent(client, session, **make(act, session))
                with pytest.raises(SessionHalted):
                    await within(agent.run(task="Go."))
                assert len(client.asked) == asked


def approve_first(step: StepView) -> Verdict | None:
    return Verdict.ask("a person should look") if step.kind == "tool" else None


async def test_it_needs_approval(lab: Any, make: Make, within: Any, results: Any) -> None:
    with pytest.raises(ApprovalRequired, match="a person should look"):
        async with lab.session(gate=[approve_first]) as session:
            client = lab.client([("act", {"text": "b"})], "end")
            agent = lab.agent(client, session, **make(plain, session))
            with pytest.raises(SessionHalted, match="requires approval"):
                await within(agent.run(task="Go."))
    async with lab.session() as session:  # approved: nothing asks any more
        client = lab.client([("act", {"text": "b"})], "end")
        agent = lab.agent(client, session, **make(plain, session))
        ended = await within(agent.run(task="Go."))
    assert results(ended) == [("did b", False)]
    assert len(client.asked) == 1  # for its last word only


# --- cancellation --------------------------------------------------------------------------------


class Held:
    """A body that waits until it is let go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ended = asyncio.Event()

    async def act(self, text: str) -> str:
        """Wait."""
        self.reached.set()
        try:
            await self.let_go.wait()
        finally:
            self.ended.set()
        return "late"


@pytest.mark.parametrize("make", [by_tools, by_static_workbench, by_workbench])
async def test_its_token_is_cancelled(lab: Any, make: Make, within: Any) -> None:
    held, token = Held(), CancellationToken()
    session = lab.session()
    with pytest.raises(UnknownOutcome, match="CancelledError"):
        async with session:
            client = lab.client([("act", {"text": "b"})], "end")
            agent = lab.agent(client, session, **make(held.act, session))
            running = asyncio.ensure_future(agent.run(task="Go.", cancellation_token=token))
            await within(held.reached.wait())
            token.cancel()
            with pytest.raises(SessionHalted):
                await within(running)
            assert len(client.asked) == 1
    assert [step["outcome"]["status"] for step in lab.steps(session)] == ["unknown"]


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded model", "plain model"])
async def test_its_token_is_cancelled_and_it_only_reads(
    lab: Any, within: Any, *, guarded: bool
) -> None:
    held, token = Held(), CancellationToken()
    async with lab.session() as session:
        tools = guard_tools([FunctionTool(held.act, "")], session, effects={"act": "read"})
        client = lab.client([("act", {"text": "b"})], "end")
        agent = lab.agent(client, session if guarded else None, tools=tools)
        running = asyncio.ensure_future(agent.run(task="Go.", cancellation_token=token))
        await within(held.reached.wait())
        token.cancel()
        if guarded:
            with pytest.raises(asyncio.CancelledError):
                await within(running)
        else:  # this client does not look at its token
            assert (await within(running)).messages[-1].content == "end"
    assert [step["outcome"]["status"] for step in lab.steps(session)] == ["error"]


async def test_its_token_is_cancelled_before_it_begins(lab: Any, make: Make, within: Any) -> None:
    ran: list[str] = []

    def act(text: str) -> str:
        ran.append(text)
        return "done"

    token = CancellationToken()
    async with lab.session() as session:
        client = lab.client([("act", {"text": "b"}), ("act", {"text": "c"})], "end")
        agent = lab.agent(client, session, **make(act, session))

        async def stop_at_the_request() -> None:
            async for event in agent.run_stream(task="Go.", cancellation_token=token):
                if isinstance(event, ToolCallRequestEvent):
                    token.cancel()

        with contextlib.suppress(asyncio.CancelledError):
            await within(stop_at_the_request())
        if make is not by_streaming_tool:  # AutoGen shows the token to the tool itself only
            assert ran == []


async def test_a_sync_tool_is_cancelled_and_ends_late(lab: Any, within: Any) -> None:
    begun, go_on, token = asyncio.Event(), threading.Event(), CancellationToken()
    loop = asyncio.get_running_loop()

    def act(text: str) -> str:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(DEADLINE)
        return "late"

    session = lab.session()
    with pytest.raises(UnknownOutcome):
        async with session:
            client = lab.client([("act", {"text": "b"})], "end")
            agent = lab.agent(client, session, **by_tools(act, session))
            running = asyncio.ensure_future(agent.run(task="Go.", cancellation_token=token))
            await within(begun.wait())
            token.cancel()
            with pytest.raises(SessionHalted):
                await within(running)
            go_on.set()
            while "outcome" not in (step := lab.steps(session)[0]) or len(step["outcome"]) < 2:
                await within(asyncio.to_thread(int))  # the thread's end reaches the loop
    assert lab.steps(session)[0]["outcome"] == {"status": "ok", "value": "late"}


async def test_its_agents_task_is_cancelled(lab: Any, make: Make, within: Any) -> None:
    """AutoGen leaves the tool to itself; what becomes of it is recorded."""
    held = Held()
    async with lab.session() as session:
        client = lab.client([("act", {"text": "b"})], "end")
        agent = lab.agent(client, session, **make(held.act, session))
        running = asyncio.ensure_future(agent.run(task="Go."))
        await within(held.reached.wait())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(running)
        held.let_go.set()
        await within(held.ended.wait())
        await asyncio.sleep(0)
    assert lab.steps(session)[0]["outcome"]["status"] == "ok"
