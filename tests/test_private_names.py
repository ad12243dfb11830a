"""An adapter uses its framework's private names in one file alone: its `private.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# By the adapter, what its framework documents for subclasses; `_replace` is of named tuples.
DOCUMENTED = {
    "autogen": {"_to_config"},
    "crewai": {"_run", "_arun"},
    "langchain": {
        *("_run", "_arun", "_generate", "_agenerate", "_stream", "_astream"),
        *("_llm_type", "_get_ls_params", "_replace"),
    },
}
PRIVATE = re.compile(r"(?:[\w.]+\.)?_[a-zA-Z]\w*|__(?:pregel_\w+|(?:error|resume|scheduled)__)")


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the foreign names with an underscore that a file uses: attributes, strings, imports.

    Names of `self` (or an `other` of its class) that the file sets or defines itself are its own.
    """
    own = {each.name for each in ast.walk(tree) if isinstance(each, DEFINED)}
    own |= {
        each.attr
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and _of_self(each)
    }
    own |= {
        each.target.id
        for each in ast.walk(tree)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if _is_private(name):
                if not (_of_self(node) and name in own):
                    yield node.lineno, name
            case ast.Constant(value=str(text)) if PRIVATE.fullmatch(text):
                yield node.lineno, text
            case ast.ImportFrom(module=module, names=names):
                parts = [*(module or "").split("."), *(each.name for each in names)]
                found = [each for each in parts if _is_private(each)]
                if found:
                    yield node.lineno, ".".join(found)


DEFINED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "other"}


@pytest.mark.parametrize("adapter", sorted(DOCUMENTED))
def test_one_file_per_adapter_uses_private_names(adapter: str) -> None:
    folder = ROOT / "integrations" / adapter / "src" / f"rollcage_{adapter}"
    found = [
        f"{path.name}:{line} {name}"
        for path in sorted(folder.rglob("*.py"))
        if path.name != "private.py"
        for line, name in private_names(ast.parse(path.read_text(encoding="utf-8")))
        if name not in DOCUMENTED[adapter]
    ]
    assert not found, "move it into private.py, and say there why there is no public way"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tool._func", "_func"),
        ("tool._func = f", "_func"),
        ("super()._resolve(x)", "_resolve"),
        ("class A(B):\n    def f(self): return self._made_by_b", "_made_by_b"),
        ("class A:\n    def __init__(self): self._x = 1\n    def f(self, a): return a._x", "_x"),
        ("getattr(tool, '_func')", "_func"),
        ("config['__pregel_runtime']", "__pregel_runtime"),
        ("kind == '__error__'", "__error__"),
        ("from framework._inner import x", "_inner"),
        ("import_module('framework._inner')", "framework._inner"),
    ],
)
def test_a_private_name_is_found(text: str, name: str) -> None:
    assert [found for _, found in private_names(ast.parse(text))] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def __init__(self): self._x = 1\n    def f(self): return self._x",
        "class A:\n    _x: int\n    def f(self): return self._x, self._g()\n    def _g(self): pass",
        "tool.__class__.__name__",
        "_CONSTANT = 1\nprint(_CONSTANT)",
    ],
)
def test_what_is_ones_own_is_none(text: str) -> None:
    assert not [*private_names(ast.parse(text))]
