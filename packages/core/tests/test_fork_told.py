"""A program that is told to be a fork, and says itself how its session goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from rollcage import tool
from rollcage.session.session import Session


@pytest.mark.parametrize("replay", ["continue", "resume", "off"])
def test_what_a_program_says_of_its_replay_does_not_count(
    replay: Literal["continue", "resume", "off"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody edits a program to ask what it would do."""

    @tool(effect="read")
    def look(n: int) -> int:
        return n

    with Session("told", store=tmp_path) as first:
        look(1)
    file = tmp_path / "fork.json"
    asked = {"store": str(tmp_path), "run": first.run_id, "name": "told", "at": 1, "result": 7}
    file.write_text(json.dumps(asked))
    monkeypatch.setenv("ROLLCAGE_FORK", str(file))
    with Session("told", store=tmp_path, replay=replay) as session:
        assert look(1) == 7
    assert session.store.info(session.run_id).mode == "fork"
