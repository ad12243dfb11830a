"""Calls that never became steps: in `show`, `runs`, `audit`, `verify` and an export."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import ArgumentsInvalid, Session, tool

Cli = Callable[..., Any]


@tool(effect="write", secret=["pin"])
def unlock(door: int, pin: str) -> str:
    return f"door {door} is open"


@pytest.fixture
def run(store: Path) -> str:
    with Session("guesses", store=store) as session, session.place(agent="ann"):
        unlock(1, "1234")
        for door in ("two", "three"):
            with contextlib.suppress(ArgumentsInvalid):
                unlock(door, "hunter2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        session.refused("unlok", {"door": 2, "pin": "hunter2"})
    return session.run_id


def test_show(cli: Cli, run: str) -> None:
    out = cli("show", run).out
    assert "1 step, 1 ran; 3 calls refused" in out
    assert 'refused by ann: unlock(door="two", pin=<secret>): arguments_invalid: ' in out
    assert "refused by ann: unlok(door=2, pin=<secret>): tool_missing: " in out
    data = cli("show", run, "--json").data
    assert data["totals"]["refused"] == 3
    assert [row["name"] for row in data["refused"]] == ["unlock", "unlock", "unlok"]
    assert data["refused"][0]["agent"] == "ann"


def test_a_run_with_nothing_else(cli: Cli, store: Path) -> None:
    with Session("only guesses", store=store) as session:
        session.refused("unlok", {})
    out = cli("show", session.run_id).out
    assert "No steps." in out
    assert "refused: unlok(): tool_missing" in out


def test_runs(cli: Cli, run: str, store: Path) -> None:
    with Session("clean", store=store):
        unlock(1, "1234")
    told = {each["name"]: each["refused"] for each in cli("runs", "--json").data["runs"]}
    assert told == {"guesses": 3, "clean": 0}
    assert "refused" in cli("runs").out
    assert "refused" not in cli("runs", "--name", "clean").out


def test_audit(cli: Cli, run: str) -> None:
    entries = [*map(json.loads, cli("audit", run, "--format", "jsonl").out.splitlines())]
    refused = [each for each in entries if each["kind"] == "refused"]
    assert [(e["tool"], e["state"], e["code"]) for e in refused] == [
        ("unlock", "refused", "arguments_invalid"),
        ("unlock", "refused", "arguments_invalid"),
        ("unlok", "refused", "tool_missing"),
    ]
    assert refused[0]["agent"] == "ann"
    assert entries[-1]["entries"]["refused"] == 3
    for shape in ("--format=table", "--format=md", "--html=-", "--format=csv"):
        out = cli("audit", run, shape).out.replace("\\_", "_")
        assert "tool_missing" in out
        assert "hunter2" not in out
    assert "1 call, 3 refused in 1 of them" in cli("audit", run).out


def test_verify_and_export(cli: Cli, run: str, tmp_path: Path) -> None:
    assert cli("verify", run).code == 0
    shown = cli("export", run, "--no-values").out
    (tmp_path / f"{run}.jsonl").write_text(shown)
    assert cli("verify", tmp_path / f"{run}.jsonl").code == 0
    assert '"event":"refused"' in shown
    assert "two" not in shown
