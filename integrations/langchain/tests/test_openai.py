"""The real OpenAI client over real HTTP: recorded, then replayed with the server stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import openai
import pydantic
import pytest
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from rollcage import ReplayMiss
from rollcage_conformance.openai_server import Failure, OpenAIServer, Reply
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

SCRIPT = [
    Reply(tool_calls=[("write", {"text": "a"}), ("write", {"text": "b"})], usage=(20, 8)),
    Reply(tool_calls=[("write", '{"text":   "c"}')]),
    Reply("all of it is done"),
]


def client(url: str) -> ChatOpenAI:
    """LangChain's own client."""
    key = pydantic.SecretStr("none")
    return ChatOpenAI(model="scripted", base_url=url, api_key=key, max_retries=0, stream_usage=True)


def play(lab: Lab, url: str, writer: StructuredTool, mode: str, **settings: Any) -> Any:
    """Run an agent; its session and the messages behind the question."""
    with lab.session(**settings) as session:
        agent: Any = create_agent(
            guard_model(client(url), session),
            guard_tools([writer], session),
            middleware=[RollcageMiddleware(session)],
        )
        question = {"messages": [("user", "Go.")]}
        if mode == "ainvoke":
            state = asyncio.run(agent.ainvoke(question))
        elif mode == "stream":
            parts = list(agent.stream(question, stream_mode=["messages", "values"]))
            state = parts[-1][1]
        else:
            state = agent.invoke(question)
    return session, state["messages"][1:]


@pytest.mark.parametrize("mode", ["invoke", "ainvoke", "stream"])
def test_a_run_over_http_replays_without_the_server(
    lab: Lab, writer: StructuredTool, written: list[str], mode: str
) -> None:
    with OpenAIServer(SCRIPT) as server:
        _, recorded = play(lab, server.url, writer, mode, replay="off")
        assert len(server.requests) == 3
        assert server.requests[0].get("stream", False) is (mode == "stream")
        server.stop()
        session, replayed = play(lab, server.url, writer, mode, replay="offline")
    assert [m.content for m in replayed] == [m.content for m in recorded]
    assert [m.content for m in replayed][-1] == "all of it is done"
    assert [getattr(m, "tool_calls", None) for m in replayed] == [
        getattr(m, "tool_calls", None) for m in recorded
    ]
    assert sorted(written) == ["a", "b", "c"]
    assert session.stats.tokens_saved == 28 + 15 + 15


# Of an answer in one piece, LangChain keeps the arguments as data only.
@pytest.mark.parametrize(
    ("mode", "arguments"), [("invoke", '{"text": "c"}'), ("stream", '{"text":   "c"}')]
)
def test_the_answers_stand_in_the_trace(
    lab: Lab, writer: StructuredTool, mode: str, arguments: str
) -> None:
    with OpenAIServer(SCRIPT) as server:
        session, _ = play(lab, server.url, writer, mode, replay="off")
    events = lab.events(session.run_id)
    ended = [e["outcome"] for e in events if e.get("effect") == "model"]
    (call,) = ended[1]["answer"]["tool_calls"]
    assert (call["name"], call["arguments"]) == ("write", arguments)
    assert [o["answer"]["finish_reason"] for o in ended] == ["tool_calls", "tool_calls", "stop"]
    assert ended[2]["answer"]["text"] == "all of it is done"
    assert ended[0]["usage"] == {"input_tokens": 20, "output_tokens": 8}


def test_a_stream_that_was_recorded_answers_a_plain_call(lab: Lab, writer: StructuredTool) -> None:
    with OpenAIServer(SCRIPT) as server:
        _, recorded = play(lab, server.url, writer, "stream", replay="off")
    _, replayed = play(lab, server.url, writer, "invoke", replay="offline")
    assert [m.content for m in replayed] == [m.content for m in recorded]


def test_a_provider_that_fails_is_recorded_as_failed(lab: Lab) -> None:
    with (
        OpenAIServer([Failure(503, "no model today")]) as server,
        lab.session() as session,
        pytest.raises(openai.APIStatusError, match="no model today"),
    ):
        guard_model(client(server.url), session).invoke("x")
    assert lab.outcomes(session)[-1]["status"] == "error"


@pytest.mark.parametrize("ask", [lambda m: m.invoke("x"), lambda m: list(m.stream("x"))])
def test_nothing_is_asked_over_http_offline(lab: Lab, ask: Callable[[Any], Any]) -> None:
    with OpenAIServer([Reply("one")]) as server:
        with lab.session(replay="off") as session:
            guard_model(client(server.url), session).invoke("another")
        with pytest.raises(ReplayMiss), lab.session(replay="offline") as session:
            ask(guard_model(client(server.url), session))
        assert len(server.requests) == 1


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of older clients, of their own
def test_structured_output_replays(lab: Lab) -> None:
    class Verdict(pydantic.BaseModel):
        good: bool

    def judge(url: str, **settings: Any) -> Any:
        with lab.session(**settings) as session:
            model: Any = guard_model(client(url), session)
            return model.with_structured_output(Verdict).invoke("x")

    with OpenAIServer([Reply('{"good": true}')]) as server:
        live = judge(server.url, replay="off")
        server.stop()
        assert judge(server.url, replay="offline") == live == Verdict(good=True)
