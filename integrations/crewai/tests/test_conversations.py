"""A guarded model is asked anew with a message that was changed in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from rollcage_crewai import guard_model

if TYPE_CHECKING:
    from .conftest import Lab


def conversation() -> list[Any]:
    call = {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c-1", "content": "a tree"},
    ]


CHANGES: dict[str, Callable[[Any], object]] = {
    "content": lambda talk: talk[0].update(content="Be long."),
    "block": lambda talk: talk[1]["content"][0].update(text="Look twice."),
    "blocks": lambda talk: talk[1]["content"].append({"type": "text", "text": "Now."}),
    "arguments": lambda talk: talk[2]["tool_calls"][0]["function"].update(arguments='{"x": 1}'),
    "calls": lambda talk: talk[2]["tool_calls"].append(
        {"id": "c-2", "function": {"name": "look", "arguments": "{}"}}
    ),
    "answered call": lambda talk: talk[3].update(tool_call_id="c-2"),
    "field": lambda talk: talk[3].update(name="look"),
}
UNSEEN: dict[str, Callable[[Any], object]] = {
    "mark for a cache": lambda talk: talk[1].update(cache_breakpoint=True),
    "a provider's own calls": lambda talk: talk[2].update(raw_tool_call_parts=[object()]),
}


@pytest.mark.parametrize("name", [*CHANGES, *UNSEEN])
def test_a_question_has_the_key_of_a_first_one(lab: Lab, name: str) -> None:
    talk = conversation()
    with lab.session("known") as known:
        model = guard_model(lab.model(*["one"] * 3), known)
        model.call(list(talk))
        before = copy.deepcopy(talk)
        {**CHANGES, **UNSEEN}[name](talk)
        model.call(list(talk))
    with lab.session("anew") as anew:
        for asked in (before, talk):
            guard_model(lab.model(*["one"] * 3), anew).call(list(asked))
    keys = [step["key"] for step in lab.records(known, "model")]
    assert keys == [step["key"] for step in lab.records(anew, "model")]
    assert (len(set(keys)) == 1) is (name in UNSEEN)
