"""Decode values from tagged JSON. Nothing that a trace names is imported or run (DESIGN §4)."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final
from uuid import UUID

from rollcage.values.codec import TAG
from rollcage.values.forms import Form
from rollcage.values.libraries import FORMS
from rollcage.values.making import made
from rollcage.values.natives import native_called
from rollcage.values.registered import Types

__all__ = ["Strange", "decode", "decode_result"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """Hold the abilities of a reader.

    Attributes:
        framework: see `decode`.
        types: the types that are restored as themselves; None if the reader wants plain data.
        strangers: the classes named in the data that are not among `types`.
    """

    framework: str = ""
    types: Types | None = None
    strangers: list[str] = dataclasses.field(default_factory=list[str])


_ANYONE: Final = _Reader()
_reader: ContextVar[_Reader] = ContextVar("rollcage_reader", default=_ANYONE)


class Strange(ValueError):
    """Report a recorded value of a class that the program has not named.

    Attributes:
        kind: the class's name.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"it holds a {kind}, a class that this process does not know: name it in the tool's "
            f"return type, or say "
            f"Session(options=Options(types=[{kind.rpartition('.')[2]}]))"
        )
        self.kind = kind


def decode(encoded: Any, *, framework: str = "") -> Any:
    """Decode a value; models, dataclasses, enums and the values of libraries become plain data.

    Args:
        encoded: the encoding.
        framework: the framework whose native values are restored, while those of other frameworks
            become neutral data; empty: every framework with a loaded adapter.

    Raises:
        ValueError: the encoding is invalid (the trace is hostile input), or the value is usable in
            another framework only.
    """
    return _read(encoded, _Reader(framework) if framework else None)


def decode_result(encoded: Any, types: Types, *, framework: str = "") -> Any:
    """Decode a value, with `types` and the values of libraries as themselves.

    Raises:
        Strange: the value holds an instance of a class that is not among `types`.
        ValueError: as `decode`; or the recorded parts do not fit their class any more.
    """
    reader = _Reader(framework, types)
    value = _read(encoded, reader)
    if reader.strangers:
        raise Strange(reader.strangers[0])
    return value


def _read(encoded: Any, reader: _Reader | None) -> Any:
    token = None if reader is None else _reader.set(reader)
    try:
        return _decode(encoded)
    except RecursionError:
        raise ValueError("nested too deep for a recorded value") from None
    finally:
        if token is not None:
            _reader.reset(token)


def _decode(encoded: Any) -> Any:
    kind: type[Any] = type(encoded)
    if kind is dict:
        if TAG in encoded:
            return _decode_tagged(encoded)
        return {k: _decode(v) for k, v in encoded.items()}
    if kind is list:
        return [_decode(v) for v in encoded]
    return encoded


class _Undecodable(ValueError):
    """Report an error with a message that already names the fault."""


def _decode_tagged(encoded: dict[str, Any]) -> Any:
    tag, value = encoded[TAG], encoded.get("value")
    decoder = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decoder is None:
        raise _Undecodable(f"no encoding is called {str(tag)[:50]!r}")
    try:
        return decoder(value, encoded)
    except (RecursionError, _Undecodable):
        raise
    except Exception as error:
        # Constructors of many types, adapters' own among them, get hostile data here.
        raise _Undecodable(f"not a {tag}: {type(error).__name__}: {str(error)[:200]}") from error


def _decode_instant(cls: type[dt.datetime | dt.time], value: Any) -> Any:
    if isinstance(value, str):
        return cls.fromisoformat(value)
    text, zone, fold = value
    instant = cls.fromisoformat(text).replace(fold=fold)
    return instant if zone is None else instant.replace(tzinfo=_zone(zone))


def _zone(name: Any) -> dt.tzinfo:
    import zoneinfo  # only if a zone was recorded

    # Looked up first: for any other name, zoneinfo opens files and imports modules of that name.
    if name not in _zone_names():
        raise ValueError(f"no time zone is called {str(name)[:50]!r} here")
    return zoneinfo.ZoneInfo(name)


@functools.cache
def _zone_names() -> set[str]:
    import zoneinfo

    return zoneinfo.available_timezones()


def _decode_native(value: Any, encoded: Mapping[str, Any]) -> Any:
    name = encoded.get("type")
    native = native_called(name)
    data = _decode(value)
    own = str(name).partition(".")[0]
    if native is not None and _reader.get().framework in ("", own):
        return native.revive(data)
    if "only" in encoded:
        raise _Undecodable(
            f"a {str(name)[:50]} means something in {own[:20]} only: replay this step there"
        )
    if isinstance(data, dict):
        return {field: each for field, each in data.items() if field != own}
    return data


def _named(plain: Callable[[Any], Any]) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Return a decoder for a named class: as itself if the reader knows it, else as plain data."""

    def decode_named(value: Any, encoded: Mapping[str, Any]) -> Any:
        reader = _reader.get()
        if reader.types is None:
            return plain(value)
        module, name = encoded.get("module"), encoded.get("type")
        kind = reader.types.find(module, name)
        if kind is not None:
            return made(kind, encoded[TAG], encoded, _decode)
        reader.strangers.append(f"{module}.{name}"[:200] if module else str(name)[:200])
        return plain(value)

    return decode_named


def _formed(form: Form) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Return a decoder for a value of a library."""

    def decode_formed(value: Any, encoded: Mapping[str, Any]) -> Any:
        if form.foreign and _reader.get().types is None:
            if encoded.get("type") == "scalar":
                return _decode(value)
            return {name: _decode(each) for name, each in encoded.items() if name != TAG}
        return form.make(encoded, _decode)

    return decode_formed


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object; they are tagged if a name does not fit JSON."""
    fields = _decode(value)
    if type(fields) is not dict:
        raise ValueError("its fields are no object")
    named: dict[str, Any] = fields
    return named


def _decode_path(value: Any, encoded: Mapping[str, Any]) -> Any:
    pure = PureWindowsPath if encoded.get("type") == "windows" else PurePosixPath
    if encoded[TAG] == "purepath":
        return pure(_decode(value))
    return Path(pure(_decode(value)))


_DECODERS: Final[dict[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "int": lambda v, _: int(v, 0),
    "float": lambda v, _: float(v),
    "str": lambda v, _: base64.b64decode(v, validate=True).decode("utf-8", "surrogatepass"),
    "dict": lambda v, _: {_decode(k): _decode(i) for k, i in v},
    "tuple": lambda v, _: tuple(_decode(i) for i in v),
    "set": lambda v, _: {_decode(i) for i in v},
    "frozenset": lambda v, _: frozenset(_decode(i) for i in v),
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
    "enum": _named(_decode),
    "subclass": _named(_decode),
    "model": _named(_fields),
    "dataclass": _named(_fields),
    "url": _named(str),
    **{tag: _formed(form) for tag, form in FORMS.items()},
    "native": _decode_native,
    "secret": lambda _v, _: "<secret>",
    "redacted": lambda _v, _: "<redacted>",
    "opaque": lambda _v, encoded: f"<{encoded.get('type', 'a value')}, not recorded>",
}
