"""Guarded models: CrewAI's own OpenAI client over real HTTP, recorded, then without the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
from crewai import LLM
from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMStreamChunkEvent
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool
from rollcage import ReplayMiss, StepView, Verdict
from rollcage.errors import Blocked, ContractError
from rollcage_conformance.openai_server import Failure, OpenAIServer, Reply
from rollcage_crewai import guard_crew, guard_model

if TYPE_CHECKING:
    from .conftest import Lab

SCRIPT = [
    Reply(tool_calls=[("write", {"text": "a"}), ("write", {"text": "b"})], usage=(20, 8)),
    Reply(tool_calls=[("write", '{"text":   "c"}')]),
    Reply("all of it is done"),
]


class Opinion(pydantic.BaseModel):
    """A structured answer."""

    good: bool
    why: str = ""


def client(url: str, *, stream: bool = False) -> Any:
    """CrewAI's own client."""
    return LLM(model="openai/scripted", base_url=url, api_key="none", max_retries=0, stream=stream)


def play(lab: Lab, url: str, write: BaseTool, mode: str, **settings: Any) -> Any:
    """Run a crew; its session, its output and what the model was told in the end."""
    with lab.session(**settings) as session:
        model = guard_model(client(url, stream=mode == "stream"), session)
        crew = guard_crew(lab.crew(lab.agent(model, write)), session)
        output: Any = asyncio.run(crew.akickoff()) if mode == "async" else crew.kickoff()
    ended = crew.tasks[0].output
    assert ended is not None
    return session, output, ended.messages


@pytest.mark.parametrize("mode", ["sync", "async", "stream"])
def test_a_run_over_http_replays_without_the_server(
    lab: Lab, write: BaseTool, written: list[str], mode: str
) -> None:
    with OpenAIServer(SCRIPT) as server:
        _, recorded, told = play(lab, server.url, write, mode, replay="off")
        assert len(server.requests) == 3
        assert server.requests[0].get("stream", False) is (mode == "stream")
        server.stop()
        session, replayed, again = play(lab, server.url, write, mode, replay="offline")
    assert replayed.raw == recorded.raw == "all of it is done"
    assert again == told
    assert replayed.token_usage == recorded.token_usage
    assert sorted(written) == ["a", "b", "c"]
    assert session.stats.tokens_saved == 28 + 15 + 15


@pytest.mark.parametrize("mode", ["sync", "stream"])
def test_the_answers_stand_in_the_trace(lab: Lab, write: BaseTool, mode: str) -> None:
    with OpenAIServer(SCRIPT) as server:
        session, _, _ = play(lab, server.url, write, mode, replay="off")
    models = lab.records(session, "model")
    ended = [each["outcome"] for each in models]
    (call,) = ended[1]["answer"]["tool_calls"]
    assert (call["name"], call["arguments"]) == ("write", '{"text":   "c"}')
    assert [o["answer"]["finish_reason"] for o in ended] == ["tool_calls", "tool_calls", "stop"]
    assert [o["answer"]["response_id"] for o in ended] == [f"chatcmpl-{n}" for n in (1, 2, 3)]
    assert ended[2]["answer"]["text"] == "all of it is done"
    assert ended[0]["usage"] == {"input_tokens": 20, "output_tokens": 8}
    assert {e["name"] for e in models} == {"scripted"}
    assert {e["agent"] for e in models} == {"actor"}


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_comes_back_as_its_class(lab: Lab, *, stream: bool) -> None:
    with OpenAIServer([Reply('{"good": true, "why": "it is"}')]) as server:
        with lab.session(replay="off") as session:
            model = guard_model(client(server.url, stream=stream), session)
            recorded = model.call("Well?", response_model=Opinion)
        with lab.session(replay="offline") as session:
            model = guard_model(client(server.url, stream=stream), session)
            replayed = model.call("Well?", response_model=Opinion)
    assert recorded == replayed == Opinion(good=True, why="it is")


def heard(model: Any) -> tuple[Any, list[Any]]:
    """What a call gives, and what listeners hear of it."""
    events: list[Any] = []
    with crewai_event_bus.scoped_handlers():
        for kind in (LLMStreamChunkEvent, LLMCallCompletedEvent):
            crewai_event_bus.on(kind)(lambda _, event: events.append(event))
        value = model.call([{"role": "user", "content": "Go."}], tools=TOOLS)
        crewai_event_bus.flush()
    chunks = [(e.chunk, e.tool_call) for e in events if isinstance(e, LLMStreamChunkEvent)]
    ends = [
        (e.usage, e.finish_reason, e.response_id)
        for e in events
        if isinstance(e, LLMCallCompletedEvent)
    ]
    return value, [chunks, ends]


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "description": "Write.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
]


@pytest.mark.parametrize("reply", [SCRIPT[0], SCRIPT[2]], ids=["calls", "text"])
def test_a_stream_is_heard_in_its_pieces_again(lab: Lab, reply: Reply) -> None:
    with OpenAIServer([reply]) as server:
        with lab.session(replay="off") as session:
            recorded = heard(guard_model(client(server.url, stream=True), session))
        with lab.session(replay="offline") as session:
            replayed = heard(guard_model(client(server.url, stream=True), session))
    assert replayed == recorded
    assert len(recorded[1][0]) > 2
    assert len(recorded[1][1]) == 1


def test_the_async_call_is_guarded_too(lab: Lab) -> None:
    with OpenAIServer([Reply("one")]) as server:
        for replay in ("off", "offline"):
            with lab.session(replay=replay) as session:
                model = guard_model(client(server.url), session)
                assert asyncio.run(model.acall("Go.")) == "one"
                assert model.get_token_usage_summary().total_tokens == 15
        assert len(server.requests) == 1


def test_a_provider_that_fails_is_recorded_as_failed(lab: Lab) -> None:
    with (
        OpenAIServer([Failure(503, "no model today")]) as server,
        lab.session() as session,
        pytest.raises(Exception, match="no model today"),
    ):
        guard_model(client(server.url), session).call("x")
    assert lab.steps(session, "model") == [("scripted", "error")]


def test_nothing_is_asked_over_http_offline(lab: Lab) -> None:
    with OpenAIServer([Reply("one")]) as server:
        with lab.session(replay="off") as session:
            guard_model(client(server.url), session).call("another")
        with pytest.raises(ReplayMiss), lab.session(replay="offline") as session:
            guard_model(client(server.url), session).call("x")
        assert len(server.requests) == 1


# --- other models --------------------------------------------------------------------------------


def test_a_model_that_tells_nothing_is_recorded_all_the_same(lab: Lab) -> None:
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            model = guard_model(lab.model("hello"), session)
            assert isinstance(model, BaseLLM)
            assert model.call([{"role": "user", "content": "Hi."}]) == "hello"
        assert lab.steps(session, "model") == [
            ("scripted", "ok" if replay == "off" else "replayed")
        ]


def test_calls_of_any_provider_come_back_in_a_form_that_crewai_takes(lab: Lab) -> None:
    class Block:
        """As Anthropic's."""

        id, name, input, type = "b-1", "write", {"text": "a"}, "tool_use"

    class Blocks(BaseLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            return [Block()]

    with lab.session(replay="off") as session:
        (block,) = guard_model(Blocks(model="blocks"), session).call("Go.")
    assert isinstance(block, Block)
    with lab.session(replay="offline") as session:
        (call,) = guard_model(Blocks(model="blocks"), session).call("Go.")
    assert (call.id, call.function.name, call.function.arguments) == (
        "b-1",
        "write",
        '{"text": "a"}',
    )


def test_a_rule_may_deny_a_model(lab: Lab) -> None:
    def no_models(step: StepView) -> Verdict | None:
        return Verdict.deny("no thinking today") if step.kind == "model" else None

    model = lab.model("hello")
    with lab.session(gate=[no_models]) as session, pytest.raises(Blocked):
        guard_crew(lab.crew(lab.agent(guard_model(model, session))), session).kickoff()
    assert model.asked == []


def test_a_model_goes_by_its_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with lab.session() as session:
        model = guard_model("gpt-4o-mini", session)
        assert (model.model, isinstance(model, BaseLLM)) == ("gpt-4o-mini", True)


def test_a_model_is_guarded_once(lab: Lab) -> None:
    with lab.session() as session, lab.session("other", inner=True) as other:
        original = lab.model("hello")
        model = guard_model(original, session)
        assert guard_model(model, session) is model
        with pytest.raises(ContractError, match="another session"):
            guard_model(model, other)
        wrong: Any = object()
        with pytest.raises(ContractError, match="is not a model of CrewAI"):
            guard_model(wrong, session)
        original.call([{"role": "user", "content": "Hi."}])
    assert lab.steps(session) == []
