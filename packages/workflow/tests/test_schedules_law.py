"""Random schedules, and workers that look at random times and die, start what a model says."""

import datetime as dt
import itertools
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollcage_workflow import Execution
from rollcage_workflow.engine import Schedule, ticking
from rollcage_workflow.engine.schedules import Missed, Overlap, Schedules
from rollcage_workflow.engine.ticking import LeftOut, Ticker
from rollcage_workflow.engine.times import Times
from rollcage_workflow.orders import Commands
from timetables import KINDS, Death, Died, Model, Place, times_between

HOUR, DAY = 3600, 86_400
ZONES = ["", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
DAYS = ["2027-03-13", "2027-03-27", "2027-04-03", "2027-10-02", "2027-10-30", "2027-11-06"]

deaths = st.builds(
    Death,
    st.sampled_from(["before", "after"]),
    st.sampled_from(["schedules", "commands"]),
    st.integers(1, 3),
)
moments = st.one_of(
    st.tuples(
        st.just("later"),
        st.one_of(st.integers(1, 900), st.integers(900, 6 * HOUR), st.integers(6 * HOUR, 2 * DAY)),
    ),
    st.tuples(st.just("around the next time"), st.sampled_from([-1, 0, 1, 59, 60, 61])),
    st.tuples(st.just("around its catchup"), st.integers(-1, 1)),
)
looks = st.tuples(
    moments,
    st.integers(0, 1),  # which worker
    st.one_of(st.none(), deaths),
    st.one_of(st.none(), st.integers(1, 2)),  # the other one looks before this swap
)
schedules = st.builds(
    Schedule,
    st.just("s"),
    st.just("plan"),
    st.sampled_from(sorted(KINDS)),
    st.just("carl"),
    zone=st.sampled_from(ZONES),
    missed=st.sampled_from(get_args(Missed)),
    catchup=st.sampled_from([600.0, 5400.5, 43_200.0, 86_400.0]),
    overlap=st.sampled_from(get_args(Overlap)),
)


def begins(day: str) -> int:
    return int(dt.datetime.fromisoformat(f"{day}T00:00:07+00:00").timestamp())


class Fleet:
    """Two workers that look into one store, and the executions that they start."""

    def __init__(self, folder: Any, schedule: Schedule, put: int, seed: int) -> None:
        self.folder, self.now = folder, put
        self.schedule, self.seed = schedule, seed
        self.began: dict[str, int] = {}  # by id, when it was started
        Schedules(Place(folder), lambda: self.now).put(schedule)
        self.told: list[LeftOut] = []
        self.workers = [self.hired(), self.hired()]

    def hired(self) -> tuple[Place, Ticker]:
        place = Place(self.folder)
        return place, Ticker(place, clock=lambda: self.now)

    def duration(self, time: int) -> int:
        return (1, 300, HOUR, DAY)[(time // 60 * 7 + self.seed) % 11 % 4]

    def execution(self, _store: Any, id: str) -> Execution:  # noqa: A002
        """The state of an execution that a worker carries out meanwhile."""
        if id not in self.began:
            return Execution(id)
        time = int(dt.datetime.fromisoformat(id.partition("@")[2]).timestamp())
        is_over = self.now >= self.began[id] + self.duration(time)
        return Execution(id, "completed" if is_over else "running", plan="plan")

    def wait(self, what: str, seconds: int) -> None:
        if what != "later":
            next_ = next(Times(self.schedule.cron, self.schedule.zone).after(self.now))
            seconds += next_ - self.now
        if what == "around its catchup":
            seconds += int(self.schedule.catchup)
        self.now += max(seconds, 1)

    def look(self, which: int, death: Death | None, meets: int | None) -> None:
        place, ticker = self.workers[which]
        place.swaps = dict.fromkeys(place.swaps, 0)
        place.death = death
        other_place, other = self.workers[1 - which]
        other_place.death = None
        place.meets = {} if meets is None else {meets: lambda: self.told.extend(other.look())}
        try:
            self.told += ticker.look()
        except Died:
            self.workers[which] = self.hired()
        self.begin()

    def begin(self) -> None:
        """Take the open commands, as workers do."""
        commands = Commands(Place(self.folder))
        for key in commands.open_keys():
            command = commands.get(key)
            assert command is not None
            assert command.execution not in self.began, "it is started twice"
            assert (command.plan, command.by) == ("plan", "carl")
            self.began[command.execution] = self.now
            commands.done(command, "completed")


@settings(max_examples=2 * settings().max_examples)
@given(
    schedule=schedules,
    day=st.sampled_from(DAYS),
    plan=st.lists(looks, min_size=2, max_size=10),
    seed=st.integers(0, 2**32),
)
def test_each_time_is_started_once_or_left_out_as_said(
    schedule: Schedule, day: str, plan: list[Any], seed: int, tmp_path_factory: Any
) -> None:
    put = begins(day)
    fleet = Fleet(tmp_path_factory.mktemp("store"), schedule, put, seed)
    model = Model(schedule, put, fleet.duration)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ticking, "execution", fleet.execution)
        for moment, which, death, meets in [*plan, (("later", 1), 0, None, None)]:
            fleet.wait(*moment)
            # with another one in between, it is as if nobody died; who dies there is tried alone
            death = death if meets is None else None  # noqa: PLW2901 - the case is read here
            fleet.look(which, death, meets)
            model.look(fleet.now, death)
            found = Schedules(Place(fleet.folder)).entry("s")
            assert found is not None
            assert found.progress is not None
            assert fleet.began == {schedule.id_at(t): at for t, at in model.started.items()}
            assert found.progress.left_out == model.left_out
            assert [*found.progress.due] == model.due
    came = times_between(schedule.cron, schedule.zone, put, fleet.now)
    assert {*model.started} <= {*came}
    assert sum(each.count for each in fleet.told) <= model.left_out
    if not any(death for _, _, death, _ in plan):
        assert sum(each.count for each in fleet.told) == model.left_out, "each is told once"
    assert len(fleet.began) + model.left_out == len(came), "none is lost"


@example(cron="30 2 * * *", zone="Europe/Berlin", day="2027-10-30", offset=0)
@example(cron="30 2 * * *", zone="Europe/Berlin", day="2027-03-27", offset=0)
@example(cron="*/20 * * * *", zone="Europe/Berlin", day="2027-03-27", offset=0)
@example(cron="*/20 * * * *", zone="Australia/Lord_Howe", day="2027-04-03", offset=0)
@given(
    cron=st.sampled_from(sorted(KINDS)),
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(DAYS),
    offset=st.integers(0, DAY),
)
def test_times_are_those_of_each_minute(cron: str, zone: str, day: str, offset: int) -> None:
    times, begin = Times(cron, zone), begins(day) + offset
    end = begin + 2 * DAY
    came = times_between(cron, zone, begin, end)
    assert tuple(itertools.takewhile(lambda each: each <= end, times.after(begin))) == came
    assert times.latest(begin, end) == (came[-1] if came else None)
