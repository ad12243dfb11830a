"""Whether one step's result can be another step's argument, by JSON Schema.

Only certain misfits are reported: an empty schema fits everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

import jsonschema
import jsonschema.exceptions
import pydantic

from rollcage_workflow.returned import describable, schema_of
from rollcage_workflow.validator import validator_of

__all__ = [
    "ANY", "Shape", "element", "invalid", "misfit", "nearest", "nullable", "of_type", "part",
    "table", "types", "unusable",
]  # fmt: skip

Schema = Mapping[str, Any]


class Shape(NamedTuple):
    """A JSON Schema, with the document of its `$ref`s."""

    schema: Schema
    root: Schema

    @classmethod
    def of(cls, schema: object) -> Shape:
        """Return a schema that is a document of its own."""
        found = cast("Schema", schema) if isinstance(schema, Mapping) else {}
        return cls(found, found)

    def inside(self, schema: object) -> Shape:
        """Return a part of the schema."""
        return Shape(cast("Schema", schema) if isinstance(schema, Mapping) else {}, self.root)

    def resolved(self) -> Shape:
        """Return the schema that a `$ref` refers to."""
        shape = self
        for _ in range(32):
            target = shape.schema.get("$ref")
            if not isinstance(target, str) or not target.startswith("#/"):
                return shape
            found: Any = self.root
            for word in target[2:].split("/"):
                found = found.get(word, {}) if isinstance(found, Mapping) else {}
            shape = self.inside(found)
        return ANY


ANY: Final = Shape({}, {})
_UNUSABLE: Final = "its schema can't be used"
_OPEN: Final = ("anyOf", "oneOf", "allOf", "patternProperties", "if", "dependentSchemas")
"""What may describe further fields."""

_ALL: Final = frozenset({"null", "boolean", "string", "integer", "number", "array", "object"})


def of_type(declared: Any) -> tuple[Shape, str | None]:
    """Return the shape of a tool's return type, `ANY` without one; and why it can't be known."""
    if declared is None:
        return ANY, None
    try:
        return Shape.of(schema_of(declared)), None
    except (pydantic.PydanticUserError, NameError, TypeError):
        pass  # a part of it has none
    try:
        return Shape.of(schema_of(describable(declared))), None
    except (pydantic.PydanticUserError, NameError, TypeError) as error:
        return ANY, str(error).splitlines()[0]


def types(shape: Shape) -> frozenset[str]:
    """Return the JSON types that the shape allows."""
    shape = shape.resolved()
    schema = shape.schema
    found = _ALL
    declared = schema.get("type")
    if isinstance(declared, str):
        found = frozenset({declared}) & _ALL or _ALL
    elif isinstance(declared, list):
        found = frozenset(str(each) for each in declared) & _ALL or _ALL
    for word in ("anyOf", "oneOf"):
        some = schema.get(word)
        if isinstance(some, list) and some:
            inner = (types(shape.inside(each)) for each in some)
            found &= frozenset().union(*inner)
    if "const" in schema:
        found &= {_type(schema["const"])}
    values = schema.get("enum")
    if isinstance(values, list) and values:
        found &= frozenset(map(_type, values))
    return found | {"integer"} if "number" in found else found


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def invalid(value: Any, shape: Shape) -> str | None:
    """Return why a value is not of this shape."""
    schema = {**shape.schema}
    for word in ("$defs", "definitions"):
        if word in shape.root:
            schema.setdefault(word, shape.root[word])
    try:
        error = jsonschema.exceptions.best_match(validator_of(schema).iter_errors(value))
    except jsonschema.exceptions.SchemaError as broken:
        return f"its schema is invalid: {broken.message[:200]}"
    except Exception as broken:  # noqa: BLE001 - a reference that leads nowhere, of any library
        return f"{_UNUSABLE}: {str(broken)[:300]}"
    if error is None:
        return None
    at = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.path)
    return f"{at.removeprefix('.')}: {error.message[:300]}" if at else error.message[:300]


def unusable(schema: Schema) -> str | None:
    """Return why a foreign schema can't be used for comparisons."""
    validator = jsonschema.Draft202012Validator
    try:
        validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)
    except jsonschema.exceptions.SchemaError as broken:
        return f"its schema is invalid: {broken.message[:200]}"
    why = invalid(None, Shape.of(schema))
    return why if why is not None and why.startswith("its schema") else None


def misfit(given: Shape, taken: Shape, depth: int = 0) -> str | None:
    """Return why a `given` shape can't be a `taken` one; None if it may."""
    given, taken = given.resolved(), taken.resolved()
    if "const" in given.schema:
        why = invalid(given.schema["const"], taken)
        return None if why is not None and why.startswith(_UNUSABLE) else why  # the tool reports it
    gives, takes = types(given), types(taken)
    if not gives & takes:
        return f"this is {_either(gives)}, and {_either(takes)} is taken"
    if depth > 8:
        return None
    both = gives & takes
    if both == {"array"}:
        why = misfit(given.inside(given.schema.get("items")), taken.inside(
            taken.schema.get("items")), depth + 1)  # fmt: skip
        return None if why is None else f"its elements: {why}"
    if both == {"object"}:
        return _object_misfit(given, taken, depth)
    return None


def _object_misfit(given: Shape, taken: Shape, depth: int) -> str | None:
    has, wants = _properties(given), _properties(taken)
    for name in has.keys() & wants.keys():
        why = misfit(given.inside(has[name]), taken.inside(wants[name]), depth + 1)
        if why is not None:
            return f"{name}: {why}"
    if has and not given.schema.get("additionalProperties"):
        for name in taken.schema.get("required", ()):
            if name not in has:
                return f"it has no {name!r}"
    return None


def _properties(shape: Shape) -> Mapping[str, Any]:
    found = shape.schema.get("properties")
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _either(some: Iterable[str]) -> str:
    names = sorted(set(some))
    if "number" in names and "integer" in names:
        names.remove("integer")
    return " or ".join(f"{'an' if each[0] in 'aio' else 'a'} {each}" for each in names)


def part(shape: Shape, path: Iterable[str | int | None]) -> tuple[Shape, str | None]:
    """Return the shape at a chain of fields and elements, and the problem of the chain, if any.

    Args:
        shape: where the chain begins.
        path: names of fields and numbers of elements; None for one that is computed.
    """
    for key in path:
        shape = _but_null(shape.resolved())
        if isinstance(key, str):
            shape, why = _field(shape, key)
        else:
            shape, why = element(shape, key) if key is not None else _any_part(shape)
        if why is not None:
            return ANY, why
    return shape, None


def _field(shape: Shape, name: str) -> tuple[Shape, str | None]:
    value = shape.schema.get("const")
    if isinstance(value, Mapping) and name in value:
        return Shape.of({"const": value[name]}), None
    fields = _properties(shape) or (value if isinstance(value, Mapping) else {})
    if name in fields:
        return shape.inside(fields[name]), None
    if types(shape) and "object" not in types(shape):
        return ANY, f"it is {_either(types(shape))}, which has no field {name!r}"
    more = shape.schema.get("additionalProperties")
    if fields and not more and not any(word in shape.schema for word in _OPEN):
        return ANY, f"it has no field {name!r}{nearest(name, fields)}"
    return (shape.inside(more) if isinstance(more, Mapping) else ANY), None


def element(shape: Shape, number: int | None = None) -> tuple[Shape, str | None]:
    """Return the shape of an element of a list, or of any; and the problem, if any."""
    shape = _but_null(shape.resolved())
    if types(shape) and "array" not in types(shape):
        at = "elements" if number is None else f"element {number}"
        return ANY, f"it is {_either(types(shape))}, which has no {at}"
    value, first = shape.schema.get("const"), shape.schema.get("prefixItems")
    if isinstance(value, list | tuple):
        if number is None:
            return ANY, None
        if number >= len(value):
            return ANY, f"it has no element {number}: there are {len(value)}"
        return Shape.of({"const": value[number]}), None
    if isinstance(first, list) and first:
        if number is None:
            return ANY, None
        if number < len(first):
            return shape.inside(first[number]), None
    items, most = shape.schema.get("items"), shape.schema.get("maxItems")
    if number is not None and isinstance(most, int) and number >= most:
        return ANY, f"it has no element {number}: there are at most {most}"
    return shape.inside(items), None


def _any_part(shape: Shape) -> tuple[Shape, str | None]:
    """Return the shape at a key that is computed."""
    allowed = types(shape)
    if allowed and not allowed & {"array", "object"}:
        return ANY, f"it is {_either(allowed)}, which has neither fields nor elements"
    if allowed == {"array"}:
        return element(shape)
    more = shape.schema.get("additionalProperties")
    if allowed == {"object"} and not _properties(shape) and isinstance(more, Mapping):
        return shape.inside(more), None
    return ANY, None


def _but_null(shape: Shape) -> Shape:
    """Return the shape without null, if it is a single one."""
    for word in ("anyOf", "oneOf"):
        some = shape.schema.get(word)
        if isinstance(some, list):
            left = [each for each in map(shape.inside, some) if types(each) != {"null"}]
            if len(left) == 1:
                return left[0].resolved()
    return shape


def nullable(shape: Shape) -> Shape:
    """Return a shape that may also be null."""
    return Shape({"anyOf": [shape.schema, {"type": "null"}]}, shape.root)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion of the nearest name, to follow the unknown name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(names[:12])}" if names else "; there are none"


def table(fields: Mapping[str, Shape]) -> Shape:
    """Return a table of parts from several documents; each part keeps its own if possible."""
    described = {
        name: dict(shape.schema) if shape.schema is shape.root or "$ref" not in str(shape.schema)
        else {}
        for name, shape in fields.items()
    }  # fmt: skip
    return Shape.of({"type": "object", "properties": described, "required": sorted(fields),
                     "additionalProperties": False})  # fmt: skip
