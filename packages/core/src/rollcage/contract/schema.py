"""Read a schema: does each value have exactly one JSON form?

Pure functions over types and JSON Schemas; `Contract` makes canonical arguments with them.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import inspect
import itertools
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args, get_origin
from uuid import UUID

import pydantic
import pydantic_core

from rollcage.errors import ContractError

__all__ = [
    "JsonForm",
    "as_schema_says",
    "field_forms",
    "is_signature",
    "one_form",
    "signature_model",
]

JsonForm = bool | Callable[[Any], bool]
"""Whether a value has one lossless JSON form: always, never, or as a check decides."""


# --- one JSON form -------------------------------------------------------------------------------

_SCALARS: Final = (str, int, float, bool)
_ALWAYS: Final = {*_SCALARS, type(None), dt.date, dt.timedelta, Decimal, UUID, Path}
_ODD: Final = {
    "json_encoders", "ser_json_bytes", "ser_json_inf_nan", "ser_json_temporal",
    "ser_json_timedelta",
}  # fmt: skip


def one_form(annotation: Any, inside: Mapping[Any, list[JsonForm]] | None = None) -> JsonForm:
    """Tell whether the values of a type have one JSON form each, as Pydantic dumps them.

    False for `Any`, bare containers, sets (no order), bytes (not always text), secrets, and unknown
    types. `inside` are the enclosing models, for models that contain themselves.
    """
    inside = inside or {}
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return not _custom(parts[1:]) and one_form(parts[0], inside)
    if origin is Literal:
        return all(type(each) in (*_SCALARS, type(None)) for each in parts)
    if origin is typing.Union or origin is types.UnionType:
        some = [each for each in parts if each is not type(None)]
        if len(some) > 1:  # two types with one JSON form must not share a key
            return all(each in _SCALARS for each in some)
        form = one_form(some[0], inside)
        return (lambda v: v is None or form(v)) if callable(form) else form
    if origin in (list, tuple, dict):
        return _container_form(origin, parts, inside)
    if origin is not None or not isinstance(annotation, type):
        return False
    if annotation in (dt.datetime, dt.time):
        return _plain_instant
    if issubclass(annotation, enum.Enum):
        return all(type(each.value) in (*_SCALARS, type(None)) for each in annotation)
    if issubclass(annotation, pydantic.BaseModel):
        return _model_form(annotation, inside)
    return annotation in _ALWAYS


def _custom(metadata: Iterable[Any]) -> bool:
    """Tell whether any metadata may change how a value is dumped."""
    return any(hasattr(each, "__get_pydantic_core_schema__") for each in metadata)


def _plain_instant(value: Any) -> bool:
    """Tell whether ISO 8601 is lossless: no zone name or fold, and offsets in whole minutes."""
    zone = value.tzinfo
    if value.fold or not (zone is None or type(zone) in (dt.timezone, pydantic_core.TzInfo)):
        return False
    offset = value.utcoffset()
    return offset is None or not offset % dt.timedelta(minutes=1)


def _container_form(
    origin: Any, parts: tuple[Any, ...], inside: Mapping[Any, list[JsonForm]]
) -> JsonForm:
    if origin is dict:
        key, item = parts
        if (
            key is not str and key is not int
        ):  # as keys, 1 and "1", or None and "None", are the same
            return False
        form = one_form(item, inside)
        return (lambda v: all(map(form, v.values()))) if callable(form) else form
    repeated = origin is list or (len(parts) == 2 and parts[1] is ...)
    forms = [one_form(each, inside) for each in (parts[:1] if repeated else parts)]
    if not all(forms):
        return False
    checks = [form if callable(form) else _true for form in forms]
    if repeated:
        check = checks[0]
        return True if check is _true else lambda v: all(map(check, v))
    if all(check is _true for check in checks):
        return True
    return lambda v: all(check(each) for check, each in zip(checks, v, strict=True))


def _true(_: Any) -> bool:
    return True


def _model_form(model: type[pydantic.BaseModel], inside: Mapping[Any, list[JsonForm]]) -> JsonForm:
    """Return the form of a model: the form of its fields, except for an instance of a subclass."""
    if model in inside:
        return lambda v: all(form(v) for form in inside[model] if callable(form))
    found: list[JsonForm] = []
    forms = field_forms(model, {**inside, model: found})
    if model.model_config.get("extra") == "allow" or not all(forms.values()):
        return False
    checks = {name: form for name, form in forms.items() if callable(form)}

    def check(value: Any) -> bool:
        own = value.__dict__
        return type(value) is model and all(form(own[name]) for name, form in checks.items())

    found.append(check)
    return check


def field_forms(
    model: type[pydantic.BaseModel], inside: Mapping[Any, list[JsonForm]] | None = None
) -> dict[str, JsonForm]:
    """Return the form of each of a model's fields; never, if the model customises its dump."""
    fields = model.__pydantic_fields__
    own = model.__pydantic_decorators__
    schema = getattr(model.__get_pydantic_core_schema__, "__func__", None)
    if (
        own.field_serializers
        or own.model_serializers
        or own.computed_fields
        or schema is not pydantic.BaseModel.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined] # a bound method has it
        or _ODD & model.model_config.keys()
    ):
        return dict.fromkeys(fields, False)
    return {
        name: not (field.exclude or field.exclude_if or _custom(field.metadata))
        and one_form(field.annotation, inside)
        for name, field in fields.items()
    }


# --- JSON Schema ---------------------------------------------------------------------------------

Schema = Mapping[str, Any]

_DEEPEST: Final = 20  # levels of nesting that are looked into
_MANY: Final = 100  # alternatives that are looked into
_EXACT: Final = 2**53  # up to here each integer is a float of its own


def as_schema_says(declared: Any, value: Any, root: Schema, depth: int = 0) -> Any:
    """Convert each number as its schema declares it: 1 may be a `number`, 1.0 an `integer`.

    JSON Schema has one number type, so both are the same argument. `root` resolves references.
    """
    kind: type[Any] = type(value)
    if kind not in (int, float, list, dict) or depth > _DEEPEST:
        return value
    schemas = list(_alternatives(declared, root, set()))
    if kind is int or kind is float:
        wanted = [word for each in schemas for word in _listed(each.get("type"))]
        if kind is int and "number" in wanted and abs(value) <= _EXACT:
            return float(value)
        integral = kind is float and "integer" in wanted and "number" not in wanted
        return int(value) if integral and value.is_integer() else value
    words = ("properties", "additionalProperties") if kind is dict else ("items", "prefixItems")
    named = [each for each in schemas if any(word in each for word in words)]
    if len(named) != 1:
        return value
    schema = named[0]
    if kind is dict:
        own, rest = _object(schema.get("properties")), schema.get("additionalProperties")
        return {
            name: as_schema_says(own.get(name, rest), item, root, depth + 1)
            for name, item in value.items()
        }
    first, rest = _listed(schema.get("prefixItems", [])), schema.get("items")
    says = itertools.chain(first, itertools.repeat(rest))
    return [as_schema_says(s, v, root, depth + 1) for s, v in zip(says, value, strict=False)]


def _object(value: Any) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list):
        several: list[Any] = value
        return several
    return [value]


def _alternatives(declared: Any, root: Schema, seen: set[int]) -> Iterator[Schema]:
    """Yield a schema, and the schemas that it references or combines, each once."""
    schema = _object(declared)
    if not schema or id(declared) in seen or len(seen) > _MANY:
        return
    seen.add(id(declared))
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for part in reference[2:].split("/"):
            found = _object(found).get(part)
        yield from _alternatives(found, root, seen)
    for word in ("anyOf", "oneOf", "allOf"):
        for each in _listed(schema.get(word)):
            yield from _alternatives(each, root, seen)


# --- a function's signature ----------------------------------------------------------------------


@functools.cache
def _signature_base() -> type[pydantic.BaseModel]:
    """Return the base of models made from a function's parameters; created when first needed."""

    class FromParameters(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(protected_namespaces=())

    return FromParameters


def is_signature(model: type[pydantic.BaseModel]) -> bool:
    """Tell whether a model was made from a function's parameters.

    Such a model accepts no other keyword, as Python does: a misspelt one must not be dropped.
    """
    return issubclass(model, _signature_base())


def signature_model(
    name: str, function: Callable[..., Any], hints: Mapping[str, Any]
) -> type[pydantic.BaseModel]:
    """Make the model of a function's parameters.

    Raises:
        ContractError: a parameter can't be passed by name, or has no usable type.
    """
    fields: dict[str, Any] = {}
    base = _signature_base()
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name}: Python can't read its signature") from error
    for index, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_KEYWORD:
            base = _open_base(hints.get(parameter.name, Any))
            continue
        _check_parameter(name, parameter, first=index == 0)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    try:
        with warnings.catch_warnings():  # a parameter may be called `copy` or `json`
            warnings.simplefilter("ignore", UserWarning)
            return pydantic.create_model(name, __base__=base, **fields)
    except (pydantic.PydanticUserError, TypeError, NameError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ContractError(f"{name}: its parameters have no schema: {reason}") from error


def _check_parameter(name: str, parameter: inspect.Parameter, *, first: bool) -> None:
    untyped = parameter.annotation is parameter.empty
    if first and untyped and parameter.name in ("self", "cls"):
        raise ContractError(
            f"{name}: an unbound method can't be a tool; declare a bound one: "
            f"tool(an_object.{name})"
        )
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        raise ContractError(f"{name}: parameter {parameter.name!r} can't be passed by name")
    if parameter.name.startswith("_"):
        raise ContractError(f"{name}: parameter {parameter.name!r} may not start with '_'")
    if parameter.name == "model_config":
        raise ContractError(f"{name}: Pydantic keeps the name 'model_config' for itself; rename it")


def _open_base(values: Any) -> type[pydantic.BaseModel]:
    """Make a base that takes any further keyword, with values of one type (`**more: int`)."""
    return type(
        "OpenSignature",
        (pydantic.BaseModel,),
        {
            "__module__": __name__,
            "__annotations__": {"__pydantic_extra__": dict[str, values]},
            "model_config": pydantic.ConfigDict(protected_namespaces=(), extra="allow"),
        },
    )
