"""The key of a request whose messages are known is the key of the same arguments, computed anew."""

from __future__ import annotations

import copy
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage.contract.arguments import ModelRequest
from rollcage.contract.contract import Contract
from rollcage.errors import Unencodable
from rollcage.fingerprint.identity import key_digest
from rollcage.fingerprint.transcript import Transcript, common_length

MODEL = Contract(
    name="model",
    version="2",
    effect="read",
    parameters={"properties": {"messages": {"type": "array"}}, "required": ["messages"]},
)

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=3
        )
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "call"]), VALUES), max_size=5
)


def seal(secret: str) -> str:
    return f"sealed {secret}"


def scratch(messages: list[Any], rest: dict[str, Any]) -> tuple[bytes, Any, bytes]:
    """The key, the canonical arguments and their bytes, of nothing that is known."""
    bound = MODEL.bind({"messages": messages, **rest}, seal)
    key = key_digest("model", MODEL.name, MODEL.version, bound.digest_input)
    return key, bound.canonical, bound.digest_input


def known(transcript: Transcript, count: int, rest: dict[str, Any]) -> tuple[bytes, Any, bytes]:
    request = ModelRequest(
        {"messages": transcript.values[:count], **rest}, transcript, lambda: False
    )
    bound, question = MODEL.takes.bind_request(request, MODEL.version, seal)
    assert question is not None
    return question.key(), bound.canonical, bytes(question)


@given(MESSAGES, st.dictionaries(st.sampled_from(["options", "stop"]), VALUES))
def test_each_prefix_has_the_key_of_its_arguments(messages: Any, rest: Any) -> None:
    transcript = Transcript(MODEL.name, MODEL.version)
    for message in messages:
        transcript.add(message)
    for count in range(len(messages) + 1):
        assert repr(known(transcript, count, rest)) == repr(scratch(messages[:count], rest))


@given(MESSAGES, MESSAGES, st.integers(0, 5))
def test_a_transcript_goes_on_behind_any_of_its_messages(one: Any, other: Any, cut: int) -> None:
    cut = min(cut, len(one))
    transcript = Transcript(MODEL.name, MODEL.version)
    for message in one:
        transcript.add(message)
    branched = transcript.first(cut)
    for message in other:
        branched.add(message)
    both = [*one[:cut], *other]
    assert repr(known(branched, len(both), {})) == repr(scratch(both, {}))
    assert repr(known(transcript, len(one), {})) == repr(scratch(one, {}))


def test_a_message_that_changes_later_is_kept_as_it_was() -> None:
    message = {"role": "user", "content": [{"text": "go"}]}
    before = copy.deepcopy(message)
    transcript = Transcript(MODEL.name, MODEL.version)
    transcript.add(message)
    message["content"].append("more")  # type: ignore[attr-defined]
    assert transcript.values == transcript.messages == [before]


def test_a_message_without_a_form_leaves_a_transcript_as_it_is() -> None:
    transcript = Transcript(MODEL.name, MODEL.version)
    transcript.add({"role": "user"})
    for bad in (object(), pydantic.SecretStr("hidden")):
        with pytest.raises(Unencodable):
            transcript.add({"content": bad})
    assert known(transcript, 1, {}) == scratch([{"role": "user"}], {})
    assert len(transcript) == len(transcript.digests) == len(transcript.ends) == 1


def test_a_transcript_of_another_model_is_not_used() -> None:
    transcript = Transcript("another", "")
    transcript.add("go")
    request = ModelRequest({"messages": ["go"]}, transcript, lambda: False)
    bound, question = MODEL.takes.bind_request(request, MODEL.version, seal)
    assert question is None
    assert bound == MODEL.bind({"messages": ["go"]}, seal)


def test_parameters_that_say_more_of_messages_bind_them_all() -> None:
    schema = {"properties": {"messages": {"type": "array", "items": {"type": "number"}}}}
    strange = Contract(name="model", effect="read", parameters=schema)
    transcript = Transcript("model", "")
    transcript.add(1)
    request = ModelRequest({"messages": [1]}, transcript, lambda: False)
    bound, question = strange.takes.bind_request(request, "", seal)
    assert question is None
    assert bound.digest_input == strange.bind({"messages": [1.0]}, seal).digest_input


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_length_is_counted(one: list[int], other: list[int]) -> None:
    counted = 0
    while counted < min(len(one), len(other)) and one[counted] == other[counted]:
        counted += 1
    assert common_length(one, other) == counted
