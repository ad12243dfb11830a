"""Time and the machine: what is looked at, and what is worked out."""

import datetime as dt
from typing import Any

import pytest
from rollcage_toolbox import InputRefused, clock, system


def test_the_time_now_has_its_zone() -> None:
    now = dt.datetime.fromisoformat(clock.current_time())
    assert abs(dt.datetime.now(dt.UTC) - now) < dt.timedelta(minutes=5)
    there = dt.datetime.fromisoformat(clock.current_time("Asia/Tokyo"))
    assert there.utcoffset() == dt.timedelta(hours=9)


@pytest.mark.parametrize("zone", ["Nowhere/Else", "../etc/passwd", "/etc/passwd", "", "a\0b"])
def test_zones_that_are_none_are_refused(zone: str) -> None:
    with pytest.raises(InputRefused, match="no time zone"):
        clock.current_time(zone)


def test_times_are_added_and_compared() -> None:
    assert (
        clock.add_time("2030-01-31T09:30:00+01:00", days=1, hours=-1) == "2030-02-01T08:30:00+01:00"
    )
    assert clock.add_time("2030-01-31", minutes=1, seconds=30) == "2030-01-31T00:01:30"
    assert clock.time_between("2030-01-01T00:00:00Z", "2030-01-01T02:00:00+01:00") == 3600
    assert clock.time_between("2030-01-02", "2030-01-01") == -86400
    assert (
        clock.convert_time("2030-07-01T12:00:00Z", "Europe/Zurich") == "2030-07-01T14:00:00+02:00"
    )


def test_times_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputRefused, match="ISO 8601"):
        clock.add_time("tomorrow", days=1)
    with pytest.raises(InputRefused, match="calendar"):
        clock.add_time("9999-12-31", days=1)
    with pytest.raises(InputRefused, match="calendar"):
        clock.add_time("2030-01-01", days=float("nan"))
    with pytest.raises(InputRefused, match="offset"):
        clock.time_between("2030-01-01", "2030-01-01T00:00:00Z")
    with pytest.raises(InputRefused, match="offset"):
        clock.convert_time("2030-01-01", "UTC")
    with pytest.raises(InputRefused, match="calendar"):
        clock.convert_time("0001-01-01T00:00:00Z", "America/New_York")


def test_the_machine_tells_nothing_that_names_it() -> None:
    assert set(system.system_info()) == {"system", "release", "machine", "cpus", "python"}


def test_effects() -> None:
    effects: dict[str, Any] = {
        tool.__name__: vars(tool)["__rollcage_contract__"].effect
        for tool in [*clock.TOOLS, *system.TOOLS]
    }
    assert effects == {
        "current_time": "read",
        "add_time": "pure",
        "time_between": "pure",
        "convert_time": "pure",
        "system_info": "read",
    }
