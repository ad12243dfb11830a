"""The documentation names the tests that hold each promise; they exist."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "workflows.md"
ROWS = re.findall(r"^\| (.+?) \| (`test_.+`) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_there_are_promises() -> None:
    assert len(ROWS) == PAGE.read_text(encoding="utf-8").count("| `test_")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_test_of_a_promise_exists(row: tuple[str, str]) -> None:
    for name in row[1].split(", "):
        file, _, test = name.strip("`").partition("::")
        tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert test in {each.name for each in tree.body if isinstance(each, kinds)}
