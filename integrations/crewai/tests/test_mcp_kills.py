"""A crew is killed at any moment while a server works for it: nothing is lost, nothing twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[3] / "packages" / "mcp" / "tests" / "lab"
JOBS = max(int(os.environ.get("ROLLCAGE_FAULTS", "0")) * 3 // 10, 2)  # `nox -s faults`: 60


@pytest.mark.nightly
def test_a_crew_that_is_killed_writes_each_line_once(tmp_path: Path) -> None:
    """Each job is killed up to three times, on a folder or on SQLite; then it is ended."""
    program = str(Path(__file__).with_name("killed_mcp.py"))
    # What is killed leaves no figures of its coverage: it is not measured.
    environment = {n: v for n, v in os.environ.items() if n != "COVERAGE_PROCESS_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program, str(tmp_path), str(JOBS)],
        env={**environment, "PYTHONPATH": str(LAB)},
        capture_output=True, text=True, timeout=600 + JOBS * 60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"in {JOBS} jobs" in done.stdout
