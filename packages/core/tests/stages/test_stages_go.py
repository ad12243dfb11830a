"""A nightly job deletes one stage; core's tests pass."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rollcage

SOURCES = Path(rollcage.__file__).parent
TESTS = Path(__file__).parents[1]
LABS = {
    each.stem: each for lab in map(Path, sys.path) if lab.name == "lab" for each in lab.glob("*.py")
}
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
STAGES = {
    "approvals": ("approvals", "queue"),
    "orders": ("orders",),
    "secrets": ("secrets",),
}
"""By stage, its files."""
ASKED_FOR = {
    "approvals": r"\bapprover=(?!None)|\bApprovals\b|\.ask\(|\b(QueueApprover|ApprovalQueue)\b",
    "orders": r"\b(stop|pause)_run\b|\blift_order\b|\border_of\b|\bOrders\b",
    "secrets": r"\bsecrets?=(?!None)|\bSecret(s|Str|Bytes)\b|\bpin\b|credential|session\.imports\b",
}
"""By stage, the words by which a test asks for it: its names, and what brings it in."""
LONG = r"\bsubprocess\b|\bmultiprocessing\b|\bpython\b|@given\(|mark\.law\b|\b__(file|all)__\b"
"""The words of what is tried with all stages only: processes, properties, what is elsewhere."""
ONE_OF_EACH = """

def pytest_collection_modifyitems(items):
    first = {(each.path, each.cls, each.originalname): each for each in reversed(items)}
    items[:] = [each for each in items if first[each.path, each.cls, each.originalname] is each]
"""
"""What is added to the tests' conftest: each runs with the first of its parameters only."""
SUITES = "rollcage_conformance"
"""What is imported from there tries every stage."""


def without(session: Path, stage: str) -> None:
    """Take a stage's name out of session.py: its import, and where it is put among the others."""
    text = session.read_text()
    module = f"rollcage.stages.{stage}"
    for node in ast.parse(text).body:  # what is imported inside of a function was asked for
        if isinstance(node, ast.ImportFrom) and node.module == module:
            line = ast.get_source_segment(text, node) or ""
            text = text.replace(f"{line}\n", "")
            for alias in node.names:
                text = text.replace(f"{alias.name}(), ", "")
    session.write_text(text)


def imports(test: Path) -> set[str]:
    """The modules that a test's file imports from as it is imported itself."""
    found: set[str] = set()
    for node in ast.parse(test.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if (lab := LABS.get(node.module)) is not None:
                found |= imports(lab)
            found |= {node.module.split(".")[0], node.module}
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module.split(".")[0] == "rollcage":  # which gives names of its rooms
                given = importlib.import_module(node.module)
                found |= {
                    str(getattr(getattr(given, alias.name), "__module__", ""))
                    for alias in node.names
                }
    return found


def defined(path: Path) -> dict[str, str]:
    """The source of what a file defines, by name, decorators included; and of its lab's files."""
    text = path.read_text()
    lines = text.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module in LABS:
            found = defined(LABS[node.module]) | found
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        part = "\n".join(lines[first - 1 : node.end_lineno])
        names = [node.name] if isinstance(node, DEFINES) else []
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                each.id
                for target in targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            ]
        found |= dict.fromkeys(names, part)
    return found


def left_out(test: Path, words: str) -> list[str]:
    """The tests in a file that have one of these words, in their source or in what it names."""
    parts = defined(test)
    always = [part for part in parts.values() if "autouse=True" in part]
    always += [parts["pytestmark"]] if "pytestmark" in parts else []
    found: list[str] = []
    for name, part in parts.items():
        if not name.startswith("test_"):
            continue
        seen, new = {name}, [part, *always]
        asks = False
        while new and not asks:
            text = new.pop()
            asks = re.search(words, text) is not None
            named = ({*re.findall(r"\w+", text)} & parts.keys()) - seen
            seen |= named
            new += [parts[each] for each in named]
        if asks:
            found.append(f"{test.parent.name}/{test.name}::{name}")
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("stage", STAGES)
def test_the_others_stay_when_one_is_deleted(tmp_path: Path, stage: str) -> None:
    tree = tmp_path / "src" / "rollcage"
    shutil.copytree(SOURCES, tree, ignore=shutil.ignore_patterns("__pycache__"))
    files = {f"rollcage.stages.{name}" for name in STAGES[stage]}
    for name in STAGES[stage]:
        (tree / "stages" / f"{name}.py").unlink()
    without(tree / "session" / "session.py", stage)
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(TESTS / "conftest.py", tests)
    deselected: list[str] = []
    for test in sorted(TESTS.glob("*/test_*.py")):
        enters = re.search(r"\b[Ss]ession\(|\bcore\b|_suite\b", test.read_text()) is not None
        if test != Path(__file__) and enters and not imports(test) & {*files, SUITES}:
            room = tests / test.parent.name
            room.mkdir(exist_ok=True)
            for each in (test, *test.parent.glob("conftest.py")):
                if not imports(each) & files:
                    shutil.copy(each, room)
            deselected += left_out(test, f"{ASKED_FOR[stage]}|{LONG}")
    with (tests / "conftest.py").open("a") as conftest:
        conftest.write(ONE_OF_EACH)
    (tests / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "filterwarnings = error\nmarkers =\n    law\n    slow\n    again\n    damaged\n"
    )
    # Not measured: without the stage, the tests come by fewer lines than with it.
    plain = {name: said for name, said in os.environ.items() if not name.startswith("COVERAGE")}
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            "-p", "no:rollcage", "--rootdir", str(tests), str(tests),
            *(f"--deselect={each}" for each in deselected),
        ],
        env={**plain, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), *sys.path])},
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
