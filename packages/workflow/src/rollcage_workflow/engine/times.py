"""The times of a cron expression in a time zone, as Unix seconds."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Iterator
from typing import Final

from rollcage_workflow.errors import WorkflowError

__all__ = ["Times", "utc_text"]

_HALF_DAY: Final = 43_200  # seconds, in which clocks are set once
_HOUR: Final = 1  # the place of the hours in an expanded expression
_RANDOM: Final = re.compile(r"r(\(.*\))?(/\d+)?", re.IGNORECASE)  # another time at each look


class Times:
    """The times of a schedule.

    When clocks are set forward, a local time that is left out counts as they are set, unless the
    expression names every hour. When they are set back, a local time that comes twice counts the
    first time, unless the expression names every hour.

    The expression is read as if clocks were never set, since its library loses times of some zones.

    Args:
        cron: minute, hour, day, month, weekday; or with seconds before them.
        zone: IANA name of the time zone; empty for UTC.

    Raises:
        WorkflowError: one of them can't be used.
    """

    def __init__(self, cron: str, zone: str) -> None:
        from croniter import croniter  # it is slow to import, and few need it

        fields = cron.split()
        is_valid = croniter.is_valid(cron, second_at_beginning=True)
        if not is_valid or any(_RANDOM.fullmatch(each) for each in fields):
            raise WorkflowError(f"{cron!r} is not a cron expression: 0 3 * * * is daily at 3:00")
        try:
            self._zone: dt.tzinfo = zoneinfo.ZoneInfo(zone) if zone else dt.UTC
        except (OSError, ValueError, LookupError):
            raise WorkflowError(f"{zone!r} is not a time zone: Europe/Berlin") from None
        self._cron = cron
        self._is_each_hour = croniter.expand(cron, second_at_beginning=True)[0][_HOUR] == ["*"]

    def after(self, time: int) -> Iterator[int]:
        """Yield the times after a time, the earliest first."""
        at, offset = time, self._offset(time)
        locals_ = self._locals(at + offset)
        while (local := next(locals_, None)) is not None:
            change = self._change(at, local - offset, offset)
            if change is None:
                at = local - offset
                if self._counts(at):
                    yield at
                continue
            new = self._offset(change)
            at, offset = change - 1, new
            if local < change + new and not self._is_each_hour:  # it is left out that day
                yield change
                at = change
            locals_ = self._locals(at + offset)

    def latest(self, after: int, until: int) -> int | None:
        """Return the latest time after `after` and not after `until`; None without one."""
        found: int | None = None
        low, high = after, until  # there is none after `high`
        while low < high:
            middle = (low + high) // 2
            each = next(self.after(middle), None)
            if each is None or each > until:
                high = middle
            else:
                found, low = each, each
        return found

    def _locals(self, after: int) -> Iterator[int]:
        """Yield the local times after one, as seconds of a day that has 24 hours."""
        from croniter import CroniterBadDateError, croniter

        found = croniter(self._cron, float(after), second_at_beginning=True)
        while True:
            try:
                yield int(found.get_next(float))
            except CroniterBadDateError:  # no other one in fifty years
                return

    def _change(self, after: int, until: int, offset: int) -> int | None:
        """Return when clocks are set first, after a time and not after another."""
        if self._zone is dt.UTC:
            return None
        low = after
        while low < until:
            high = min(low + _HALF_DAY, until)
            if self._offset(high) != offset:
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self._offset(middle) == offset else (low, middle)
                return high
            low = high
        return None

    def _offset(self, time: int) -> int:
        """Return the local time less UTC (seconds)."""
        offset = dt.datetime.fromtimestamp(time, self._zone).utcoffset()
        return 0 if offset is None else int(offset.total_seconds())

    def _counts(self, time: int) -> bool:
        return self._is_each_hour or not dt.datetime.fromtimestamp(time, self._zone).fold


def utc_text(time: int) -> str:
    """Return a time as in the ids of executions: 2027-01-31T08:00:00Z."""
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
