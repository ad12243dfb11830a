"""`ReplayModel`: an agent driven by recorded decisions."""

from pathlib import Path
from typing import Any

import pytest
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage, UserMessage
from autogen_core.tools import FunctionTool
from rollcage import Halt, ReplayMiss, SessionError, SessionHalted
from rollcage_adapter import Answer, ToolRequest, model_contract
from rollcage_autogen import ReplayModel, guard_tools

HI = [UserMessage(content="Hi", source="user")]


def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


CALLS = [("send", {"text": "a"}), ("send", {"text": "b"})]


def tools(session: Any) -> Any:
    return guard_tools([FunctionTool(send, "Send.")], session)


async def record(lab: Any, *script: Any) -> Any:
    """A run of an agent; its trace's path."""
    with lab.session() as session:
        await lab.agent(lab.client(*script), session, tools=tools(session)).run(task="Go.")
    return Path(lab.store.path_of(session.run_id))


def said(lab: Any, *answers: Answer) -> Path:
    """A run of another framework, with these answers of its model; its trace's path."""
    with lab.session("elsewhere") as session:
        for number, answer in enumerate(answers):
            session.run_call(
                model_contract("m", "other"),
                {"messages": [number]},
                lambda **_: None,
                kind="model",
                answer=lambda _, answer=answer: answer,
            )
    return Path(lab.store.path_of(session.run_id))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
async def test_it_drives_an_agent(lab: Any, results: Any, *, guarded: bool, streamed: bool) -> None:
    await record(lab, CALLS, "all done")
    with lab.session(replay="offline") as session:
        model = ReplayModel(session)
        agent = lab.agent(
            model,
            session if guarded else None,
            tools=tools(session),
            model_client_stream=streamed,
        )
        ended = await agent.run(task="Something else.")
    assert results(ended) == [("sent a", False), ("sent b", False)]
    assert ended.messages[-1].content == "all done"
    assert [step["slot"] for step in lab.steps(session)] == [0, 1]
    assert len(lab.steps(session, "model")) == (2 if guarded else 0)


async def test_a_run_driven_by_a_trace_is_a_source_itself(lab: Any) -> None:
    trace = await record(lab, CALLS, "all done")
    with lab.session("second") as session:
        agent = lab.agent(ReplayModel(trace), session, tools=tools(session))
        await agent.run(task="Else.")
    with lab.session("second", replay="offline") as session:
        agent = lab.agent(ReplayModel(session), session, tools=tools(session))
        ended = await agent.run(task="Else.")
    assert ended.messages[-1].content == "all done"


async def test_it_says_where_the_trace_ends(lab: Any) -> None:
    trace = await record(lab, CALLS, "all done")
    model = ReplayModel(trace)
    for _ in range(2):
        await model.create(HI, tools=[FunctionTool(send, "Send.")])
    with pytest.raises(ReplayMiss, match="holds 2 answers, all are given"):
        await model.create(HI)


async def test_it_says_what_the_agent_does_not_have(lab: Any) -> None:
    trace = await record(lab, CALLS, "all done")
    with pytest.raises(ReplayMiss, match=r"asks for the tool 'send'.*its tools are: none"):
        await ReplayModel(trace).create(HI)


async def test_a_live_client_goes_on(lab: Any, results: Any) -> None:
    with pytest.raises(ValueError, match="power cut"):
        await record(lab, CALLS, ValueError("power cut"))
    with lab.session() as session:
        live = lab.client(CALLS, [("send", {"text": "c"})], "end")
        agent = lab.agent(ReplayModel(session, then=live), session, tools=tools(session))
        ended = await agent.run(task="Go.")
    assert [text for text, _ in results(ended)] == ["sent a", "sent b", "sent c"]
    assert len(live.asked) == 2
    assert session.stats.hits == 2


async def test_a_live_client_goes_on_in_a_stream(lab: Any) -> None:
    live = lab.client("one two")
    model = ReplayModel(said(lab), then=live)
    pieces: list[Any] = [each async for each in model.create_stream(HI)]
    assert pieces[:-1] == ["one ", "two "]


async def test_it_is_a_client_like_any_other(lab: Any) -> None:
    trace, live = said(lab), lab.client()
    alone, followed = ReplayModel(trace), ReplayModel(trace, then=live)
    assert alone.model_info["function_calling"]
    assert alone.capabilities == alone.model_info
    assert followed.model_info == live.model_info
    assert alone.total_usage() == alone.actual_usage() == RequestUsage(0, 0)
    assert followed.total_usage() == followed.actual_usage() == live.total_usage()
    assert (alone.count_tokens(HI), followed.count_tokens(HI)) == (0, live.count_tokens(HI))
    assert alone.remaining_tokens(HI) > followed.remaining_tokens(HI) > 0
    await alone.close()
    await followed.close()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (
            Answer(
                text="I send it",
                reasoning="hm",
                tool_calls=(ToolRequest("send", '{"text": "a"}'),),
                finish_reason="tool_use",
                usage={"input_tokens": 3, "output_tokens": 4},
            ),
            CreateResult(
                content=[FunctionCall(id="call-0-0", name="send", arguments='{"text": "a"}')],
                thought="hm\nI send it",
                finish_reason="function_calls",
                usage=RequestUsage(3, 4),
                cached=True,
            ),
        ),
        (
            Answer(text="done", finish_reason="max_tokens"),
            CreateResult(
                content="done", finish_reason="length", usage=RequestUsage(0, 0), cached=True
            ),
        ),
        (
            Answer(text="done", finish_reason="whim"),
            CreateResult(
                content="done", finish_reason="unknown", usage=RequestUsage(0, 0), cached=True
            ),
        ),
        (
            Answer(text="done"),
            CreateResult(
                content="done", finish_reason="stop", usage=RequestUsage(0, 0), cached=True
            ),
        ),
    ],
)
async def test_answers_of_another_framework_are_autogens(
    lab: Any, answer: Answer, result: CreateResult
) -> None:
    trace = said(lab, answer)
    offered = [FunctionTool(send, "").schema]
    assert await ReplayModel(trace).create(HI, tools=offered) == result
    streamed: list[Any] = [e async for e in ReplayModel(trace).create_stream(HI, tools=offered)]
    assert streamed == ([result] if answer.tool_calls else ["done", result])


async def test_a_halted_session_ends_the_agent(lab: Any) -> None:
    await record(lab, CALLS, "all done")
    with pytest.raises(Halt), lab.session(replay="offline") as session:
        model = ReplayModel(session)
        session.halt(Halt("enough"))
        with pytest.raises(SessionHalted):
            await model.create(HI)


def test_a_session_that_replays_nothing_has_no_answers(lab: Any) -> None:
    with lab.session(replay="off") as session, pytest.raises(SessionError, match="replays nothing"):
        ReplayModel(session)
