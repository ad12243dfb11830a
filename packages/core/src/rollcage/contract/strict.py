"""Which of a call's arguments would have to be coerced: a strict tool refuses them.

An argument must have its declared type in Python, or in JSON, where a date is a string and a tuple
a list: models write JSON. `"3"` for an int is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import pydantic
import pydantic_core

__all__ = ["coerced"]

_JSON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}
_OTHER: Final = ("missing", "extra_forbidden")  # of a framework's own arguments, which come later
_WANTED: Final = "Input should be "


def coerced(
    schema: type[pydantic.BaseModel] | Mapping[str, Any],
    raw: Mapping[str, Any],
    secret: frozenset[str],
) -> list[str]:
    """A message for each argument that does not have its declared type: both types are named.

    Args:
        schema: the Pydantic model of the tool's arguments, or their JSON Schema.
        raw: the arguments, as they were requested.
        secret: names whose values are not shown; their types are.
    """
    if isinstance(schema, Mapping):
        return _by_json_schema(schema, raw)
    validator = schema.__pydantic_validator__
    in_python = _errors(lambda: validator.validate_python(raw, strict=True))
    if not in_python:
        return []
    try:
        text = pydantic_core.to_json(dict(raw))
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError):
        in_json = in_python
    else:
        in_json = _errors(lambda: validator.validate_json(text, strict=True))
    odd = {each["loc"][0] for each in in_python if each["loc"]}
    return [
        _message(schema, each, secret)
        for each in in_json
        if each["loc"] and each["loc"][0] in odd and each["type"] not in _OTHER
    ]


def _errors(validate: Callable[[], Any]) -> list[Any]:
    try:
        validate()
    except pydantic.ValidationError as error:
        return cast("list[Any]", error.errors(include_url=False, include_context=False))
    except Exception:  # noqa: BLE001 - the user's own validator: `bind` reports its errors
        return []
    return []


def _message(schema: type[pydantic.BaseModel], error: Any, secret: frozenset[str]) -> str:
    place = error["loc"]
    named = ".".join(map(str, place))
    given = type(error["input"]).__name__
    field = schema.__pydantic_fields__.get(str(place[0]))
    wanted = str(error["msg"]).removeprefix(_WANTED)
    if len(place) == 1 and field is not None:
        annotation: Any = field.annotation
        plain = isinstance(annotation, type)
        wanted = annotation.__name__ if plain else str(annotation).replace("typing.", "")
    elif place[0] in secret:
        wanted = "another type"
    return f"{named}: a value of type {given} was given, {wanted} is wanted"


def _by_json_schema(schema: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    found: list[str] = []
    for name, value in raw.items():
        says: Any = properties.get(name)
        types = cast("Mapping[str, Any]", says).get("type") if isinstance(says, Mapping) else None
        wanted: list[Any] = [types] if isinstance(types, str) else cast("list[Any]", types or [])
        if wanted and not any(_is(value, each) for each in wanted):
            given = type(value).__name__
            words = " or ".join(map(str, wanted))
            found.append(f"{name}: a value of type {given} was given, {words} is wanted")
    return found


def _is(value: Any, named: Any) -> bool:
    """Whether a value has a type of JSON Schema; an unknown type refuses nothing."""
    kinds = _JSON_TYPES.get(named) if isinstance(named, str) else None
    if kinds is None:
        return True
    if isinstance(value, bool) and named in ("integer", "number"):
        return False
    if named == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kinds)
