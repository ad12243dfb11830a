"""AutoGen's own values in a trace: neutral data, from which each comes back as itself."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from autogen_agentchat import messages
from autogen_agentchat.base import TaskResult
from autogen_core import FunctionCall, Image
from autogen_core.memory import MemoryContent
from autogen_core.models import (
    ChatCompletionTokenLogprob,
    CreateResult,
    FunctionExecutionResult,
    RequestUsage,
    TopLogprob,
    UserMessage,
)
from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult
from PIL import Image as Pictures
from pydantic import BaseModel
from rollcage import Contract
from rollcage.trace import decode
from rollcage_autogen.values import Piece, register_messages

PICTURE = Image(Pictures.new("RGB", (2, 1), "red"))
CALL = FunctionCall(id="c", name="send", arguments='{"a": "é"}')
TOLD = FunctionExecutionResult(content="x", name="send", call_id="c", is_error=True)
USAGE = RequestUsage(3, 4)


@pytest.fixture(autouse=True)
def _messages() -> None:
    register_messages()


def values() -> Iterator[Any]:
    """One of each, with all that it can hold."""
    common: dict[str, Any] = {
        "source": "ann",
        "models_usage": USAGE,
        "metadata": {"a": "b"},
        "id": "m1",
        "created_at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    }
    text = messages.TextMessage(content="é", **common)
    yield text
    yield messages.MultiModalMessage(content=["see"], **common)
    yield messages.StopMessage(content="stop", **common)
    yield messages.HandoffMessage(
        content="over", target="bob", context=[UserMessage(content="u", source="user")], **common
    )
    yield messages.ToolCallSummaryMessage(
        content="sum", tool_calls=[CALL], results=[TOLD], **common
    )
    yield messages.ToolCallRequestEvent(content=[CALL], **common)
    yield messages.ToolCallExecutionEvent(content=[TOLD], **common)
    yield messages.MemoryQueryEvent(
        content=[MemoryContent(content="m", mime_type="text/plain")], **common
    )
    yield messages.ModelClientStreamingChunkEvent(content="chunk", **common)
    yield messages.ThoughtEvent(content="hm", **common)
    yield TaskResult(messages=[text], stop_reason="enough")
    yield TaskResult(messages=[])
    yield ToolResult(name="n", result=[TextResultContent(content="t")], is_error=True)
    yield Piece([1, Piece(None)])
    yield CreateResult(
        finish_reason="stop",
        content="é",
        usage=USAGE,
        cached=True,
        thought="hm",
        logprobs=[
            ChatCompletionTokenLogprob(
                token="é", logprob=-1.5, top_logprobs=[TopLogprob(-1.5, [195, 169])]
            )
        ],
    )


def record(lab: Any, value: Any) -> Any:
    """Record a value and replay it: the encoded form, and what came back."""
    contract = Contract(name="give", parameters={"properties": {}}, framework="autogen")
    with lab.session() as session:
        session.run_call(contract, {}, lambda **_: value)
    outcome = lab.steps(session)[0]["outcome"]
    assert "lossy" not in outcome
    with lab.session(replay="offline") as session:
        return outcome["value"], session.run_call(contract, {}, lambda **_: None)


@pytest.mark.parametrize("value", [*values()], ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_itself(lab: Any, value: Any) -> None:
    encoded, again = record(lab, value)
    assert again == value
    assert type(again) is type(value)
    assert encoded["type"].startswith("autogen.")


def test_pictures_come_back(lab: Any) -> None:
    _, again = record(lab, PICTURE)
    assert again.to_base64() == PICTURE.to_base64()
    _, again = record(lab, ToolResult(name="n", result=[ImageResultContent(content=PICTURE)]))
    assert again.result[0].content.to_base64() == PICTURE.to_base64()


def test_another_framework_gets_neutral_data(lab: Any) -> None:
    encoded, _ = record(lab, ToolResult(name="n", result=[TextResultContent(content="t")]))
    assert decode(encoded, framework="another") == {
        "content": [{"type": "text", "text": "t"}],
        "is_error": False,
    }
    encoded, _ = record(lab, messages.TextMessage(content="é", source="ann"))
    assert decode(encoded, framework="another") == {"content": "é", "source": "ann"}


class Answer(BaseModel):
    number: int


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_a_structured_message_can_not_come_back_and_says_so(lab: Any) -> None:
    told = messages.StructuredMessage[Answer](content=Answer(number=1), source="ann")
    contract = Contract(name="give", parameters={"properties": {}}, framework="autogen")
    with lab.session() as session:
        session.run_call(contract, {}, lambda **_: TaskResult(messages=[told]))
    assert "StructuredMessage[Answer] comes back only" in lab.steps(session)[0]["outcome"]["lossy"]


@pytest.mark.parametrize(
    "hostile",
    [
        {"type": "autogen.tool_result", "value": []},
        {"type": "autogen.tool_result", "value": {"content": [{}], "is_error": False}},
        {"type": "autogen.create_result", "value": {"content": 1}},
        {"type": "autogen.message", "value": {"content": "x"}},
        {"type": "autogen.message", "value": {"autogen": {"type": "BaseModel"}}},
        {"type": "autogen.image", "value": {"data": "no picture"}},
        {"type": "autogen.task_result", "value": {"messages": [1], "stop_reason": None}},
    ],
)
def test_hostile_data_are_refused(hostile: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a native"):
        decode({"$rollcage": "native", **hostile}, framework="autogen")
