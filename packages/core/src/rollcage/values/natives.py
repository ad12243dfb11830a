"""Register values of frameworks, which their adapters encode and restore."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

__all__ = ["Native", "is_native", "native_called", "native_of", "register_native"]


class Native(Protocol):
    """Encode a framework's value as neutral data that restores it.

    `project` returns data that any reader can use. The key with the framework's name holds data for
    that framework only; all other readers get the data without it. `revive` restores the native
    value from the data and must treat them as hostile input.

    Attributes:
        name: "<framework>.<kind>".
        portable: whether other frameworks can use the data; a step whose value is not portable
            can't be replayed in another framework.
    """

    name: str
    portable: bool

    def project(self, value: Any) -> Any:
        """Return data for a native value."""
        ...

    def revive(self, data: Any) -> Any:
        """Return the native value for these data; raise ValueError if they are invalid."""
        ...


_natives_by_type: dict[type, Native] = {}
_natives_by_name: dict[str, Native] = {}


def native_called(name: Any) -> Native | None:
    """Return the registered `Native` with a name."""
    return _natives_by_name.get(name) if isinstance(name, str) else None


def native_of(kind: type) -> Native | None:
    """Return the `Native` registered for values of this class."""
    return _natives_by_type.get(kind)


def is_native(kind: type) -> bool:
    """Tell whether values of this type are encoded by a framework's adapter."""
    return kind in _natives_by_type


def register_native(types: Iterable[type], native: Native) -> None:
    """Teach the codec a framework's types (exact types, not their subclasses)."""
    _natives_by_name[native.name] = native
    for each in types:
        _natives_by_type[each] = native
