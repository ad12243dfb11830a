"""What is known of a conversation gives the same request as working it out anew."""

from __future__ import annotations

import copy
import gc
import json
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Contract, Session
from rollcage.fingerprint.identity import key_digest
from rollcage_adapter import CallNumbers, MessageForm, model_contract, model_request
from rollcage_adapter.conversations import MOST, Conversations

MODEL = model_contract("model", "test")


class Form(MessageForm):
    """Messages are dicts; the ids of calls in them become numbers."""

    def __init__(self) -> None:
        self.made = 0

    def parts(self, messages: Sequence[Any]) -> list[Any]:
        return list(messages)

    def canonical(self, message: Any, calls: CallNumbers) -> Any:
        self.made += 1
        asked = {name: each for name, each in message.items() if name != "beside"}
        if "tool_calls" in asked:
            asked["tool_calls"] = [
                calls.issued(each["name"], each["args"], each["id"]) for each in asked["tool_calls"]
            ]
        if "tool_call_id" in asked:
            asked["call"] = calls.of(asked.pop("tool_call_id"))
        asked["content"] = calls.within(asked["content"])
        return asked


def sealed(secret: str) -> str:
    return f"sealed {secret}"


def anew(messages: Sequence[Any], contract: Contract = MODEL) -> tuple[bytes, Any, bytes]:
    """The key of a request, its canonical arguments and their bytes, of nothing that is known."""
    form, calls = Form(), CallNumbers()
    request = model_request([form.canonical(each, calls) for each in messages], options={})
    bound = contract.bind(request, sealed)
    key = key_digest("model", contract.name, contract.version, bound.digest_input)
    return key, bound.canonical, bound.digest_input


def known(conversations: Conversations, messages: Sequence[Any]) -> tuple[bytes, Any, bytes]:
    """The same, of what is known."""
    request: Any = conversations.request(messages, {})
    bound, question = MODEL.takes.bind_request(request, MODEL.version, sealed)
    assert question is not None
    return question.key(), bound.canonical, bytes(question)


def _told(found: tuple[bytes, Any, bytes]) -> tuple[bytes, str, bytes]:
    """The same, to be compared: 1 is no True, and the order of names is none."""
    key, canonical, data = found
    return key, json.dumps(canonical, sort_keys=True), data


# --- any program ---------------------------------------------------------------------------------

LEAVES = st.sampled_from(["", "a", "call-0", "call-1", 0, 1, True, False, 1.0, 0.0, -0.0, None])
DATA = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["id", "text", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
IDS = st.sampled_from(["call-0", "call-1", "call-2", ""])
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": DATA}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": DATA, "tool_call_id": IDS}),
    st.fixed_dictionaries({
        "role": st.just("assistant"),
        "content": DATA,
        "beside": DATA,
        "tool_calls": st.lists(
            st.fixed_dictionaries({"id": IDS, "name": st.just("read"), "args": DATA}), max_size=2
        ),
    }),
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each place in some data at which something stands that can be replaced."""
    if not isinstance(value, dict | list):
        return []
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, place) for place in places] + [
        each for place in places for each in _places(value[place])
    ]


def _replaceable(message: Any) -> list[tuple[Any, Any]]:
    """The places in a message."""
    holders = [message, *message.get("tool_calls", ())]
    names = [(each, name) for each in holders for name in ("content", "beside", "args")]
    found = [(each, name) for each, name in names if name in each]
    return found + [place for each, name in found for place in _places(each[name])]


def step(draw: Callable[[Any], Any], talks: list[list[Any]]) -> list[Any]:
    """Do something to one of some conversations that a program may do; return that one."""
    talk: list[Any] = draw(st.sampled_from(talks))
    some = st.integers(0, len(talk))
    match draw(st.integers(0, 9)):
        case 0 | 1 | 2:
            talk.extend(draw(st.lists(MESSAGES, max_size=2)))
        case 3:  # changed in place
            places = [each for message in talk for each in _replaceable(message)]
            if places:
                holder, place = draw(st.sampled_from(places))
                holder[place] = draw(DATA)
        case 4:  # fresh copies
            talk[:] = copy.deepcopy(talk)
        case 5:  # trimmed, or cut back
            first, last = sorted((draw(some), draw(some)))
            talk[:] = talk[first:last]
        case 6:  # summarised, or one inserted
            first, last = sorted((draw(some), draw(some)))
            talk[first:last] = [draw(MESSAGES)]
        case 7:  # forked; its messages are the same objects
            talks.append([*talk[: draw(some)]])
        case 8 if talk:  # one object at two places
            talk.insert(draw(some), draw(st.sampled_from(talk)))
        case _:
            talks.append([])
    return talk


@given(st.data())
def test_any_program_asks_as_if_nothing_was_known(data: st.DataObject) -> None:
    conversations = Conversations(MODEL, Form())
    talks: list[list[Any]] = [[]]
    asked: list[tuple[tuple[bytes, Any, bytes], str]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        talk = step(data.draw, talks)
        found = known(conversations, talk)
        assert _told(found) == _told(anew(talk))
        asked.append((found, repr(found)))
    for found, was in asked:  # nothing that was handed out has changed
        assert repr(found) == was


# --- what changed in place is noticed ------------------------------------------------------------


def _conversation() -> list[Any]:
    call = {"id": "call-0", "name": "read", "args": {"page": 1, "deep": [{"list": ["x"]}]}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call], "beside": {"raw": [1]}},
        {"role": "tool", "content": [{"type": "text", "text": "done"}], "tool_call_id": "call-0"},
    ]


CHANGES: dict[str, Callable[[Any], object]] = {
    "a text": lambda talk: talk[0].update(content="stop"),
    "an argument": lambda talk: talk[1]["tool_calls"][0]["args"].update(page=2),
    "a number of another type": lambda talk: talk[1]["tool_calls"][0]["args"].update(page=True),
    "a nested list": lambda talk: talk[1]["tool_calls"][0]["args"]["deep"][0]["list"].append("y"),
    "another call": lambda talk: talk[1]["tool_calls"].append(
        {"id": "call-1", "name": "read", "args": {}}
    ),
    "no call": lambda talk: talk[1]["tool_calls"].clear(),
    "a block": lambda talk: talk[2]["content"][0].update(text="failed"),
    "another name of a field": lambda talk: talk[2]["content"][0].update(
        kind=talk[2]["content"][0].pop("type")
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_message_that_was_changed_in_place_is_noticed(change: Callable[[Any], object]) -> None:
    conversations, talk = Conversations(MODEL, Form()), _conversation()
    before = known(conversations, talk)
    change(talk)
    after = known(conversations, talk)
    assert after == anew(talk)
    assert after[0] != before[0]


def test_what_is_no_part_of_a_request_changes_nothing() -> None:
    conversations, talk = Conversations(MODEL, Form()), _conversation()
    before = known(conversations, talk)
    talk[1]["beside"]["raw"].append(2)
    assert known(conversations, talk) == before


def test_a_change_between_the_decision_and_the_body_is_noticed() -> None:
    conversations, talk = Conversations(MODEL, Form()), _conversation()
    request: Any = conversations.request(talk, {})
    assert not request.has_changed()
    talk[0]["content"] = "stop"
    assert request.has_changed()
    talk[0]["content"] = "go"
    assert not request.has_changed()
    talk.append({"role": "user", "content": "more"})
    assert request.has_changed()


class Image:  # noqa: PLW1641 - compared alone
    """A part of which nobody knows what it holds."""

    def __init__(self, data: str) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return True


class ImageForm(Form):
    def canonical(self, message: Any, calls: CallNumbers) -> Any:
        asked = super().canonical(message, calls)
        content = asked["content"]
        return {**asked, "content": content.data if isinstance(content, Image) else content}


def test_a_part_of_another_kind_is_looked_at_each_time() -> None:
    form = ImageForm()
    conversations, image = Conversations(MODEL, form), Image("one")
    talk = [*_conversation(), {"role": "user", "content": image}, *_conversation()]
    before = known(conversations, talk)[0]
    form.made = 0
    assert known(conversations, talk)[0] == before
    assert form.made == 1  # the others are known, those behind it too
    image.data = "two"
    after = known(conversations, talk)
    assert after[0] != before
    assert after[1]["messages"][3]["content"] == "two"


# --- what is known is used -----------------------------------------------------------------------


def _made(messages: list[Any], conversations: Conversations, form: Form) -> int:
    """How many messages are brought into their form for a request."""
    form.made = 0
    known(conversations, messages)
    return form.made


def test_only_new_messages_are_brought_into_their_form() -> None:
    form = Form()
    conversations = Conversations(MODEL, form)
    talk = [{"role": "user", "content": str(n)} for n in range(50)]
    assert _made(talk, conversations, form) == 50
    assert _made(talk, conversations, form) == 0
    assert _made(copy.deepcopy(talk), conversations, form) == 0
    assert _made([*talk, {"role": "user", "content": "new"}], conversations, form) == 1
    assert _made([*talk[:40], {"role": "user", "content": "fork"}], conversations, form) == 1
    assert _made([*talk[:30], *talk[31:]], conversations, form) == 19


def test_a_conversation_that_is_loaded_anew_is_known() -> None:
    form = Form()
    conversations = Conversations(MODEL, form)
    talk = _conversation()
    talk[1]["tool_calls"][0]["args"] |= {"page": 10**6, "share": 0.1, "zero": 0.0, "all": True}
    assert _made(talk, conversations, form) == 3
    again = json.loads(json.dumps(talk))
    assert _made(again, conversations, form) == 0
    again[1]["tool_calls"][0]["args"]["zero"] = -0.0
    assert _told(known(conversations, again)) == _told(anew(again)) != _told(anew(talk))


def test_conversations_that_take_turns_stay_known() -> None:
    form = Form()
    conversations = Conversations(MODEL, form)
    talks = [[{"role": "user", "content": f"{n}"}] for n in range(MOST)]
    for talk in talks:
        assert _made(talk, conversations, form) == 1
    for talk in talks:
        talk.append({"role": "user", "content": "more"})
        assert _made(talk, conversations, form) == 1


def test_so_many_conversations_are_remembered_and_no_more() -> None:
    form = Form()
    conversations = Conversations(MODEL, form)
    talks = [[{"role": "user", "content": f"{n}"}] for n in range(MOST + 1)]
    for talk in talks:
        known(conversations, talk)
    assert _made(talks[1], conversations, form) == 0
    assert _made(talks[0], conversations, form) == 1


def test_long_conversations_are_forgotten_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcage_adapter.conversations.MOST_BYTES", 3_000)
    form = Form()
    conversations = Conversations(MODEL, form)
    talks = [[{"role": "user", "content": f"{n}" * 1_000}] for n in range(4)]
    for talk in talks:
        known(conversations, talk)
    assert _made(talks[3], conversations, form) == 0
    assert _made(talks[2], conversations, form) == 0
    assert _made(talks[0], conversations, form) == 1
    longest = [{"role": "user", "content": "x" * 10_000}]
    known(conversations, longest)
    assert _made(longest, conversations, form) == 0  # the latest, however long it is


def test_no_message_is_held() -> None:
    class Text(dict[str, Any]):
        """A dict to which there can be a weak reference."""

    conversations = Conversations(MODEL, Form())
    message = Text(role="user", content="go")
    known(conversations, [message])
    held = weakref.ref(message)
    del message
    gc.collect()
    assert held() is None


def test_threads_ask_at_once() -> None:
    conversations = Conversations(MODEL, Form())
    shared = [{"role": "user", "content": f"{n}"} for n in range(20)]
    wrong: list[Any] = []

    def ask(number: int) -> None:
        for turn in range(40):
            own = {"role": "user", "content": f"{number} {turn}", "tool_call_id": f"{number}"}
            talk = [*shared[: turn % 20], own, *shared[turn % 20 :]]
            if known(conversations, talk) != anew(talk):
                wrong.append(talk)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- in a session --------------------------------------------------------------------------------


def test_a_rule_that_changes_what_it_is_shown_changes_no_later_request(tmp_path: Path) -> None:
    conversations, talk = Conversations(MODEL, Form()), _conversation()

    def spoils(view: Any) -> None:
        for each in (view.args, view.data):
            for message in each["messages"]:
                message["content"] = "spoilt"

    with Session("job", store=tmp_path, gate=[spoils]) as session:
        for _ in range(2):
            session.run_call(
                MODEL, conversations.request(talk, {}), lambda **_: "answer", kind="model"
            )
    assert known(conversations, talk) == anew(talk)


def test_a_message_that_has_no_form_is_refused_as_ever(tmp_path: Path) -> None:
    conversations = Conversations(MODEL, Form())
    talk = [*_conversation(), {"role": "user", "content": object()}]
    request = conversations.request(talk, {})
    assert type(request) is dict
    with (
        Session("job", store=tmp_path) as session,
        pytest.raises(Exception, match=r"messages\[3\]"),
    ):
        session.run_call(MODEL, request, lambda **_: "answer", kind="model")
    del talk[3]
    assert known(conversations, talk) == anew(talk)
