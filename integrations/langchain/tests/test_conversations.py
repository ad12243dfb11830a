"""A guarded model is asked anew with a message that was changed in place, of whatever kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from rollcage_langchain import guard_model


def conversation() -> list[Any]:
    call = {"name": "look", "args": {"places": [{"name": "here", "floor": 1}]}, "id": "c-1"}
    wrong = {"name": "look", "args": "{", "id": "c-2", "error": "no JSON"}
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    return [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "Look."}], name="ann"),
        AIMessage("", tool_calls=[call], invalid_tool_calls=[wrong], usage_metadata=usage),
        ToolMessage([{"type": "text", "text": "a tree"}], tool_call_id="c-1"),
        ChatMessage(content="Well?", role="critic"),
    ]


CHANGES: dict[str, Callable[[Any], object]] = {
    "content": lambda talk: setattr(talk[0], "content", "Be long."),
    "name": lambda talk: setattr(talk[1], "name", "bob"),
    "block": lambda talk: talk[1].content[0].update(text="Look twice."),
    "blocks": lambda talk: talk[1].content.append({"type": "text", "text": "Now."}),
    "argument": lambda talk: talk[2].tool_calls[0]["args"]["places"][0].update(floor=2),
    "type of a number": lambda talk: talk[2].tool_calls[0]["args"]["places"][0].update(floor=True),
    "nested list": lambda talk: talk[2].tool_calls[0]["args"]["places"].append("there"),
    "invalid call": lambda talk: talk[2].invalid_tool_calls[0].update(args="[]"),
    "calls": lambda talk: talk[2].tool_calls.append({"name": "see", "args": {}, "id": "c-3"}),
    "status": lambda talk: setattr(talk[3], "status", "error"),
    "answered call": lambda talk: setattr(talk[3], "tool_call_id", "c-3"),
    "role": lambda talk: setattr(talk[4], "role", "judge"),
    "message": lambda talk: talk.__setitem__(4, HumanMessage("Well?")),
}
UNSEEN: dict[str, Callable[[Any], object]] = {
    "usage": lambda talk: talk[2].usage_metadata.update(total_tokens=4),
    "what a provider adds": lambda talk: talk[2].additional_kwargs.update(raw=[1]),
    "id": lambda talk: setattr(talk[2], "id", "lc-1"),
    "artifact": lambda talk: setattr(talk[3], "artifact", object()),
}


@pytest.mark.parametrize("name", [*CHANGES, *UNSEEN])
def test_a_question_has_the_key_of_a_first_one(lab: Any, name: str) -> None:
    talk = conversation()
    with lab.session("known") as known:
        model = guard_model(lab.model(["one"] * 3), known)
        model.invoke(list(talk))
        before = copy.deepcopy(talk)
        {**CHANGES, **UNSEEN}[name](talk)
        model.invoke(list(talk))
    with lab.session("anew") as anew:
        for asked in (before, talk):
            guard_model(lab.model(["one"] * 3), anew).invoke(copy.deepcopy(asked))
    keys = [step["key"] for step in lab.steps(known)]
    assert keys == [step["key"] for step in lab.steps(anew)]
    assert (len(set(keys)) == 1) is (name in UNSEEN)
