"""Of a corpus of hostile calls, the gate lets none run, and each benign twin runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

from rollcage_policy.functions import FUNCTIONS

ROOT = Path(__file__).resolve().parents[1]


def test_hostile_calls_never_run_and_twins_do() -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.hostile", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)
    assert [told for row in rows for told in row["wrong"]] == []
    assert sum(row["hostile"] for row in rows) >= 300
    assert sum(row["benign"] for row in rows) >= 150
    assert done.returncode == 0


def test_each_function_of_conditions_is_attacked_and_described() -> None:
    corpus = "".join(path.read_text() for path in (ROOT / "tests" / "hostile").glob("*.py"))
    assert [name for name in FUNCTIONS if not re.search(rf"\b{name}\(", corpus)] == []
    page = (ROOT / "docs" / "policy-functions.md").read_text()
    described = re.findall(r"^\| (`.*?`) \| ", page, re.MULTILINE)
    assert {*re.findall(r"`(\w+)\(", "".join(described))} == FUNCTIONS.keys()
