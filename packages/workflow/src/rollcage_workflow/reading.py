"""What is known of an expression before it is evaluated: its value's shape, and its problems.

Only what is certain is a problem: a shape that is not known fits everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rollcage_workflow.expressions import Expression, ExpressionInvalid, expression
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
    parts_of,
    variables_in,
)

__all__ = ["FUNCTIONS", "Problem", "Reading", "of_template"]


class Function(NamedTuple):
    """A function of expressions.

    Attributes:
        forms: how it is called, for messages.
        takes: the JSON types of its first value, or of the one that it is a method of; none if
            that is no JSON, but a time or a duration.
        gives: the JSON type of its value; none if that is not known, or no JSON.
        takes_more: how many arguments a method takes; a function that is none takes one.
        is_method: whether it is called as a method.
        is_function: whether it is called with its value as an argument.
    """

    forms: str
    takes: tuple[str, ...]
    gives: str = ""
    takes_more: int = 0
    is_method: bool = False
    is_function: bool = True


def _method(form: str, takes: tuple[str, ...], gives: str, takes_more: int = 0) -> Function:
    return Function(form, takes, gives, takes_more, is_method=True, is_function=False)


_ANYTHING: Final = ("array", "boolean", "null", "number", "object", "string")
_TIMED: Final = ("Hours", "Minutes", "Seconds", "Milliseconds")
_DATED: Final = ("FullYear", "Month", "Date", "DayOfMonth", "DayOfWeek", "DayOfYear")
FUNCTIONS: Final[Mapping[str, Function]] = {
    "size": Function("size(x) or x.size()", ("array", "object", "string"), "integer", 0, True),
    **{
        name: _method(f"x.{name}(text)", ("string",), "boolean", 1)
        for name in ("contains", "startsWith", "endsWith", "matches")
    },
    "int": Function("int(x)", ("number", "string"), "integer"),
    "uint": Function("uint(x)", ("number", "string"), "integer"),
    "double": Function("double(x)", ("number", "string"), "number"),
    "string": Function("string(x)", ("number", "string"), "string"),
    "bytes": Function("bytes(x)", ("string",)),
    "timestamp": Function("timestamp(x)", ("string",)),
    "duration": Function("duration(x)", ("string",)),
    "type": Function("type(x)", _ANYTHING),
    "dyn": Function("dyn(x)", _ANYTHING),
    **{
        f"get{name}": _method(f"timestamp(x).get{name}()", (), "integer")
        for name in (*_DATED, *_TIMED)
    },
}
"""All functions of expressions, by name; macros are in `syntax.MACROS`, beside `has`."""

_LIBRARIES: Final = frozenset(
    {"math", "strings", "lists", "sets", "base64", "optional", "regex", "cel", "json"}
)
"""The names before functions of other implementations: `math.abs(x)`."""

_SHORT: Final = [name for name in FUNCTIONS if not name.startswith("get")]
_THERE: Final = f"; there are {', '.join(_SHORT)}, has, {', '.join(sorted(MACROS))}"
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
        self._optional = optional
        whole = _Place({}, frozenset())
        self.shape = self._read(found.tree, whole)
        if isinstance(found.tree, Name) and not takes_null:
            self._may_be_skipped(found.tree, whole)
        if not found.names and "const" not in self.shape.schema:  # a constant
            try:
                self.shape = Shape.of({"const": found({})})
            except Exception:  # noqa: BLE001 - it is reported when it is evaluated
                self.shape = ANY

    def _find(self, code: str, reason: str) -> None:
        self.problems[Problem(code, reason)] = None

    def _read(self, node: Node, place: _Place) -> Shape:
        """Return the shape of a value; note the problems inside."""
        match node:
            case Literal():
                return Shape.of({"const": node.value}) if node.is_known else ANY
            case Name():
                return place.bound.get(node.name, self._variables.get(node.name, ANY))
            case Called():
                return self._function(node, place)
            case Chained():
                return self._chain(node, place)
            case Choice():
                return self._choice(node, place)
            case Row():
                return self._row(node, place)
            case _:
                for key, value in node.entries:
                    self._read(key, place)
                    self._read(value, place)
                return Shape.of({"type": "object"})

    # --- chains ----------------------------------------------------------------------------------

    def _chain(self, node: Chained, place: _Place) -> Shape:
        shape, at = self._read(node.of, place), "(…)"
        if isinstance(node.of, Name):
            at = node.of.name
            if self._is_of_library(node.of, node.links[0], place):
                return ANY
            self._may_be_skipped(node.of, place)
        is_input = at == "inputs"
        for link in node.links:
            if isinstance(link, Called):
                shape, at = self._method(shape, link, place), f"{at}.{link.name}(…)"
            elif isinstance(link, Loop):
                shape, at = self._loop(shape, link, place), f"{at}.{link.name}(…)"
            else:
                key, written = _key(link)
                if isinstance(link, Key):
                    self._read(link.key, place)
                shape, why = part(shape, (key,))
                at += written
                if why is not None:
                    self._find("unknown_input" if is_input else "unknown_field", f"{at}: {why}")
        last = node.links[-1]
        return _BOOLEAN if isinstance(last, Field) and last.is_test else shape

    def _is_of_library(self, name: Name, link: Link, place: _Place) -> bool:
        """Return whether a chain begins with a function of another implementation of CEL."""
        known = self._variables.keys() | place.bound.keys()
        if name.name not in _LIBRARIES - known or not isinstance(link, Called):
            return False
        for each in link.args:
            self._read(each, place)
        self.no_variables.add(name.name)
        self._find("unknown_function", f"there is no function '{name.name}.{link.name}'{_THERE}")
        return True

    def _may_be_skipped(self, name: Name, place: _Place) -> None:
        """Refuse what is taken from null."""
        if name.name in self._optional - place.known - place.bound.keys():
            self._find(
                "may_be_skipped",
                f"{name.name} may be skipped, and is null then, which can't be used here: "
                f"add when: ={name.name} != null, or write {name.name} == null ? … : …",
            )

    # --- functions -------------------------------------------------------------------------------

    def _function(self, node: Called, place: _Place) -> Shape:
        shapes = [self._read(each, place) for each in node.args]
        known = FUNCTIONS.get(node.name)
        if known is None:
            self._unknown(node)
            return ANY
        if not known.is_function or len(shapes) != 1:
            self._find("unknown_function", f"{node.name} is called as {known.forms}")
            return ANY
        if isinstance(node.args[0], Name) and "null" not in known.takes:
            self._may_be_skipped(node.args[0], place)
        if node.name == "dyn":
            return shapes[0]
        return self._value(node.name, known, shapes[0])

    def _method(self, shape: Shape, link: Called, place: _Place) -> Shape:
        shapes = [self._read(each, place) for each in link.args]
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

    def _loop(self, shape: Shape, loop: Loop, place: _Place) -> Shape:
        allowed = types(shape)
        self._fits(loop.name, ("array", "object"), shape)
        each = ANY
        if allowed - {"null"} == {"array"}:
            each = element(shape)[0]
        elif allowed - {"null"} == {"object"}:
            each = Shape.of({"type": "string"})
        inside = place.with_(loop.variable, each)
        found = [self._read(one, inside) for one in loop.parts][-1]
        if loop.name in ("map", "filter"):
            return _list_of(found if loop.name == "map" else each)
        return _BOOLEAN

    # --- operators -------------------------------------------------------------------------------

    def _choice(self, node: Choice, place: _Place) -> Shape:
        shapes: list[Shape] = []
        for condition, value in node.cases:
            self._read(condition, place)
            shapes.append(self._read(value, place.knowing(_tested(condition, is_true=True))))
            place = place.knowing(_tested(condition, is_true=False))
        shapes.append(self._read(node.otherwise, place))
        return _one_of(shapes)

    def _row(self, node: Row, place: _Place) -> Shape:
        sign = node.signs[0] if node.signs else "[]"
        shapes: list[Shape] = []
        for each in node.parts:
            known = frozenset[str]()
            if sign in ("&&", "||"):  # the parts are in no order: an error beside false is false
                others = (other for other in node.parts if other is not each)
                known = known.union(*(_tested(other, is_true=sign == "&&") for other in others))
            shapes.append(self._read(each, place.knowing(known)))
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


class _Place(NamedTuple):
    """What holds at a place of an expression.

    Attributes:
        bound: the variables of macros around it.
        known: variables that are not null there.
    """

    bound: Mapping[str, Shape]
    known: frozenset[str]

    def with_(self, name: str, shape: Shape) -> _Place:
        return self._replace(bound={**self.bound, name: shape})

    def knowing(self, known: frozenset[str]) -> _Place:
        return self._replace(known=self.known | known)


def _key(link: Field | Key) -> tuple[str | int | None, str]:
    """Return a field's name or an element's number, None if it is computed; and as written."""
    if isinstance(link, Field):
        return link.name, f".{link.name}"
    value = link.key.value if isinstance(link.key, Literal) else None
    if isinstance(value, str):
        return value, f".{value}" if value.isidentifier() else f"[{value!r}]"
    return (value, f"[{value}]") if type(value) is int else (None, "[…]")


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
