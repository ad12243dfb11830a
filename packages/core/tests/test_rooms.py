"""Through how many rooms of the house a recorded call goes: each one is a place to read."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import rollcage
from rollcage import tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore

HOUSE = Path(rollcage.__file__).parent


@tool(effect="write", name="post_letter")
def post_letter(text: str, copies: int = 1) -> str:
    return text * copies


@tool(effect="read", name="count_letters")
def count_letters(text: str) -> int:
    return len(text)


def rooms_of(call: Any) -> set[str]:
    """The rooms of core whose functions a call runs."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    inside = [Path(each) for each in files if each.startswith(f"{HOUSE}/")]
    rooms = {each.relative_to(HOUSE).parts[0].removesuffix(".py") for each in inside}
    return rooms - {"heart"}  # a tool is declared there for both cores, until the old one goes


@pytest.mark.parametrize(("body", "given"), [(post_letter, "a"), (count_letters, "abc")])
def test_a_recorded_call_enters_nine_rooms_at_most(
    store: JsonlStore, body: Any, given: str
) -> None:
    with Session("job", store=store, replay="off"):
        body(text="first")  # what is made once is made now
        rooms = rooms_of(lambda: body(text=given))
    assert {"session", "step", "replay", "trace", "store"} <= rooms
    assert len(rooms) <= 9, sorted(rooms)


def test_a_call_that_is_given_back_enters_no_more(store: JsonlStore) -> None:
    with Session("job", store=store) as first:
        post_letter(text="a")
        post_letter(text="b")
    with Session("job", store=store, source=first.run_id) as again:
        post_letter(text="a")
        rooms = rooms_of(lambda: post_letter(text="b"))
    assert again.stats.hits == 2
    assert len(rooms) <= 9, sorted(rooms)
