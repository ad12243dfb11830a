"""The types that tools are declared to return, as pydantic can describe them.

On Python 3.11 it describes no `typing.TypedDict`, and nothing in which there is one; on any
version, nothing in which there is a class that it does not know. The rest of such types is known.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from typing import Any, Final

import pydantic
import typing_extensions
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

__all__ = ["describable", "schema_of"]

_UNION: Final[Any] = typing.Union
_TYPED_DICT: Final[Any] = typing_extensions.TypedDict

_UNKNOWN = (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema)


def schema_of(declared: Any) -> dict[str, Any]:
    """Return the JSON Schema of what a type is written as.

    Raises:
        pydantic.PydanticUserError: pydantic can't describe it.
        NameError: it refers to something that is not there.
    """
    return pydantic.TypeAdapter(declared).json_schema(mode="serialization")


def describable(declared: Any) -> Any:
    """Return a type that is written alike, and has a JSON Schema: what has none in it is `Any`.

    Raises:
        pydantic.PydanticUserError: a class in it lacks a part of its definition.
    """
    return _describable(declared, ())


def _describable(declared: Any, inside: tuple[Any, ...]) -> Any:
    if any(declared is each for each in inside):  # it contains itself
        return Any
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    for each in (declared, origin):
        if typing.is_typeddict(each):
            return _typed_dict(each, (*inside, each))
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        return _known(declared, (*inside, declared))
    supertype = getattr(declared, "__supertype__", None)  # of a NewType
    if supertype is not None:
        return _describable(supertype, inside)
    if origin is typing.Annotated:
        return typing.Annotated[(_describable(args[0], inside), *args[1:])]
    if origin in (typing.Union, types.UnionType):
        return _UNION[tuple(_describable(each, inside) for each in args)]
    if args and origin is not typing.Literal and not isinstance(args[0], list):
        parts = tuple(each if each is ... else _describable(each, inside) for each in args)
        return _known(origin[parts], inside) if hasattr(origin, "__class_getitem__") else Any
    return _known(declared, inside)


def _known(declared: Any, inside: tuple[Any, ...]) -> Any:
    """Return a type of which pydantic knows what it is written as; otherwise, `Any`."""
    try:
        schema_of(declared)
        return declared
    except pydantic.PydanticUserError as error:
        if not isinstance(error, _UNKNOWN) and error.code != "typed-dict-version":
            raise
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        names = {field.name for field in dataclasses.fields(declared)}
        return _table(declared, names, names, inside)
    return Any


def _typed_dict(declared: Any, inside: tuple[Any, ...]) -> Any:
    found = _table(declared, declared.__annotations__, declared.__required_keys__, inside)
    config = getattr(declared, "__pydantic_config__", None)
    if config is not None:
        found.__pydantic_config__ = config
    return found


def _table(
    declared: Any,
    names: typing.Iterable[str],
    required: typing.Container[str],
    inside: tuple[Any, ...],
) -> Any:
    """Return a typed dict with the fields of a class."""
    fields: dict[str, Any] = {}
    for name, hint in _hints(declared).items():
        kind, bare = None, hint
        while typing.get_origin(bare) in (typing.Required, typing.NotRequired):
            kind, (bare,) = typing.get_origin(bare), typing.get_args(bare)
        known = _describable(bare, inside)
        if name in names:
            is_required = name in required if kind is None else kind is typing.Required
            fields[name] = known if is_required else typing_extensions.NotRequired[known]
    return _TYPED_DICT(declared.__name__, fields)


def _hints(declared: Any) -> dict[str, Any]:
    """Return the types of a class's fields; `Any` for one whose name is not there at run time."""
    try:
        return typing.get_type_hints(declared, include_extras=True)
    except NameError:
        found: dict[str, Any] = {}
        for base in reversed(declared.__mro__):
            for name, hint in inspect.get_annotations(base).items():
                here = {"__annotations__": {name: hint}, "__module__": base.__module__}
                one = type(name, (), here)
                try:
                    found |= typing.get_type_hints(one, include_extras=True)
                except NameError:
                    found[name] = Any
        return found
