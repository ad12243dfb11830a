"""LangChain's own values in a trace: they come back as themselves, and anyone can read them."""

import json
import subprocess
import sys
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    ToolMessageChunk,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.types import Command, Send
from rollcage.trace import TAG, decode, encode_result

CALL: Any = {"name": "look", "args": {"x": 1.0}, "id": "c1", "type": "tool_call"}
USAGE: Any = {
    "input_tokens": 3,
    "output_tokens": 2,
    "total_tokens": 5,
    "input_token_details": {"cache_read": 1},
}
VALUES: list[Any] = [
    HumanMessage("hi", id="h1", name="ann"),
    HumanMessage([{"type": "text", "text": "hi"}, {"type": "image", "url": "http://x"}]),
    SystemMessage("be kind", additional_kwargs={"cache": True}),
    AIMessage("hello", id="a1", usage_metadata=USAGE, response_metadata={"finish_reason": "stop"}),
    AIMessage("", tool_calls=[CALL], additional_kwargs={"raw": [1, (2, 3)]}),
    AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "x", "args": "{", "id": "c2", "error": "no", "type": "invalid_tool_call"}
        ],
    ),
    AIMessage("extra", refusal="none of it"),
    AIMessageChunk(content="hel", id="a1", usage_metadata=USAGE),
    AIMessageChunk(
        content="",
        tool_call_chunks=[
            {"name": "look", "args": '{"x"', "id": "c1", "index": 0, "type": "tool_call_chunk"}
        ],
    ),
    AIMessageChunk(content="", tool_calls=[CALL], chunk_position="last"),
    ToolMessage("seen", tool_call_id="c1", artifact={"doc": Document("d")}, status="error"),
    ToolMessageChunk(content="se", tool_call_id="c1"),
    FunctionMessage(content="x", name="f"),
    ChatMessage(content="x", role="critic"),
    RemoveMessage(id="a1"),
    Document("text", metadata={"source": "x", "at": (1, 2)}, id="d1"),
    Command(update={"messages": [ToolMessage("x", tool_call_id="c1")], "n": 1}),
    Command(goto="elsewhere", graph=Command.PARENT, resume={"a": 1}),
    Command(goto=["a", Send("b", {"x": (1,)})], update=[("n", 1)]),
    Send("b", [Document("x")]),
    ChatResult(
        generations=[ChatGeneration(message=AIMessage("x"), generation_info={"logprobs": None})],
        llm_output={"model": "m"},
    ),
    ChatGenerationChunk(message=AIMessageChunk(content="x"), generation_info={"n": 1}),
    ("content", [Document("a"), {"more": Document("b")}]),
]


def sealed(secret: str) -> str:
    """No value here is a secret."""
    raise AssertionError(secret)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_itself(value: Any) -> None:
    encoded = encode_result(value, sealed)
    assert encoded.flaws == []
    again = decode(json.loads(json.dumps(encoded.value)))
    assert type(again) is type(value)
    assert again == value


def decoded_elsewhere(value: Any) -> "subprocess.CompletedProcess[str]":
    """Decode a value in a process that has not loaded LangChain."""
    program = (
        "import sys, json; from rollcage.trace import decode;"
        "value = decode(json.load(sys.stdin));"
        "assert not [m for m in sys.modules if m.startswith('lang')];"
        "print(json.dumps(value))"
    )
    encoded = json.dumps(encode_result(value, sealed).value)
    return subprocess.run(
        [sys.executable, "-c", program], input=encoded, capture_output=True, text=True, check=False
    )


def test_a_reader_without_langchain_gets_neutral_data() -> None:
    message = AIMessage("hi", tool_calls=[CALL], usage_metadata=USAGE, id="a1")
    there = decoded_elsewhere({"docs": [Document("text", metadata={"a": 1})], "said": message})
    assert json.loads(there.stdout) == {
        "docs": [{"text": "text", "metadata": {"a": 1}}],
        "said": {"role": "assistant", "content": "hi", "tool_calls": [CALL], "usage": USAGE},
    }


@pytest.mark.parametrize("value", [Command(goto="home"), Send("home", {})], ids=repr)
def test_what_steers_a_graph_means_something_in_langchain_only(value: Any) -> None:
    there = decoded_elsewhere(value)
    assert there.returncode == 1
    assert "means something in langchain only" in there.stderr


def test_another_framework_gets_neutral_data_too() -> None:
    encoded = encode_result(HumanMessage("hi", id="h1"), sealed).value
    assert decode(encoded, framework="autogen") == {"role": "user", "content": "hi"}
    assert decode(encoded, framework="langchain") == HumanMessage("hi", id="h1")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("langchain.message", []),
        ("langchain.message", {"role": "user", "content": "x"}),
        ("langchain.message", {"content": "x", "langchain": {"type": "os.system"}}),
        ("langchain.message", {"content": "x", "langchain": {"type": ["human"]}}),
        ("langchain.message", {"content": 3, "langchain": {"type": "human"}}),
        ("langchain.message", {"content": "x", "langchain": {"type": "tool"}}),
        ("langchain.document", {"text": 1, "metadata": {}}),
        ("langchain.document", {"text": "x", "metadata": {}, "more": 1}),
        ("langchain.command", {"goto": [1]}),
        ("langchain.command", {"graph": 1}),
        ("langchain.command", {"updates": {}}),
        ("langchain.send", {"arg": 1}),
        ("langchain.send", {"node": 1}),
        ("langchain.result", {"generations": [{"message": 1}]}),
        ("langchain.generation", {"message": "x"}),
        ("langchain.chunk", {"info": {}}),
    ],
)
def test_data_that_are_none_of_ours_are_refused(name: str, data: Any) -> None:
    with pytest.raises(ValueError, match="native"):
        decode({TAG: "native", "type": name, "value": data})


def test_what_a_command_cannot_carry_is_named() -> None:
    class Thing:
        """Not data."""

    encoded = encode_result(Command(update={"thing": Thing()}), sealed)
    assert "update.thing" in encoded.flaws[0]
    assert "Thing has no encoding" in encoded.flaws[0]


def test_a_message_of_a_users_own_class_is_not_taken_for_langchains() -> None:
    class Mine(HumanMessage):
        mood: str = "good"

    encoded = encode_result(Mine(content="hi"), sealed)
    assert "Mine comes back only where its class is known" in encoded.flaws[0]
