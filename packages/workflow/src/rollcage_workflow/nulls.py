"""What an expression needs not to be null: that from which it takes something, untested."""

from __future__ import annotations

from rollcage_workflow.functions import FUNCTIONS
from rollcage_workflow.syntax import (
    Called,
    Chained,
    Choice,
    Link,
    Literal,
    Loop,
    Name,
    Node,
    Row,
    parts_of,
    variables_in,
)

__all__ = ["taken_from"]

_NONE = frozenset[str]()


def taken_from(node: Node | Link) -> frozenset[str]:
    """Return the variables that must not be null, or the expression has no value."""
    match node:
        case Choice():
            found, known = _NONE, _NONE
            for condition, value in node.cases:
                found |= taken_from(condition) - known
                found |= taken_from(value) - known - _tested(condition, is_true=True)
                known |= _tested(condition, is_true=False)
            return found | (taken_from(node.otherwise) - known)
        case Row(signs=("&&" | "||", *_)):
            return _taken_in_row(node)
        case Loop():
            return _taken_in_all(node) - {node.variable}
        case Chained(of=Name(name)):
            return _taken_in_all(node) | {name}
        case Called(name, (Name(given),)) if name in FUNCTIONS:
            return _NONE if "null" in FUNCTIONS[name].takes else frozenset({given})
        case _:
            return _taken_in_all(node)


def _taken_in_all(node: Node | Link) -> frozenset[str]:
    return _NONE.union(*map(taken_from, parts_of(node)))


def _taken_in_row(row: Row) -> frozenset[str]:
    """Return what is taken in parts that are in no order: an error beside false is false."""
    is_and = row.signs[0] == "&&"
    taken = [taken_from(each) for each in row.parts]
    tested = [_tested(each, is_true=is_and) - taken[at] for at, each in enumerate(row.parts)]
    return _NONE.union(
        *(each - _NONE.union(*tested[:at], *tested[at + 1 :]) for at, each in enumerate(taken))
    )


def _tested(node: Node, *, is_true: bool) -> frozenset[str]:
    """Return the variables that are not null where a condition is true, or false.

    A condition that asks about a variable in an unknown way is trusted.
    """
    if isinstance(node, Row):
        if node.signs[0] == "!":
            return _tested(node.parts[0], is_true=is_true ^ (len(node.signs) % 2 == 1))
        if node.signs[0] in ("&&", "||"):
            found = [_tested(each, is_true=is_true) for each in node.parts]
            if is_true == (node.signs[0] == "&&"):
                return frozenset[str]().union(*found)
            return found[0].intersection(*found)
        if len(node.parts) == 2 and node.signs[0] in ("==", "!="):
            names = [each.name for each in node.parts if isinstance(each, Name)]
            if Literal(None) in node.parts and names:
                return frozenset(names) if is_true == (node.signs[0] == "!=") else frozenset()
    if isinstance(node, Choice):
        before, ways = frozenset[str](), list[frozenset[str]]()
        for condition, value in node.cases:
            ways.append(before | _tested(condition, is_true=True) | _tested(value, is_true=is_true))
            before |= _tested(condition, is_true=False)
        return (before | _tested(node.otherwise, is_true=is_true)).intersection(*ways)
    return _asked(node)


def _asked(node: Node | Link) -> frozenset[str]:
    """Return the variables that are used as they are: nothing is taken from them."""
    if isinstance(node, Name):
        return frozenset({node.name})
    parts = [*parts_of(node)]
    if isinstance(node, Chained) and isinstance(node.of, Name):
        parts = parts[1:]
    found = frozenset[str]().union(*map(_asked, parts))
    return found & variables_in(node)
