"""Restore a value of a registered class from its recorded parts.

The parts are hostile input: each value goes through its class's own constructor or validation, and
a misfit raises.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import pydantic

__all__ = ["fields_of", "made", "state_of"]


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of an instance of a dataclass or attrs class."""
    return {name: getattr(value, name) for name, *_ in _declared(type(value))}


def state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance of a class derived from a builtin."""
    state = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                state[name] = getattr(value, name)
    return state


def made(kind: type[Any], tag: str, encoded: Mapping[str, Any], back: Callable[[Any], Any]) -> Any:
    """Make the value for an encoding that names `kind`; `back` decodes its parts.

    Raises:
        Exception: the parts do not fit this class; or any error of its constructor.
    """
    return _MAKERS[tag](kind, encoded, back)


def _enum(kind: type[Any], encoded: Mapping[str, Any], back: Callable[[Any], Any]) -> Any:
    _expect(kind, "enum", issubclass(kind, enum.Enum))
    name = encoded.get("name")
    member = kind(back(encoded["value"]))
    if name is not None and member.name != name:
        raise ValueError(f"the member recorded as {_short(name)} is {member.name} now")
    return member


def _model(kind: type[Any], encoded: Mapping[str, Any], back: Callable[[Any], Any]) -> Any:
    _expect(kind, "Pydantic model", issubclass(kind, pydantic.BaseModel))
    fields = _object(back(encoded["value"]))
    data = fields["root"] if kind.__pydantic_root_model__ else fields
    model = kind.model_validate(data, by_alias=False, by_name=True)
    for name, each in _object(back(encoded.get("private", {}))).items():
        if name not in kind.__private_attributes__:
            raise ValueError(f"it has no private attribute {_short(name)}")
        setattr(model, name, each)
    was_set = encoded.get("set")
    if was_set is not None:  # the others are its defaults, as they were
        object.__setattr__(model, "__pydantic_fields_set__", set(was_set) & fields.keys())
    return model


def _fields(kind: type[Any], encoded: Mapping[str, Any], back: Callable[[Any], Any]) -> Any:
    declared = {name: (init, parameter) for name, init, parameter in _declared(kind)}
    values = _object(back(encoded["value"]))
    unknown = sorted(values.keys() - declared.keys())
    if unknown:
        raise ValueError(f"it has no field {_short(unknown[0])}")
    made_of = {declared[name][1]: each for name, each in values.items() if declared[name][0]}
    value = kind(**made_of)
    for name, each in values.items():
        if not declared[name][0]:  # computed by its constructor
            object.__setattr__(value, name, each)
    return value


def _declared(kind: type[Any]) -> Iterator[tuple[str, bool, str]]:
    """Yield the fields of a class: name, whether the constructor takes it, and under which name."""
    if dataclasses.is_dataclass(kind):
        return ((each.name, each.init, each.name) for each in dataclasses.fields(kind))
    attributes = getattr(kind, "__attrs_attrs__", None)
    _expect(kind, "class with fields", attributes is not None)
    return ((each.name, each.init, each.alias) for each in attributes or ())


def _derived(kind: type[Any], encoded: Mapping[str, Any], back: Callable[[Any], Any]) -> Any:
    plain = back(encoded["value"])
    base = type(plain)
    _expect(kind, base.__name__, issubclass(kind, base))
    make = _FROM_BASE.get(base)
    if make is not None:
        value = make(kind, plain)
    elif base is tuple and hasattr(kind, "_make"):
        value = kind._make(plain)
    else:
        value = kind(plain)
    for name, each in _object(back(encoded.get("state", {}))).items():
        if name.startswith("__"):
            raise ValueError(f"{_short(name)} is no attribute of a value")
        object.__setattr__(value, name, each)
    return value


def _url(kind: type[Any], encoded: Mapping[str, Any], back: Callable[[Any], Any]) -> Any:
    return pydantic.TypeAdapter(kind).validate_python(back(encoded["value"]))


_MAKERS: Final[dict[str, Callable[[type[Any], Mapping[str, Any], Callable[[Any], Any]], Any]]] = {
    "enum": _enum, "model": _model, "dataclass": _fields, "subclass": _derived, "url": _url,
}  # fmt: skip
_FROM_BASE: Final[dict[type, Callable[[type[Any], Any], Any]]] = {
    dt.datetime: lambda kind, v: kind(
        v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo, fold=v.fold
    ),
    dt.date: lambda kind, v: kind(v.year, v.month, v.day),
    dt.timedelta: lambda kind, v: kind(v.days, v.seconds, v.microseconds),
    UUID: lambda kind, v: kind(int=v.int),
}  # fmt: skip


def _object(parts: Any) -> dict[str, Any]:
    """Return parts by their names."""
    if type(parts) is not dict or not all(isinstance(name, str) for name in parts):
        raise ValueError("its parts have no names")
    named: dict[str, Any] = parts
    return named


def _expect(kind: type[Any], what: str, holds: bool) -> None:  # noqa: FBT001 - called in here only
    if not holds:
        raise ValueError(f"{kind.__qualname__} is no {what}")


def _short(text: Any) -> str:
    return repr(text)[:50]
