"""A tool that is bound to a session; and a stream that was cut at the end of an attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from rollcage import Session, tool
from rollcage.errors import SessionError

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool(effect="write")
def send(to: str) -> str:
    DONE.append(to)
    return f"sent to {to}"


def test_a_bound_tool_is_guarded_in_any_thread(tmp_path: Path) -> None:
    hits: list[int] = []
    for _ in range(2):
        with Session("job", store=tmp_path, replay="continue") as session:
            bound = session.tool(send)
            thread = threading.Thread(target=bound, args=("ann",))
            thread.start()
            thread.join()
            assert bound(to="bob") == "sent to bob"
            hits.append(session.stats.hits)
    assert (DONE, hits) == (["ann", "bob"], [0, 2])


def test_a_function_is_declared_and_bound(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:

        @session.tool(effect="read")
        async def look(place: str) -> str:
            return f"saw {place}"

        assert asyncio.run(look("here")) == "saw here"
    with Session("job", store=tmp_path, replay="offline") as session:
        assert asyncio.run(session.acall(look, place="here")) == "saw here"
    with pytest.raises(SessionError, match="is not entered"):
        Session("job", store=tmp_path).tool(send)(to="ann")


@tool(effect="read")
def letters(word: str) -> Generator[str]:
    for letter in word:
        DONE.append(letter)
        yield letter


def test_a_stream_that_was_cut_last_is_read_again(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        stream = letters("abc")
        assert next(stream) == "a"
        stream.close()
        raise KeyError("crash")
    with Session("job", store=tmp_path) as session:
        assert list(letters("abc")) == ["a", "b", "c"]
        assert session.stats.misses == 1
    assert DONE == ["a", "a", "b", "c"]


def test_a_stream_that_was_acted_upon_is_given_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        stream = letters("abc")
        assert next(stream) == "a"
        stream.close()
        send(to="a")
        raise KeyError("crash")
    with Session("job", store=tmp_path) as session:
        stream = letters("abc")
        assert next(stream) == "a"
        stream.close()
        send(to="a")
        assert session.stats.misses == 0
    assert DONE == ["a", "a"]
