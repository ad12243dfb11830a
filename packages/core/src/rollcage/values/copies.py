"""Copy values, so that arguments can't change after the decision on them."""

from __future__ import annotations

import copy
import datetime as dt
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any, Final
from uuid import UUID

from rollcage.values.natives import is_native

__all__ = ["own_copy"]

_NEVER_CHANGE: Final = frozenset({
    type(None), bool, bytes, complex, dt.date, dt.datetime, dt.time, dt.timedelta, Decimal, float,
    int, PosixPath, PurePosixPath, PureWindowsPath, str, UUID,
})  # fmt: skip


def own_copy(value: Any) -> Any:
    """Return a copy of a value that shares no mutable part with the original.

    A framework's own values are not copied, nor are values that can't be.
    """
    kind: type[Any] = type(value)
    if kind in _NEVER_CHANGE:
        return value
    if kind is dict:
        return {name: own_copy(each) for name, each in value.items()}
    if kind is list:
        return [own_copy(each) for each in value]
    if kind is tuple:
        return tuple(own_copy(each) for each in value)
    if is_native(kind):
        return value
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - a value's own code; most of these have no encoding either
        return value
