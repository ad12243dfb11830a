"""A write that failed cleanly did nothing: another program leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from rollcage import Session, tool
from rollcage.errors import Diverged
from rollcage.trace.chain import checked

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool(raises=[ValueError])
def send(to: str) -> str:
    if "\0" in to:
        raise ValueError("embedded null byte")
    DONE.append(to)
    return f"sent to {to}"


@tool(raises=[ValueError])
def send_all(to: list[str]) -> None:
    for each in to:
        send(to=each)


def test_another_call_takes_the_place_of_a_clean_failure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null byte"), Session("job", store=tmp_path):
        send(to="ann")
        send(to="b\0b")
    with Session("job", store=tmp_path) as session:
        send(to="ann")
        send(to="bob")
    assert (DONE, session.stats.hits) == (["ann", "bob"], 1)
    last = [*checked(session.store.read(session.run_id), "the log")][-1]
    assert last["status"] == "ok"


def test_a_run_without_its_clean_failure_is_whole(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null byte"), Session("job", store=tmp_path):
        send(to="b\0b")
    with Session("job", store=tmp_path) as session:
        pass
    last = [*checked(session.store.read(session.run_id), "the log")][-1]
    assert last["status"] == "ok"


def test_what_a_failed_call_did_before_it_failed_lies_ahead(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null byte"), Session("job", store=tmp_path):
        send_all(to=["ann", "b\0b"])
    with pytest.raises(Diverged, match=r"2 .send."), Session("job", store=tmp_path):
        send(to="cid")
    assert DONE == ["ann"]
