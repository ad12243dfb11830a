"""Each example runs as a user would run it: as a process, offline, in any folder."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/main.py"))
# They import frameworks in many processes, each for five seconds and more.
LONG = {"crewai_agent", "langchain_agent", "retrieval_agent", "tested_agent", "undo_agent"}
Run = Callable[..., "CompletedProcess[str]"]


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.nightly] * (each.name in LONG))
        for each in EXAMPLES
    ],
)
def test_the_example_runs_and_leaves_nothing(
    example: Path, run_offline: Run, tmp_path: Path
) -> None:
    ended = run_offline("python", str(example / "main.py"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.strip()
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_these_tests_has_no_network(run_offline: Run, tmp_path: Path) -> None:
    code = "import urllib.request as u; u.urlopen('http://example.org')"
    ended = run_offline("python", "-c", code, cwd=tmp_path)
    assert ended.returncode == 1
    assert "offline: socket.getaddrinfo 'example.org'" in ended.stdout


def test_every_example_is_a_story_in_the_index() -> None:
    folders = {path.name for path in ROOT.glob("examples/*/") if path.name != "__pycache__"}
    assert folders == {example.name for example in EXAMPLES}
    index = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    for example in EXAMPLES:
        assert f"[{example.name}]({example.name})" in index
        text = (example / "README.md").read_text(encoding="utf-8")
        assert f"$ python examples/{example.name}/main.py" in text
