"""The seven laws of replay, over random runs.

A *program* is a list of turns, each a list of operations. It is recorded for real, then replayed
in another form; what each operation gave back, and how many bodies ran, is what the laws are about.
"""

import asyncio
import dataclasses
import functools
import itertools
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollcage import Halt, Options, Session, SessionHalted, UnknownOutcome, open_store, tool

from tests.laws.lab import folder
from tests.laws.law import LAW

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
        self.new: list[list[bool]] = []
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

    @tool(effect="write", raises=(ValueError,))
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

    @tool(effect="write", raises=(ValueError,))
    async def outer(arg: int, does: str) -> str:
        first = await write(arg, "new")
        seen = await read(arg, "new")
        second = await write(arg, "new")
        return f"{_bodies.get().body(Op('outer', arg, does))}: {first}, {seen}, {second}"

    @tool(effect="write", raises=(ValueError,))
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
                return "ok", await session.arun_call(contract, asked, answer, kind="model")
            return "ok", await tools[op.tool](arg=op.arg, does=op.does)
        except (UnknownOutcome, TimeoutError, SessionHalted):
            return "unknown", None  # cut off itself, or the calls of its own body were
        except Halt as error:
            return "halted", type(error).__name__
        except ValueError as error:
            return "error", str(error)

    given_back: list[list[Outcome]] = []
    for turn in program:
        bodies.new.append([])
        with session.turn() as stated:

            async def placed(
                slot: int, op: Op, stated: Any = stated, alone: bool = len(turn) == 1
            ) -> Outcome:
                with nullcontext() if alone else stated.slot(slot):
                    before = len(bodies.ran)
                    outcome = await one(op)
                    bodies.new[-1].append(len(bodies.ran) > before)
                    return outcome

            if at_once:
                given_back.append(list(await asyncio.gather(*(placed(s, op) for s, op in turn))))
            else:
                given_back.append([await placed(s, op) for s, op in turn])
    return given_back


@dataclasses.dataclass
class Replayed:
    run: str
    outcomes: list[list[Outcome]]
    new: list[list[bool]]  # where a body ran, of calls that came one after another
    ran: list[Op]
    hits: int


class Lab:
    """A store to record and replay programs in."""

    def __init__(self, root: Path) -> None:
        self.store = open_store(root)
        self.jobs = itertools.count(1)

    def run(self, program: Program, *, at_once: bool = True, **how: Any) -> Replayed:
        bodies = Bodies()

        async def main() -> Replayed:
            # A second session of a job goes on with the copy that the first one made of a source.
            job = f"job {next(self.jobs)}" if "source" in how else "job"
            session = Session(job, store=self.store, **how)
            outcomes: list[list[Outcome]] = []
            try:
                async with session:
                    outcomes = await execute(session, program, bodies, at_once=at_once)
            except UnknownOutcome:
                pass
            return Replayed(session.run_id, outcomes, bodies.new, bodies.ran, session.stats.hits)

        return asyncio.run(main())

    def last_step(self, run: str) -> dict[str, Any]:
        """Return the line of the step that was begun last."""
        lines = map(orjson.loads, self.store.read(run))
        last: dict[str, Any] = [event for event in lines if event["event"] == "step"][-1]
        return last

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

AGAIN_IN_A_LATER_TURN: Program = (
    ((0, Op("write", 0)), (1, Op("pure", 0, "fail"))),
    ((0, Op("pure", 0, "fail")), (1, Op("read", 0))),
    ((0, Op("write", 0)), (1, Op("read", 0))),
)


READ_IN_TWO_TURNS: Program = (
    ((0, Op("write", 0)), (1, Op("read", 0)), (2, Op("write", 0))),
    ((0, Op("write", 0)), (1, Op("read", 0))),
)
READS_IN_TWO_TURNS: Program = (
    ((0, Op("write", 0)), (1, Op("read", 0)), (2, Op("read", 0))),
    ((0, Op("write", 0)), (1, Op("read", 0))),
)


@LAW
@example(AGAIN_IN_A_LATER_TURN, False)  # a failed call is made again by the next turn
@given(ended(), st.booleans())
def test_1_the_same_turns_again_all_hit(program: Program, at_once: bool) -> None:
    with lab() as store:
        recorded = store.record(program, at_once=at_once)
        again = store.run(program, at_once=at_once, replay="offline")
    assert again.outcomes == recorded.outcomes
    assert again.ran == []


@LAW
@given(ended(), st.booleans())
def test_2_a_parallel_run_hits_call_by_call(program: Program, at_once: bool) -> None:
    with lab() as store:
        recorded = store.record(program, at_once=at_once)
        again = store.run(singly(program), replay="offline")
    assert in_order(again.outcomes) == in_order(recorded.outcomes)
    assert again.ran == []


@LAW
@given(programs, seeds, st.booleans())
def test_3_a_sequential_run_hits_in_turns(program: Program, seed: int, at_once: bool) -> None:
    with lab() as store:
        recorded = store.record(singly(program))
        again = store.run(regrouped(program, seed), at_once=at_once, replay="offline")
    assert in_order(again.outcomes) == in_order(recorded.outcomes)
    assert again.ran == []


@LAW
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


@LAW
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


@LAW
@example(READ_IN_TWO_TURNS, 1, True)  # in a turn of its own, amid a batch
@example(READS_IN_TWO_TURNS, 1, True)  # behind the batch, and amid the turn
@given(programs, st.integers(0, 20), st.booleans())
def test_6_a_new_read_changes_nothing_else(program: Program, place: int, own_turn: bool) -> None:
    read = Op("fresh_read", 9)
    changed, _ = inserted(program, read, min(place, len(flat(program))), own_turn=own_turn)
    with lab() as store:
        recorded = store.record(program)
        options = Options(retry_failed=False)
        again = store.run(changed, at_once=False, replay="resume", options=options)
    assert again.ran == [read]
    old = [o for op, o in zip(flat(changed), in_order(again.outcomes), strict=True) if op != read]
    assert old == in_order(recorded.outcomes)


TWO_WRITES: Program = (((0, Op("write", 0)), (1, Op("write", 1))),)
READ_BESIDE_WRITES: Program = (
    tuple((slot, Op("write", 0)) for slot in range(4)),
    ((0, Op("write", 0)), (1, Op("write", 0)), (2, Op("read", 0))),
)
READ_AFTER_TWO: Program = (
    ((0, Op("write", 0)), (1, Op("write", 0))),
    ((0, Op("write", 0)), (1, Op("write", 0)), (2, Op("read", 0))),
)
READ_AFTER_FIVE: Program = (
    READ_AFTER_TWO[0],
    (*((slot, Op("write", 0)) for slot in range(3)), (3, Op("read", 0))),
)
TWO_READS: Program = (
    (*((slot, Op("write", 0)) for slot in range(3)), (3, Op("pure", 0))),
    ((0, Op("read", 0)), (1, Op("read", 0))),
)
THREE_READS: Program = (tuple((slot, Op("read", 0)) for slot in range(3)),)
FOUR_WRITES: Program = (tuple((slot, Op("write", 0)) for slot in range(4)),)
MODEL_AND_READ: Program = (
    ((0, Op("write", 0)),),
    ((0, Op("write", 0)), (1, Op("read", 0))),
    ((0, Op("model", 0)), (1, Op("read", 0))),
)
MODEL_AND_READ_TWICE: Program = (((0, Op("model", 0)), (1, Op("read", 0))),) * 2
READ_BEHIND: Program = (FOUR_WRITES[0][:2], ((0, Op("write", 0)),), ((0, Op("read", 0)),))
ONE_FOUR_TWO: Program = (((0, Op("write", 0)),), FOUR_WRITES[0], FOUR_WRITES[0][:2])
FOUR_TWO_READ: Program = (FOUR_WRITES[0], FOUR_WRITES[0][:2], ((0, Op("read", 0)),))
SINGLE_WRITES: Program = (((0, Op("write", 0)),),) * 3
READ_BETWEEN: Program = (((0, Op("write", 0)), (1, Op("read", 0)), (2, Op("write", 0))),)


@LAW
@example(READ_AFTER_TWO, 4, 0, 0, "read", False, "singly")  # a new read has no slot of its own
@example(READ_AFTER_FIVE, 4, 0, 2965987, "read", False, "regrouped")  # nor has one of another turn
@example(TWO_READS, 4, 0, 1, "fresh_write", False, "regrouped")  # a new write goes before them
@example(READ_BETWEEN, 3, 0, 0, "fresh_write", False, "singly")  # a write joins, after the read
@example(TWO_WRITES, 1, 1, 0, "fresh_write", True, "singly")  # left in the middle of a batch
@example(READ_BESIDE_WRITES, 0, 0, 19, "write", False, "regrouped")  # a write joins their batch
@example(THREE_READS, 1, 1, 0, "fresh_write", False, "singly")  # it goes past one not asked for
@example(FOUR_WRITES, 4, 0, 141, "write", False, "regrouped")  # it has the slot of another turn
@example(MODEL_AND_READ, 0, 0, 0, "fresh_write", False, "as it was")  # a model's turn goes on
@example(READ_BEHIND, 4, 0, 0, "fresh_write", False, "regrouped")  # it goes on behind its batch
@example(ONE_FOUR_TWO, 4, 0, 1, "fresh_write", False, "regrouped")  # a batch is left for the next
@example(FOUR_TWO_READ, 4, 0, 1, "read", False, "regrouped")  # new ones answer by their slots
@example(SINGLE_WRITES, 0, 1, 45, "write", False, "regrouped")  # a turn goes on behind others
@example(MODEL_AND_READ_TWICE, 0, 0, 0, "fresh_write", True, "as it was")  # and so do two
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
        first = store.record(program)
        second = store.run(changed, at_once=False, replay="resume", on_divergence="warn")
        third = store.run(changed, at_once=False, replay="offline", source=second.run)
        # A hit writes nothing, so turns stay in order that are not as they are on record.
        # One that had a call run again is on record in two: beside the failure, and anew.
        again = {"again" in event for event in map(orjson.loads, store.store.read(second.run))}
        split = [True in again and any(op.does == "fail" for _, op in turn) for turn in changed]
        # One in which nothing ran may have been answered with calls of several turns.
        as_first = [*map(operator.eq, second.outcomes, first.outcomes)] + [False] * len(changed)
        whole = [
            form == "as it was" and not split[n] and (all(ran) or (not any(ran) and as_first[n]))
            for n, ran in enumerate(second.new)
        ]
        turns = zip(changed, shuffled(changed, seed), whole, strict=True)
        order = tuple(other if of_one else turn for turn, other, of_one in turns)
        mixed = store.run(order, replay="offline", source=second.run)
    assert third.outcomes == second.outcomes
    assert third.ran == []
    assert mixed.ran == []
    assert not any(kind == "halted" for kind, _ in in_order(mixed.outcomes))


@LAW
@given(programs, seeds, st.booleans(), st.sampled_from(["as it was", "singly", "regrouped"]))
def test_the_world_is_the_same_however_a_run_was_grouped(
    program: Program, seed: int, at_once: bool, form: str
) -> None:
    """What comes after the recorded path stands in one world, in whatever form it was replayed."""
    after = (((0, Op("fresh_write", 9)),),)
    how: dict[str, Any] = {"at_once": at_once, "replay": "resume"}
    how["options"] = Options(retry_failed=False)
    with lab() as store:
        recorded = store.record(singly(program) if form == "regrouped" else program).run
        again = {
            "as it was": shuffled(program, seed),
            "singly": singly(program),
            "regrouped": regrouped(program, seed),
        }[form]
        runs = [store.run((*again, *after), source=recorded, **how)]
        runs.append(store.run((*singly(program), *after), source=recorded, **how))
        named = {store.last_step(run.run)["fingerprint"] for run in runs}
    assert all(run.ran == [after[0][0][1]] for run in runs)
    assert len(named) == 1


def test_the_laws_can_fail() -> None:
    """A replay that ignores the world would give an old read after a new write: law 5 sees it."""
    program: Program = (((0, Op("write", 0)),), ((0, Op("read", 0)),))
    with lab() as store:
        store.record(program)
        same = store.run(program, replay="resume", on_divergence="warn")
    assert same.ran == []
    with pytest.raises(AssertionError):
        assert same.ran == [Op("read", 0)]
