"""Removal of old runs, which leaves a stub.

A stub keeps the run's id, name, the digest of its input, its times, its status, the count and the
head of its lines, and who removed it and when; a skeleton also keeps its calls. The job still
counts as done; the run can't be resumed, undone or replayed. The outcome of a `once=` effect is
kept in the effect's claim.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from typing import Any, Final

import orjson
from rollcage.errors import RollcageError, RunInUse, RunNotFound, StoreError
from rollcage.stages.once import keep_claims
from rollcage.trace.chain import HEADS, Chain, chained
from rollcage.trace.endings import OVER
from rollcage.trace.listing import RunInfo, all_runs, run_info
from rollcage.trace.run import Run, fold_log
from rollcage.trace.store import Store, drop, open_store, store_option

from rollcage_stores.beside import drop_beside
from rollcage_stores.blobs import drop_unused

__all__ = ["Choice", "Pruning", "choices", "prune", "prune_run"]

Event = dict[str, Any]
Where = str | os.PathLike[str] | Store

_KEPT: Final = (
    "again", "calls", "effect", "hits", "id", "name", "number", "order", "status", "step", "time",
)  # fmt: skip
_HEAD: Final = ("event", "format", "run", "name", "time", "actor", "copied", "fork", "imported")


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The decision about an old run.

    Attributes:
        info: the entry of the run.
        lines: the number of lines in its log; 0 if the log was not read.
        size: the size of its log, in bytes.
        stays: why it stays; empty if it may be removed.
        helps: the command that would change that, if there is one.
    """

    info: RunInfo
    lines: int = 0
    size: int = 0
    stays: str = ""
    helps: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Pruning:
    """The result of a prune, or of a dry run.

    Attributes:
        chosen: the decision about each old run.
        blobs: how many large values were removed; None: a run is live, so none were.
    """

    chosen: tuple[Choice, ...]
    blobs: int | None = 0


def prune(
    store: Where,
    before: int,
    *,
    hold: Iterable[str] = (),
    by: str = "",
    keep_skeleton: bool = False,
    dry: bool = True,
) -> Pruning:
    """Remove runs that ended before a time, and large values that nothing names.

    Args:
        store: a folder, a URL or a `Store`.
        before: Unix time, µs.
        hold: runs that stay.
        by: the name of the person.
        keep_skeleton: whether to keep the list of calls, without any value.
        dry: whether to report only, and change nothing.

    Raises:
        StoreError: the store can't be read or written.
    """
    own = open_store(store)
    chosen = choices(own, before, hold=hold)
    if dry:
        return Pruning(tuple(chosen))
    done: list[Choice] = []
    for each in chosen:
        if each.stays:
            done.append(each)
            continue
        try:
            prune_run(own, each.info.run, by=by, keep_skeleton=keep_skeleton)
            done.append(each)
        except RollcageError as error:  # the run has changed since
            done.append(dataclasses.replace(each, stays=str(error)))
    return Pruning(tuple(done), drop_unused(own))


def choices(store: Where, before: int, *, hold: Iterable[str] = ()) -> list[Choice]:
    """Return the decision about each run that ended before a time, the newest first.

    Args:
        store: a folder, a URL or a `Store`.
        before: Unix time, µs.
        hold: runs that stay.
    """
    own, held = open_store(store), set(hold)
    found: list[Choice] = []
    for info in all_runs(own):
        if max(info.begun, info.ended or 0) < before and not _is_stub(own, info):
            choice = Choice(info, stays="held") if info.run in held else _look(own, info)
            found.append(choice)
    return found


def prune_run(store: Where, run: str, *, by: str = "", keep_skeleton: bool = False) -> None:
    """Remove a run's data and leave a stub. If it is killed, repeating the call completes it.

    Args:
        store: a folder, a URL or a `Store`.
        run: its id.
        by: the name of the person.
        keep_skeleton: whether to keep the list of calls, without any value.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: the run has a live writer.
        StoreError: the run has to stay, with the reason.
        UnknownOutcome: the outcome of one of its `once=` effects is unknown.
    """
    own = open_store(store)
    info = run_info(own, run)
    if _is_stub(own, info):
        return
    if info.last != "pruned":
        choice = _look(own, info)
        if choice.stays:
            kind = RunInUse if choice.stays == _IN_USE else StoreError
            helps = f": {choice.helps}" if choice.helps else ""
            raise kind(f"run {run} stays: it is {choice.stays}{helps}")
    before = own.read(run)
    keep_claims(own, run)
    log = Chain(own.open(run))
    try:
        events = log.read()
        if log.log.read() != before:
            raise RunInUse(f"run {run} was written meanwhile")
        if events[-1]["event"] == "pruned":
            said = {name: events[-1][name] for name in events[-1] if name != "hash"}
            events.pop()
        else:
            said = {
                "event": "pruned", "status": info.status or "", "lines": len(before),
                "head": log.head.decode(), "by": by, "time": time.time_ns() // 1000,
                "ended": info.ended, "attempts": info.attempts,
            }  # fmt: skip
            # from here on no session resumes the run, and no other writer continues it
            log.append(said)
            log.wait()
        skeleton = [_bone(each) for each in events[1:]] if keep_skeleton else []
        drop(own, HEADS, run)  # first: the end that the head attests will be removed
        log.log.replace(chained([_head(events[0], info), *skeleton, {**said, "done": True}]))
    finally:
        log.close()
    drop_beside(own, run)


_IN_USE: Final = "in use"


def _look(store: Store, info: RunInfo) -> Choice:
    """Return the decision about a single run."""
    run, at = info.run, store_option(store)
    if store.is_live(run):
        return Choice(info, stays=_IN_USE)
    if info.status == "damaged":
        return Choice(info, stays="damaged", helps=f"rollcage doctor{at}")
    if info.last == "held":
        return Choice(info, stays="a copy that was not claimed")
    if info.last == "gone" and info.status not in OVER:
        return Choice(info, stays="unfinished, and goes on in another store")
    is_next = store.get("names", info.job) == run.encode()
    if info.status is None or (is_next and info.status not in OVER):
        why = f"{info.status or 'unfinished'}, and the next session of its job resumes it"
        return Choice(info, stays=why, helps=f"rollcage abandon {run}{at}")
    try:
        lines = store.read(run)
        found = fold_log(lines, f"run {run}", {})
    except RunNotFound as error:
        return Choice(info, stays=f"gone ({error})")
    except RollcageError as error:
        return Choice(info, stays=f"damaged ({error})", helps=f"rollcage verify {run}{at}")
    size = sum(map(len, lines))
    why, helps = _unsettled(found, at)
    return Choice(info, len(lines), size, why, helps)


def _unsettled(run: Run, at: str) -> tuple[str, str]:
    """Return the open question of a run, and the command that settles it."""
    if run.undoing is not None:
        return "being undone", f"rollcage undo {run.id}{at}"
    for step in run.steps.values():
        if step.acts and (step.status == "unknown" or step.unclear) and not step.gone:
            why = f"not settled: it is not known whether its step {step.n} ({step.name}) happened"
            return why, f"rollcage resolve {run.id} {step.n}{at} --happened | --did-not-happen"
    return "", ""


def _is_stub(store: Store, info: RunInfo) -> bool:
    """Return whether a run was pruned completely."""
    if info.last != "pruned":
        return False
    return "done" in orjson.loads(store.ends(info.run).last)


def _head(first: Event, info: RunInfo) -> Event:
    """Return the first line of the stub, with a digest as the input."""
    kept: Event = {name: first[name] for name in _HEAD if name in first}
    return {**kept, "digest": info.input} if info.input else kept


def _bone(event: Event) -> Event:
    """Return a line without values, in a kind that no fold mistakes for the original line."""
    found: Event = {"event": "was", "was": event["event"]}
    found.update((name, event[name]) for name in _KEPT if name in event)
    if event.get("outcome"):
        found["outcome"] = {"status": event["outcome"]["status"]}
    return found
