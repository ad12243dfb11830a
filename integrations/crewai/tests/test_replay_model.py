"""The decisions of a recorded run drive a crew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crewai.tools import BaseTool, tool
from pydantic import BaseModel
from rollcage import Contract, ReplayMiss
from rollcage_adapter import Answer, ToolRequest
from rollcage_crewai import ReplayModel, guard_crew, guard_model

if TYPE_CHECKING:
    from .conftest import Lab

MODEL = Contract(name="other", parameters={"properties": {"n": {"type": "integer"}}}, effect="read")
USAGE = {"input_tokens": 11, "output_tokens": 7}
ANSWERS = [
    Answer(
        reasoning="hmm",
        tool_calls=(
            ToolRequest("write", '{"text":  "a"}', "x-1"),
            ToolRequest("write", '{"text": "b"}'),
        ),
        usage=USAGE,
    ),
    Answer(text="all done", finish_reason="stop", response_id="r-2", usage=USAGE),
]


def giving(answer: Answer) -> Any:
    return lambda _: answer


def record(lab: Lab, answers: list[Answer] = ANSWERS) -> Any:
    """A run of no framework at all; the path of its trace."""
    with lab.session("other", replay="off") as session:
        for n, answer in enumerate(answers):
            session.run_call(MODEL, {"n": n}, lambda **_: "", kind="model", answer=giving(answer))
    return Path(lab.store.path_of(session.run_id))


def test_a_crew_does_what_another_agent_decided(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = ReplayModel(record(lab))
    with lab.session() as session:
        output = lab.kickoff(guard_crew(lab.crew(lab.agent(model, write)), session))
    assert output.raw == "all done"
    assert sorted(written) == ["a", "b"]
    started = lab.records(session)
    assert sorted((e["slot"], e["args"]["text"]) for e in started) == [(0, "a"), (1, "b")]
    assert started[0]["turn"] == started[1]["turn"]
    assert output.token_usage.prompt_tokens == 22


def test_an_agent_without_native_calls_makes_them_one_by_one(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    class Text(ReplayModel):
        def supports_function_calling(self) -> bool:
            return False

    text: Any = Text  # made as its base is
    with lab.session() as session:
        output = lab.kickoff(guard_crew(lab.crew(lab.agent(text(record(lab)), write)), session))
    assert output.raw == "all done"
    assert written == ["a", "b"]


def test_tools_are_known_by_their_sanitised_names(lab: Lab, written: list[str]) -> None:
    @tool("Write: it down!")
    def write_down(text: str) -> str:
        """Write a text."""
        written.append(text)
        return "written"

    calls = (ToolRequest("Write: it down!", '{"text": "a"}'),)
    path = record(lab, [Answer(tool_calls=calls), Answer(text="done")])
    assert lab.kickoff(lab.crew(lab.agent(ReplayModel(path), write_down))).raw == "done"
    assert written == ["a"]


def test_what_is_not_recorded_is_said_and_nothing_loops(
    lab: Lab, write: BaseTool, written: list[str]
) -> None:
    model = ReplayModel(record(lab, ANSWERS[:1]))
    with pytest.raises(ReplayMiss, match="all are given"), lab.session() as session:
        guard_crew(lab.crew(lab.agent(model, write)), session).kickoff()
    assert sorted(written) == ["a", "b"]


def test_a_tool_that_the_agent_lacks_is_named(lab: Lab, fail: BaseTool) -> None:
    with pytest.raises(ReplayMiss, match="asks for the tool 'write'"):
        lab.crew(lab.agent(ReplayModel(record(lab)), fail)).kickoff()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_live_model_takes_over(lab: Lab, *, asynchronous: bool) -> None:
    live: Any = lab.model("from here on")
    model = ReplayModel(record(lab, ANSWERS[1:]), then=live)
    given: list[str] = []
    for _ in range(2):
        asked = [{"role": "user", "content": "Go."}]
        given.append(await model.acall(asked) if asynchronous else model.call(asked))
    assert given == ["all done", "from here on"]
    assert model.get_context_window_size() == live.get_context_window_size()
    assert model.supports_function_calling()


def test_structured_output_is_made_of_the_text(lab: Lab) -> None:
    class Verdict(BaseModel):
        good: bool

    model = ReplayModel(record(lab, [Answer(text='{"good": true}')]))
    assert model.call("Well?", response_model=Verdict) == Verdict(good=True)


def test_a_guarded_one_gives_its_own_answers(lab: Lab, write: BaseTool, written: list[str]) -> None:
    path = record(lab)
    for replay, calls in (("off", 2), ("resume", 0)):
        with lab.session(replay=replay) as session:
            model = guard_model(ReplayModel(path), session)
            output = lab.kickoff(guard_crew(lab.crew(lab.agent(model, write)), session))
        assert output.raw == "all done"
        assert [how for name, how in lab.steps(session) if name == "write"] == (
            ["ok"] * 2 if calls else ["replayed"] * 2
        )
    assert sorted(written) == ["a", "b"]


def test_tokens_are_counted_by_the_live_model_only(lab: Lab) -> None:
    with lab.session() as session:
        guard_model(lab.model("done"), session).call([{"role": "user", "content": "Go."}])
    with lab.session(replay="offline") as session:
        assert ReplayModel(session).get_input_tokens_count("Go.") == 0
        assert ReplayModel(session, then=lab.model()).get_input_tokens_count("Go.") == 0
