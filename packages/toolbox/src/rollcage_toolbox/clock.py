"""Tools for times. Only `current_time` reads a clock; the others are arithmetic."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable
from typing import Annotated, Any, Final

import rollcage
from pydantic import Field

from rollcage_toolbox.errors import InputRefused, ToolboxError

__all__ = ["TOOLS", "add_time", "convert_time", "current_time", "time_between"]

Zone = Annotated[str, Field(description='IANA name, such as "Europe/Zurich"')]
Time = Annotated[str, Field(description='ISO 8601, such as "2030-01-31T09:30:00+01:00"')]

_PURE: Final[dict[str, Any]] = {"effect": "pure", "version": "1", "risk": "low"}


@rollcage.tool(effect="read", version="1", risk="low", permissions=["clock"], raises=[ToolboxError])
def current_time(zone: Zone = "UTC") -> str:
    """Tell the time now, in ISO 8601 with its offset, to the second."""
    return dt.datetime.now(_zone(zone)).isoformat(timespec="seconds")


@rollcage.tool(**_PURE, raises=[ToolboxError])
def add_time(
    time: Time, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
) -> str:
    """Add to a time, or take from it with negative numbers. A day is 24 hours."""
    try:
        delta = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return (_time(time) + delta).isoformat()
    except (OverflowError, ValueError) as error:
        raise InputRefused(f"no calendar goes that far: {error}") from None


@rollcage.tool(**_PURE, raises=[ToolboxError])
def time_between(start: Time, end: Time) -> float:
    """Tell the seconds from one time to another; negative where the second is earlier."""
    first, last = _time(start), _time(end)
    if (first.tzinfo is None) != (last.tzinfo is None):
        raise InputRefused("only one of the times has an offset from UTC")
    return (last - first).total_seconds()


@rollcage.tool(**_PURE, raises=[ToolboxError])
def convert_time(time: Time, zone: Zone) -> str:
    """Tell the same time in another zone; it must have an offset from UTC."""
    given = _time(time)
    if given.tzinfo is None:
        raise InputRefused(f"{time!r} has no offset from UTC, so it is a different time everywhere")
    try:
        return given.astimezone(_zone(zone)).isoformat()
    except OverflowError as error:
        raise InputRefused(f"no calendar goes that far: {error}") from None


TOOLS: Final[list[Callable[..., Any]]] = [current_time, add_time, time_between, convert_time]
"""All tools of this module."""


def _time(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InputRefused(f"{text!r} is no ISO 8601 time: {error}") from None


def _zone(name: str) -> dt.tzinfo:
    if name == "UTC":
        return dt.UTC  # also without a time zone database
    try:
        return zoneinfo.ZoneInfo(name)
    except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        raise InputRefused(f"no time zone is called {name!r}") from None
