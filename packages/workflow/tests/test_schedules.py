"""Schedules: each time starts one execution, and what is left out is counted and told."""

import datetime as dt
import itertools
import json
import logging
import threading
import time
import zoneinfo
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import aundo_run, open_store
from rollcage.errors import StoreError
from rollcage.trace.folder import Folder
from rollcage_workflow.commands import workflow
from rollcage_workflow.commands.worker import worker as worker_command
from rollcage_workflow.engine import Engine, LeftOut, Schedule, ticking
from rollcage_workflow.engine.schedules import Progress, Schedules
from rollcage_workflow.engine.ticking import Ticker
from rollcage_workflow.engine.times import Times, utc_text
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals
from typer import Typer
from typer.testing import CliRunner
from workers import Crew
from worlds import World

HOUR, DAY = 3600, 86_400
PLAN: dict[str, Any] = {"name": "plan", "steps": {"a": {"call": "put", "args": {"what": "a"}}}}
WAITS: dict[str, Any] = {"name": "plan", "steps": {"go": {"wait": {"signal": "go"}}}}


def at(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp())


EIGHT = at("2027-01-31T08:00:00Z")


class Clock:
    """A worker's look at a store, at the times of the test."""

    def __init__(self, store: Any, now: float = EIGHT) -> None:
        self.store = open_store(store)
        self.now = now
        self.schedules = Schedules(self.store, lambda: self.now)
        self.ticker = self.hired()

    def hired(self, **how: Any) -> Ticker:
        return Ticker(self.store, clock=lambda: self.now, **how)

    def put(self, cron: str = "*/10 * * * *", **how: Any) -> None:
        self.schedules.put(
            Schedule(how.pop("name", "s"), "plan", cron, how.pop("by", "carl"), **how)
        )

    def look(self, seconds: float) -> list[str]:
        """Look so many seconds after eight; return what was left out."""
        self.now = EIGHT + seconds
        return [str(each) for each in self.ticker.look()]

    @property
    def started(self) -> list[str]:
        """The times, in UTC, of which an execution was started."""
        crew = Commands(self.store)
        ids = [getattr(crew.get(key), "execution", "") for key in crew.open_keys()]
        return sorted(each.removeprefix("s@2027-01-31T") for each in ids)

    def progress(self, name: str = "s") -> Progress:
        entry = self.schedules.entry(name)
        assert entry is not None
        assert entry.progress is not None
        return entry.progress


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "store")


def local(cron: str, zone: str, day: str, count: int) -> list[str]:
    found = itertools.islice(Times(cron, zone).after(at(f"{day}T00:00:00Z")), count)
    return [f"{each:%d. %H:%M %z}" for each in map(_in_berlin, found)]


def _in_berlin(time: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time, zoneinfo.ZoneInfo("Europe/Berlin"))


def test_a_daily_time_comes_once_on_days_when_clocks_are_set() -> None:
    daily = ("30 2 * * *", "Europe/Berlin")
    assert local(*daily, "2027-03-27", 3) == [
        "27. 02:30 +0100",
        "28. 03:00 +0200",
        "29. 02:30 +0200",
    ]
    assert local(*daily, "2027-10-30", 3) == [
        "30. 02:30 +0200",
        "31. 02:30 +0200",
        "01. 02:30 +0100",
    ]
    hourly = ("30 * * * *", "Europe/Berlin")
    assert local(*hourly, "2027-03-28", 3) == [
        "28. 01:30 +0100",
        "28. 03:30 +0200",
        "28. 04:30 +0200",
    ]
    hours = ["31. 02:30 +0200", "31. 02:30 +0100", "31. 03:30 +0100"]
    assert local(*hourly, "2027-10-31", 3) == hours


def test_the_execution_of_a_time_has_it_in_utc_in_its_id(clock: Clock) -> None:
    clock.now = at("2027-07-01T00:00:00Z")
    clock.put("30 2 * * *", zone="Europe/Berlin", inputs={"n": 1})
    clock.now += DAY
    clock.ticker.look()
    commands = Commands(clock.store)
    (command,) = (commands.get(key) for key in commands.open_keys())
    assert command is not None
    assert command.execution == "s@2027-07-01T00:30:00Z"
    assert (command.plan, command.inputs, command.by) == ("plan", {"n": 1}, "carl")
    assert utc_text(0) == "1970-01-01T00:00:00Z"


def test_it_begins_with_the_first_time_after_it_was_put(clock: Clock) -> None:
    clock.put(overlap="allow")
    assert clock.look(0) == []
    assert clock.started == []
    assert clock.look(599.9) == []
    assert clock.started == []
    assert clock.look(600) == []
    assert clock.started == ["08:10:00Z"]
    assert clock.look(600.5) == []
    assert clock.look(1201) == []
    assert clock.started == ["08:10:00Z", "08:20:00Z"]


@pytest.mark.parametrize(
    ("missed", "seconds", "started"),
    [
        ("newest", 2000, ["08:30:00Z"]),
        ("all", 2000, ["08:10:00Z", "08:20:00Z", "08:30:00Z"]),
        ("none", 2000, []),
        ("none", 1860, ["08:30:00Z"]),  # a minute late is not missed
        ("none", 1861, []),
    ],
)
def test_missed_says_which_of_several_times_are_started(
    clock: Clock, missed: Any, seconds: int, started: list[str]
) -> None:
    clock.put(missed=missed, overlap="allow")
    told = clock.look(seconds)
    assert clock.started == started
    assert clock.progress().left_out == 3 - len(started)
    if missed == "all":
        assert told == []
    else:
        times = "times were" if len(started) < 2 else "time was"
        assert len(told) == 1
        assert told[0].startswith(f"schedule s: {3 - len(started)} {times} left out: ")
        assert f"(missed: {missed})" in told[0]
    assert clock.look(seconds + 1) == []


def test_a_worker_that_looks_seldom_misses_nothing_by_that(clock: Clock) -> None:
    clock.put(missed="none", overlap="allow")
    clock.ticker = clock.hired(every=300.0)
    assert clock.look(1200) == [
        "schedule s: 1 time was left out: a later time had come when a worker looked (missed: none)"
    ]
    clock.look(2400)
    assert clock.look(3000 + 599) == []
    assert clock.started == ["08:20:00Z", "08:40:00Z", "08:50:00Z"]


@pytest.mark.parametrize("missed", ["newest", "all", "none"])
def test_what_is_older_than_catchup_is_left_out_in_any_mode(clock: Clock, missed: Any) -> None:
    clock.put("0 9 * * *", missed=missed, catchup=1800.0)
    assert clock.look(HOUR + 1801) == [
        "schedule s: 1 time was left out: no worker looked within 1800 seconds (catchup)"
    ]
    assert clock.started == []


def test_exactly_as_old_as_catchup_is_not_too_old(clock: Clock) -> None:
    clock.put("0 9 * * *", catchup=1800.0)
    clock.look(HOUR + 1800)
    assert clock.started == ["09:00:00Z"]


async def test_a_time_is_left_out_while_the_execution_before_it_is_not_over(world: World) -> None:
    """Whatever it does: it lies there, waits, is paused, is halted; not when it is over."""
    clock = Clock(world.store)
    clock.put()
    crew = Crew(world, WAITS)
    clock.look(600)
    (id_,) = [f"s@2027-01-31T{each}" for each in clock.started]

    def is_left_out(minutes: int, status: str) -> None:
        (told,) = clock.look(minutes * 60)
        assert told == f"schedule s: 1 time was left out: {id_} is {status}"

    is_left_out(20, "pending")
    crew.commands.pause(id_, by="ann")
    is_left_out(30, "paused")
    crew.commands.resume(id_, by="ann")
    await crew.work()
    is_left_out(40, "waiting")
    crew.commands.pause(id_, by="ann")
    is_left_out(50, "paused")
    assert clock.progress().left_out == 4
    assert clock.progress().why == f"{id_} is paused"
    crew.commands.resume(id_, by="ann")
    Signals(clock.store, id_).send("go", 1, by="ann")
    await crew.work()
    assert crew.job(id_).status == "completed"
    assert clock.look(3600) == []
    assert clock.started == ["09:00:00Z"]


async def test_a_halted_execution_blocks_and_whatever_is_over_does_not(world: World) -> None:
    fails = {"name": "plan", "steps": {"a": {"call": "look", "args": {"fails": True}}}}
    needs = {"name": "plan", "inputs": {"n": {"type": "string"}}, "steps": PLAN["steps"]}
    clock = Clock(world.store)
    clock.put()
    for minutes, plan, status in ((10, fails, "failed"), (20, needs, "pending")):
        assert clock.look(minutes * 60) == []
        await Crew(world, plan).work()
        id_ = f"s@2027-01-31T08:{minutes}:00Z"
        assert Crew(world, plan).job(id_).status == status  # the second one was refused
    assert clock.look(1800) == []
    crew = Crew(world, WAITS)
    await crew.work()
    crew.commands.cancel("s@2027-01-31T08:30:00Z", by="ann")
    assert clock.look(2400) == []
    crew = Crew(world, {**PLAN, "steps": {"a": {"call": "put", "args": {"what": "a"}}}})
    await crew.work()
    undone = crew.job("s@2027-01-31T08:40:00Z").run
    assert clock.look(3000) == []
    await crew.work()
    crew.commands.undo(undone, by="ann")
    await crew.work()
    two = {"name": "plan", "steps": {"a": {"call": "put", "args": {"what": "a"}},
                                     "b": {"call": "put", "args": {"what": "b"},
                                           "after": ["a"]}}}  # fmt: skip
    assert clock.look(3600) == []
    crew = Crew(world, two)
    await crew.work()
    halted = crew.job("s@2027-01-31T09:00:00Z")
    await aundo_run(world.store, halted.run, to=2, tools=world.tools)
    assert crew.job(halted.id).status == "halted"
    (told,) = clock.look(4200)
    assert told.endswith("s@2027-01-31T09:00:00Z is halted")


def test_allow_starts_beside_the_execution_before(clock: Clock) -> None:
    clock.put(overlap="allow")
    for minutes in (10, 20, 30):
        assert clock.look(minutes * 60) == []
    assert clock.started == ["08:10:00Z", "08:20:00Z", "08:30:00Z"]


def test_skip_starts_one_of_those_that_all_were_missed(clock: Clock) -> None:
    clock.put(missed="all")
    assert clock.look(1800) == [
        "schedule s: 2 times were left out: s@2027-01-31T08:10:00Z is pending"
    ]
    assert clock.started == ["08:10:00Z"]


def test_another_cron_begins_anew_and_the_same_one_keeps_its_place(clock: Clock) -> None:
    clock.put(missed="all", overlap="allow")
    clock.look(600)
    clock.now = EIGHT + 1800.0
    clock.put(missed="newest", overlap="allow", inputs={"n": 2})  # the same times
    (told,) = clock.look(1800)
    assert told.endswith("a later time had come when a worker looked (missed: newest)")
    assert clock.started == ["08:10:00Z", "08:30:00Z"]
    assert clock.progress().left_out == 1
    clock.now = EIGHT + 3000.0
    clock.put("*/7 * * * *", overlap="allow")
    assert clock.look(3001) == []
    assert clock.progress() == Progress(EIGHT + 3000, started=clock.progress().started)
    clock.look(3360)
    assert clock.started[-1] == "08:56:00Z"
    assert len(clock.started) == 3


def test_what_was_started_before_still_blocks_behind_another_cron(clock: Clock) -> None:
    clock.put()
    clock.look(600)
    clock.put("*/7 * * * *")
    (told,) = clock.look(840)
    assert told.endswith("s@2027-01-31T08:10:00Z is pending")


def test_the_same_name_put_again_after_it_was_removed_begins_anew(clock: Clock) -> None:
    clock.put()
    assert clock.schedules.drop("s")
    assert not clock.schedules.drop("s")
    assert clock.look(600) == []
    clock.put()
    assert clock.look(601) == []
    assert clock.started == []


def test_one_of_an_older_version_begins_when_a_worker_sees_it(clock: Clock) -> None:
    fields = {"name": "s", "plan": "plan", "cron": "*/10 * * * *", "by": "carl", "inputs": {},
              "zone": ""}  # fmt: skip
    clock.store.swap("schedules", "s", None, orjson.dumps(fields))
    assert clock.schedules.all() == [Schedule("s", "plan", "*/10 * * * *", "carl")]
    assert clock.look(700) == []
    assert clock.started == []
    clock.look(1200)
    assert clock.started == ["08:20:00Z"]


@pytest.mark.parametrize(
    "damage",
    [
        b"[1]", b"{", b"{}", b"null", b'{"name":"bad"}',
        orjson.dumps({"name": "bad", "plan": "p", "cron": "often", "by": "c"}),
        orjson.dumps({"name": "other", "plan": "p", "cron": "* * * * *", "by": "c"}),
        orjson.dumps({"name": "bad", "plan": 7, "cron": "* * * * *", "by": "c"}),
        orjson.dumps({"name": "bad", "plan": "p", "cron": "* * * * *", "by": "c",
                      "progress": {"handled": "x", "due": []}}),
        orjson.dumps({"name": "bad", "plan": "p", "cron": "* * * * *", "by": "c",
                      "progress": {"handled": 1, "due": 5}}),
        orjson.dumps({"name": "bad", "plan": "p", "cron": "* * * * *", "by": "c",
                      "inputs": [1]}),
    ],
)  # fmt: skip
def test_a_damaged_one_is_reported_and_does_not_stop_others(
    clock: Clock, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock.store.swap("schedules", "bad", None, damage)
    clock.put()
    clock.look(600)
    clock.look(1200)
    assert clock.started == ["08:10:00Z"]
    assert caplog.text.count("the store's document of the schedule bad is damaged") == 1
    with pytest.raises(WorkflowError, match="bad is damaged"):
        clock.schedules.get("bad")
    done = CliRunner().invoke(workflow, ["schedules", "--json", "--store", clock.store.url])
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert [each["name"] for each in said["schedules"]] == ["s"]
    assert "rollcage workflow schedule bad PLAN CRON" in said["damaged"]["bad"]
    clock.put(name="bad", cron="0 9 * * *")
    assert clock.look(1260) == []
    assert clock.progress("bad").left_out == 0


def test_a_store_that_is_away_loses_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock.put()

    def away(*_: Any, **__: Any) -> Any:
        raise StoreError("the store is away")

    told: list[LeftOut] = []
    with monkeypatch.context() as patch:
        patch.setattr(clock.store, "get", away)
        clock.now = EIGHT + 1200.0
        with pytest.raises(StoreError):
            clock.ticker.look()
        clock.ticker.once(told.append)
        assert caplog.text.count("the store is away") == 1
        patch.undo()
        patch.setattr(clock.store, "swap", _after(clock.store.swap, away))
        clock.ticker.once(told.append)  # it is away when the execution is started
    assert clock.started == []
    assert clock.progress().due == (EIGHT + 1200,)
    clock.hired().once(told.append)
    assert clock.started == ["08:20:00Z"]
    assert clock.progress().due == ()


def _after(swap: Any, away: Any) -> Any:
    def swapped(kind: str, *given: Any) -> Any:
        return away() if kind == "commands" else swap(kind, *given)

    return swapped


def test_what_can_never_be_started_is_counted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.put()

    def refuses(*_: Any, **__: Any) -> Any:
        raise WorkflowError("the inputs are too long")

    monkeypatch.setattr(Commands, "start", refuses)
    clock.look(600)
    assert clock.progress().left_out == 1
    assert clock.progress().why == "the inputs are too long"
    monkeypatch.undo()
    assert clock.look(1200) == []
    assert clock.started == ["08:20:00Z"]


def test_many_missed_times_cost_a_bounded_look(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticking, "_MOST", 50)
    monkeypatch.setattr(ticking, "_BATCH", 7)
    clock.put("* * * * *")
    (told,) = clock.look(5 * HOUR)
    assert told.startswith("schedule s: more than 50 times were left out: a later time had come")
    assert clock.started == ["13:00:00Z"]
    assert (clock.progress().left_out, clock.progress().is_more) == (50, True)
    assert clock.look(5 * HOUR + 1) == []


def test_all_of_many_are_started_a_few_at_a_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticking, "_MOST", 50)
    monkeypatch.setattr(ticking, "_BATCH", 7)
    clock.put("* * * * *", missed="all", overlap="allow", catchup=2.0 * HOUR)
    (told,) = clock.look(5 * HOUR)
    assert told.startswith("schedule s: more than 51 times were left out: no worker looked within")
    assert len(clock.started) == 7
    assert clock.look(5 * HOUR) == []
    assert len(clock.started) == 14
    clock.ticker.once(lambda _: None)
    assert len(clock.started) == 121  # those of the last two hours, both ends
    assert clock.progress().left_out == 51


class Reads(Folder):
    """A folder that counts what is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.calls = Counter[str]()

    def get(self, kind: str, key: str) -> bytes | None:
        self.calls["get"] += 1
        return super().get(kind, key)

    def read(self, *given: Any, **named: Any) -> Any:
        self.calls["read"] += 1
        return super().read(*given, **named)

    def keys(self, *given: Any, **named: Any) -> Any:
        self.calls["keys"] += 1
        return super().keys(*given, **named)

    def runs(self, *given: Any, **named: Any) -> Any:
        self.calls["runs"] += 1
        return super().runs(*given, **named)


async def test_a_look_costs_the_same_however_many_runs_there_are(world: World) -> None:
    crew, costs = Crew(world, PLAN), list[Counter[str]]()
    clock = Clock(world.store)
    clock.put()
    for round_ in range(2):
        clock.look(1200 * round_ + 600)
        await crew.work()
        store = Reads(world.store)
        clock.now = EIGHT + 1200.0 * (round_ + 1)
        Ticker(store, clock=lambda: clock.now).look()
        costs.append(store.calls)
        await crew.work()
        for number in range(10):
            crew.start(id=f"{round_}-{number}")
        await crew.work()
    assert costs[0] == costs[1]
    assert costs[0]["runs"] == 0
    idle = Reads(world.store)
    ticker = Ticker(idle, clock=lambda: clock.now)
    ticker.look()
    idle.calls.clear()
    ticker.look()
    assert idle.calls == {"keys": 2, "get": 1}  # a page of keys, and that there is no other


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"name": "a b"}, "'a b' can't name a schedule"),
        ({"cron": "often"}, "'often' is not a cron expression"),
        ({"cron": "R 3 * * *"}, "'R 3 \\* \\* \\*' is not a cron expression"),
        ({"cron": "0 0 30 2 *"}, "'0 0 30 2 \\*' is not a cron expression of any time to come"),
        ({"zone": "Nowhere/Here"}, "'Nowhere/Here' is not a time zone"),
        ({"missed": "some"}, "missed of 's' is 'some': it is one of newest, all or none"),
        ({"overlap": "often"}, "overlap of 's' is 'often': it is one of skip or allow"),
        ({"catchup": 0}, "catchup of 's' is 0: it is a number of seconds, over 0"),
        ({"catchup": float("inf")}, "catchup of 's' is inf"),
        ({"catchup": "1d"}, "catchup of 's' is '1d'"),
        ({"catchup": True}, "catchup of 's' is True"),
        ({"inputs": {"n": object()}}, "the inputs of 's' are not JSON"),
        ({"inputs": {"n": float("nan")}}, "the inputs of 's' are not JSON: NaN"),
        ({"inputs": {"n": "x" * 1_000_001}}, "'s': the inputs have over 1000000 bytes"),
        ({"by": None}, "name, plan, cron, by and zone of the schedule 's' are texts"),
    ],
)
def test_a_field_that_can_not_be_used_is_named(clock: Clock, what: Any, said: str) -> None:
    with pytest.raises(WorkflowError, match=said):
        clock.put(**what)
    assert clock.schedules.names() == []


def rollcage(*arguments: str, app: Any = workflow) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command_line_puts_lists_and_tells_what_was_left_out(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(WAITS))
    store = ("--store", str(world.store))
    every = ("schedule", "s", "plan", "*/10 * * * *", "--by", "carl", *store)
    assert rollcage("schedules", *store)[1] == "No schedules.\n"
    assert rollcage(*every, "--missed", "all", "--catchup", "12h", "--overlap", "allow")[0] == 0
    assert rollcage(*every, "--catchup", "90")[0] == 0
    with pytest.raises(Exception, match="--catchup 1 day: give it as 90, 30m, 12h or 7d"):
        rollcage(*every, "--catchup", "1 day")
    with pytest.raises(Exception, match="missed of 's' is 'some'"):
        rollcage(*every, "--missed", "some")
    clock = Clock(world.store)
    entry = clock.schedules.entry("s")
    assert entry is not None
    assert entry.schedule.catchup == 90
    clock.schedules.move(entry, Progress(int(time.time()) - 3 * HOUR))
    app = Typer()
    app.command()(worker_command)
    worker = ("--once", "--plans", "plan.json", *store)
    code, _, told = rollcage(*worker, app=app)
    assert code == 0
    assert told.splitlines()[0] == "worker for plan"
    assert "times were left out: " in told.splitlines()[1]
    assert len(told.splitlines()) == 2
    _, said, _ = rollcage("schedules", *store)
    assert said.splitlines()[0].split() == ["name", "plan", "cron", "zone", "by", "missed",
                                            "overlap", "left", "out"]  # fmt: skip
    assert said.splitlines()[2].startswith("s: the last one was left out: ")
    (data,) = json.loads(rollcage("schedules", "--json", *store)[1])["schedules"]
    assert (data["missed"], data["catchup"], data["overlap"]) == ("newest", 90.0, "skip")
    assert data["left_out"] == clock.progress().left_out
    assert data["why"] == clock.progress().why


def test_a_worker_without_an_engine_starts_and_runs_what_is_due(world: World) -> None:
    made = Engine(None, store=world.store, plans=[PLAN], tools=world.tools, every=0.05)
    made.schedule(Schedule("s", "plan", "* * * * * *", by="carl"))
    entry = made.schedules.entry("s")
    assert entry is not None
    assert entry.progress is not None
    made.schedules.move(entry, Progress(entry.progress.handled - 3))
    stop, told = threading.Event(), list[LeftOut]()
    thread = threading.Thread(target=made.serve, args=(stop,), kwargs={"left_out": told.append})
    thread.start()
    try:
        began = dt.datetime.now(dt.UTC)
        while len(world.deeds) < 3:
            assert (dt.datetime.now(dt.UTC) - began).total_seconds() < 60
    finally:
        stop.set()
        thread.join()
    (found,) = told
    assert found.count in (2, 3)
    assert world.most == 1


def test_an_engine_logs_what_was_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    made = Engine(None, store=world.store, plans=[PLAN], tools=world.tools)
    made.schedule(Schedule("s", "plan", "*/10 * * * *", by="carl", catchup=0.5))
    entry = made.schedules.entry("s")
    assert entry is not None
    assert entry.progress is not None
    made.schedules.move(entry, Progress(entry.progress.handled - DAY))
    with caplog.at_level(logging.WARNING):
        made.serve(threading.Event(), once=True)
    assert "times were left out" in caplog.text


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")
