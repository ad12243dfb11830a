"""The chaos commands undo or resume every failed run.

No effect is lost or repeated, and a change by somebody else is not touched.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.nightly


def chaos(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-m", "tests.chaos", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures["wrong"] == []
    assert done.returncode == 0, done.stderr
    return figures


def test_runs_that_fail_somewhere_are_taken_back() -> None:
    figures = chaos("rollback", "--runs", "20", "--at-once", "4", "--seed", "77")
    done = figures["resumed, all done"] + figures["found out, all done"]
    assert figures["injected"] == figures["restored"] + done
    assert figures["restored"] > figures["restored, by undo_run"] > 0
    assert figures["resumed, all done"] > 0
    assert 0 < figures["clean"] == figures["kept"]


def test_runs_that_are_killed_anywhere_are_recovered() -> None:
    figures = chaos("crash", "--runs", "12", "--seed", "5")
    assert figures["recoveries"]["kills"] > 0
    assert figures["lost"] == figures["ran twice"] == figures["left unlisted"] == 0


def test_what_somebody_else_changed_is_not_taken_back() -> None:
    figures = chaos("conflicts", "--runs", "1", "--seed", "4")
    assert 0 < figures["somebody interferes"] == figures["refused, unchanged, told"]
    assert 0 < figures["twins"] == figures["undone whole"]
