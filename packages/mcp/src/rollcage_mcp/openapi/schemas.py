"""The schemas of a document as self-contained JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, cast

from rollcage_mcp.errors import OpenAPIInvalid
from rollcage_mcp.openapi.document import Document

__all__ = ["Schemas", "without_patterns"]

_MOST: Final = 50_000  # values in the schemas of one operation

_NOT_TAKEN: Final = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef")
_SAME_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_OF_DATA: Final = ("const", "default", "enum", "example", "examples")
_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")


class Schemas:
    """Extracts the schemas of one operation from a document, with all references.

    Args:
        document: the document.

    Attributes:
        defs: the referenced schemas, by name: for `$defs`.
    """

    def __init__(self, document: Document) -> None:
        self.defs: dict[str, Any] = {}
        self._document = document
        self._names: dict[str, str] = {}
        self._count = 0

    def taken(self, schema: Any) -> Any:
        """Return a schema whose references lead into `defs`.

        Raises:
            OpenAPIInvalid: a reference leads out of the document, to nothing, or in a circle that
                no value ends; or the schemas are too large.
        """
        found = self._own(schema)
        self._check_circles()
        return found

    def _own(self, schema: Any) -> Any:
        self._count += 1
        if self._count > _MOST:
            raise OpenAPIInvalid(f"{self._document.source}: its schemas have too many parts")
        if not isinstance(schema, dict):
            return [self._own(each) for each in schema] if isinstance(schema, list) else schema
        declared = cast("dict[str, Any]", schema)
        reference: Any = declared.get("$ref")
        refused = next((word for word in _NOT_TAKEN if word in declared), None)
        if refused is not None:
            raise OpenAPIInvalid(f"{self._document.source}: {refused} in a schema is not taken")
        if reference is not None and (not isinstance(reference, str) or self._document.is_old):
            return {"$ref": self._named(str(reference))}  # in 3.0, nothing beside it counts
        found = {word: self._part(word, each) for word, each in declared.items() if word != "$ref"}
        if reference is not None:
            found["$ref"] = self._named(reference)
        return _renewed(found) if self._document.is_old else found

    def _part(self, word: str, each: Any) -> Any:
        if word in _OF_DATA:
            return each
        if word in _BY_NAME and isinstance(each, dict):
            named = cast("dict[str, Any]", each)
            return {name: self._own(inner) for name, inner in named.items()}
        return self._own(each) if isinstance(each, dict | list) else each

    def _named(self, reference: str) -> str:
        """Return the reference to the same schema in `defs`."""
        if reference not in self._names:
            schema = self._document.at(reference)
            wanted = reference.rpartition("/")[2].replace("~1", "_").replace("~0", "_") or "schema"
            name, number = wanted, 1
            while name in self.defs:
                number += 1
                name = f"{wanted}-{number}"
            self._names[reference] = name
            self.defs[name] = {}  # before its content: it may refer to itself
            self.defs[name] = self._own(schema)
        pointer = self._names[reference].replace("~", "~0").replace("/", "~1")
        return f"#/$defs/{pointer}"

    def _check_circles(self) -> None:
        graph = {f"#/$defs/{name}": set(_same_value(each)) for name, each in self.defs.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = " → ".join(each.rpartition("/")[2] for each in error.args[1])
            raise OpenAPIInvalid(
                f"{self._document.source}: schemas refer to each other in a circle: {circle[:300]}"
            ) from None


def _same_value(schema: Any) -> Iterator[str]:
    """Yield a schema's references about the same value as the schema itself."""
    if isinstance(schema, list):
        for each in schema:
            yield from _same_value(each)
    elif isinstance(schema, dict):
        declared = cast("dict[str, Any]", schema)
        if "$ref" in declared:
            yield declared["$ref"]
        for word in _SAME_PLACE:
            if word in declared:
                yield from _same_value(declared[word])


def _renewed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of OpenAPI 3.0 as JSON Schema, with the differences translated."""
    found = {word: each for word, each in schema.items() if word not in ("nullable", "example")}
    for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(word), bool):
            is_exclusive = found.pop(word)
            if is_exclusive and limit in found:
                found[word] = found.pop(limit)
    if schema.get("nullable") is True and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
        if isinstance(found.get("enum"), list) and None not in found["enum"]:
            found["enum"] = [*found["enum"], None]
    return found


def without_patterns(schema: Any) -> Any:
    """Return a schema without regular expressions: a foreign one may take exponential time."""
    if isinstance(schema, list):
        return [without_patterns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    declared = cast("Mapping[str, Any]", schema)
    left_out = {"pattern", "patternProperties"}
    if "patternProperties" in declared:  # otherwise names that these allow would be refused
        left_out |= {"additionalProperties", "unevaluatedProperties"}
    found: dict[str, Any] = {}
    for word, each in declared.items():
        if word in _BY_NAME and word not in left_out and isinstance(each, dict):
            named = cast("dict[str, Any]", each)
            found[word] = {name: without_patterns(inner) for name, inner in named.items()}
        elif word not in left_out:
            found[word] = each if word in _OF_DATA else without_patterns(each)
    return found
