"""Law 12: clocks that jump, between runs and within them, change nothing (DESIGN §3b).

A job of some calls is killed or left by an error anywhere, as often as it likes, and resumed each
time on a host with another clock. At the end each of its effects is there once, in order.
"""

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollcage import (
    Blocked,
    Clock,
    DidNotHappen,
    Happened,
    Options,
    Session,
    Store,
    current_step,
    newest_run,
    tool,
)
from rollcage.trace.chain import attested_head
from rollcage.trace.folder import Folder
from rollcage_policy import Policy

pytestmark = pytest.mark.law

HOUR = 3_600 * 10**9
NOW = 1_800_000_000 * 10**9  # ns


class Killed(BaseException):
    """The process is gone, or its user was impatient."""


@dataclasses.dataclass(frozen=True)
class End:
    """Where a session ends before its time."""

    at: int  # which of its calls
    when: str  # before, in or behind the body
    killed: bool  # nothing more of it reaches the disk


@dataclasses.dataclass(frozen=True)
class Host:
    """A session's clock: where it stands, and how far it jumps each time somebody looks."""

    start: int  # hours
    jumps: tuple[int, ...]  # hours

    def clock(self) -> Clock:
        jumps, times = itertools.cycle(self.jumps), itertools.count(1)
        return Clock(wall=lambda: NOW + (self.start + next(jumps)) * HOUR + next(times) * 1000)


class World:
    """What the job changes, and where its session is to end."""

    def __init__(self) -> None:
        self.effects: list[int] = []
        self.keys: dict[str, int] = {}
        self.end: End | None = None
        self.calls = 0
        self.killed: Callable[[], None] = lambda: None

    def meet(self, when: str) -> None:
        if self.end is not None and (self.end.at, self.end.when) == (self.calls, when):
            self.killed()
            raise Killed

    def performed(self, key: str) -> Happened | DidNotHappen:
        return Happened(self.keys[key]) if key in self.keys else DidNotHappen()

    def tools(self) -> dict[str, Any]:
        @tool(effect="write", probe=self.performed)
        def write(number: int) -> int:
            step = current_step()
            assert step is not None
            self.meet("before")
            self.effects.append(number)
            self.keys[step.idempotency_key] = number
            self.meet("in")
            return number

        @tool(effect="read")
        def look(number: int) -> list[int]:
            self.meet("in")
            return [number, *self.effects]

        @tool(effect="pure")
        def double(number: int) -> int:
            return number * 2

        return {"write": write, "look": look, "double": double}


def run(
    store: Folder, world: World, program: Sequence[str], host: Host, end: End | None
) -> Session:
    """One session of the job, on a host whose wall clock is this."""
    tools = world.tools()
    session = Session("job", store=store, options=Options(clock=host.clock()))
    sizes: list[int] = []
    world.end, world.calls = end, 0
    world.killed = lambda: sizes.append(Path(store.path_of(session.run_id)).stat().st_size)
    seen = None
    try:
        with session:
            seen = attested_head(store, session.run_id)
            for number, name in enumerate(program):
                assert tools[name](number) == answer(name, number, program)
                world.meet("behind")
                world.calls += 1
    except Killed:
        assert end is not None
        if end.killed:  # what was written behind that is not there
            os.truncate(store.path_of(session.run_id), sizes[0])
            store.swap("heads", session.run_id, attested_head(store, session.run_id), seen)
    return session


def answer(name: str, number: int, program: Sequence[str]) -> Any:
    if name == "look":
        return [number, *(i for i, each in enumerate(program[:number]) if each == "write")]
    return number * 2 if name == "double" else number


hosts = st.builds(
    Host, st.integers(-9, 9), st.lists(st.integers(-9, 9), min_size=1, max_size=4).map(tuple)
)
ends = st.builds(End, st.integers(0, 5), st.sampled_from(["before", "in", "behind"]), st.booleans())
programs = st.lists(st.sampled_from(["write", "write", "look", "double"]), min_size=1, max_size=6)
BACK = [
    (Host(0, (0,)), End(3, "behind", killed=True)),
    (Host(-1, (0,)), End(1, "behind", killed=True)),
]


@given(programs, st.lists(st.tuples(hosts, ends), max_size=4), hosts)
@example(["write"] * 6, BACK, Host(-1, (0,)))
def test_12_a_clock_that_jumps_loses_nothing_and_doubles_nothing(
    program: list[str], attempts: list[tuple[Host, End]], last: Host
) -> None:
    with tempfile.TemporaryDirectory() as root:
        store, world = Folder(root), World()
        before = run(store, world, ["double"], last, None)  # of a day before: it ended well
        for host, end in attempts:
            session = run(store, world, program, host, end)
            newest = newest_run(store, "job")
            assert newest is not None
            assert newest.run == session.run_id != before.run_id
            if newest.status == "ok":  # it was to end behind its last call
                break
        else:
            session = run(store, world, program, last, None)
        assert world.effects == [i for i, name in enumerate(program) if name == "write"]
        newest = newest_run(store, "job")
        assert newest is not None
        assert (newest.run, newest.status) == (session.run_id, "ok")


RATE = "version = 1\ndefault = 'allow'\n[[limits.rules]]\nid = 'rate'\nrate = '5/hour'\n"


@pytest.mark.parametrize("jumps", [(0, 9), (0, -9), (-3, 7, 1)])
def test_no_rate_and_no_duration_goes_by_a_clock_that_jumps(
    store: Store, events: Callable[[str], list[dict[str, Any]]], jumps: tuple[int, ...]
) -> None:
    """Neither more calls than a rate allows, nor fewer, and none that took less than no time."""
    world = World()
    write = world.tools()["write"]
    clock = Options(clock=Host(0, jumps).clock())
    with Session("job", store=store, gate=[Policy.parse(RATE)], options=clock) as session:
        for number in range(5):
            write(number)
        with pytest.raises(Blocked) as refused:
            write(5)
    assert refused.value.verdict_code == "limit_rate"
    assert world.effects == [0, 1, 2, 3, 4]
    lines = events(session.run_id)
    assert all(line.get("duration", 0) < 60_000_000 for line in lines)


def test_runs_of_one_process_are_listed_in_their_order(tmp_path: Path) -> None:
    """All of them begin in one millisecond, or the clock goes back from run to run."""
    store = Folder(tmp_path)
    for job, steps in (("still", itertools.repeat(0)), ("back", itertools.count(0, -HOUR))):
        clock = Clock(wall=lambda steps=steps: NOW + next(steps))  # type: ignore[misc] # mypy takes no default of a lambda
        ids: list[str] = []
        for number in range(20):
            with Session(f"{job} {number}", store=store, options=Options(clock=clock)) as session:
                ids.append(session.run_id)
        assert ids == sorted(ids)
        assert len(set(ids)) == len(ids)
        assert [ends.run for ends in store.runs(limit=20)] == ids[::-1] or job == "back"


def test_an_id_is_given_once() -> None:
    """Although neither the time nor chance tells two of them apart."""
    clock = Clock(wall=lambda: NOW, random=bytes)
    first = clock.run_id()
    other = dataclasses.replace(clock)  # of another process
    ids = [first, clock.run_id(), other.run_id(first)]
    assert len({*ids[:2]}) == len({first, ids[2]}) == 2
    assert ids[1] > first < ids[2]


def test_a_clock_that_is_far_ahead_elsewhere_moves_no_other_job(tmp_path: Path) -> None:
    store, ahead = Folder(tmp_path), Clock(wall=lambda: NOW + 1000 * HOUR)
    here = Options(clock=Clock(wall=lambda: NOW))
    with Session("job", store=store, options=Options(clock=ahead)) as first:
        pass
    with Session("job", store=store, options=here) as second:
        assert second.run_id > first.run_id
    with Session("other", store=store, options=here) as third:
        assert third.run_id < first.run_id
