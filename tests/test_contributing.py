"""CONTRIBUTING, and the page of the architecture, name tests and files that are there."""

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


def test_each_file_that_the_architecture_page_names_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", page))
    sources = [ROOT, *ROOT.glob("packages/*/src/*"), *ROOT.glob("integrations/*/src/*")]
    assert len(named) > 30
    assert [each for each in sorted(named) if not any((s / each).exists() for s in sources)] == []
