"""Encode values as tagged JSON (DESIGN §4); `decoding` restores them.

A value that JSON holds exactly is its own encoding. Any other value is `{"$rollcage": tag, "value":
…}`.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import orjson
import pydantic
import pydantic_core

from rollcage.errors import Unencodable
from rollcage.values.forms import Form, Unfit
from rollcage.values.hiding import Seal
from rollcage.values.libraries import form_of
from rollcage.values.making import fields_of, state_of
from rollcage.values.natives import native_of
from rollcage.values.survey import MAX_INT, TAG, survey, survey_safely

__all__ = [
    "BASES", "NOT_RECORDED", "TAG", "Known", "encode", "encode_result", "same_encoding", "tagged",
]  # fmt: skip

MAX_DEPTH: Final = 100  # each level takes Python up to four frames of a thousand to decode


class _NotRecorded:
    __slots__ = ()


NOT_RECORDED: Final = _NotRecorded()
"""The stand-in for an unknown value, which the source of an import left out."""


class Known(Protocol):
    """Name the classes whose values are restored: see `registered.Types`."""

    def knows(self, kind: type) -> bool:
        """Tell whether values of exactly this class are restored."""
        ...


# --- encoding ------------------------------------------------------------------------------------


def tagged(tag: str, value: Any) -> dict[str, Any]:
    """Return the tagged form of a value."""
    return {TAG: tag, "value": value}


class _Encoder:
    """Encode one value. `flaws`: None for arguments (refuse), a list for results (note)."""

    def __init__(
        self, seal: Seal, flaws: list[str] | None, types: Known | None, *, typed: bool
    ) -> None:
        self.seal = seal
        self.flaws = flaws
        self.types = types  # that are restored as themselves
        self.typed = typed  # others may be restored by a declared return type
        self.needs_type = False  # something in it can't be restored otherwise

    def flaw(self, path: str, reason: str) -> None:
        if self.flaws is None:
            raise Unencodable(path, reason)
        self.flaws.append(f"{path}: {reason}")

    def mark(self, path: str, reason: str) -> None:
        """Note that a result can't be restored exactly; arguments need not be restored."""
        if self.flaws is not None:
            self.flaws.append(f"{path}: {reason}")

    def untyped(self, path: str, value: Any) -> None:
        """Mark a value of the application's own class that nothing restores."""
        self.needs_type = True
        kind: type[Any] = type(value)
        if not self.typed and (self.types is None or not self.types.knows(kind)):
            name = kind.__qualname__
            self.mark(
                path,
                f"a {name} comes back only where its class is known: name it in the tool's return "
                f"type, or say Session(options=Options(types=[{name}]))",
            )

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Unencodable(path, f"nested deeper than {MAX_DEPTH} levels")
        kind: type[Any] = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -MAX_INT <= value <= MAX_INT else tagged("int", _digits(value))
        if kind is float:
            return value if survey(value) else tagged("float", repr(value))
        if kind is list:
            return [self.encode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        if kind is dict:
            return self.mapping(value, path, depth)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return tagged(*simple(value))
        if kind is dt.datetime or kind is dt.time:
            return self.instant(value, path, kind.__name__)
        return self.compound(value, path, depth)

    def text(self, value: str) -> Any:
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return tagged("str", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode())
        return value

    def instant(self, value: dt.datetime | dt.time, path: str, tag: str) -> Any:
        """Encode a time as ISO 8601 with its zone's name: the offset alone is not the zone."""
        zone = type(value.tzinfo)
        name = (
            getattr(value.tzinfo, "key", None) if zone.__module__.startswith("zoneinfo") else None
        )
        if name is None and value.tzinfo is not None and zone not in _FIXED_ZONES:
            self.mark(path, f"its zone, a {zone.__qualname__}, is recorded as its offset")
        if name is None and value.fold == 0:
            return tagged(tag, value.isoformat())
        return tagged(tag, [value.isoformat(), name, value.fold])

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        strings = all(type(k) is str for k in value)
        if strings and TAG not in value:
            try:
                "".join(value).encode()
            except UnicodeEncodeError:
                pass
            else:
                return self.fields(value, path, depth)
        pairs = [
            [
                self.encode(k, f"{path}.<key>", depth + 1),
                self.encode(v, f"{path}[{k!r}]", depth + 1),
            ]
            for k, v in value.items()
        ]
        if self.flaws is None:  # arguments are equal in any order; a result keeps its order
            pairs.sort(key=_order)
        return tagged("dict", pairs)

    def fields(self, value: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        return {k: self.encode(v, f"{path}.{k}", depth + 1) for k, v in value.items()}

    def with_more(
        self, fields: dict[str, Any], more: Mapping[str, Any] | None, path: str, depth: int
    ) -> Any:
        """Encode declared fields and undeclared extras, whose names can't be trusted."""
        for name in fields.keys() & (more or {}):
            self.flaw(f"{path}.{name}", "it is there twice: as a field, and as an undeclared extra")
        return self.mapping({**fields, **(more or {}), **fields}, path, depth)

    def compound(self, value: Any, path: str, depth: int) -> Any:
        kind: type[Any] = type(value)
        if kind is _NotRecorded:
            self.mark(path, "it was not recorded")
            return {TAG: "redacted"}
        if kind is tuple:
            items = [self.encode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
            return tagged("tuple", items)
        if kind is set or kind is frozenset:
            members = [self.encode(v, f"{path}.<member>", depth + 1) for v in value]
            return tagged(kind.__name__, sorted(members, key=_order))
        form = None if self.flaws is None else form_of(kind)
        if form is not None:
            return self.formed(form, value, path, depth)
        flavour = _PATHS.get(kind)
        if flavour is not None:
            return {TAG: flavour[0], "type": flavour[1], "value": self.text(str(value))}
        native = native_of(kind)
        if native is not None:
            inner = self.encode(native.project(value), path, depth + 1)
            encoded = {TAG: "native", "type": native.name, "value": inner}
            return encoded if native.portable else {**encoded, "only": native.name.split(".")[0]}
        if isinstance(value, (pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret)):
            return self.secret(value, path, depth)
        return self.typed_value(value, path, depth)

    def formed(self, form: Form, value: Any, path: str, depth: int) -> Any:
        """Encode a result whose type has a form of its own: see `forms`."""
        try:
            parts = form.take(value, lambda inner, at: self.encode(inner, f"{path}{at}", depth + 1))
        except Unfit as unfit:
            self.flaw(path, str(unfit))
            kind: type[Any] = type(value)
            return _opaque(kind)
        if form.check:
            self.needs_type = True  # restoring it is tried, not assumed
        return {TAG: form.tag, **parts}

    def secret(self, value: Any, path: str, depth: int) -> Any:
        self.mark(path, "a secret is never recorded")
        inner = value.get_secret_value()
        if isinstance(inner, bytes):
            inner = inner.hex()
        if not isinstance(inner, str):
            inner = _order(self.encode(inner, path, depth + 1)).decode()
        return tagged("secret", self.seal(f"{type(value).__name__}:{inner}"))

    def typed_value(self, value: Any, path: str, depth: int) -> Any:
        """Encode a value that is restored only if its class is known."""
        kind: type[Any] = type(value)
        if self.types is not None:
            self.types.knows(kind)  # before its parts: with it come the classes of its fields
        more: dict[str, Any] = {}
        if isinstance(value, enum.Enum):
            tag, inner = "enum", self.encode(value.value, path, depth + 1)
            more = {"name": value.name}
        elif isinstance(value, pydantic.BaseModel):
            own = value.__dict__
            fields = {n: own[n] for n in type(value).__pydantic_fields__ if n in own}
            tag, inner = "model", self.with_more(fields, value.__pydantic_extra__, path, depth)
            if self.flaws is not None:
                held = {*fields, *(value.__pydantic_extra__ or ())}
                if not held <= value.__pydantic_fields_set__:
                    more["set"] = sorted(value.__pydantic_fields_set__)
                if value.__pydantic_private__:
                    # Not part of an argument, but a result would not be the same without them.
                    more["private"] = self.fields(value.__pydantic_private__, path, depth)
        elif dataclasses.is_dataclass(kind) or self.is_attrs(kind):
            fields = fields_of(value)
            extra = _more_of_dataclass(value, fields)
            tag, inner = "dataclass", self.with_more(fields, extra, path, depth)
        elif _is_url(value):
            tag, inner = "url", str(value)
        else:
            return self.unknown(value, path, depth)
        return self.named(tag, value, inner, path, more)

    def is_attrs(self, kind: type[Any]) -> bool:
        """Tell whether a class is an attrs class: results may be one, arguments may not."""
        return self.flaws is not None and hasattr(kind, "__attrs_attrs__")

    def named(self, tag: str, value: Any, inner: Any, path: str, more: dict[str, Any]) -> Any:
        """Return an encoding that names a class; a result's also has the module and other parts.

        An argument's has neither: the key of a call must not change when a class moves.
        """
        kind: type[Any] = type(value)
        self.untyped(path, value)
        encoded = {TAG: tag, "type": kind.__qualname__, "value": inner}
        return encoded if self.flaws is None else {**encoded, "module": kind.__module__, **more}

    def unknown(self, value: Any, path: str, depth: int) -> Any:
        kind: type[Any] = type(value)
        for base, plain in BASES.items():
            if isinstance(value, base):
                inner = self.encode(plain(value), path, depth + 1)
                if self.flaws is None:  # equal to its base, so the same argument
                    return inner
                state = state_of(value)
                is_known = self.types is not None and self.types.knows(kind)
                if base is str and not state and not is_known:
                    return inner  # a text without more
                more = {"state": self.mapping(state, path, depth)} if state else {}
                return self.named("subclass", value, inner, path, more)
        self.flaw(path, f"a {kind.__module__}.{kind.__qualname__} has no encoding")
        return _opaque(kind)


def _opaque(kind: type[Any]) -> dict[str, Any]:
    return {TAG: "opaque", "type": f"{kind.__module__}.{kind.__qualname__}", "value": None}


def _more_of_dataclass(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras of a Pydantic dataclass, if it allows any."""
    config: Mapping[str, Any] = getattr(type(value), "__pydantic_config__", None) or {}
    if config.get("extra") != "allow":
        return {}
    held: dict[str, Any] = getattr(value, "__dict__", {})
    return {name: each for name, each in held.items() if name not in fields}


def _is_url(value: Any) -> bool:
    """Tell whether a value is a Pydantic URL; if so, the module of URLs is already loaded."""
    networks = sys.modules.get("pydantic.networks")
    if networks is None:
        return False
    several_hosts = networks.PostgresDsn.__bases__[0]  # it has no public name
    return isinstance(value, (networks.AnyUrl, several_hosts))


def _order(encoded: Any) -> bytes:
    return orjson.dumps(encoded, option=orjson.OPT_SORT_KEYS)


def same_encoding(one: Any, other: Any) -> bool:
    """Tell whether two encodings hold the same value, of the same type, in the same order."""
    return orjson.dumps(one) == orjson.dumps(other)


_SIMPLE: Final[dict[type, Callable[[Any], tuple[str, Any]]]] = {
    dt.date: lambda v: ("date", v.isoformat()),
    dt.timedelta: lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
    bytes: lambda v: ("bytes", base64.b64encode(v).decode()),
    bytearray: lambda v: ("bytearray", base64.b64encode(v).decode()),
    Decimal: lambda v: ("decimal", str(v)),
    UUID: lambda v: ("uuid", str(v)),
    complex: lambda v: ("complex", [repr(v.real), repr(v.imag)]),
}
_PATHS: Final[dict[type, tuple[str, str]]] = {
    PosixPath: ("path", "posix"),
    WindowsPath: ("path", "windows"),
    PurePosixPath: ("purepath", "posix"),
    PureWindowsPath: ("purepath", "windows"),
}
_FIXED_ZONES: Final = (dt.timezone, pydantic_core.TzInfo)  # an offset says all of them


# By base class, the function that turns an instance of a subclass into one.
BASES: Final[dict[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    list: list,
    dict: dict,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    bytes: bytes,
    dt.datetime: lambda v: dt.datetime.combine(dt.datetime.date(v), dt.datetime.timetz(v)),
    dt.date: lambda v: dt.date(v.year, v.month, v.day),
    dt.timedelta: lambda v: dt.timedelta(v.days, v.seconds, v.microseconds),
    Decimal: Decimal,
    UUID: lambda v: UUID(int=v.int),
}


def _digits(value: int) -> str:
    """Return an integer as text; Python bounds the length of decimal texts."""
    return str(value) if value.bit_length() < 1024 else hex(value)


def encode(value: Any, seal: Seal, *, path: str = "$") -> Any:
    """Encode a call's arguments.

    An instance of a subclass of `str`, `int`, `dict` or the like is encoded as its base.

    Raises:
        Unencodable: a value without an encoding, with its path.
    """
    if survey_safely(value):
        return value
    return _encode(_Encoder(seal, None, None, typed=False), value, path)


class EncodedResult(NamedTuple):
    """Hold the encoded result of a tool."""

    value: Any
    flaws: list[str]  # the parts that can't be restored as they were, with paths
    needs_type: bool  # whether restoring it has to be tried


def encode_result(
    value: Any, seal: Seal, *, typed: bool = False, types: Known | None = None
) -> EncodedResult:
    """Encode the result of a tool, and list the parts that can't be restored exactly.

    `types` are restored as themselves. `typed` means that the tool declares a return type, which
    may restore others.
    """
    if survey_safely(value):
        return EncodedResult(value, [], needs_type=False)
    flaws: list[str] = []
    encoder = _Encoder(seal, flaws, types, typed=typed)
    try:
        return EncodedResult(_encode(encoder, value, "$"), flaws, encoder.needs_type)
    except Unencodable as error:
        return EncodedResult(_opaque(type(value)), [*flaws, str(error)], needs_type=False)


def _encode(encoder: _Encoder, value: Any, path: str) -> Any:
    try:
        return encoder.encode(value, path)
    except RecursionError:
        raise Unencodable(path, "nested too deep, or contains itself") from None
    except Unencodable:
        raise
    except Exception as error:
        # Inspecting a value may run its own code; by then the call has already happened.
        raise Unencodable(path, f"can't be inspected: {type(error).__name__}") from error
