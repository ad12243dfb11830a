"""What is known of an expression before it is evaluated: its value's shape, and its problems.

Only what is certain is a problem: a shape that is not known fits everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rollcage_workflow.expressions import Expression, ExpressionInvalid, expression
from rollcage_workflow.functions import FUNCTIONS, Function
from rollcage_workflow.nulls import taken_from
from rollcage_workflow.schemas import ANY, Shape, element, misfit, part, table, types
from rollcage_workflow.syntax import (
    MACROS,
    Called,
    Chained,
    Choice,
    Field,
    Key,
    Link,
    Literal,
    Loop,
    Name,
    Node,
    Row,
)

__all__ = ["Problem", "Reading", "of_template"]


_LIBRARIES: Final = frozenset(
    {"math", "strings", "lists", "sets", "base64", "optional", "regex", "cel", "json"}
)
"""The names before functions of other implementations: `math.abs(x)`."""

_SHORT: Final = [name for name in FUNCTIONS if not name.startswith("get")]
_THERE: Final = f"; there are {', '.join(_SHORT)}, has, {', '.join(sorted(MACROS))}"
_Bound = Mapping[str, Shape]
"""The variables of macros around a part of an expression."""

_COMPARING: Final = frozenset({"<", "<=", ">", ">=", "==", "!=", "in", "&&", "||", "!"})
_BOOLEAN: Final = Shape.of({"type": "boolean"})


class Problem(NamedTuple):
    """A problem of an expression: code and reason."""

    code: str
    reason: str


class Reading:
    """One reading of an expression.

    Attributes:
        problems: what it found.
        shape: the shape of its value.
        no_variables: unknown names in it that are reported as something else.
    """

    def __init__(
        self,
        found: Expression,
        variables: Mapping[str, Shape],
        optional: frozenset[str] = frozenset(),
        *,
        takes_null: bool = True,
    ) -> None:
        self.problems: dict[Problem, None] = {}  # in their order, each once
        self.no_variables: set[str] = set()
        self._variables = variables
        self.shape = self._read(found.tree, {})
        whole = frozenset[str]() if takes_null or found.path is None else {found.path[0]}
        for name in sorted((taken_from(found.tree) | whole) & optional):
            self._find(
                "may_be_skipped",
                f"{name} may be skipped, and is null then, which can't be used here: "
                f"add when: ={name} != null, or write {name} == null ? … : …",
            )
        if not found.names and "const" not in self.shape.schema:  # a constant
            try:
                self.shape = Shape.of({"const": found({})})
            except Exception:  # noqa: BLE001 - it is reported when it is evaluated
                self.shape = ANY

    def _find(self, code: str, reason: str) -> None:
        self.problems[Problem(code, reason)] = None

    def _read(self, node: Node, bound: _Bound) -> Shape:
        """Return the shape of a value; note the problems inside."""
        match node:
            case Literal():
                return Shape.of({"const": node.value}) if node.is_known else ANY
            case Name():
                return bound.get(node.name, self._variables.get(node.name, ANY))
            case Called():
                return self._function(node, bound)
            case Chained():
                return self._chain(node, bound)
            case Choice():
                return self._choice(node, bound)
            case Row():
                return self._row(node, bound)
            case _:
                for key, value in node.entries:
                    self._read(key, bound)
                    self._read(value, bound)
                return Shape.of({"type": "object"})

    # --- chains ----------------------------------------------------------------------------------

    def _chain(self, node: Chained, bound: _Bound) -> Shape:
        shape, at = self._read(node.of, bound), "(…)"
        if isinstance(node.of, Name):
            at = node.of.name
            if self._is_of_library(node.of, node.links[0], bound):
                return ANY
        is_input = at == "inputs"
        for link in node.links:
            if isinstance(link, Called):
                shape, at = self._method(shape, link, bound), f"{at}.{link.name}(…)"
            elif isinstance(link, Loop):
                shape, at = self._loop(shape, link, bound), f"{at}.{link.name}(…)"
            else:
                key, written = _key(link)
                if isinstance(link, Key):
                    self._read(link.key, bound)
                shape, why = part(shape, (key,))
                at += written
                if why is not None:
                    self._find("unknown_input" if is_input else "unknown_field", f"{at}: {why}")
        last = node.links[-1]
        return _BOOLEAN if isinstance(last, Field) and last.is_test else shape

    def _is_of_library(self, name: Name, link: Link, bound: _Bound) -> bool:
        """Return whether a chain begins with a function of another implementation of CEL."""
        known = self._variables.keys() | bound.keys()
        if name.name not in _LIBRARIES - known or not isinstance(link, Called):
            return False
        for each in link.args:
            self._read(each, bound)
        self.no_variables.add(name.name)
        self._find("unknown_function", f"there is no function '{name.name}.{link.name}'{_THERE}")
        return True

    # --- functions -------------------------------------------------------------------------------

    def _function(self, node: Called, bound: _Bound) -> Shape:
        shapes = [self._read(each, bound) for each in node.args]
        known = FUNCTIONS.get(node.name)
        if known is None:
            self._unknown(node)
            return ANY
        if not known.is_function or len(shapes) != 1:
            self._find("unknown_function", f"{node.name} is called as {known.forms}")
            return ANY
        if node.name == "dyn":
            return shapes[0]
        return self._value(node.name, known, shapes[0])

    def _method(self, shape: Shape, link: Called, bound: _Bound) -> Shape:
        shapes = [self._read(each, bound) for each in link.args]
        known = FUNCTIONS.get(link.name)
        if known is None:
            self._unknown(link)
            return ANY
        if not known.is_method or len(shapes) != known.takes_more:
            self._find("unknown_function", f"{link.name} is called as {known.forms}")
            return ANY
        for each in shapes:
            self._fits(link.name, ("string",), each)
        return self._value(link.name, known, shape)

    def _unknown(self, call: Called) -> None:
        if call.name in MACROS or call.name == "has":  # with other arguments
            form = "has(x.field)" if call.name == "has" else f"list.{call.name}(x, …)"
            self._find("unknown_function", f"{call.name} is called as {form}")
            self.no_variables.update(each.name for each in call.args if isinstance(each, Name))
            return
        near = difflib.get_close_matches(call.name, [*FUNCTIONS, *MACROS, "has"], 1)
        hint = f"; did you mean {near[0]!r}?" if near else _THERE
        self._find("unknown_function", f"there is no function {call.name!r}{hint}")

    def _value(self, name: str, known: Function, of: Shape) -> Shape:
        self._fits(name, known.takes, of)
        return Shape.of({"type": known.gives}) if known.gives else ANY

    def _fits(self, name: str, takes: tuple[str, ...], given: Shape) -> None:
        if not takes and types(given) != types(ANY):
            self._find("wrong_type", f"{name}() is of a time or a duration: timestamp(x).{name}()")
        elif takes:
            why = misfit(Shape.of({"type": sorted(types(given))}), Shape.of({"type": list(takes)}))
            if why is not None:
                self._find("wrong_type", f"{name}() can't take this: {why}")

    def _loop(self, shape: Shape, loop: Loop, bound: _Bound) -> Shape:
        allowed = types(shape)
        self._fits(loop.name, ("array", "object"), shape)
        each = ANY
        if allowed - {"null"} == {"array"}:
            each = element(shape)[0]
        elif allowed - {"null"} == {"object"}:
            each = Shape.of({"type": "string"})
        inside = {**bound, loop.variable: each}
        found = [self._read(one, inside) for one in loop.parts][-1]
        if loop.name in ("map", "filter"):
            return _list_of(found if loop.name == "map" else each)
        return _BOOLEAN

    # --- operators -------------------------------------------------------------------------------

    def _choice(self, node: Choice, bound: _Bound) -> Shape:
        shapes: list[Shape] = []
        for condition, value in node.cases:
            self._read(condition, bound)
            shapes.append(self._read(value, bound))
        return _one_of([*shapes, self._read(node.otherwise, bound)])

    def _row(self, node: Row, bound: _Bound) -> Shape:
        sign = node.signs[0]
        shapes = [self._read(each, bound) for each in node.parts]
        if sign in _COMPARING:
            return _BOOLEAN
        if sign == "[]":
            return _list_of(shapes[0]) if len(shapes) == 1 else Shape.of({"type": "array"})
        kinds = frozenset[str]().union(*map(types, shapes))
        if kinds <= {"integer", "number"}:
            return Shape.of({"type": "number"})
        if sign == "+" and len(kinds) == 1 and kinds <= {"array", "string"}:
            return Shape.of({"type": next(iter(kinds))})
        return ANY


def _key(link: Field | Key) -> tuple[str | int | None, str]:
    """Return a field's name or an element's number, None if it is computed; and as written."""
    if isinstance(link, Field):
        return link.name, f".{link.name}"
    value = link.key.value if isinstance(link.key, Literal) else None
    if isinstance(value, str):
        return value, f".{value}" if value.isidentifier() else f"[{value!r}]"
    return (value, f"[{value}]") if type(value) is int else (None, "[…]")


def _list_of(item: Shape) -> Shape:
    """Return the shape of a list; what its elements refer to stays where it is."""
    return Shape({"type": "array", "items": item.schema}, item.root)


def _one_of(shapes: list[Shape]) -> Shape:
    roots = {id(each.root): each.root for each in shapes if "$ref" in str(each.schema)}
    if len(roots) > 1 or any(not each.schema for each in shapes):
        return ANY
    return Shape({"anyOf": [each.schema for each in shapes]}, next(iter(roots.values()), {}))


def of_template(template: Any, variables: Mapping[str, Shape]) -> Shape:
    """Return the shape of a template's value."""
    if isinstance(template, str) and template.startswith("="):
        if template.startswith("=="):
            return Shape.of({"const": template[1:]})
        try:
            return Reading(expression(template[1:]), variables).shape
        except ExpressionInvalid:
            return ANY
    if isinstance(template, Mapping):
        fields = {str(name): of_template(each, variables) for name, each in template.items()}
        if all("const" in shape.schema for shape in fields.values()):
            return Shape.of({"const": {name: s.schema["const"] for name, s in fields.items()}})
        return table(fields)
    if isinstance(template, list | tuple):
        items = [of_template(each, variables) for each in template]
        if all("const" in shape.schema for shape in items):
            return Shape.of({"const": [shape.schema["const"] for shape in items]})
        return Shape.of({"type": "array"})
    return Shape.of({"const": template})
