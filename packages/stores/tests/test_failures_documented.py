"""Each row of the table of failures in docs/stores.md names a test that shows it."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]


def test_each_failure_names_a_test_that_shows_it() -> None:
    page = (ROOT / "docs/stores.md").read_text()
    rows = page.partition("## When something fails")[2].partition("\n\n|")[2].split("\n\n")[0]
    lines = rows.splitlines()[2:]
    assert len(lines) > 15
    there = {
        name
        for path in ROOT.glob("packages/*/**/*.py")
        if "/tests/" in str(path) or "conformance/src" in str(path)
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line.rstrip(" |").rpartition("|")[2])
        assert named, f"no test is named in: {line}"
        assert not set(named) - there, line
