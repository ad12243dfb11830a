"""The seven laws of replay, over random runs (DESIGN §3).

A *program* is a list of turns, each a list of operations. It is recorded for real, then replayed
in another form; what each operation gave back, and how many bodies ran, is what the laws are about.
"""

import asyncio
import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from programs import folder
from rollcage import Halt, SessionHalted, UnknownOutcome, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.trace import Worlds, check_events

pytestmark = pytest.mark.law


@dataclasses.dataclass(frozen=True)
class Op:
    """One call: a tool by name, and what its body does."""

    tool: str  # write, read, pure, model, outer (a tool that calls tools), fresh_write, fresh_read
    arg: int
    does: str = "new"  # new, same, fail or time_out


Turn = tuple[tuple[int, Op], ...]  # (slot, operation), in order of arrival
Program = tuple[Turn, ...]
Outcome = tuple[str, Any]


class Bodies:
    """The tools of one law's run; counts what runs."""

    def __init__(self) -> None:
        self.ran: list[Op] = []
        self.numbers = itertools.count()

    def body(self, op: Op) -> str:
        self.ran.append(op)
        if op.does == "fail":
            raise ValueError(f"{op.tool} {op.arg} failed")
        if op.does == "time_out":
            raise TimeoutError
        if op.tool == "pure":  # depends on its arguments only
            return f"pure {op.arg}"
        return "same" if op.does == "same" else f"{op.tool} {op.arg} #{next(self.numbers)}"


_bodies: ContextVar[Bodies] = ContextVar("bodies")  # of the run that is executed


@functools.cache
def make_tools() -> dict[str, Any]:
    """The tools of all runs: declaring them takes longer than most runs do."""

    @tool(effect="write")
    async def write(arg: int, does: str) -> str:
        await asyncio.sleep(0)
        return _bodies.get().body(Op("write", arg, does))

    @tool(effect="read")
    async def read(arg: int, does: str) -> str:
        await asyncio.sleep(0)
        return _bodies.get().body(Op("read", arg, does))

    @tool(effect="pure")
    async def pure(arg: int, does: str) -> str:
        return _bodies.get().body(Op("pure", arg, does))

    @tool(effect="write")
    async def outer(arg: int, does: str) -> str:
        first = await write(arg, "new")
        seen = await read(arg, "new")
        second = await write(arg, "new")
        return f"{_bodies.get().body(Op('outer', arg, does))}: {first}, {seen}, {second}"

    @tool(effect="write")
    async def fresh_write(arg: int, does: str) -> str:
        return _bodies.get().body(Op("fresh_write", arg, does))

    @tool(effect="read")
    async def fresh_read(arg: int, does: str) -> str:
        return _bodies.get().body(Op("fresh_read", arg, does))

    @tool(effect="read")
    async def model(arg: int, does: str) -> str:
        return _bodies.get().body(Op("model", arg, does))

    named = (write, read, pure, outer, fresh_write, fresh_read, model)
    return {each.__name__: each for each in named}


async def execute(
    session: Session, program: Program, bodies: Bodies, *, at_once: bool
) -> list[list[Outcome]]:
    """Run a program: each turn's calls at once, or one after another."""
    tools = make_tools()
    model = tools["model"]
    _bodies.set(bodies)

    async def one(op: Op) -> Outcome:
        try:
            if op.tool == "model":
                asked = {"arg": op.arg, "does": op.does}
                contract, answer = model.__rollcage_contract__, model.__wrapped__
                return "ok", await session.arun(contract, asked, answer, kind="model")
            return "ok", await tools[op.tool](arg=op.arg, does=op.does)
        except (UnknownOutcome, TimeoutError, SessionHalted):
            return "unknown", None  # cut off itself, or the calls of its own body were
        except Halt as error:
            return "halted", type(error).__name__
        except ValueError as error:
            return "error", str(error)

    given_back: list[list[Outcome]] = []
    for turn in program:
        with session.turn() as stated:

            async def placed(slot: int, op: Op, stated: Any = stated) -> Outcome:
                with stated.slot(slot):
                    return await one(op)

            if at_once:
                given_back.append(list(await asyncio.gather(*(placed(s, op) for s, op in turn))))
            else:
                given_back.append([await placed(s, op) for s, op in turn])
    return given_back


@dataclasses.dataclass
class Replayed:
    run: str
    outcomes: list[list[Outcome]]
    ran: list[Op]
    hits: int


class Lab:
    """A store to record and replay programs in."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, program: Program, *, at_once: bool = True, **how: Any) -> Replayed:
        bodies = Bodies()

        async def main() -> Replayed:
            session = Session("job", store=self.root, **how)
            outcomes: list[list[Outcome]] = []
            try:
                async with session:
                    outcomes = await execute(session, program, bodies, at_once=at_once)
            except UnknownOutcome:
                pass
            return Replayed(session.run_id, outcomes, bodies.ran, session.stats.hits)

        replayed = asyncio.run(main())
        trace = self.root / "runs" / f"{replayed.run}.jsonl"
        worlds = Worlds()
        for event in check_events(trace.read_bytes(), trace.name):
            assert worlds.follow(event) is None
        return replayed

    def newest(self) -> str:
        return JsonlStore(self.root).runs()[-1].run

    def events(self, run: str) -> list[dict[str, Any]]:
        return check_events((self.root / "runs" / f"{run}.jsonl").read_bytes(), run)

    def record(self, program: Program, *, at_once: bool = True) -> Replayed:
        return self.run(program, at_once=at_once, replay="off")


@contextmanager
def lab() -> Iterator[Lab]:
    with folder() as root:
        yield Lab(root)


# --- random programs -----------------------------------------------------------------------------

operations = st.builds(
    Op,
    tool=st.sampled_from(["write", "write", "read", "read", "pure", "model", "outer"]),
    arg=st.integers(0, 1),  # few, so that many calls are identical
    does=st.sampled_from(["new", "new", "new", "same", "fail"]),
)
turns = st.lists(operations, min_size=1, max_size=4).map(lambda ops: tuple(enumerate(ops)))
programs = st.lists(turns, min_size=1, max_size=5).map(tuple)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def ended(draw: st.DrawFn) -> Program:
    """A program that may end with a write that nobody knows the outcome of."""
    program = draw(programs)
    if draw(st.booleans()):
        last = program[-1]
        cut_off = (len(last), Op("write", draw(st.integers(0, 1)), "time_out"))
        program = (*program[:-1], (*last, cut_off))
    return program


def flat(program: Program) -> list[Op]:
    return [op for turn in program for _, op in turn]


def singly(program: Program) -> Program:
    return tuple(((0, op),) for op in flat(program))


def in_order(outcomes: list[list[Outcome]]) -> list[Outcome]:
    return [outcome for turn in outcomes for outcome in turn]


def shuffled(program: Program, seed: int) -> Program:
    """Each turn's calls in another order; model calls have no slots, and stay in theirs."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible order, no secret
    mixed = []
    for turn in program:
        models = iter([call for call in turn if call[1].tool == "model"])
        order = chance.sample(turn, len(turn))
        mixed.append(tuple(next(models) if call[1].tool == "model" else call for call in order))
    return tuple(mixed)


def regrouped(program: Program, seed: int) -> Program:
    chance = random.Random(seed)  # noqa: S311 - a reproducible grouping, no secret
    turns: list[list[Op]] = []
    for op in flat(program):
        if turns and chance.random() < 0.5:
            turns[-1].append(op)
        else:
            turns.append([op])
    return tuple(tuple(enumerate(turn)) for turn in turns)


def inserted(program: Program, op: Op, place: int, *, own_turn: bool) -> tuple[Program, int]:
    """The program with one more operation before the `place`-th, and the index of its turn."""
    before = 0
    for index, turn in enumerate(program):
        if place <= before + len(turn):
            at = place - before
            if own_turn:
                parts = [turn[:at], ((0, op),), turn[at:]]
                new = [part for part in parts if part]
                return (*program[:index], *new, *program[index + 1 :]), index + bool(turn[:at])
            free = 1 + max(slot for slot, _ in turn)
            mixed = (*turn[:at], (free, op), *turn[at:])
            return (*program[:index], mixed, *program[index + 1 :]), index
        before += len(turn)
    return (*program, ((0, op),)), len(program)


# --- the laws ------------------------------------------------------------------------------------


@given(ended(), st.booleans())
def test_1_the_same_turns_again_all_hit(program: Program, at_once: bool) -> None:
    with lab() as store:
        recorded = store.record(program, at_once=at_once)
        again = store.run(program, at_once=at_once, replay="offline")
    assert again.outcomes == recorded.outcomes
    assert again.ran == []


@given(ended(), st.booleans())
def test_2_a_parallel_run_hits_call_by_call(program: Program, at_once: bool) -> None:
    with lab() as store:
        recorded = store.record(program, at_once=at_once)
        again = store.run(singly(program), replay="offline")
    assert in_order(again.outcomes) == in_order(recorded.outcomes)
    assert again.ran == []


@given(programs, seeds, st.booleans())
def test_3_a_sequential_run_hits_in_turns(program: Program, seed: int, at_once: bool) -> None:
    with lab() as store:
        recorded = store.record(singly(program))
        again = store.run(regrouped(program, seed), at_once=at_once, replay="offline")
    assert in_order(again.outcomes) == in_order(recorded.outcomes)
    assert again.ran == []


@given(ended(), seeds, st.booleans())
def test_4_the_calls_of_a_turn_come_in_any_order(
    program: Program, seed: int, at_once: bool
) -> None:
    mixed = shuffled(program, seed)
    with lab() as store:
        recorded = store.record(program, at_once=at_once)
        again = store.run(mixed, at_once=at_once, replay="offline")
        alone = store.run(singly(mixed), replay="offline")
    assert alone.ran == []
    assert not any(kind == "halted" for kind, _ in in_order(alone.outcomes))
    for turn, before, mixed_turn, after in zip(
        program, recorded.outcomes, mixed, again.outcomes, strict=True
    ):
        by_slot = {slot: outcome for (slot, _), outcome in zip(turn, before, strict=True)}
        for (slot, _), outcome in zip(mixed_turn, after, strict=True):
            assert outcome == by_slot[slot]
    assert again.ran == []


@given(programs, st.integers(0, 20), st.booleans())
def test_5_after_a_new_write_nothing_of_a_later_turn_holds(
    program: Program, place: int, own_turn: bool
) -> None:
    changed, turn = inserted(
        program, Op("fresh_write", 9), min(place, len(flat(program))), own_turn=own_turn
    )
    with lab() as store:
        store.record(program)
        again = store.run(changed, at_once=False, replay="resume", on_divergence="warn")
    later = [op for op in flat(changed[turn + 1 :]) if op.tool in ("write", "read", "outer")]
    outside = [op for op in again.ran if op.tool in ("write", "read", "outer")]
    nested = 3 * sum(op.tool == "outer" for op in later)
    count = len(later) + nested
    if later:
        ran_later = outside[len(outside) - count :]
        assert sorted(map(str, ran_later)) == sorted(
            [*map(str, later)]
            + [
                str(Op(name, op.arg))
                for op in later
                if op.tool == "outer"
                for name in ("write", "read", "write")
            ]
        )


@given(programs, st.integers(0, 20), st.booleans())
def test_6_a_new_read_changes_nothing_else(program: Program, place: int, own_turn: bool) -> None:
    read = Op("fresh_read", 9)
    changed, _ = inserted(program, read, min(place, len(flat(program))), own_turn=own_turn)
    with lab() as store:
        recorded = store.record(program)
        again = store.run(changed, at_once=False, replay="resume", retry_failed=False)
    assert again.ran == [read]
    old = [o for op, o in zip(flat(changed), in_order(again.outcomes), strict=True) if op != read]
    assert old == in_order(recorded.outcomes)


TWO_WRITES: Program = (((0, Op("write", 0)), (1, Op("write", 1))),)


@example(TWO_WRITES, 1, 1, 0, "fresh_write", True, "singly")  # left in the middle of a batch
@given(
    programs,
    st.integers(0, 20),
    st.integers(0, 20),
    seeds,
    st.sampled_from(["fresh_write", "fresh_read", "write", "read"]),
    st.booleans(),
    st.sampled_from(["as it was", "singly", "regrouped"]),
)
def test_7_a_resumed_run_is_itself_a_full_source(
    program: Program,
    place: int,
    other_place: int,
    seed: int,
    new: Any,
    own_turn: bool,
    form: str,
) -> None:
    if form == "singly":
        changed = singly(program)
    elif form == "regrouped":
        changed = regrouped(program, seed)
    else:
        changed = program
    for op, at in ((Op(new, 0), place), (Op("fresh_read", 7), other_place)):
        changed, _ = inserted(changed, op, min(at, len(flat(changed))), own_turn=own_turn)
    with lab() as store:
        store.record(program)
        second = store.run(changed, at_once=False, replay="resume", on_divergence="warn")
        third = store.run(changed, at_once=False, replay="offline", source=second.run)
        mixed = store.run(shuffled(changed, seed), replay="offline", source=second.run)
    assert third.outcomes == second.outcomes
    assert third.ran == []
    assert mixed.ran == []
    assert not any(kind == "halted" for kind, _ in in_order(mixed.outcomes))


@given(programs, seeds, st.booleans(), st.sampled_from(["as it was", "singly", "regrouped"]))
def test_the_world_is_the_same_however_a_run_was_grouped(
    program: Program, seed: int, at_once: bool, form: str
) -> None:
    """What comes after the recorded path stands in one world, in whatever form it was replayed."""
    after = (((0, Op("fresh_write", 9)),),)
    how: dict[str, Any] = {"at_once": at_once, "replay": "resume", "retry_failed": False}
    with lab() as store:
        recorded = store.record(singly(program) if form == "regrouped" else program).run
        again = {
            "as it was": shuffled(program, seed),
            "singly": singly(program),
            "regrouped": regrouped(program, seed),
        }[form]
        runs = [store.run((*again, *after), source=recorded, **how)]
        runs.append(store.run((*singly(program), *after), source=recorded, **how))
        if form == "regrouped":  # and what was regrouped may come in any order from then on
            grouped = store.run(again, source=recorded, **how)
            runs.append(store.run((*shuffled(again, seed), *after), source=grouped.run, **how))
        worlds = {store.events(run.run)[-3]["world"] for run in runs}
    assert all(run.ran == [after[0][0][1]] for run in runs)
    assert len(worlds) == 1


def test_the_laws_can_fail() -> None:
    """A replay that ignores the world would give an old read after a new write: law 5 sees it."""
    program: Program = (((0, Op("write", 0)),), ((0, Op("read", 0)),))
    with lab() as store:
        store.record(program)
        same = store.run(program, replay="resume", on_divergence="warn")
    assert same.ran == []
    with pytest.raises(AssertionError):
        assert same.ran == [Op("read", 0)]
