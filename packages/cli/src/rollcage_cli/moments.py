"""Times as people write them on a command line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from rollcage_cli.errors import UsageError
from rollcage_cli.output import visible

__all__ = ["moment"]

_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime) -> int:
    """Return a time (Unix, µs): from a date, a date with a time, or an age: `90m`, `24h`.

    Raises:
        UsageError: the text has another form.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            when = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            when = datetime.fromisoformat(text)
        return round(when.astimezone().timestamp() * 1e6)  # without a zone, it is local time
    except (ValueError, OverflowError, OSError):
        message = (
            f"{visible(text)!r} is not a time: 2026-03-01, 2026-03-01T12:30Z or 24h (that long ago)"
        )
        raise UsageError(message) from None
