"""A nightly job deletes one stage; core's tests pass."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rollcage

SOURCES = Path(rollcage.__file__).parent
TESTS = Path(__file__).parent
STAGES = {
    "approvals": ("approvals", "queue"),
    "limits": ("limits",),
    "orders": ("orders",),
    "secrets": ("secrets",),
}
"""By stage, its files."""
ASKED_FOR = {"approvals": "approver="}
"""By stage, the argument by which a session asks for it without an import."""


def without(session: Path, stage: str) -> None:
    """Take a stage's name out of session.py: its import, and where it is put among the others."""
    text = session.read_text()
    module = f"rollcage.heart.stages.{stage}"
    names = [
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    ]
    for name in names:
        text = "".join(
            line for line in text.splitlines(keepends=True) if f"from {module} import" not in line
        )
        text = text.replace(f"{name}(), ", "")
    session.write_text(text)


def imports(test: Path) -> set[str]:
    """The modules that a test imports from, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            if node.module == "rollcage":  # which gives names of its rooms
                given = (getattr(rollcage, alias.name) for alias in node.names)
                found |= {str(getattr(each, "__module__", "")) for each in given}
    return found


def asking(test: Path, word: str) -> list[str]:
    """The tests in a file that ask for a stage by this word."""
    text = test.read_text()
    return [
        f"{test.name}::{node.name}"
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and word in (ast.get_source_segment(text, node) or "")
    ]


@pytest.mark.again
@pytest.mark.parametrize("stage", STAGES)
def test_the_others_stay_when_one_is_deleted(tmp_path: Path, stage: str) -> None:
    tree = tmp_path / "src" / "rollcage"
    shutil.copytree(SOURCES, tree, ignore=shutil.ignore_patterns("__pycache__"))
    files = {f"rollcage.heart.stages.{name}" for name in STAGES[stage]}
    for name in STAGES[stage]:
        (tree / "heart" / "stages" / f"{name}.py").unlink()
    without(tree / "heart" / "session.py", stage)
    tests = tmp_path / "tests" / "heart"
    tests.mkdir(parents=True)
    shutil.copy(TESTS.parent / "conftest.py", tests.parent)
    left_out: list[str] = []
    for test in TESTS.glob("*.py"):
        needs = imports(test)
        if not test.name.startswith("test_") or ("rollcage.Session" in needs and not needs & files):
            shutil.copy(test, tests)
            if stage in ASKED_FOR:
                left_out += asking(test, ASKED_FOR[stage])
    (tests.parent / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "filterwarnings = error\nmarkers =\n    law\n    slow\n    again\n    damaged\n"
    )
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            "-p", "no:rollcage", "--rootdir", str(tests.parent), str(tests),
            *(f"--deselect=heart/{each}" for each in left_out),
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{TESTS.parent / 'lab'}"},
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
