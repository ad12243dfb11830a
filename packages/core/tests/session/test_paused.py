"""Runs that wait for something outside: an attempt that ends `paused` is gone on with."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session, tool, undo_run
from rollcage.stages.orders import lift_order, pause_run
from rollcage.trace.folder import Folder

sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool(effect="write", name="test_paused.send", undo=lambda args: [])
def send(to: str) -> None:
    sent.append(to)


def ends(store: Path, run: str) -> list[dict[str, Any]]:
    """The lines with which attempts ended."""
    lines = [orjson.loads(line) for line in Folder(store).read(run)]
    return [line for line in lines if line["event"] == "ended"]


def test_the_next_attempt_goes_on(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as first:
        send("ann")
        assert first.paused == ""
        first.pause("a word from ann")
        send("bob")  # another part of the agent
        assert first.paused == "a word from ann"
    with Session("job", store=tmp_path) as second:
        assert second.run_id == first.run_id
        assert second.paused == "a word from ann"
        send("ann")
        assert second.paused == ""
        send("bob")
        send("cem")
    assert sent == ["ann", "bob", "cem"]
    told = [(line["status"], line.get("waits")) for line in ends(tmp_path, first.run_id)]
    assert told == [("paused", "a word from ann"), ("ok", None)]


def test_it_waits_until_a_call_is_made(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        session.pause("a signal")
    for _ in range(2):
        with Session("job", store=tmp_path):
            pass
    with Session("job", store=tmp_path) as last:
        last.go_on()
    statuses = [line["status"] for line in ends(tmp_path, session.run_id)]
    assert statuses == ["paused", "paused", "paused", "ok"]


def test_an_error_is_no_pause(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        session.pause("a signal")
        raise KeyError
    assert ends(tmp_path, session.run_id)[0]["status"] == "error"


def test_an_inner_session_pauses_its_run(tmp_path: Path) -> None:
    with Session("outer", store=tmp_path) as outer:
        with Session("inner", store=tmp_path) as inner:
            inner.pause("\udc80 a reason")
        assert outer.paused == inner.paused == "? a reason"
    assert ends(tmp_path, outer.run_id)[0]["status"] == "paused"


def test_an_undone_run_that_waited_is_undone(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        send("ann")
        session.pause("a signal")
    undo_run(tmp_path, session.run_id)
    with Session("job", store=tmp_path) as again:
        assert again.run_id == session.run_id
        send("ann")
    assert sent == ["ann", "ann"]
    assert [line["status"] for line in ends(tmp_path, session.run_id)][-2:] == ["undone", "ok"]


async def test_the_time_in_which_calls_were_held_is_known(tmp_path: Path) -> None:
    entered = time.monotonic()
    async with Session("job", store=tmp_path) as session:
        await session.acall(send, to="ann")
        pause_run(tmp_path, session.run_id, by="me")
        calls = [asyncio.create_task(session.acall(send, to=to)) for to in ("bob", "cem")]
        while not session.held:  # noqa: ASYNC110 - no event says that calls wait
            await asyncio.sleep(0.01)
        held, began = session.held, time.monotonic()
        assert held <= began - entered
        await asyncio.sleep(0.05)
        assert 0 < session.held - held <= time.monotonic() - began + 0.01  # not twice as much
        lift_order(tmp_path, session.run_id)
        await asyncio.gather(*calls)
        after = session.held
        await asyncio.sleep(0.02)
        assert session.held == after
    assert sorted(sent) == ["ann", "bob", "cem"]


def test_a_thread_that_is_held_counts(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        pause_run(tmp_path, session.run_id)
        thread = threading.Thread(target=lambda: session.call(send, to="ann"))
        thread.start()
        while not session.held:
            time.sleep(0.01)
        lift_order(tmp_path, session.run_id)
        thread.join()
        assert session.held > 0
    assert sent == ["ann"]
