"""Define the claims of effects that happen once, and who was answered with such an effect.

A claim is a document of kind `once` under the effect's key. It names the run that makes the effect,
and holds no outcome: see `rollcage.stages.once`.

**What was answered stands.** Before a call of another run is answered, the claim is marked with
that run and its attempt, and then the log of the effect's run is looked at again. An undo puts its
line `undoing` on record, and then looks at the marks, before it touches anything. At least one of
the two sees the other: the call waits, or the effect stays.

A mark says that an answer may have been given; whether it was is the fold of the marked run's log:

==============  ===============================================================================
it counts       a step of that run was answered with the effect, and holds or was left behind
it may count    the marked attempt has not ended, and none has followed; or the log is gone
it is void      the answered step was undone; or the attempt ended, and asked for nothing
==============  ===============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from rollcage.errors import RunNotFound, StoreError
from rollcage.trace.run import Event, Run, fold_log
from rollcage.trace.store import store_option

if TYPE_CHECKING:
    from rollcage.trace.store import Store

__all__ = ["Claim", "Use", "uses"]

_MARKS: Final = 64  # runs that a claim names; an effect that answered more stays


class Claim(NamedTuple):
    """Hold a key's claim, as stored.

    Attributes:
        run: the claiming run.
        attempt: the random id of the claiming attempt.
        token: a random token, which the intent has, too.
        tool: the tool's name.
        args: the SHA-256 of the tool's name and the canonical arguments.
        state: the final state, if the log of the run is gone or a person said what became of a
            half undone effect: `done`.
        step: then, the number of the step.
        outcome: then, the outcome.
        told: pairs of another run that was answered, or was about to be, and its attempt.
        more: whether further runs were answered, which `told` does not name.
    """

    run: str
    attempt: str
    token: str
    tool: str
    args: str
    state: str = ""
    step: int = 0
    outcome: Event | None = None
    told: tuple[tuple[str, str], ...] = ()
    more: bool = False

    @classmethod
    def read(cls, key: str, data: bytes) -> Claim:
        """Return the claim in a value of the store."""
        try:
            claim = cls(**orjson.loads(data))
            return claim._replace(told=tuple((run, attempt) for run, attempt in claim.told))
        except (ValueError, TypeError) as error:
            raise StoreError(f"the claim of {key!r} in the store can't be read: {error}") from None

    def data(self) -> bytes:
        """Return the value for the store."""
        fields = self._asdict().items()
        return orjson.dumps({name: value for name, value in fields if value or name == "run"})

    def marked(self, run: str, attempt: str) -> Claim:
        """Return the claim with a mark of an attempt, which takes the place of an earlier mark."""
        if self.more or (run, attempt) in self.told:
            return self
        others = self.unmarked(run).told
        if len(others) == _MARKS:
            return self._replace(more=True)
        return self._replace(told=(*others, (run, attempt)))

    def unmarked(self, run: str) -> Claim:
        """Return the claim without a mark of a run."""
        return self._replace(told=tuple(each for each in self.told if each[0] != run))

    def merged(self, other: Claim) -> Claim:
        """Return the claim with the marks of another copy of it."""
        found = self._replace(more=self.more or other.more)
        known = {run for run, _ in self.told}
        for run, attempt in other.told:
            if run not in known:
                found = found.marked(run, attempt)
        return found


class Use(NamedTuple):
    """Describe an answer that another run was given, or may have been given.

    Attributes:
        run: the run; empty for runs that the claim does not name.
        step: the answered step; 0: none is on record.
        gone: whether the log of the run is gone.
    """

    run: str
    step: int = 0
    gone: bool = False

    def reason(self, key: str, store: Store) -> str:
        """Say why the effect stays, and how it can be taken back all the same."""
        if not self.run:
            return f"{key} answered more than {_MARKS} other runs, and stays"
        if self.gone:
            return f"{key} answered run {self.run}, whose log is gone, and stays"
        undo = f"rollcage undo {self.run}{store_option(store)}"
        if self.step:
            return (
                f"{key} answered step {self.step} of run {self.run}, and stays until that is "
                f"undone: {undo}"
            )
        return (
            f"{key} may have answered run {self.run}, which has not ended, and stays until that "
            f"run ends or is undone: {undo}"
        )


def uses(store: Store, key: str, claim: Claim) -> list[Use]:
    """Return the answers that keep an effect from being taken back, by the marks of its claim.

    Raises:
        StoreError: the log of a marked run can't be read.
    """
    found = [_use(store, key, claim, run, attempt) for run, attempt in claim.told]
    rest = [Use("")] if claim.more else []
    return [each for each in found if each is not None] + rest


def _use(store: Store, key: str, claim: Claim, name: str, attempt: str) -> Use | None:
    try:
        run = fold_log(store.read(name), f"run {name}", {})
    except RunNotFound:
        return Use(name, gone=True)
    step = _answered(run, key, claim.run)
    if step:
        return Use(name, step)
    if run.shut is not None:
        return Use(name, gone=True) if run.shut["event"] == "pruned" else None
    return Use(name) if run.attempt == attempt and not run.status else None


def _answered(run: Run, key: str, maker: str) -> int:
    """Return the first step that was answered with the effect, and stays; 0 without one."""
    steps = (step for step in run.held() if step.once is not None and not step.rolled)
    told = (step.n for step in steps if not step.borrowed and step.once is not None
            and (step.once[0], step.once[2]) == (maker, key))  # fmt: skip
    return min(told, default=0)
