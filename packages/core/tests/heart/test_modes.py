"""How a session may be asked to replay."""

from pathlib import Path
from typing import Any

import pytest
from rollcage.errors import ReplayMiss, SessionError
from rollcage.heart import Session, tool

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
