"""CONTRIBUTING, and the page of the architecture, name tests and files that exist."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("page", "title", "at_least"),
    [("docs/architecture.md", "# Architecture", 30), ("CONTRIBUTING.md", "## Change → files", 25)],
)
def test_each_file_that_is_named_is_there(page: str, title: str, at_least: int) -> None:
    _, _, text = (ROOT / page).read_text(encoding="utf-8").partition(f"{title}\n")
    section = text if title.startswith("# ") else text.partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", section))
    sources = [ROOT, *ROOT.glob("packages/*/src/*"), *ROOT.glob("integrations/*/src/*")]
    assert len(named) >= at_least
    assert [each for each in sorted(named) if not any((s / each).exists() for s in sources)] == []
