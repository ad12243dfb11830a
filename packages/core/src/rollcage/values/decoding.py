"""Values out of tagged JSON. Nothing that a trace names is imported or run (DESIGN §4)."""

from __future__ import annotations

import base64
import datetime as dt
import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final
from uuid import UUID

from rollcage.values.codec import TAG, native_called

__all__ = ["decode"]


_reader: ContextVar[str] = ContextVar("rollcage_reader", default="")


def decode(encoded: Any, *, framework: str = "") -> Any:
    """Bring a value back; models, dataclasses and enums as plain data.

    Args:
        encoded: its encoding.
        framework: whose native values come back as themselves, those of others as neutral data;
            empty for those of each framework whose adapter is loaded.

    Raises:
        ValueError: an encoding that is none of ours (the trace is hostile input), or a value that
            means something in another framework only.
    """
    token = _reader.set(framework) if framework else None
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
    """Already says what is wrong."""


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
        # Constructors of many types meet hostile data here, an adapter's own among them.
        raise _Undecodable(f"not a {tag}: {type(error).__name__}: {str(error)[:200]}") from error


def _decode_instant(cls: type[dt.datetime | dt.time], value: Any) -> Any:
    if isinstance(value, str):
        return cls.fromisoformat(value)
    text, zone, fold = value
    instant = cls.fromisoformat(text).replace(fold=fold)
    return instant if zone is None else instant.replace(tzinfo=_zone(zone))


def _zone(name: Any) -> dt.tzinfo:
    import zoneinfo  # only where a zone was recorded

    # Looked up first: for any other name, zoneinfo opens files and imports modules called so.
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
    if native is not None and _reader.get() in ("", own):
        return native.revive(data)
    if "only" in encoded:
        raise _Undecodable(
            f"a {str(name)[:50]} means something in {own[:20]} only: replay this step there"
        )
    if isinstance(data, dict):
        return {field: each for field, each in data.items() if field != own}
    return data


def _fields(value: Any) -> dict[str, Any]:
    """The fields of an object; tagged themselves where one has a name that JSON can't tell."""
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
    "enum": lambda v, _: _decode(v),
    "subclass": lambda v, _: _decode(v),
    "model": lambda v, _: _fields(v),
    "dataclass": lambda v, _: _fields(v),
    "url": lambda v, _: str(v),
    "native": _decode_native,
    "secret": lambda _v, _: "<secret>",
    "redacted": lambda _v, _: "<redacted>",
    "opaque": lambda _v, encoded: f"<{encoded.get('type', 'a value')}, not recorded>",
}
