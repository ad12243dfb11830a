"""Copies of runs in another store, and moves.

A job has one place. So a copy is read-only (`held`): it can be shown, replayed offline and forked,
and a session of its job begins a new run if the copied run is over. To continue the copy, *move*
the run: the original records its new place (`gone`), and then the copy is claimed (`claimed`). Each
of these is a line of a log. So a move that was killed at any moment is completed by repeating it,
and in between at most one of the two stores lets a session continue the run.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import orjson
from rollcage.errors import (
    RollcageError,
    RunConflict,
    RunElsewhere,
    RunInUse,
    RunNotFound,
    StoreError,
    StoreInvalid,
    TraceCorrupt,
)
from rollcage.stages.once import look_up
from rollcage.trace.chain import HASH, Chain, attest, attested_head, chained, held_to, verify
from rollcage.trace.claims import Claim
from rollcage.trace.listing import RunInfo, all_runs, run_info
from rollcage.trace.store import Store, open_store

from rollcage_stores.beside import copy_beside, drop_beside
from rollcage_stores.blobs import blobs_of, keys_of
from rollcage_stores.seals import export_key, import_key

__all__ = ["Copied", "copy_run", "copy_runs", "move_run"]

Event = dict[str, Any]
Where = str | os.PathLike[str] | Store
What = Literal["copied", "moved", "already there", "in use", "conflict", "elsewhere", "unreadable"]

_TRIES: Final = 5  # a run may be written between the copy and the move
_CAN_NOT: Final[dict[type[RollcageError], What]] = {
    RunInUse: "in use", RunConflict: "conflict", RunElsewhere: "elsewhere",
    TraceCorrupt: "unreadable",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """The result for a run that was to be copied or moved; its error if that failed."""

    info: RunInfo
    what: What
    error: RollcageError | None = None


def copy_runs(
    source: Where, target: Where, runs: Iterable[str] | None = None, *, move: bool = False
) -> list[Copied]:
    """Copy runs into another store, or move them; the oldest first.

    Runs that the target has already are left alone, so the call can be repeated. A run that can't
    be copied does not stop the others.

    Args:
        source: a folder, a URL or a `Store`.
        target: another store. If it has no key yet, it takes the source's key.
        runs: the ids of the runs; None: all.
        move: whether the runs continue in the target, and no longer in the source.

    Raises:
        StoreInvalid: both are the same store, or each has a key of its own.
        StoreError: a store can't be used.
        RunNotFound: a run does not exist.
    """
    one, other = _both(source, target)
    infos = list(all_runs(one)) if runs is None else [run_info(one, run) for run in set(runs)]
    found: list[Copied] = []
    for info in sorted(infos, key=lambda each: each.run):
        try:
            is_new = (move_run if move else copy_run)(one, other, info.run)
        except tuple(_CAN_NOT) as error:
            found.append(Copied(info, _what_of(error), error))
        else:
            done: What = "moved" if move else "copied"
            found.append(Copied(info, done if is_new else "already there"))
    return found


def _what_of(error: RollcageError) -> What:
    for kind, what in _CAN_NOT.items():
        if isinstance(error, kind):
            return what
    raise error


def copy_run(source: Where, target: Where, run: str) -> bool:
    """Copy a run, with its large values, claims, requests and order.

    An existing copy that was not claimed is brought up to date.

    Args:
        source: a folder, a URL or a `Store`.
        target: another store.
        run: its id.

    Returns:
        whether anything was new.

    Raises:
        RunNotFound: the run does not exist.
        RunInUse: the run has a live writer.
        RunElsewhere: the run was moved, and continues in a third store.
        RunConflict: the target has another run with this id, or a diverged one.
        TraceCorrupt: the run is damaged, or one of its large values.
        StoreError: a store can't be used; or each has a key of its own.
    """
    one, other = _both(source, target)
    if one.is_live(run):
        raise RunInUse(f"run {run} has a live writer: copy it when that has ended")
    lines = one.read(run)
    verify(lines, f"run {run}")
    last: Event = orjson.loads(lines[-1])
    if last["event"] == "gone":
        raise RunElsewhere(f"run {run} was moved, and goes on in {last['to']}: copy it from there")
    return _copy(one, other, run, lines)


def move_run(source: Where, target: Where, run: str, *, by: str = "") -> bool:
    """Move a run: it continues in another store, and no longer in the source.

    Args:
        source: a folder, a URL or a `Store`.
        target: another store.
        run: its id.
        by: the name of the person.

    Returns:
        whether anything was left to be done.

    Raises:
        RunElsewhere: the source has a mere copy, or the run was moved to a third store.
        RunConflict: as `copy_run`; or an effect of another run stands in the target under the key
            of an effect of this run.
        RunNotFound, RunInUse, TraceCorrupt, StoreError: as `copy_run`.
    """
    one, other = _both(source, target)
    _check_apart(one, other)
    for _ in range(_TRIES):
        lines = one.read(run)
        last: Event = orjson.loads(lines[-1])
        if last["event"] == "gone" and last["to"] == other.url:  # a move was killed, or is done
            _copy(one, other, run, lines[:-1])
            return _claim(one, other, run, by)
        if last["event"] == "held":
            raise RunElsewhere(
                f"this is a copy of run {run}, which may go on in {last['from']}: move it from "
                f"there"
            )
        copy_run(one, other, run)
        if last["event"] == "pruned":
            return True
        _check_claims(one, other, run)
        if _end(one, other, run, by):
            return _claim(one, other, run, by)
    raise RunInUse(f"run {run} is being written: move it when its writer has ended")


def _both(source: Where, target: Where) -> tuple[Store, Store]:
    """Return both stores, which hash with the same key."""
    one, other = open_store(source), open_store(target)
    if one.url == other.url:
        raise StoreInvalid(f"both are the same store: {one.url}")
    key = export_key(one)
    if key is not None and not import_key(other, key):
        raise StoreInvalid(
            f"{other.url} has a key of its own: secrets and inputs that are hashed with the key of "
            f"{one.url} would not be found there, and their calls be made again. Copy into a new "
            f"store"
        )
    return one, other


def _check_apart(source: Store, target: Store) -> None:
    """Refuse one store with two names: a run can't be moved to its own place.

    Raises:
        StoreError: both are the same store.
    """
    key = os.urandom(12).hex()
    target.swap("probe", key, None, b"here")
    try:
        is_same = source.get("probe", key) is not None
    finally:
        target.swap("probe", key, b"here", None)
    if is_same:
        raise StoreError(f"both are the same store: {source.url} and {target.url}")


def _copy(source: Store, target: Store, run: str, lines: list[bytes]) -> bool:
    """Put a copy of a run's lines into a store; return whether anything was new."""
    last: Event = orjson.loads(lines[-1])
    origin = source.url
    if last["event"] == "held":  # a copy of a copy
        lines, origin = lines[:-1], last["from"]
    for digest, data in blobs_of(source, lines):
        if isinstance(data, StoreError):
            raise TraceCorrupt(f"run {run}", 1, f"it can't be copied whole: {data}")
        found = target.get("blobs", digest)
        if found != data:  # missing, or damaged
            target.swap("blobs", digest, found, data)
    attested = attested_head(source, run)
    lines = list(held_to(lines, attested, f"run {run}"))
    log = target.open(run)
    try:
        there = log.read()
        if not _is_behind(there, lines, run, target):
            return False
        info = run_info(source, run)
        _copy_claims(source, target, run)
        copy_beside(source, target, run)
        held: list[bytes] = []
        if last["event"] != "pruned":
            said: Event = {
                "event": "held", "from": origin, "status": info.status or "",
                "waits": info.waits, "attempts": info.attempts, "ended": info.ended,
                "time": time.time_ns() // 1000, "id": os.urandom(12).hex(),
            }  # fmt: skip
            held = chained([said], lines[-1][HASH])
        _point(source, target, info)  # first, so that no session of the job starts it over here
        log.replace([*lines, *held])
        if attested is not None:
            attest(target, run, attested)
    finally:
        log.close()
    return True


def _is_behind(there: list[bytes], lines: list[bytes], run: str, target: Store) -> bool:
    """Return whether a store has fewer lines of a run, and no session continued it there."""
    if not there:
        return True
    kind = orjson.loads(there[-1])["event"]
    base = there[:-1] if kind in ("held", "gone") else there
    if lines[: len(base)] == base:
        return kind in ("held", "gone") and len(base) < len(lines)
    if base[: len(lines)] == lines or kind == "pruned":
        return False
    raise RunConflict(f"{target.url} already has a different run {run}")


def _end(source: Store, target: Store, run: str, by: str) -> bool:
    """Record in the original that the run continues in the target, unless it has grown since."""
    log = Chain(source.open(run))
    try:
        log.read()
        lines, there = source.read(run), target.read(run)
        if there[:-1] != lines:
            if there[: len(lines)] == lines:
                raise RunElsewhere(f"run {run} went on in {target.url} already, from another store")
            return False
        last = orjson.loads(there[-1])
        said: Event = {
            "event": "gone", "to": target.url, "status": last["status"], "waits": last["waits"],
            "attempts": last["attempts"], "ended": last["ended"], "by": by,
            "time": time.time_ns() // 1000, "id": os.urandom(12).hex(),
        }  # fmt: skip
        log.append(said)
        log.wait()
    finally:
        log.close()
    return True


def _claim(source: Store, target: Store, run: str, by: str) -> bool:
    """Hand over a copy whose original was ended for it, and let sessions continue it."""
    log = Chain(target.open(run))
    try:
        events = log.read()
        if events[-1]["event"] != "held":
            return False  # what is said of it there is newer than what was said here
        _hand_over(source, target, run)
        time_ = time.time_ns() // 1000
        log.append({"event": "claimed", "from": source.url, "by": by, "time": time_})
        log.wait()
    finally:
        log.close()
    return True


def _point(source: Store, target: Store, info: RunInfo) -> None:
    """Point the job's pointer at the copy, if it is the newest run and there is no pointer."""
    if source.get("names", info.job) != info.run.encode():
        return
    seen = target.get("names", info.job)
    if seen is not None:
        try:
            is_copy = run_info(target, seen.decode()).last in ("held", "pruned", "gone")
        except RunNotFound:
            is_copy = True
        if not is_copy or seen.decode() >= info.run:
            return
    target.swap("names", info.job, seen, info.run.encode())


def _claims_of(store: Store, run: str) -> Iterator[tuple[str, Claim]]:
    """Yield the claims of a run's effects, with their keys."""
    for key in keys_of(store, "once"):
        data = store.get("once", key)
        if data is not None and (claim := Claim.read(key, data)).run == run:
            yield key, claim


def _check_claims(source: Store, target: Store, run: str) -> None:
    """Refuse a run under a key of which another run's effect stands in the target, or may.

    Once that effect is taken back, the key would be free there, though this run's effect stands.
    """
    for key, claim in _claims_of(source, run):
        there = target.get("once", key)
        known = claim if there is None else Claim.read(key, there)
        if (
            known.run != run
            and look_up(target, known).state != "free"
            and look_up(source, claim).state != "free"
        ):
            raise RunConflict(
                f"run {run} has made {key}, and so has run {known.run} in {target.url}: undo the "
                f"effect of one of them, or move into another store"
            )


def _copy_claims(source: Store, target: Store, run: str) -> None:
    """Copy the claims of a run, over those that an earlier copy or a free effect has left."""
    for key, claim in _claims_of(source, run):
        while True:
            there = target.get("once", key)
            known = claim if there is None else Claim.read(key, there)
            if known.run != run and look_up(target, known).state != "free":
                break
            new = known.merged(claim) if known.token == claim.token else claim
            if target.swap("once", key, there, new.data()):
                break


def _hand_over(source: Store, target: Store, run: str) -> None:
    """Bring what persons have said since the run was copied, and leave nothing to decide here."""
    _copy_claims(source, target, run)
    copy_beside(source, target, run)
    drop_beside(source, run)
