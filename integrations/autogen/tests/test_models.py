"""A guarded model is recorded and replayed by what it is asked."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from autogen_core import CancellationToken, FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    ChatCompletionTokenLogprob,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from PIL import Image as Pictures
from pydantic import BaseModel
from rollcage import ContractError, Halt, ReplayMiss, SessionHalted
from rollcage_autogen import guard_model

HI = [UserMessage(content="Hi", source="user")]
WHOLE = CreateResult(
    finish_reason="function_calls",
    content=[FunctionCall(id="c1", name="send", arguments='{"text":"a" }')],
    usage=RequestUsage(11, 7),
    cached=False,
    thought="let me see",
    logprobs=[ChatCompletionTokenLogprob(token="a", logprob=-0.5)],
)


def add(x: int) -> int:
    """Add one."""
    return x + 1


async def pieces(client: Any, messages: Any = HI, **options: Any) -> list[Any]:
    return [each async for each in client.create_stream(messages, **options)]


async def test_a_guarded_client_is_of_the_same_type_and_delegates(lab: Any) -> None:
    original = ReplayChatCompletionClient(["one two"])
    with lab.session() as session:
        client = guard_model(original, session)
        assert isinstance(client, ReplayChatCompletionClient)
        assert client.model_info == original.model_info
        assert client.count_tokens(HI) == original.count_tokens(HI)
        assert client.remaining_tokens(HI) == original.remaining_tokens(HI)
        result = await client.create(HI)
        assert result.content == "one two"
        assert client.total_usage() == client.actual_usage() == result.usage
        assert guard_model(client, session) is client
        await client.close()
    assert original.create_calls == client.create_calls  # it was asked once
    (step,) = lab.steps(session, "model")
    assert step["name"] == "ReplayChatCompletionClient"


def test_what_can_not_be_guarded_is_refused(lab: Any) -> None:
    wrong: Any = "gpt"
    with lab.session("one") as one, lab.session("two", inner=True) as two:
        with pytest.raises(ContractError, match="not a ChatCompletionClient"):
            guard_model(wrong, one)
        with pytest.raises(ContractError, match="another session"):
            guard_model(guard_model(lab.client(), one), two)


async def test_an_answer_comes_back_whole(lab: Any) -> None:
    with lab.session() as session:
        assert await guard_model(lab.client(WHOLE), session).create(HI) == WHOLE
    (step,) = lab.steps(session, "model")
    assert step["name"] == "scripted-1"
    assert step["outcome"]["usage"] == {"input_tokens": 11, "output_tokens": 7}
    assert step["outcome"]["answer"] == {
        "reasoning": "let me see",
        "tool_calls": [{"name": "send", "arguments": '{"text":"a" }', "id": "c1"}],
        "finish_reason": "function_calls",
    }
    with lab.session(replay="offline") as session:
        client = lab.client()
        assert await guard_model(client, session).create(HI) == WHOLE
        assert client.asked == []
        assert session.stats.tokens_saved == 18


async def test_a_stream_comes_back_in_its_pieces_and_answers_a_plain_call(lab: Any) -> None:
    with lab.session() as session:
        recorded = await pieces(guard_model(lab.client("one two"), session))
    assert recorded[:-1] == ["one ", "two "]
    with lab.session(replay="offline") as session:
        assert await pieces(guard_model(lab.client(), session), include_usage=True) == recorded
    with lab.session(replay="offline") as session:
        assert await guard_model(lab.client(), session).create(HI) == recorded[-1]


async def test_a_plain_answer_answers_a_stream(lab: Any) -> None:
    with lab.session() as session:
        recorded = await guard_model(lab.client("one two"), session).create(HI)
    with lab.session(replay="offline") as session:
        assert await pieces(guard_model(lab.client(), session)) == [recorded]


async def test_a_stream_that_is_left_early_replays_as_far_as_it_was_read(lab: Any) -> None:
    with lab.session() as session:
        stream = guard_model(lab.client("one two"), session).create_stream(HI)
        assert await anext(stream) == "one "
        await stream.aclose()
    assert lab.steps(session, "model")[0]["outcome"]["answer"] == {"text": "one "}


async def test_a_client_whose_stream_is_made_by_itself_is_one_step(lab: Any) -> None:
    class Own(ReplayChatCompletionClient):
        async def create_stream(
            self, messages: Any, **options: Any
        ) -> AsyncGenerator[str | CreateResult, None]:
            yield await self.create(messages, **options)

    with lab.session() as session:
        client = guard_model(Own(["text"]), session)
        assert [each.content for each in await pieces(client)] == ["text"]
        assert session.stats.calls == 1


class Out(BaseModel):
    x: int


PICTURE = Image(Pictures.new("RGB", (1, 1), "red"))
TOOL = FunctionTool(add, "Adds.")


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([UserMessage(content="Ho", source="user")], {}),
        ([UserMessage(content="Hi", source="ann")], {}),
        ([SystemMessage(content="Hi")], {}),
        ([UserMessage(content=["Hi", PICTURE], source="user")], {}),
        ([AssistantMessage(content="Hi", source="user", thought="hm")], {}),
        (HI, {"tools": [TOOL]}),
        (HI, {"tools": [TOOL], "tool_choice": "required"}),
        (HI, {"tools": [TOOL], "tool_choice": TOOL}),
        (HI, {"json_output": True}),
        (HI, {"json_output": Out}),
        (HI, {"extra_create_args": {"temperature": 1}}),
    ],
)
async def test_another_question_is_another_call(lab: Any, messages: Any, options: Any) -> None:
    with lab.session() as session:
        await guard_model(ReplayChatCompletionClient(["a"]), session).create(HI)
    with pytest.raises(ReplayMiss), lab.session(replay="offline") as session:
        await guard_model(ReplayChatCompletionClient(["b"]), session).create(messages, **options)
    with lab.session("other") as session:
        answer = await guard_model(lab.client("a", "b"), session).create(messages, **options)
    with lab.session("other", replay="offline") as session:
        assert await guard_model(lab.client(), session).create(messages, **options) == answer


async def test_what_is_the_same_is_the_same_call(lab: Any) -> None:
    """Ids of calls, the token, defaults that are spelt out, and how it is delivered."""

    def talk(call_id: str) -> list[Any]:
        call = FunctionCall(id=call_id, name="add", arguments='{"x": 1}')
        told = FunctionExecutionResult(content="2", name="add", call_id=call_id, is_error=False)
        return [
            *HI,
            AssistantMessage(content=[call], source="clerk"),
            FunctionExecutionResultMessage(content=[told]),
        ]

    with lab.session() as session:
        recorded = await guard_model(lab.client("", "b"), session).create(
            talk("one"), tools=[TOOL], cancellation_token=CancellationToken()
        )
    with lab.session(replay="offline") as session:
        again = await guard_model(lab.client(), session).create(
            talk("two"),
            tools=[TOOL.schema],
            tool_choice="auto",
            json_output=None,
            extra_create_args={},
        )
        assert again == recorded


async def test_another_model_is_another_call(lab: Any) -> None:
    with lab.session() as session:
        await guard_model(lab.client("a"), session).create(HI)
    with pytest.raises(ReplayMiss), lab.session(replay="offline") as session:
        await guard_model(lab.client(model="scripted-2"), session).create(HI)


async def test_a_models_error_replays(lab: Any) -> None:
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            client = guard_model(lab.client(ValueError("too long")), session)
            with pytest.raises(ValueError, match="too long"):
                await client.create(HI)
            with pytest.raises(ValueError, match="too long") as raised:
                await pieces(client)
        assert type(raised.value) is ValueError


async def test_a_cancelled_token_ends_the_question(lab: Any) -> None:
    token = CancellationToken()
    token.cancel()
    with lab.session() as session:
        client = guard_model(lab.client("a"), session)
        for ask in (
            client.create(HI, cancellation_token=token),
            pieces(client, cancellation_token=token),
        ):
            with pytest.raises(asyncio.CancelledError):
                await ask
        assert session.stats.calls == 0


async def test_a_halted_session_ends_the_question(lab: Any) -> None:
    with pytest.raises(Halt), lab.session() as session:
        client: ChatCompletionClient = guard_model(lab.client("a"), session)
        session.halt(Halt("enough"))
        with pytest.raises(SessionHalted, match="enough"):
            await client.create(HI)
        with pytest.raises(SessionHalted, match="enough"):
            await pieces(client)
