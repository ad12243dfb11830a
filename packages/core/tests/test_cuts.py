"""Laws 8 to 12: runs that are cut, undone or shuffled, with all that programs are made of."""

import contextlib
import itertools
import random

import pytest
from cuts import (
    LAW,
    assert_through,
    assert_undone,
    cuts,
    last_step,
    moments,
    resumed_at_cuts,
    undone_at_cuts,
)
from hypothesis import given, settings
from memory import Remembering
from programs import Block, Branches, Lab, Node, Op, Program, Turn, folder
from rollcage import RollcageError
from rollcage.replay.fork import Fork
from rollcage.session.abandon import abandon_run
from rollcage.step.clock import Clock
from strategies import programs, seeds

pytestmark = [pytest.mark.law, pytest.mark.slow]

FEWER = settings(LAW, max_examples=max(1, settings().max_examples // 3))
SECOND = max(1, settings().max_examples // 100)  # of what resumes each cut of a known program
HOUR = 3_600 * 10**9  # ns


@pytest.fixture(autouse=True)
def calls_that_wait_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcage.step.pausing._FIRST", 0.001)  # seconds


@LAW
@given(programs, seeds)
def test_8_a_cut_trace_is_resumed_to_the_same_world(program: Program, seed: int) -> None:
    resumed_at_cuts(Lab, program, seed)


def W(does: str = "work", arg: int = 0) -> Op:  # noqa: N802 - short, as it stands in many places
    return Op("write", arg, does)


def kept(*nodes: Node) -> Block:
    return Block(nodes)


def undone(*nodes: Node) -> Block:
    return Block(nodes, raises=True)


NONE = frozenset[int]()
READ = Op("read")
READS = Op("scope", inner=(READ,))
FOUND: list[Program] = [  # by a search
    (Branches(((kept(W(), W()),), (Branches(((W(),),)),))),),
    # An undo that was cut off, of a block with blocks in it that had come back or been undone.
    (undone(kept(W("lose before")), undone(W())),),
    (undone(W(), Branches(((READS,),))),),
    (undone(Turn((kept(W(), W()),))),),
    (undone(Op("scope", inner=(W(), W()))),),
    # A block was undone in the branch of an agent that has come back since.
    (Branches(((W(), undone(W())), (kept(W("lose before")),))), W()),
    (Branches(((W(), undone(W())), (kept(W("lose before"), W()),))), W()),
    # A block was undone, and read on behind it, in a block whose undo was cut off.
    (undone(Branches(((W(), undone(W(arg=1)), Branches(((READ,),))),))),),
    # A branch in which nothing stands had come back, in a block whose undo was cut off.
    (
        undone(
            Branches(
                ((W("lose before"), W("fail")), (W("fail"), READ), (READ, READ)),
                after=(NONE, NONE, frozenset({0})),
            ),
            Op("scope", inner=(W(),)),
            W(),
        ),
    ),
    # A block was undone, and one behind its branch was in the midst of its work.
    (Branches(((), (undone(W(), W()),), (kept(W()),)), (NONE, NONE, frozenset({0, 1}))),),
    # An agent came after a block that was undone for a no, and that was being told again.
    (Branches(((undone(W(), W("refuse")),), (W(),)), (NONE, frozenset({0}))),),
    # A branch had come back with a scope, in a block whose undo was cut off in its body.
    (undone(Branches(((Op("scope", inner=(W(),)),),)), W()),),
    (undone(Branches(((W(), Op("scope", inner=(W(), W()))),)), W()),),
    (undone(Op("scope", inner=(Branches(((Op("scope", inner=(W(),)),),)), W())), W()),),
    # A branch had come back that began after what was undone last, and its own undo was done.
    (undone(W(), Branches(((READS, W()),))),),
]

ASKED = W("wait")
PAUSED: list[Program] = [  # while an operator is asked, in all that a run can be in the midst of
    (undone(W(), ASKED, W()), W()),
    (kept(ASKED, undone(W(), Op("write", 1, "refuse"))), Op("scope", does="wait", inner=(W(),))),
    (undone(Op("scope", inner=(W(), ASKED)), Op("outer", inner=(ASKED, W()))),),
    (Branches(((undone(W(), ASKED),), (W(), kept(W("refuse"), ASKED)))), W()),
    (Turn((undone(ASKED, W("lose after")), Op("scope", inner=(undone(W(), ASKED),)), ASKED)),),
    (undone(Branches(((W(),), (W("refuse"), W())))), W()),
    # ... or while somebody has paused it, who lets it go on later.
    (undone(W(), W("pause"), W()), W()),
    (kept(W("pause"), W("lose after")), Op("thread", 1, "pause"), READ),
    (undone(Branches(((W("pause"), W()), (W(), Op("stream"))))), W("pause")),
    (Turn((W("pause"), Op("outer", inner=(W("pause"), W())), ASKED)), W()),
]


@pytest.mark.parametrize("program", [*FOUND, *PAUSED])
def test_8_at_every_cut_of_what_a_search_has_found(program: Program) -> None:
    chance = random.Random(0)  # noqa: S311 - reproducible moments
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program)
        effects = lab.world.effects
        for run, line, world in moments(lab, lab.runs()):
            cut = lab.back(run, line, root / "cut", world)
            if program in PAUSED and line % 2:
                cut.pauses.give(run, at_rest=True)
            assert_through(cut, program, effects)
            again = [*moments(cut, cut.runs()[-1:])]
            for last, behind, there in chance.sample(again, min(SECOND, len(again))):
                assert_through(cut.back(last, behind, root / "again", there), program, effects)


@LAW
@given(programs, seeds)
def test_9_an_undo_to_any_step_then_a_resume(program: Program, seed: int) -> None:
    undone_at_cuts(Lab, program, seed)


HALF: Program = (Turn((undone(Turn((Op("scope", inner=(W(arg=1), W(), W())),))),)),)


def test_9_an_undo_finishes_what_it_finds_half_undone() -> None:
    """A block's undo was cut off in the body of a step: that step has not ended any more."""
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(HALF)
        for run, line, world in moments(lab, lab.runs()):
            to, last = 1, 1
            while to <= last:
                cut = lab.back(run, line, root / "cut", world.at(world.deeds))
                cut.resolve_all()
                last = last_step(cut, cut.runs()[-1])
                assert_undone(cut, HALF, lab.world.effects, to)
                to += 1


PLAIN = Op("plain", 1, "lose after")
UNDONE: list[Program] = [  # by a search
    # The run was undone to a step in front of a block, and ran that and undid it once more.
    (
        Branches(((W("lose after"),), (W(),))),
        undone(Branches(((W(),), (W(), Branches(((), (W("lose after"),))))))),
        Branches(((PLAIN,), (W(),))),
    ),
]


@pytest.mark.parametrize("program", UNDONE)
def test_9_an_undo_of_what_a_search_has_found(program: Program) -> None:
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program)
        first = lab.runs()[0]
        (whole,) = lab.worlds(first, 1)
        to, last = 1, 1
        while to <= last:
            cut = lab.back(first, 1, root / "cut", whole.at(()))
            cut.through(program)
            cut.resolve_all()
            last = last_step(cut, cut.runs()[-1])
            assert_undone(cut, program, lab.world.effects, to)
            to += 1


def test_9_an_undo_keeps_what_its_turn_did_after_an_answer() -> None:
    """An operator's answer came after a call beside had been done, and then been given back."""
    program: Program = (Turn((ASKED, W())),)
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program)
        for run, line, world in moments(lab, lab.runs()):
            to, last = 1, 1
            while to <= last:
                cut = lab.back(run, line, root / "cut", world.at(world.deeds))
                cut.through(program)
                cut.resolve_all()
                last = last_step(cut, cut.runs()[-1])
                assert_undone(cut, program, lab.world.effects, to)
                to += 1


@LAW
@given(programs, seeds)
def test_10_calls_come_in_any_order_within_their_turn(program: Program, seed: int) -> None:
    with folder() as root:
        lab = Lab(root)
        lab.through(program)
        comes_in_any_order(lab, program, seed)


def comes_in_any_order(lab: Lab, program: Program, seed: int) -> None:
    """What a lab has just done is replayed offline, three times, in other orders."""
    given_back, ran = lab.given, len(lab.ran)
    for generation in range(1, 4):
        lab.shuffle = seed + 1000 * generation
        lab.once(program, replay="offline", source=(lab.store, lab.newest))
        assert lab.given == given_back
        assert len(lab.ran) == ran


SHUFFLED: list[Program] = [  # by a search
    # An agent asks an operator for its first call; when he answers, one beside it has come back.
    (Branches(((W(),), (ASKED,))), W()),
    (Op("scope", inner=(Branches(((W(),), (Branches(((ASKED,), (W("lose after"),))),))), W())),),
    (Branches(((W("lose after"),), (ASKED,))), W()),
    (undone(Branches(((W("lose after"),), (ASKED,)))),),
]


@pytest.mark.parametrize("program", SHUFFLED)
def test_10_of_what_a_search_has_found_cut_anywhere(program: Program) -> None:
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program)
        for seed in range(3):
            comes_in_any_order(lab, program, seed)
        for run, line, world in moments(lab, lab.runs()[:2]):
            cut = lab.back(run, line, root / "cut", world)
            cut.through(program)
            comes_in_any_order(cut, program, line)


@FEWER
@given(programs, seeds)
def test_11_a_framework_goes_on_by_itself_at_any_step(program: Program, seed: int) -> None:
    goes_on_by_itself(program, seed)


def goes_on_by_itself(program: Program, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    with folder() as root:
        lab = Remembering(root / "whole")
        lab.chance = chance
        lab.through(program)
        effects = lab.world.effects
        for run, line, world in cuts(lab, chance):
            cut = lab.back(run, line, root / "cut", world)
            assert_through(cut, program, effects)
            last = cut.runs()[-1]
            behind = chance.randint(1, cut.lines(last))
            there = chance.choice(list(cut.worlds(last, behind)))
            assert_through(cut.back(last, behind, root / "again", there), program, effects)


REMEMBERED: list[Program] = [  # by a search
    # Branches in which nothing was done have the names of later ones, and are made again or not.
    (
        Branches(((), ()), (frozenset(),) * 3),
        Branches(
            (
                (Turn((W(), W())),),
                (kept(W()), Turn((Op("outer", inner=(W(),)),))),
                (Op("outer", inner=(W(), W())),),
            )
        ),
    ),
    # A block in which no more than a call that was refused stands has the name of a later one.
    (undone(Op("write", 0, "refuse")), W(), kept(W())),
    (Branches(((Op("write", 0, "refuse"),), ())), W(), Branches(((W(),), (W(),)))),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("program", REMEMBERED)
def test_11_of_what_a_search_has_found(program: Program, seed: int) -> None:
    goes_on_by_itself(program, seed)


def test_11_a_failed_call_stands_beside_one_that_was_replayed_before_it() -> None:
    """By a search: the framework had saved one of the two, and made the other one again."""
    program: Program = (
        Op("outer", inner=(W(), W("fail"), READ)),
        Turn((W("fail"), W("lose after"))),
        Branches(((READ,), ())),
    )
    goes_on_by_itself(program, 4_294_967_294)


@FEWER
@given(programs, seeds)
def test_12_clocks_jump_within_and_between_runs(program: Program, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments

    def clock() -> Clock:
        times, start = itertools.count(1), chance.randint(-9, 9)
        jumps = itertools.cycle([chance.randint(-9, 9) for _ in range(chance.randint(1, 4))])
        return Clock(wall=lambda: (500_000 + start + next(jumps)) * HOUR + next(times) * 1000)

    with folder() as root:
        plain, lab = Lab(root / "plain"), Lab(root / "whole")
        plain.asks = lab.asks = False  # an approval expires by the clock
        plain.through(program)
        lab.clock = clock
        assert_through(lab, program, plain.world.effects)
        for run, line, world in cuts(lab, chance):
            assert_through(lab.back(run, line, root / "cut", world), program, plain.world.effects)


@FEWER
@given(programs, seeds)
def test_a_fork_anywhere_does_nothing_out_there_and_is_nothing_to_its_job(
    program: Program, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program)
        effects = lab.world.effects
        for run, line, world in cuts(lab, chance):
            cut = lab.back(run, line, root / "cut", world)
            done, of = len(cut.world.deeds), (cut.store, cut.runs()[-1])
            step = chance.randint(1, last_step(cut, of[1]))
            for fork in (Fork(of), Fork(of, at=step, result="something else")):
                with contextlib.suppress(RollcageError):  # it ends where it would write, say
                    cut.once(program, fork=fork)
            assert len(cut.world.deeds) == done
            assert_through(cut, program, effects)


@FEWER
@given(programs, seeds)
def test_what_an_abandoned_run_did_stays_and_its_job_is_done_afresh(
    program: Program, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program)
        effects = lab.world.effects
        for run, line, world in cuts(lab, chance):
            cut = lab.back(run, line, root / "cut", world)
            stays = cut.world.effects
            abandon_run(cut.root, cut.runs()[-1])
            assert_through(cut, program, stays + effects)
