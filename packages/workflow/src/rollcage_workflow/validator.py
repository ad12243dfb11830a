"""JSON Schema for foreign schemas: no pattern can hang it, no reference leaves it.

Patterns are matched by the regular expressions of pydantic-core (Rust), in time that is linear in
the text. Patterns that need look-around or back references are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonschema
import jsonschema.validators
import referencing
from jsonschema.exceptions import ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema

__all__ = ["SchemaUnusable", "validator_of"]

_LITERALS: Final = frozenset({"const", "default", "enum", "examples"})


class SchemaUnusable(ValueError):
    """The schema can't be used for comparisons; the message says why."""


def validator_of(schema: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    """Return a validator for a schema.

    Raises:
        SchemaUnusable: one of its patterns can't be matched in linear time.
    """
    _check_patterns(schema)
    made: jsonschema.Draft202012Validator = _Validator(
        schema,
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        registry=referencing.Registry(),  # it fetches nothing
    )
    return made


def _check_patterns(schema: object) -> None:
    if isinstance(schema, list):
        for each in schema:
            _check_patterns(each)
    elif isinstance(schema, Mapping):
        named = schema.get("patternProperties")
        patterns = [*named] if isinstance(named, Mapping) else []
        if patterns and "unevaluatedProperties" in schema:
            raise SchemaUnusable("use additionalProperties beside patternProperties")
        for pattern in (*patterns, schema.get("pattern")):
            if isinstance(pattern, str):
                _matcher(pattern)
        for word, part in schema.items():
            if word not in _LITERALS:
                _check_patterns(part)


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> SchemaValidator:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError as error:
        why = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
        raise SchemaUnusable(
            f"the pattern {pattern[:100]!r} is invalid, or can't be matched in linear time: "
            f"{why.removeprefix('error: ')[:150]}"
        ) from None


def _matches(pattern: str, text: str) -> bool:
    return _matcher(pattern).isinstance_python(text)


# --- the keywords of JSON Schema that hold patterns ----------------------------------------------


def _pattern(
    validator: Any, pattern: str, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    del schema
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, named: Mapping[str, Any], instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    del schema
    if validator.is_type(instance, "object"):
        for pattern, part in named.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, named = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in known or any(_matches(pattern, name) for pattern in named):
            continue
        if part is False:
            yield ValidationError(f"additional properties are not allowed: {name!r}")
        else:
            yield from validator.descend(value, part, path=name)


_Validator: Final[Any] = jsonschema.validators.extend(  # type: ignore[no-untyped-call]  # its stubs
    jsonschema.Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)
