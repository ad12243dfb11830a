"""How a session may be asked to replay."""

from pathlib import Path
from typing import Any

import pytest
from rollcage.errors import ReplayMiss, RunAbandoned, SessionError
from rollcage.heart import Session, abandon_run, tool

sent: list[str] = []


@tool(effect="write", name="test_modes.send")
def send(to: str) -> None:
    sent.append(to)


@pytest.mark.parametrize("replay", ["verify", "of", ""])
def test_an_unknown_mode_is_refused(tmp_path: Path, replay: Any) -> None:
    with pytest.raises(SessionError, match="is not one of auto, continue, off, resume, offline"):
        Session("job", store=tmp_path, replay=replay)


def test_offline_runs_no_body(tmp_path: Path) -> None:
    sent.clear()
    with Session("job", store=tmp_path):
        send("ann")
    with pytest.raises(ReplayMiss), Session("job", store=tmp_path, replay="offline"):
        send("ann")
        send("bob")
    assert sent == ["ann"]


@pytest.mark.parametrize("replay", ["auto", "continue"])
def test_a_run_that_was_set_aside_is_not_resumed(tmp_path: Path, replay: Any) -> None:
    sent.clear()
    with Session("job", store=tmp_path) as first:
        send("ann")
    abandon_run(tmp_path, first.run_id, by="ann")
    with pytest.raises(RunAbandoned, match=f"rollcage show {first.run_id}"):
        Session("job", store=tmp_path, replay="resume").__enter__()
    with pytest.raises(SessionError, match="abandoned before"):
        abandon_run(tmp_path, first.run_id)
    with Session("job", store=tmp_path, replay=replay) as second:
        send("ann")
    assert second.run_id != first.run_id
    assert sent == ["ann", "ann"]
    with pytest.raises(ValueError, match="it dies"), Session("job", store=tmp_path) as third:
        send("bob")
        raise ValueError("it dies")
    abandon_run(tmp_path, third.run_id)
    with Session("job", store=tmp_path, replay=replay) as fourth:
        send("bob")
    assert fourth.run_id != third.run_id
    with Session("job", store=tmp_path, run=third.run_id):  # it was named
        send("bob")
    assert sent == ["ann", "ann", "bob", "bob"]
