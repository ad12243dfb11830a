"""Schedules: plans that are started repeatedly, as documents in the store."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from rollcage import Store
from rollcage.trace.store import drop, every_key

from rollcage_workflow.errors import WorkflowError

__all__ = ["Schedule", "Schedules"]

_KIND: Final = "schedules"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A plan that is started at certain times.

    Attributes:
        name: the name of the schedule; each execution is `NAME@2027-01-31T08:00:00Z`, by its time
            in
            UTC.
        plan: the plan's name.
        cron: minute, hour, day, month, weekday; or with seconds before them.
        by: the person for whom it runs.
        inputs: the inputs of each execution.
        zone: IANA name of the time zone; empty for UTC.
    """

    name: str
    plan: str
    cron: str
    by: str
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    zone: str = ""


class Schedules:
    """The schedules in a store.

    Args:
        store: the store of the runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, schedule: Schedule) -> None:
        """Store a schedule, in place of the one with its name.

        Raises:
            WorkflowError: its name or its times can't be used.
            StoreError: it can't be stored.
        """
        if _NAME.fullmatch(schedule.name) is None:
            raise WorkflowError(
                f"{schedule.name!r} can't name a schedule: letters, digits, - and _, up to 64"
            )
        _check_times(schedule)
        try:
            data = orjson.dumps(dataclasses.asdict(schedule))
        except TypeError as error:
            raise WorkflowError(f"the inputs of {schedule.name!r} are not JSON: {error}") from None
        while not self._store.swap(
            _KIND, schedule.name, self._store.get(_KIND, schedule.name), data
        ):
            pass

    def drop(self, name: str) -> bool:
        """Remove a schedule; return whether it existed."""
        return self.get(name) is not None and drop(self._store, _KIND, name)

    def get(self, name: str) -> Schedule | None:
        """Return a schedule, by its name.

        Raises:
            WorkflowError: the stored document is not a schedule.
        """
        held = self._store.get(_KIND, name) if _NAME.fullmatch(name) else None
        if held is None:
            return None
        try:
            return Schedule(**orjson.loads(held))
        except (ValueError, TypeError):
            raise WorkflowError(f"the store's document of the schedule {name} is damaged") from None

    def all(self) -> list[Schedule]:
        """Return all schedules, by name."""
        found = (self.get(key) for key in every_key(self._store, _KIND))
        return [each for each in found if each is not None]


def _check_times(schedule: Schedule) -> None:
    """Refuse times that the scheduler would later skip."""
    import zoneinfo

    try:
        from croniter import croniter
    except ImportError:
        raise WorkflowError(
            "schedules need an engine: pip install 'rollcage-workflow[engine]'"
        ) from None
    if not croniter.is_valid(schedule.cron, second_at_beginning=True):
        raise WorkflowError(
            f"{schedule.cron!r} is not a cron expression: 0 3 * * * is daily at 3:00"
        )
    if schedule.zone:
        try:
            zoneinfo.ZoneInfo(schedule.zone)
        except (OSError, ValueError, LookupError):
            raise WorkflowError(f"{schedule.zone!r} is not a time zone: Europe/Berlin") from None
