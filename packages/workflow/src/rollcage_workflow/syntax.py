"""The syntax of expressions (CEL), as a tree: the library that evaluates them shows none.

Chains and rows are flat, so that a tree is nested no deeper than the brackets of its text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

__all__ = [
    "MACROS", "Called", "Chained", "Choice", "Field", "Key", "Link", "Literal", "Loop", "Name",
    "Node", "Row", "Table", "Unreadable", "parts_of", "tree_of", "variables_in", "without_texts",
]  # fmt: skip

_T = TypeVar("_T")
MACROS: Final = frozenset({"map", "filter", "all", "exists", "exists_one", "existsOne"})
"""The methods with a variable of their own: `list.map(x, x.total)`."""

_TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ | //[^\n]* )
    | (?P<text> [bB]? (?: [rR] (?: \"{3}.*?\"{3} | '{3}.*?'{3} | \"[^\"\n]*\" | '[^'\n]*' )
        | \"{3} (?: \\. | [^\\] )*? \"{3} | '{3} (?: \\. | [^\\] )*? '{3}
        | \" (?: \\. | [^\"\\\n] )* \" | ' (?: \\. | [^'\\\n] )* ' ) )
    | (?P<number> 0x[0-9a-fA-F]+[uU]? | (?: [0-9]+\.[0-9]+ | \.[0-9]+ | [0-9]+ )
        (?: [eE][-+]?[0-9]+ )? [uU]? )
    | (?P<name> [A-Za-z_][A-Za-z_0-9]* )
    | (?P<sign> && | \|\| | [<>=!]= | [-+*/%<>!?:.,()\[\]{}] )
    """,
    re.VERBOSE | re.DOTALL,
)
_INTEGER: Final = re.compile(r"[0-9]+[uU]?")
_TEXT: Final = re.compile(
    r"""(?P<raw>[rR]?)(?P<mark>\"{3}|'{3}|\"|')(?P<inner>.*)(?P=mark)""", re.DOTALL
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ROWS: Final = (
    ("||",), ("&&",), ("<", "<=", ">", ">=", "==", "!=", "in"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip


class Unreadable(ValueError):
    """A text is not an expression, or of a form that is not taken."""


@dataclasses.dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `is_known` tells whether `value` is its value."""

    value: Any
    is_known: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A link of a chain: `.name`; or the whole chain's `has(….name)`."""

    name: str
    is_test: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A link of a chain: `[key]`."""

    key: Node


@dataclasses.dataclass(frozen=True, slots=True)
class Called:
    """A function's call, or as a link of a chain, a method's."""

    name: str
    args: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A link of a chain: a macro, whose parts are evaluated for each element."""

    name: str
    variable: str
    parts: tuple[Node, ...]


Link = Field | Key | Called | Loop


@dataclasses.dataclass(frozen=True, slots=True)
class Chained:
    """A value, and what is taken from it: `orders[0].total.size()`."""

    of: Node
    links: tuple[Link, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """`condition ? value : condition ? value : otherwise`."""

    cases: tuple[tuple[Node, Node], ...]
    otherwise: Node


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Parts with operators between them: `a + b - c`; one part with `!` or `-`; a list: `[]`."""

    signs: tuple[str, ...]
    parts: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table: `{'name': value}`."""

    entries: tuple[tuple[Node, Node], ...]


Node = Literal | Name | Called | Chained | Choice | Row | Table


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    """Yield what a text consists of: kind and text; the rest as one `other`, if it is unclear."""
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            yield "other", source[at:]
            return
        yield str(found.lastgroup), found[0]
        at = found.end()


def without_texts(source: str) -> str:
    """Return an expression's text with each literal text replaced by `''`."""
    return "".join(
        "''" if kind == "text" else " " if kind == "space" else text
        for kind, text in _tokens(source)
    )


def tree_of(source: str) -> Node:
    """Return the tree of an expression.

    Raises:
        Unreadable: it has none.
    """
    reader = _Reader([each for each in _tokens(source) if each[0] != "space"])
    found = reader.choice()
    if reader.at < len(reader.tokens):
        raise Unreadable(f"{reader.tokens[reader.at][1][:40]!r} is not understood here")
    return found


class _Reader:
    """A reader of tokens, one method for each precedence."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.at = 0

    def next(self) -> str:
        """Return the next sign or name; "" for anything else."""
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return text if kind in ("sign", "name") else ""

    def take(self, sign: str) -> bool:
        """Pass a sign, if it is the next."""
        if self.next() != sign:
            return False
        self.at += 1
        return True

    def need(self, sign: str) -> None:
        """Pass a sign that has to be there."""
        if not self.take(sign):
            raise Unreadable(f"{sign!r} is missing")

    def choice(self) -> Node:
        cases: list[tuple[Node, Node]] = []
        while True:
            found = self.row(0)
            if not self.take("?"):
                return Choice(tuple(cases), found) if cases else found
            cases.append((found, self.row(0)))
            self.need(":")

    def row(self, level: int) -> Node:
        if level == len(_ROWS):
            return self.unary()
        parts, signs = [self.row(level + 1)], list[str]()
        while (sign := self.next()) in _ROWS[level]:
            self.at += 1
            signs.append(sign)
            parts.append(self.row(level + 1))
        return Row(tuple(signs), tuple(parts)) if signs else parts[0]

    def unary(self) -> Node:
        signs: list[str] = []
        while (sign := self.next()) in ("!", "-"):
            self.at += 1
            signs.append(sign)
        found = self.chain()
        return Row(tuple(signs), (found,)) if signs else found

    def chain(self) -> Node:
        found = self.primary()
        links: list[Link] = []
        while True:
            if self.take("["):
                links.append(Key(self.choice()))
                self.need("]")
            elif self.take("."):
                links.append(self.member())
            else:
                return Chained(found, tuple(links)) if links else found

    def member(self) -> Link:
        name = self.name()
        if not self.take("("):
            return Field(name)
        args = self.several(")", self.choice)
        if name in MACROS and (len(args) == 2 or (name == "map" and len(args) == 3)):
            variable = args[0]
            if not isinstance(variable, Name):
                raise Unreadable(f"{name}() begins with the name of a variable")
            return Loop(name, variable.name, args[1:])
        return Called(name, args)

    def name(self) -> str:
        found = self.next()
        if not found.isidentifier():
            raise Unreadable("a name is missing")
        self.at += 1
        return found

    def primary(self) -> Node:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind in ("text", "number"):
            self.at += 1
            return _text(text) if kind == "text" else _number(text)
        if self.take("("):
            found = self.choice()
            self.need(")")
            return found
        if self.take("["):
            return Row(("[]",), self.several("]", self.choice))
        if self.take("{"):
            return Table(self.several("}", self.entry))
        dot = "." if self.take(".") else ""
        name = self.name()
        if name in _CONSTANTS and not dot:
            return Literal(_CONSTANTS[name])
        if self.next() == "{":
            raise Unreadable(f"{name}{{…}}: there are no messages")
        if not self.take("("):
            return Name(dot + name)
        args = self.several(")", self.choice)
        if name == "has" and len(args) == 1:
            return _test(args[0])
        return Called(dot + name, args)

    def entry(self) -> tuple[Node, Node]:
        key = self.choice()
        self.need(":")
        return key, self.choice()

    def several(self, end: str, one: Callable[[], _T]) -> tuple[_T, ...]:
        """Return what is listed up to a closing bracket."""
        found: list[_T] = []
        if self.take(","):  # `[,]` is an empty list
            self.need(end)
            return ()
        while not self.take(end):
            found.append(one())
            if not self.take(","):
                self.need(end)
                break
        return tuple(found)


def _test(of: Node) -> Node:
    """Return the tree of `has(of)`."""
    if isinstance(of, Chained) and isinstance(of.links[-1], Field):
        return Chained(of.of, (*of.links[:-1], Field(of.links[-1].name, is_test=True)))
    raise Unreadable("has() takes a field: has(order.total)")


def _text(token: str) -> Literal:
    found = _TEXT.fullmatch(token)
    if found is None or ("\\" in found["inner"] and not found["raw"]):
        return Literal(None, is_known=False)  # bytes, or a text with escapes
    return Literal(found["inner"])


def _number(token: str) -> Literal:
    if _INTEGER.fullmatch(token):
        return Literal(int(token.rstrip("uU")))
    return Literal(None, is_known=False)


def parts_of(node: Node | Link) -> Iterator[Node | Link]:
    """Yield what a part of a tree consists of."""
    match node:
        case Chained():
            yield node.of
            yield from node.links
        case Key():
            yield node.key
        case Called():
            yield from node.args
        case Loop() | Row():
            yield from node.parts
        case Choice():
            for condition, value in node.cases:
                yield condition
                yield value
            yield node.otherwise
        case Table():
            for key, value in node.entries:
                yield key
                yield value
        case _:
            return


def variables_in(node: Node | Link, bound: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the variables that a tree uses, without those of its macros."""
    if isinstance(node, Name):
        return frozenset({node.name}) - bound
    if isinstance(node, Loop):
        bound |= {node.variable}
    return frozenset[str]().union(*(variables_in(each, bound) for each in parts_of(node)))
