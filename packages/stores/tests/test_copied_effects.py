"""Effects with a key, in runs that are copied, moved, undone and pruned: none is made again.

A store knows an effect if its run was there when the effect was made, or has come there since. It
never makes a standing effect that it knows a second time, and a call is answered with a standing
effect only, where its run goes on.
"""

import contextlib
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from rollcage import Options, Session, compensate, current_step, open_store, tool, undo_run
from rollcage.errors import Halt, RollcageError
from rollcage.stages.once import once_of
from rollcage_stores.copies import copy_run, move_run
from rollcage_stores.prune import prune_run

STORES, KEYS = 3, 2
made: list[tuple[str, int]] = []  # the run, and the key
taken: Counter[int] = Counter()


@tool(effect="write", name="copied.unpay")
def unpay(key: int) -> None:
    taken[key] += 1


@tool(
    effect="write", name="copied.pay", once="pay/{key}",
    undo=lambda args: [compensate(unpay, **args)],
)  # fmt: skip
def pay(key: int) -> None:
    step = current_step()
    assert step is not None
    made.append((step.run, key))


class StopError(Exception):
    """Ends a session, so that its run goes on with the next one."""


@dataclasses.dataclass
class Made:
    """An effect: whether it stands, and which stores know it."""

    run: str
    key: int
    known: set[int]
    stands: bool = True


class Story:
    """Plays what happens to some stores, and follows what each of them has to know."""

    def __init__(self, root: Path) -> None:
        self.stores = [open_store(root / str(number)) for number in range(STORES)]
        self.effects: list[Made] = []
        self.runs: list[str] = []
        self.lives: dict[str, int] = {}  # by run, the store where it goes on; a pruned one is over
        self.called: set[tuple[str, int]] = set()
        self.told: dict[tuple[int, int], bool] = {}  # by store and key, what a person has said

    def play(self, act: tuple[Any, ...]) -> None:
        name, here, *given = act
        if name in ("pays", "says"):
            getattr(self, name)(here, *given)
        elif self.runs:
            run = self.runs[given[0] % len(self.runs)]
            with contextlib.suppress(RollcageError):
                getattr(self, name)(here, run, *given[1:])

    def standing(self, here: int, key: int) -> list[Made]:
        """Return the standing effects of a key that a store knows."""
        of_key = (each for each in self.effects if each.key == key and each.stands)
        return [each for each in of_key if here in each.known]

    def pays(self, here: int, job: str, key: int, stops: bool) -> None:
        session = Session(job, store=self.stores[here], options=Options(tools=[unpay]))
        with contextlib.suppress(StopError, RollcageError, Halt), session:
            before = len(made)
            pay(key)
            run, known = session.run_id, self.standing(here, key)
            if len(made) > before:
                assert known == []
                self.effects.append(Made(run, key, {here}))
            elif (run, key) not in self.called and not self.told.get((here, key)):
                assert any(self.lives.get(each.run, here) == here for each in known)
            self.called.add((run, key))
            if run not in self.runs:
                self.runs.append(run)
                self.lives[run] = here
            if stops:
                raise StopError

    def says(self, here: int, key: int) -> None:
        """A person says the truth, as far as it is known there."""
        effect = once_of(self.stores[here], f"pay/{key}")
        if effect is not None and effect.state == "unknown":
            happened = self.told[here, key] = bool(self.standing(here, key))
            effect.resolve(happened=happened)

    def undoes(self, here: int, run: str) -> None:
        taken.clear()
        try:
            undo_run(self.stores[here], run, tools=[unpay])
        finally:
            for each in self.effects:
                if each.run == run and each.stands and taken[each.key]:
                    taken[each.key] -= 1
                    each.stands = False
            assert not +taken

    def copies(self, here: int, run: str, further: int) -> None:
        there = (here + further) % STORES
        with self.comes(here, there, run):
            copy_run(self.stores[here], self.stores[there], run)

    def moves(self, here: int, run: str, further: int) -> None:
        there = (here + further) % STORES
        with self.comes(here, there, run):
            if move_run(self.stores[here], self.stores[there], run) and run in self.lives:
                self.lives[run] = there

    @contextlib.contextmanager
    def comes(self, here: int, there: int, run: str) -> Iterator[None]:
        """A run comes into a store, which then knows its effects, unless it knows others."""
        coming = [each for each in self.effects if each.run == run and here in each.known]
        others = [once_of(self.stores[there], f"pay/{each.key}") for each in coming]
        yield
        for each, other in zip(coming, others, strict=True):
            if other is None or other.run == run or other.state == "free":
                each.known.add(there)

    def prunes(self, here: int, run: str, skeleton: bool) -> None:
        prune_run(self.stores[here], run, keep_skeleton=skeleton)
        if self.lives.get(run) == here:
            del self.lives[run]


here, run, key = st.integers(0, STORES - 1), st.integers(0, 5), st.integers(0, KEYS - 1)
further = st.integers(1, STORES - 1)
acts = st.one_of(
    st.tuples(st.just("pays"), here, st.sampled_from("ab"), key, st.booleans()),
    st.tuples(st.just("undoes"), here, run),
    st.tuples(st.just("moves"), here, run, further),
    st.tuples(st.just("pays"), here, st.sampled_from("ab"), key, st.booleans()),
    st.tuples(st.just("copies"), here, run, further),
    st.tuples(st.just("prunes"), here, run, st.booleans()),
    st.tuples(st.just("says"), here, key),
)
PAID_TWICE = [  # where the claim of the one that was taken back is left
    *(("pays", 0, "a", 0, True), ("pays", 1, "b", 0, True), ("undoes", 1, 1)),
    *(("moves", 0, 0, 1), ("pays", 1, "c", 0, False)),
]


@example(PAID_TWICE)
@given(st.lists(acts, min_size=4, max_size=24))
def test_no_effect_is_made_again_wherever_its_run_goes_on(acts: list[tuple[Any, ...]]) -> None:
    made.clear()
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        for act in acts:
            story.play(act)
