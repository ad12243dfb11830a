"""Printed commands can be copied: no punctuation sticks to the last argument.

`rollcage show RUN --store DIR.` looks in a store of another name, which is then made. So a command
ends its line, or a semicolon or a space follows it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollcage_cli.app import rollcage
from typer.main import get_group

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for place in ("packages", "integrations") for path in ROOT.glob(f"{place}/*/src/**/*.py")
)
NAMES = "|".join(sorted(get_group(rollcage).commands))
COMMAND = re.compile(rf"rollcage (?:{NAMES})\b(?P<arguments>[^\n;`]*)")
# What says where the store is, in messages: `store_option(...)`, and names of what that gave.
STORE = re.compile(r"\{[^{}]*\b(?:_?at|option|store|store_option\([^{}]*\))\}")
BEHIND = re.compile(
    r"(?: --?[\w-]+| [A-Z|()]+)*[.,:!?](?=\s|\0)"
)  # options, and what sticks to them
END = "\0"  # of a text


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module except its documentation, with {...} for inserted values."""
    if "rollcage " not in source:
        return
    tree = ast.parse(source)
    parts = {
        part
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr | ast.Expr)
        for part in ast.walk(each)
        if part is not each and isinstance(part, ast.Constant)
        and (isinstance(each, ast.JoinedStr) or each.value is part)
    }  # fmt: skip
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each not in parts:
            yield each.lineno, each.value
        elif isinstance(each, ast.JoinedStr):
            yield each.lineno, "".join(map(_said, each.values))


def _said(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return "{" + re.sub(r"[{}\n]", "", ast.unparse(part.value)) + "}"
    assert isinstance(part, ast.Constant)
    return str(part.value)


def stuck(text: str) -> Iterator[str]:
    """Return the text right behind the store of a command, which would be copied with it."""
    for found in COMMAND.finditer(text):
        arguments = found["arguments"] + END * (found.end() == len(text))
        store = STORE.search(arguments)
        if store is not None and BEHIND.match(arguments, store.end()):
            yield found[0]


def test_nothing_sticks_to_a_printed_commands_end() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for path in SOURCES
        for line, text in texts(path.read_text())
        for said in stuck(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_such_commands() -> None:
    """The search finds printed commands in the source."""
    every = [text for path in SOURCES for _, text in texts(path.read_text())]
    found = [
        each for each in every for command in COMMAND.finditer(each) if STORE.search(command[0])
    ]
    assert len(found) > 40


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("See it: rollcage show {run}{at}.", True),
        ("See it: rollcage show {run}{store_option(self.store)}. Then go on", True),
        ("See it: rollcage show {run}{at}, or not", True),
        ("See it: rollcage undo {run}{self.option} --plan. Then go on", True),
        ("To undo it: rollcage undo {run}{at}; to keep it: rollcage abandon {run}{at}", False),
        ("See it: rollcage undo {run}{at} --plan\nThen go on.", False),
        ("rollcage resolve {run} {step}{at} --happened | --did-not-happen", False),
        ("Look at `rollcage show {run}{at}`.", False),
    ],
)
def test_it_is_seen_where_something_does(text: str, is_wrong: bool) -> None:
    assert bool(list(stuck(text))) == is_wrong
