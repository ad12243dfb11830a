"""What people do with a run from outside: stop, pause, resolve, abandon, undo, decide on a call.

One function each, for whatever shows runs: the command line, the server, the operations server.
Each asks `both` whose the run is.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypedDict, Unpack

import rollcage
from rollcage import Approval, Contract, UndoPlan, UndoReport, heart
from rollcage.errors import StoreInvalid
from rollcage.gate import ApprovalQueue, Queued
from rollcage.heart.stages import orders, queue
from rollcage.heart.stages.once import Effect as OnceEffect
from rollcage.heart.stages.once import once_of
from rollcage.store import StopOrder, Store
from rollcage.store import lift_stop as lift_old
from rollcage.store import pause_run as pause_old
from rollcage.store import stop_run as stop_old
from rollcage.store import unpause_run as unpause_old

from rollcage_views.both import heart_of, heart_with

__all__ = [
    "OnceEffect", "Requests", "Resolution", "UndoChoices", "abandon_run", "accept_step",
    "aplan_undo", "aundo_run", "effect_keys", "effect_of", "lift_stop", "pause_run", "plan_undo",
    "resolve_step", "stop_run", "undo_run", "unpause_run",
]  # fmt: skip

_NOT_GIVEN: Final[Any] = object()


# --- orders --------------------------------------------------------------------------------------


def stop_run(store: Store, run: str, *, by: str, reason: str) -> StopOrder:
    """Stop a run: its next call is refused, and so is each of a resume; return the order.

    Raises:
        OrderRefused: it has come to its end; or the reason is too long.
        RunNotFound: there is no such run.
        StoreError: the order can't be given.
    """
    own = heart_with(store, run)
    if own is not None:
        return _order(run, orders.stop_run(own, run, by=by, reason=reason))
    return stop_old(store, run, by=by, reason=reason, time=time.time_ns() // 1000)


def lift_stop(store: Store, run: str) -> StopOrder | None:
    """Let a stopped run go on; return the order that stops it all the same, if there is one.

    Raises:
        OrderRefused: it is not stopped.
        RunNotFound: there is no such run.
        StoreError: the order can't be lifted.
    """
    own = heart_with(store, run)
    if own is None:
        return lift_old(store, run)
    orders.lift_stop(own, run)
    return None


def pause_run(store: Store, run: str, *, by: str, reason: str) -> StopOrder:
    """Have the next call of a run wait; return the order.

    Raises:
        OrderRefused: it has come to its end, or is stopped; or the reason is too long.
        RunNotFound: there is no such run.
        StoreError: the order can't be given.
    """
    own = heart_with(store, run)
    if own is not None:
        return _order(run, orders.pause_run(own, run, by=by, reason=reason))
    return pause_old(store, run, by=by, reason=reason, time=time.time_ns() // 1000)


def unpause_run(store: Store, run: str) -> tuple[StopOrder, StopOrder | None]:
    """Let a paused run go on.

    Returns:
        The order that was lifted, and the order that pauses it all the same, if there is one.

    Raises:
        OrderRefused: it is not paused.
        RunNotFound: there is no such run.
        StoreError: the order can't be lifted.
    """
    own = heart_with(store, run)
    if own is None:
        return unpause_old(store, run)
    return _order(run, orders.unpause_run(own, run)), None


def _order(run: str, order: orders.Order) -> StopOrder:
    return StopOrder(run, **dataclasses.asdict(order))


# --- words ---------------------------------------------------------------------------------------


class Resolution(NamedTuple):
    """What is on record of a step that somebody resolved.

    Attributes:
        name: the tool's name.
        outcome: as recorded: `ok` with a value, or `not_started`.
        attested: whether the run had ended, and the store's index attests its new end.
    """

    name: str
    outcome: dict[str, Any]
    attested: bool


def resolve_step(
    store: Store, run: str, step: int, *, happened: bool, result: Any = _NOT_GIVEN, by: str = ""
) -> Resolution:
    """Record whether a step happened, and what it gave, if that is known.

    Args:
        store: where the run is.
        run: its id.
        step: the step's number.
        happened: whether it did.
        result: what it gave, as JSON has it.
        by: who says so.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: somebody is at it.
        StepNotFound: it has no such step.
        StepNotUnknown: its outcome is known.
        SessionError: a step that did not happen has no result, or its result has to be given.
    """
    given = {} if result is _NOT_GIVEN else {"result": result}
    own = heart_with(store, run)
    if own is None:
        old = rollcage.resolve_step(store, run, step, happened=happened, **given)
        return Resolution(old.step.name, old.outcome, old.attested)
    found = heart.resolve_step(own, run, step, happened=happened, by=by, **given)
    outcome: dict[str, Any] = {"status": "not_started"}
    if happened:
        outcome = {"status": "ok", "value": given.get("result")}
    return Resolution(found.name, outcome, attested=False)


def accept_step(store: Store, run: str, step: int, *, by: str = "") -> str:
    """Record that a step counts as undone: somebody has put right by hand what it did.

    Returns:
        The tool's name.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: somebody is at it.
        StepNotFound: it has no such step.
        StoreInvalid: the run was recorded by the old core.
    """
    own = heart_with(store, run)
    if own is None:
        store.read(run)  # of a run that is not there, that is said
        raise StoreInvalid(  # until the old core goes
            f"run {run} has the format rollcage/1, where nobody can say of a step that it counts "
            f"as undone"
        )
    return heart.resolve_step(own, run, step, undone=True, by=by).name


def abandon_run(store: Store, run: str, *, by: str, reason: str) -> None:
    """Set a run aside: the next session of its job starts over.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: somebody is at it.
        SessionError: it was set aside before, or no session resumes it.
    """
    own = heart_with(store, run)
    if own is None:
        rollcage.abandon_run(store, run, by=by, reason=reason)
    else:
        heart.abandon_run(own, run, by=by, reason=reason)


def effect_of(store: Store, key: str) -> OnceEffect | None:
    """Return what became of an effect that happens once, by its key; None: nobody claimed it.

    Raises:
        StoreError: it can't be determined.
    """
    own = heart_of(store)
    return None if own is None else once_of(own, key)


def effect_keys(store: Store, limit: int | None = None) -> list[str]:
    """Return the keys of the effects that happen once, in order.

    Raises:
        StoreError: they can't be listed.
    """
    own = heart_of(store)
    return [] if own is None else [*itertools.islice(_keys(own, "once"), limit)]


def _keys(store: heart.Store, kind: str) -> Iterator[str]:
    last = ""
    while page := store.keys(kind, last):
        yield from page
        last = page[-1]


# --- undo ----------------------------------------------------------------------------------------


class UndoChoices(TypedDict, total=False):
    """What an undo is asked for with; see `rollcage.heart.undo_run`."""

    to: int | None
    tools: Iterable[Callable[..., Any] | Contract]
    in_doubt: Literal["list", "restore"]


def plan_undo(store: Store, run: str, **choices: Unpack[UndoChoices]) -> UndoPlan:
    """Return what an undo would do; nothing is changed. See `rollcage.heart.plan_undo`."""
    own = heart_with(store, run)
    if own is None:
        return rollcage.plan_undo(store, run, **choices)
    return heart.plan_undo(own, run, **choices)


async def aplan_undo(store: Store, run: str, **choices: Unpack[UndoChoices]) -> UndoPlan:
    """Return what an undo with async tools would do."""
    own = heart_with(store, run)
    if own is None:
        return await rollcage.aplan_undo(store, run, **choices)
    return await heart.aplan_undo(own, run, **choices)


def undo_run(
    store: Store, run: str, *, expected: UndoPlan | str | None, **choices: Unpack[UndoChoices]
) -> UndoReport:
    """Undo what a run did, if that is still what `expected` says. See `rollcage.heart.undo_run`."""
    own = heart_with(store, run)
    if own is None:
        return rollcage.undo_run(store, run, expected=expected, **choices)
    return heart.undo_run(own, run, expected=expected, **choices)


async def aundo_run(
    store: Store, run: str, *, expected: UndoPlan | str | None, **choices: Unpack[UndoChoices]
) -> UndoReport:
    """Undo what a run did, with async tools."""
    own = heart_with(store, run)
    if own is None:
        return await rollcage.aundo_run(store, run, expected=expected, **choices)
    return await heart.aundo_run(own, run, expected=expected, **choices)


# --- approvals -----------------------------------------------------------------------------------


class Requests:
    """The requests for approval in a store, for the people who decide on them.

    Args:
        store: where they are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        own = heart_of(store)
        self._own = None if own is None else queue.ApprovalQueue(own)
        self._old = ApprovalQueue(store)

    def ids(self) -> list[str]:
        """Return the ids of all requests.

        Raises:
            StoreError: the store can't be read.
        """
        return sorted({*self._ids(), *self._old.ids()})

    def get(self, approval: str) -> Queued | None:
        """Return a request with its decision; None if there is none, or it is over.

        Raises:
            ApprovalCorrupt: it was changed or damaged.
            StoreError: the store can't be read.
        """
        if approval not in self._ids():
            return self._old.get(approval)
        assert self._own is not None
        request = self._own.get(approval)
        if request is None:
            return None
        found = self._own.decision(request)
        if found is None:
            return Queued(approval, request)
        return Queued(approval, request, found.answer, found.at)

    def decide(self, approval: str, answer: Approval, *, now: int | None = None) -> Queued:
        """Decide on a request; only the first decision counts. Return it with the decision.

        Raises:
            ApprovalInvalid: there is no such request, it is decided or expired, or this person may
                not decide on it.
            ApprovalCorrupt: it was changed or damaged.
            StoreError: the store can't be read or written.
        """
        if approval not in self._ids():
            return self._old.decide(approval, answer, now=now)
        assert self._own is not None
        asked = self.get(approval)
        self._own.decide(approval, answer, now=now)
        decided = self.get(approval)
        if decided is None and asked is not None:  # its run has used it at once
            return dataclasses.replace(asked, decision=answer, use="used")
        assert decided is not None
        return decided

    def _ids(self) -> list[str]:
        return [] if self._own is None else [*_keys(self._own.store, "requests")]
