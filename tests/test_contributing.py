"""CONTRIBUTING names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`([\w/.]+\.py)::(test_\w+)`")


def test_each_test_that_is_named_is_there() -> None:
    named = NAMED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in named
        if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []
