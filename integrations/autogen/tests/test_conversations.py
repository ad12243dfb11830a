"""A guarded client is asked anew with a message that was changed in place, of whatever kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from autogen_core import FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from PIL import Image as Pictures
from rollcage_autogen import guard_model


def picture(colour: str) -> Image:
    return Image(Pictures.new("RGB", (2, 2), colour))


def conversation() -> list[Any]:
    result = FunctionExecutionResult(content="a tree", call_id="c-1", name="look", is_error=False)
    return [
        SystemMessage(content="Be brief."),
        UserMessage(content="Look.", source="ann"),
        UserMessage(content=["What is this?", picture("red")], source="ann"),
        AssistantMessage(content=[FunctionCall("c-1", "{}", "look")], source="agent"),
        FunctionExecutionResultMessage(content=[result]),
        AssistantMessage(content="A tree.", source="agent", thought="easy"),
    ]


CHANGES: dict[str, Callable[[Any], object]] = {
    "content": lambda talk: setattr(talk[0], "content", "Be long."),
    "source": lambda talk: setattr(talk[1], "source", "bob"),
    "picture": lambda talk: talk[2].content[1].image.putpixel((0, 0), (0, 0, 9)),
    "parts": lambda talk: talk[2].content.append("Say."),
    "arguments": lambda talk: setattr(talk[3].content[0], "arguments", '{"x": 1}'),
    "calls": lambda talk: talk[3].content.append(FunctionCall("c-2", "{}", "look")),
    "result": lambda talk: setattr(talk[4].content[0], "content", "a house"),
    "error": lambda talk: setattr(talk[4].content[0], "is_error", True),
    "thought": lambda talk: setattr(talk[5], "thought", "hard"),
    "message": lambda talk: talk.__setitem__(1, SystemMessage(content="Look.")),
}


@pytest.mark.parametrize("name", [*CHANGES, "nothing"])
async def test_a_question_has_the_key_of_a_first_one(lab: Any, name: str) -> None:
    talk = conversation()
    with lab.session("known") as known:
        client = guard_model(lab.client(*["one"] * 3), known)
        await client.create(list(talk))
        before = copy.deepcopy(talk)
        CHANGES.get(name, len)(talk)
        await client.create(list(talk))
    with lab.session("anew") as anew:
        for asked in (before, talk):
            await guard_model(lab.client(*["one"] * 3), anew).create(copy.deepcopy(asked))
    keys = [step["key"] for step in lab.steps(known, "model")]
    assert keys == [step["key"] for step in lab.steps(anew, "model")]
    assert (len(set(keys)) == 1) is (name == "nothing")
