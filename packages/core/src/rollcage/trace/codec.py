"""Values as tagged JSON, and back. Decoding imports and runs nothing that a trace names (DESIGN §4).

A value that JSON holds exactly is its own encoding. All else is `{"$rollcage": tag, "value": …}`.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import datetime as dt
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple, Protocol, cast
from uuid import UUID

import orjson
import pydantic

from rollcage.errors import ReplayedError, Unencodable

__all__ = [
    "CANONICAL",
    "FOREIGN",
    "PLAIN",
    "TAG",
    "Native",
    "Seal",
    "decode",
    "decode_exception",
    "encode",
    "encode_exception",
    "encode_result",
    "register_native",
    "survey",
]

TAG: Final = "$rollcage"
MAX_DEPTH: Final = 200  # orjson's own limit is 254, and an event wraps its values
_MAX_INT: Final = 2**53 - 1
_SMALLEST: Final = 1e-5  # orjson writes what is smaller with an exponent before ECMAScript does
_INFINITY: Final = math.inf

FOREIGN: Final = 0  # holds something that plain JSON, as the trace uses it, does not
PLAIN: Final = 1  # is its own encoding, but orjson's bytes may differ from JCS
CANONICAL: Final = 2  # is its own encoding, and orjson's sorted bytes are its JCS

Seal = Callable[[str], str]
"""Turns a secret into its HMAC under the store's key (hex)."""


def survey(value: Any) -> int:
    """Tell how much of a detour a value needs: `CANONICAL`, `PLAIN` or `FOREIGN`.

    Integral floats are foreign: JCS writes 1.0 as 1, and the two must not share a key.
    Strings are not looked into: a lone surrogate shows when the value is written.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return CANONICAL
    if kind is int:
        return CANONICAL if -_MAX_INT <= value <= _MAX_INT else FOREIGN
    if kind is float:
        if value.is_integer() or not -_INFINITY < value < _INFINITY:
            return FOREIGN
        return CANONICAL if value >= _SMALLEST or value <= -_SMALLEST else PLAIN
    level = CANONICAL
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or name == TAG:
                return FOREIGN
            found = survey(item)
            if found < level:
                if not found:
                    return FOREIGN
                level = found
            if level == CANONICAL and not name.isascii():
                level = PLAIN
        return level
    if kind is list:
        for item in value:
            found = survey(item)
            if found < level:
                if not found:
                    return FOREIGN
                level = found
        return level
    return FOREIGN


# --- values of a framework -----------------------------------------------------------------------


class Native(Protocol):
    """How an adapter carries a value of its framework: neutral data that brings it back.

    `project` gives data that any reader can use; `revive` makes the native value from the data
    again and must take them as hostile input; `neutral` is what a reader without the framework
    gets (the data themselves unless the adapter says better).
    """

    name: str

    def project(self, value: Any) -> Any:
        """Data for a native value."""
        ...

    def revive(self, data: Any) -> Any:
        """The native value for these data; raises ValueError where they are none of ours."""
        ...

    def neutral(self, data: Any) -> Any:
        """What a reader without the framework gets."""
        ...


_natives_by_type: dict[type, Native] = {}
_natives_by_name: dict[str, Native] = {}


def register_native(types: Iterable[type], native: Native) -> None:
    """Teach the codec a framework's types (exact types, not their subclasses)."""
    _natives_by_name[native.name] = native
    for each in types:
        _natives_by_type[each] = native


# --- encoding ------------------------------------------------------------------------------------


def tagged(tag: str, value: Any) -> dict[str, Any]:
    """The tagged form of a value."""
    return {TAG: tag, "value": value}


class _Encoder:
    """One encoding. `flaws` is None for arguments (refuse), a list for results (mark and go on)."""

    def __init__(self, seal: Seal, flaws: list[str] | None, *, typed: bool) -> None:
        self.seal = seal
        self.flaws = flaws
        self.typed = typed  # models come back through a declared return type
        self.needs_type = False  # something in it comes back in no other way

    def flaw(self, path: str, reason: str) -> None:
        if self.flaws is None:
            raise Unencodable(path, reason)
        self.flaws.append(f"{path}: {reason}")

    def untyped(self, path: str, value: Any) -> None:
        """Mark a typed value that nothing declared can bring back."""
        self.needs_type = True
        if self.flaws is not None and not self.typed:
            name = type(value).__qualname__
            self.flaws.append(f"{path}: a {name} comes back only through a declared return type")

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Unencodable(path, f"nested deeper than {MAX_DEPTH} levels")
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -_MAX_INT <= value <= _MAX_INT else tagged("int", _digits(value))
        if kind is float:
            return value if survey(value) else tagged("float", repr(value))
        if kind is list:
            return [self.encode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        if kind is dict:
            return self.mapping(value, path, depth)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return tagged(*simple(value))
        return self.compound(value, path, depth)

    def text(self, value: str) -> Any:
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return tagged("str", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode())
        return value

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        strings = all(type(k) is str for k in value)
        if strings and TAG not in value:
            try:
                "".join(value).encode()
            except UnicodeEncodeError:
                pass
            else:
                return {k: self.encode(v, f"{path}.{k}", depth + 1) for k, v in value.items()}
        pairs = [
            [self.encode(k, f"{path}.<key>", depth + 1), self.encode(v, f"{path}[{k!r}]", depth + 1)]
            for k, v in value.items()
        ]
        return tagged("dict", sorted(pairs, key=_order))

    def compound(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is tuple:
            items = [self.encode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
            return tagged("tuple", items)
        if kind is set or kind is frozenset:
            members = (self.encode(v, f"{path}.<member>", depth + 1) for v in value)
            return tagged(kind.__name__, sorted(members, key=_order))
        native = _natives_by_type.get(kind)
        if native is not None:
            inner = self.encode(native.project(value), path, depth + 1)
            return {TAG: "native", "type": native.name, "value": inner}
        if isinstance(value, (pydantic.SecretStr, pydantic.SecretBytes)):
            secret = value.get_secret_value()
            if self.flaws is not None:
                self.flaws.append(f"{path}: a secret is never recorded")
            text = secret if isinstance(secret, str) else secret.hex()
            return tagged("secret", self.seal(f"{kind.__name__}:{text}"))
        if isinstance(value, enum.Enum):
            self.untyped(path, value)
            inner = self.encode(value.value, path, depth + 1)
            return {TAG: "enum", "type": kind.__qualname__, "value": inner}
        if isinstance(value, pydantic.BaseModel):
            self.untyped(path, value)
            fields = {**value.__dict__, **(value.__pydantic_extra__ or {})}
            inner = {k: self.encode(v, f"{path}.{k}", depth + 1) for k, v in fields.items()}
            return {TAG: "model", "type": kind.__qualname__, "value": inner}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            self.untyped(path, value)
            names = [f.name for f in dataclasses.fields(value)]
            inner = {n: self.encode(getattr(value, n), f"{path}.{n}", depth + 1) for n in names}
            return {TAG: "dataclass", "type": kind.__qualname__, "value": inner}
        if isinstance(value, PurePath):
            flavour = "windows" if isinstance(value, PureWindowsPath) else "posix"
            return {TAG: "path" if isinstance(value, Path) else "purepath", "type": flavour,
                    "value": self.text(str(value))}  # fmt: skip
        if isinstance(value, pydantic.AnyUrl | pydantic.networks._BaseMultiHostUrl):
            self.untyped(path, value)
            return tagged("url", str(value))
        return self.unknown(value, path, depth)

    def unknown(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        for base in (str, int, float, list, dict):
            if isinstance(value, base):
                if self.flaws is not None:
                    self.flaws.append(f"{path}: a {kind.__qualname__} is recorded as its {base.__name__}")
                return self.encode(base(value), path, depth + 1)
        self.flaw(path, f"a {kind.__module__}.{kind.__qualname__} has no encoding")
        return {TAG: "opaque", "type": f"{kind.__module__}.{kind.__qualname__}", "value": None}


def _order(encoded: Any) -> bytes:
    return orjson.dumps(encoded, option=orjson.OPT_SORT_KEYS)


_SIMPLE: Final[dict[type, Callable[[Any], tuple[str, Any]]]] = {
    dt.datetime: lambda v: ("datetime", _instant(v)),
    dt.date: lambda v: ("date", v.isoformat()),
    dt.time: lambda v: ("time", _instant(v)),
    dt.timedelta: lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
    bytes: lambda v: ("bytes", base64.b64encode(v).decode()),
    bytearray: lambda v: ("bytearray", base64.b64encode(v).decode()),
    Decimal: lambda v: ("decimal", str(v)),
    UUID: lambda v: ("uuid", str(v)),
    complex: lambda v: ("complex", [repr(v.real), repr(v.imag)]),
}


def _digits(value: int) -> str:
    """An integer as text; Python bounds the length of decimal ones."""
    return str(value) if value.bit_length() < 1024 else hex(value)


def _instant(value: dt.datetime | dt.time) -> Any:
    """ISO 8601; a zone's name goes beside it, for the offset alone is not the zone."""
    zone = getattr(value.tzinfo, "key", None)
    if zone is None and value.fold == 0:
        return value.isoformat()
    return [value.isoformat(), zone, value.fold]


def encode(value: Any, seal: Seal, *, path: str = "$") -> Any:
    """Encode a call's arguments.

    Raises:
        Unencodable: a value without an encoding, with its path.
    """
    if survey_safely(value):
        return value
    return _encode(_Encoder(seal, None, typed=False), value, path)


class Result(NamedTuple):
    """What a tool returned, encoded."""

    value: Any
    flaws: list[str]  # what of it can't come back as it was, with paths
    needs_type: bool  # it comes back through the declared return type only


def encode_result(value: Any, seal: Seal, *, typed: bool = False) -> Result:
    """Encode what a tool returned, and say what of it can't come back as it was.

    `typed` says that the tool declares a return type, through which models come back.
    """
    if survey_safely(value):
        return Result(value, [], needs_type=False)
    flaws: list[str] = []
    encoder = _Encoder(seal, flaws, typed=typed)
    try:
        return Result(_encode(encoder, value, "$"), flaws, encoder.needs_type)
    except Unencodable as error:
        return Result(tagged("opaque", None), [*flaws, str(error)], needs_type=False)


def survey_safely(value: Any) -> int:
    """`survey`, with strings looked into and nesting bounded: FOREIGN where JSON can't hold it."""
    try:
        level = survey(value)
        if level:
            orjson.dumps(value)
    except (RecursionError, TypeError):  # orjson's JSONEncodeError is a TypeError
        return FOREIGN
    return level


def _encode(encoder: _Encoder, value: Any, path: str) -> Any:
    try:
        return encoder.encode(value, path)
    except RecursionError:
        raise Unencodable(path, "nested too deep, or holding itself") from None


# --- decoding ------------------------------------------------------------------------------------


def decode(encoded: Any) -> Any:
    """Bring a value back; models, dataclasses and enums as plain data.

    Raises:
        ValueError: an encoding that is none of ours (the trace is hostile input).
    """
    kind = type(encoded)
    if kind is dict:
        if TAG in encoded:
            return _decode_tagged(encoded)
        return {k: decode(v) for k, v in encoded.items()}
    if kind is list:
        return [decode(v) for v in encoded]
    return encoded


def _decode_tagged(encoded: dict[str, Any]) -> Any:
    tag, value = encoded[TAG], encoded.get("value")
    decoder = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decoder is None:
        raise ValueError(f"no encoding is called {tag!r}")
    try:
        return decoder(value, encoded)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise ValueError(f"not a {tag}: {error}") from error


def _decode_instant(cls: type[dt.datetime] | type[dt.time], value: Any) -> Any:
    if isinstance(value, str):
        return cls.fromisoformat(value)
    from zoneinfo import ZoneInfo  # only where a zone was recorded

    text, zone, fold = value
    instant = cls.fromisoformat(text).replace(fold=fold)
    return instant if zone is None else instant.replace(tzinfo=ZoneInfo(zone))


def _decode_native(value: Any, encoded: Mapping[str, Any]) -> Any:
    native = _natives_by_name.get(encoded.get("type", ""))
    data = decode(value)
    return data if native is None else native.revive(data)


def _decode_path(value: Any, encoded: Mapping[str, Any]) -> Any:
    pure = PureWindowsPath if encoded.get("type") == "windows" else PurePosixPath
    if encoded[TAG] == "purepath":
        return pure(decode(value))
    return Path(pure(decode(value)))


_DECODERS: Final[dict[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "int": lambda v, _: int(v, 0),
    "float": lambda v, _: float(v),
    "str": lambda v, _: base64.b64decode(v, validate=True).decode("utf-8", "surrogatepass"),
    "dict": lambda v, _: {decode(k): decode(i) for k, i in v},
    "tuple": lambda v, _: tuple(decode(i) for i in v),
    "set": lambda v, _: {decode(i) for i in v},
    "frozenset": lambda v, _: frozenset(decode(i) for i in v),
    "datetime": lambda v, _: _decode_instant(dt.datetime, v),
    "date": lambda v, _: dt.date.fromisoformat(v),
    "time": lambda v, _: _decode_instant(dt.time, v),
    "timedelta": lambda v, _: dt.timedelta(*v),
    "bytes": lambda v, _: base64.b64decode(v, validate=True),
    "bytearray": lambda v, _: bytearray(base64.b64decode(v, validate=True)),
    "decimal": lambda v, _: Decimal(v),
    "uuid": lambda v, _: UUID(v),
    "complex": lambda v, _: complex(float(v[0]), float(v[1])),
    "path": _decode_path,
    "purepath": _decode_path,
    "enum": lambda v, _: decode(v),
    "model": lambda v, _: {k: decode(i) for k, i in v.items()},
    "dataclass": lambda v, _: {k: decode(i) for k, i in v.items()},
    "url": lambda v, _: str(v),
    "native": _decode_native,
    "secret": lambda _v, _: "<secret>",
    "redacted": lambda _v, _: "<redacted>",
    "opaque": lambda _v, encoded: f"<{encoded.get('type', 'a value')}, not recorded>",
}


# --- exceptions ----------------------------------------------------------------------------------

_BUILTIN_ERRORS: Final = {
    name: cast("type[Exception]", each)
    for name, each in vars(builtins).items()
    if isinstance(each, type) and issubclass(each, Exception)
}


def type_name(cls: type) -> str:
    """The full name of a type; builtins go by their bare name."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def encode_exception(error: BaseException, seal: Seal) -> dict[str, Any]:
    """An exception as data: its type's name, its message, and what it was made of."""
    made_of = error.__reduce__()[1] if isinstance(error, OSError) else error.args
    arguments = encode_result(list(cast("tuple[Any, ...]", made_of)), seal)
    try:
        message = str(error)
        message.encode()
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the tool's own error
        message = "<its text can't be shown>"
    encoded = {"type": type_name(type(error)), "message": message}
    if not arguments.flaws:
        encoded["args"] = arguments.value
    notes = [n for n in getattr(error, "__notes__", []) if isinstance(n, str)]
    if notes:
        encoded["notes"] = encode_result(notes, seal).value
    return encoded


def decode_exception(encoded: Any, known: Iterable[type[Exception]] = ()) -> Exception:
    """An exception from its data: itself where it is a builtin or among `known`.

    Any other is a `ReplayedError` with its type's name and message.
    """
    if not isinstance(encoded, dict):
        raise ValueError("a recorded error is an object")
    name, message = str(encoded.get("type")), str(encoded.get("message"))
    cls = {type_name(each): each for each in known}.get(name) or _BUILTIN_ERRORS.get(name)
    error: Exception = ReplayedError(name, message)
    if cls is not None and isinstance(encoded.get("args"), list):
        try:
            error = cls(*decode(encoded["args"]))
        except Exception:  # noqa: BLE001 - a constructor of the user's own may raise anything
            error = ReplayedError(name, message)
    for note in encoded.get("notes", ()):
        error.add_note(str(decode(note)))
    return error
