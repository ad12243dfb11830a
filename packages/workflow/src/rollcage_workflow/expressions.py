"""Expressions in a plan: CEL over inputs and results.

A text that begins with `=` is an expression. It sees only JSON: a tool's result has its JSON form.
Nothing is coerced; a failing expression makes its step fail.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pydantic_core

from rollcage_workflow.errors import ExpressionFailed
from rollcage_workflow.files import Path
from rollcage_workflow.syntax import (
    Chained,
    Field,
    Key,
    Link,
    Literal,
    Loop,
    Name,
    Node,
    Unreadable,
    parts_of,
    tree_of,
    variables_in,
    without_texts,
)

if TYPE_CHECKING:
    import cel  # half a second to import, most of it for its command line: only expressions need it

__all__ = [
    "Expression", "ExpressionInvalid", "bare", "expression", "fill", "is_finite", "is_true",
    "names_in", "plain", "templates",
]  # fmt: skip

_PLAIN: Final = frozenset({str, bool, int, type(None)})  # a value of these types is its own JSON
_MOST_CHARACTERS: Final = 4096
_MOST_BRACKETS: Final = 24
_MOST_ELEMENTS: Final = 1_000_000
_MOST_STEPS: Final = 10_000_000
_MOST_SIZE: Final = 200_000_000
_MOST_BITS: Final = 63  # of an integer, without its sign
_MOST_MATCHED: Final = 200_000_000  # characters times states of a pattern: seconds
_COMPILES: Final = 20_000  # the cost of compiling a pattern, which each match does
_MOST_STATES: Final = 250_000  # of a pattern that the engine accepts

_MATCHES: Final = re.compile(r"\bmatches\s*\(")
_LITERAL: Final = re.compile(r"\bmatches\s*\(\s*''\s*\)")
_REPEATED: Final = re.compile(r"\{\s*(\d{1,9})\s*(?:,\s*(\d{0,9})\s*)?\}")
TYPES: Final = frozenset(
    {"int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"}
)
"""The names of CEL's types, which are values."""


class ExpressionInvalid(Exception):
    """Why a text is not an expression."""


class Expression:
    """A parsed expression.

    Attributes:
        source: its text, without the `=`.
        tree: its syntax.
        names: the variables that it uses.
        path: the name and the fields and elements taken from it, if it is only that:
            `("fetch", "orders", 0, "total")`.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MOST_CHARACTERS:
            raise ExpressionInvalid(f"longer than {_MOST_CHARACTERS} characters")
        bare = without_texts(source)
        if sum(bare.count(each) for each in "([{") > _MOST_BRACKETS:
            raise ExpressionInvalid(f"more than {_MOST_BRACKETS} brackets")
        import cel

        try:
            self._program: cel.Program = cel.compile(source)
            self.tree = tree_of(source)
        except Unreadable as error:
            raise ExpressionInvalid(f"no expression: {error}") from None
        except ValueError as error:
            raise ExpressionInvalid(_syntax(str(error))) from None
        self.source = source
        self.names = variables_in(self.tree) - TYPES
        path = _path(self.tree)
        self.path = path if path is not None and path[0] in self.names else None
        self._loops, self._deep = _loops(self.tree)
        self._joins = bare.count("+") + bare.count(",") - self._loops
        self._matches = len(_MATCHES.findall(bare))
        self._is_literal = self._matches == len(_LITERAL.findall(bare))

    def __call__(self, variables: Mapping[str, Any]) -> Any:
        """Return its value, as JSON.

        Args:
            variables: by name, each as JSON.

        Raises:
            ExpressionFailed: there is no value; nothing was changed.
        """
        given = {name: variables[name] for name in self.names if name in variables}
        size = _measured(given)
        if self._is_too_much(size):
            raise ExpressionFailed(f"={self.source}: its value is too large")
        if size.widest.bit_length() > _MOST_BITS:
            # CEL would continue with a float, which is another number.
            if self.path is not None and self._is_there(given):
                return plain(
                    functools.reduce(lambda held, part: held[part], self.path, cast("Any", given))
                )
            raise ExpressionFailed(
                f"={self.source}: an integer of {size.widest.bit_length()} bits is too large to "
                f"compute with: pass it on alone, or let the tool return it as text"
            )
        import cel

        try:
            return plain(self._program.execute(cel.Context(given)))
        except KeyError as error:
            raise ExpressionFailed(
                f"={self.source}: there is no {str(error.args[0])[:80]!r}; ask has(...) first"
            ) from None
        except (ValueError, TypeError, RuntimeError, ArithmeticError, IndexError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExpressionFailed(f"={self.source}: {reason[:300]}") from None

    def _is_there(self, given: Any) -> bool:
        """Return whether its chain of fields leads to a value."""
        for part in self.path or ():
            if isinstance(part, int) and isinstance(given, list):
                inside = cast("Sequence[Any]", given)[part : part + 1]
            elif isinstance(part, str) and isinstance(given, dict) and part in given:
                inside = [cast("dict[str, Any]", given)[part]]
            else:
                return False
            if not inside:
                return False
            (given,) = inside
        return True

    def _is_too_much(self, size: _Size) -> bool:
        """Return whether it could take too much time or memory: it can't be interrupted."""
        if size.elements > _MOST_ELEMENTS:
            return True
        steps, growth = 1.0, 1.0
        if self._loops:
            steps = self._loops * (size.longest + self._joins) ** self._deep
            growth = (self._joins / self._loops + 1) ** self._loops  # [x].map(a, a + a).map(...)
            whole = growth * (size.elements + size.characters + len(self.source))
            if steps > _MOST_STEPS or whole > _MOST_SIZE:
                return True
        if not self._matches:
            return False
        states = _states(self.source)
        if not self._is_literal:
            states = max([states, *(_states(text) for text in size.texts)])
        longest = max([len(self.source), *map(len, size.texts)])
        cost = growth * longest * states + _COMPILES
        return self._matches * steps * cost > _MOST_MATCHED


def _states(pattern: str) -> int:
    """Return how many states a pattern has at most: each may be visited for each character."""
    found = len(pattern)
    for least, most in _REPEATED.findall(pattern):
        found = min(found * max(int(least), int(most or 0), 1), _MOST_STATES)
    return min(found, _MOST_STATES)


def _syntax(message: str) -> str:
    for line in message.splitlines():
        _, found, rest = line.partition("ERROR: <input>:")
        if found:
            row, _, rest_of_line = rest.partition(":")
            column, _, reason = rest_of_line.partition(": ")
            where = f"column {column}" if row == "1" else f"its line {row}, column {column}"
            return f"no expression, {where}: {reason.split(' expecting {')[0][:200]}"
    return f"no expression: {message.splitlines()[0][:200] if message else 'it is empty'}"


def _path(tree: Node) -> tuple[str | int, ...] | None:
    """Return the chain of fields and elements that a tree is, if it is nothing else."""
    if isinstance(tree, Name):
        return (tree.name,)
    if not isinstance(tree, Chained) or not isinstance(tree.of, Name):
        return None
    found: list[str | int] = [tree.of.name]
    for link in tree.links:
        if isinstance(link, Field) and not link.is_test:
            found.append(link.name)
        elif (
            isinstance(link, Key)
            and isinstance(link.key, Literal)
            and (type(link.key.value) in (str, int))
        ):
            found.append(link.key.value)
        else:
            return None
    return tuple(found)


def _loops(part: Node | Link) -> tuple[int, int]:
    """Return how many macros there are, and their maximal nesting."""
    inside = [_loops(each) for each in parts_of(part)]
    is_loop = isinstance(part, Loop)
    return (
        sum(count for count, _ in inside) + is_loop,
        max((deep for _, deep in inside), default=0) + is_loop,
    )


class _Size(NamedTuple):
    """The size of a value.

    Attributes:
        elements: how many elements it has in all.
        longest: how many its longest part has.
        characters: the characters of all its texts.
        texts: its texts.
        widest: the most bits of its integers.
    """

    elements: int
    longest: int
    characters: int
    texts: list[str]
    widest: int


def _measured(value: Any) -> _Size:
    count, longest, characters, waiting = 0, 0, 0, [value]
    texts: list[str] = []
    widest = 0
    while waiting and count <= _MOST_ELEMENTS:
        count += 1
        each = waiting.pop()
        if isinstance(each, str):
            characters += len(each)
            texts.append(each)
        elif isinstance(each, dict | list):
            longest = max(longest, len(each))
            waiting.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, int) and each.bit_length() > widest.bit_length():
            widest = each
    return _Size(count, longest, characters, texts, widest)


@functools.lru_cache(maxsize=4096)
def expression(source: str) -> Expression:
    """Return the expression with this text.

    Raises:
        ExpressionInvalid: the text is not an expression.
    """
    return Expression(source)


def plain(value: Any) -> Any:
    """Return a value as JSON: a model or a dataclass as a table, a date as text.

    Raises:
        ValueError: the value has no JSON form.
    """
    if type(value) in _PLAIN:
        return value
    return pydantic_core.to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64")


def is_finite(data: Any) -> bool:
    """Return whether a value holds no NaN and no infinity, which JSON lacks."""
    waiting = [data]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return False
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)
    return True


def templates(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the texts of a template that are expressions, without their `=`."""
    if isinstance(value, str):
        if value.startswith("=") and not value.startswith("=="):
            yield path, value[1:]
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from templates(each, (*path, name))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from templates(each, (*path, index))


def fill(template: Any, variables: Mapping[str, Any]) -> Any:
    """Return a template with its expressions evaluated.

    Raises:
        ExpressionFailed: an expression has no value.
    """
    if isinstance(template, str):
        if not template.startswith("="):
            return template
        if template.startswith("=="):
            return template[1:]
        return expression(template[1:])(variables)
    if type(template) in _PLAIN:
        return template
    if type(template) is dict or isinstance(template, Mapping):  # the first is the usual type
        return {name: fill(each, variables) for name, each in template.items()}
    if isinstance(template, list | tuple):
        return [fill(each, variables) for each in template]
    return template


def names_in(sources: Iterable[str]) -> frozenset[str]:
    """Return the variables that expressions use; texts that are no expressions use none."""
    found: set[str] = set()
    for source in sources:
        try:
            found |= expression(source).names
        except ExpressionInvalid:
            continue
    return frozenset(found)


def bare(source: str) -> str:
    """Return an expression's text, without the `=`."""
    return source.removeprefix("=")


def is_true(source: str, variables: Mapping[str, Any]) -> bool:
    """Return whether a condition holds.

    Raises:
        ExpressionFailed: it is neither true nor false.
    """
    value = fill(source, variables)
    if not isinstance(value, bool):
        raise ExpressionFailed(f"{source} is neither true nor false, but {value!r:.80}")
    return value
