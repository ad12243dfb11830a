"""The times of a cron expression in a time zone, as Unix seconds."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Iterator
from typing import Final

from rollcage_workflow.errors import WorkflowError

__all__ = ["Times", "utc_text"]

_HOUR: Final = 1  # the place of the hours in an expanded expression
_RANDOM: Final = re.compile(r"r(\(.*\))?(/\d+)?", re.IGNORECASE)  # another time at each look


class Times:
    """The times of a schedule.

    When clocks are set forward, a time that is left out counts when they were set. When they are
    set back, a local time counts once, the first time, unless the expression names every hour.

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
        from croniter import CroniterBadDateError, croniter

        start = dt.datetime.fromtimestamp(time, self._zone)
        found = croniter(self._cron, start, second_at_beginning=True)
        while True:
            try:
                each = int(found.get_next(float))
            except CroniterBadDateError:  # no other one in fifty years
                return
            if self._counts(each):
                yield each

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

    def _counts(self, time: int) -> bool:
        return self._is_each_hour or not dt.datetime.fromtimestamp(time, self._zone).fold


def utc_text(time: int) -> str:
    """Return a time as in the ids of executions: 2027-01-31T08:00:00Z."""
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
