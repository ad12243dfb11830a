"""`ReplayModel`: the decisions of a recorded run drive an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import StructuredTool
from rollcage import ReplayMiss, Session
from rollcage_adapter import Answer, ToolRequest, model_contract, model_request
from rollcage_langchain import ReplayModel, RollcageMiddleware, guard_model, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

# What a run of another framework may hold.
ANSWERS = (
    Answer(
        "",
        "two at once",
        (ToolRequest("write", '{"text": "a"}'), ToolRequest("write", '{"text":"b"}')),
        "stop",
    ),
    Answer("", "", (ToolRequest("write", '{"text": "c"}', "c3"),)),
    Answer("all done", usage={"input_tokens": 10, "output_tokens": 5}, response_id="r3"),
)


@pytest.fixture
def recorded(lab: Lab, written: list[str]) -> str:
    """A run that no LangChain was part of; its trace."""
    contract = model_contract("elsewhere", "other")

    def write(text: str) -> str:
        """Write a text."""
        written.append(text)
        return f"wrote {text}, number {len(written)}"

    with lab.session(replay="off") as session:
        guarded = session.tool(write)
        for turn, answer in enumerate(ANSWERS):
            request = model_request([{"turn": turn}], options={})
            read: Any = lambda _, said=answer: said  # noqa: E731 - one for each answer
            session.run_call(contract, request, lambda **_: "native", kind="model", answer=read)
            for slot, call in enumerate(answer.tool_calls):
                with session.place(turn=turn, slot=slot):
                    guarded(text=call.arguments.split('"')[3])
    written.clear()
    return str(lab.root / "logs" / f"{session.run_id}.jsonl")


def drive(
    session: Session, model: Any, writer: StructuredTool, *, mode: str = "invoke"
) -> list[Any]:
    """Run an agent to its end; the messages behind the question."""
    agent: Any = create_agent(
        model, guard_tools([writer], session), middleware=[RollcageMiddleware(session)]
    )
    question = {"messages": [("user", "Go.")]}
    if mode == "ainvoke":
        state = asyncio.run(agent.ainvoke(question))
    elif mode == "stream":
        *_, state = agent.stream(question, stream_mode="values")
    else:
        state = agent.invoke(question)
    return list(state["messages"][1:])


@pytest.mark.parametrize("mode", ["invoke", "ainvoke", "stream"])
@pytest.mark.parametrize("guard", [lambda model, _: model, guard_model], ids=["bare", "guarded"])
def test_recorded_decisions_drive_an_agent(
    lab: Lab,
    recorded: str,
    writer: StructuredTool,
    written: list[str],
    mode: str,
    guard: Callable[..., Any],
) -> None:
    with lab.session(replay="offline") as session:
        said = drive(session, guard(ReplayModel(session), session), writer, mode=mode)
    assert written == []
    assert [m.content for m in said if m.type == "tool"] == [
        f"wrote {text}, number {n}" for n, text in enumerate("abc", 1)
    ]
    assert [len(m.tool_calls) for m in said if isinstance(m, AIMessage)] == [2, 1, 0]
    assert said[-1].content == "all done"
    assert session.stats.hits == 3
    assert recorded


def test_an_answer_is_a_whole_message(recorded: str) -> None:
    first, second, last = [
        message for m in [ReplayModel(recorded)] for message in [m.invoke("x") for _ in range(3)]
    ]
    assert first.additional_kwargs == {"reasoning_content": "two at once"}
    assert first.response_metadata["finish_reason"] == "stop"
    assert first.tool_calls == [
        {"name": "write", "args": {"text": text}, "id": f"call-0-{i}", "type": "tool_call"}
        for i, text in enumerate("ab")
    ]
    assert second.tool_calls[0]["id"] == "c3"
    assert (last.content, last.id) == ("all done", "r3")
    assert last.usage_metadata == {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}


def test_arguments_that_are_no_json_stay_what_they_were(tmp_path: Path) -> None:
    calls = (ToolRequest("write", '{"text": ', "c1"), ToolRequest("write", "[1]", "c2"))
    with Session("job", store=tmp_path) as session:
        request, read = model_request([], options={}), lambda _: Answer(tool_calls=calls)
        session.run_call(
            model_contract("m", "other"), request, lambda **_: None, kind="model", answer=read
        )
    message = ReplayModel(tmp_path / "logs" / f"{session.run_id}.jsonl").invoke("x")
    assert message.tool_calls == []
    assert [each["args"] for each in message.invalid_tool_calls] == ['{"text": ', "[1]"]


def test_an_agent_that_asks_for_more_is_told_so(
    lab: Lab, recorded: str, writer: StructuredTool
) -> None:
    model = ReplayModel(recorded)
    for _ in ANSWERS:
        model.invoke("x")
    with pytest.raises(ReplayMiss, match="holds 3 answers, all are given"):
        model.invoke("x")
    with pytest.raises(ReplayMiss, match="holds 3 answers, all are given"):
        next(model.stream("x"))
    with pytest.raises(ReplayMiss, match="holds 3 answers, all are given"):
        asyncio.run(model.ainvoke("x"))


def test_a_tool_that_the_agent_lacks_is_named(lab: Lab, recorded: str) -> None:
    def look(place: str) -> str:
        """Look."""
        raise NotImplementedError

    with (
        lab.session(replay="offline") as session,
        pytest.raises(ReplayMiss, match="asks for the tool 'write', which this agent does not"),
    ):
        drive(session, ReplayModel(session), StructuredTool.from_function(look))


@pytest.mark.parametrize("mode", ["invoke", "ainvoke", "stream"])
def test_a_live_model_goes_on_where_the_recording_ends(
    lab: Lab, recorded: str, writer: StructuredTool, written: list[str], mode: str
) -> None:
    live = lab.model(["-", "-", [("write", {"text": "d"})], "later"], "streaming")
    with lab.session(replay="resume") as session:
        then = guard_model(live, session)
        # As if it had died before its last answer.
        model = ReplayModel(session, then=then)
        model._answers._answers.pop()
        said = drive(session, model, writer, mode=mode)
    assert written == ["d"]
    assert [m.content for m in said if m.type == "tool"][-1] == "wrote d, number 1"
    assert said[-1].content == "later"
    assert session.stats.hits == 3
    assert [tool["function"]["name"] for tool in live.asked[0]["tools"]] == ["write"]


def test_a_guarded_replay_is_recorded_anew(
    lab: Lab, recorded: str, writer: StructuredTool, written: list[str]
) -> None:
    with lab.session("second", replay="resume", source=recorded) as session:
        drive(session, guard_model(ReplayModel(session), session), writer)
    answers = ReplayModel(lab.root / "logs" / f"{session.run_id}.jsonl")
    assert [answers.invoke("x").content for _ in ANSWERS] == ["", "", "all done"]
    assert written == []


def test_a_stream_gives_a_whole_answer_as_its_last_piece(recorded: str) -> None:
    model = ReplayModel(recorded)
    (piece,) = model.stream("x")
    assert isinstance(piece, AIMessageChunk)
    assert len(piece.tool_calls) == 2
    assert piece.chunk_position == "last"
