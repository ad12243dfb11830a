"""The problems of a store, and repairs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Final, Literal

import orjson
from rollcage.errors import RollcageError, RunInUse, RunNotFound, StoreError
from rollcage.stages.orders import order_of
from rollcage.trace.chain import HEADS, Chain, attested_head, held_to
from rollcage.trace.endings import OVER
from rollcage.trace.listing import RunInfo, all_runs, run_info
from rollcage.trace.run import Run, fold_log
from rollcage.trace.store import Store, drop, open_store, store_option

from rollcage_stores.blobs import blobs_of, keys_of, put_back
from rollcage_stores.prune import prune_run

__all__ = ["Finding", "examine", "repair"]

Where = str | os.PathLike[str] | Store
Kind = Literal["damaged", "open", "note"]
"""Lost or changed; needs a decision or a repair; needs no action."""

_BACKUP: Final = "rollcage copy {run} --from BACKUP --to {url}"
_READ: Final = ("names", HEADS, "once", "orders", "requests", "decisions")  # kinds of values


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Attributes:
        kind: how bad it is.
        code: the problem, for machines.
        run: the id of the run concerned; empty if it concerns none.
        message: the problem, for people.
        helps: the command that fixes it; empty if no command does.
    """

    kind: Kind
    code: str
    run: str
    message: str
    helps: str = ""


def examine(store: Where, *, blobs: bool = True) -> list[Finding]:
    """Return the problems of a store; everything is read, and nothing is changed.

    Args:
        store: a folder, a URL or a `Store`.
        blobs: whether large values are read.

    Raises:
        StoreError: the store can't be used.
    """
    own = open_store(store)
    found: list[Finding] = []
    infos = list(all_runs(own))
    named = set[str]()
    for info in infos:
        found += _of_run(own, info, named, blobs=blobs)
    found += _of_values(own, {info.run for info in infos})
    if blobs:
        found += _of_blobs(own, named)
    return found


def repair(store: Where) -> list[Finding]:
    """Repair everything that can be repaired without loss; return the repairs.

    An interrupted prune is finished; an interrupted copy in which nothing was done is removed;
    removed large values that are named after all are put back.

    Raises:
        StoreError: the store can't be read or written.
    """
    own = open_store(store)
    mended: list[Finding] = []
    for info in list(all_runs(own)):
        for each in _of_run(own, info, set(), blobs=False):
            if each.code == "prune_cut_off":
                prune_run(own, info.run)
            elif each.code != "copy_cut_off" or not _drop_cut_copy(own, info.run):
                continue
            mended.append(each)
    back = put_back(own)
    if back:
        message = f"{back} removed large values are still named by a log"
        mended.append(Finding("open", "blobs_put_back", "", message))
    return mended


def _of_run(own: Store, info: RunInfo, named: set[str], *, blobs: bool) -> Iterator[Finding]:
    run, at = info.run, store_option(own)
    backup = _BACKUP.format(run=run, url=own.url)
    try:
        is_live = own.is_live(run)
        head = attested_head(own, run)
        lines = own.read(run)
        found = fold_log(held_to(lines, head, f"run {run}"), f"run {run}", {})
    except RunNotFound:  # the run was removed meanwhile
        return
    except RollcageError as error:
        yield Finding("damaged", error.code, run, str(error), backup)
        return
    if is_live:
        return
    if info.last == "pruned":
        if "done" not in orjson.loads(lines[-1]):
            message = "its pruning was cut off: its values are still there"
            yield Finding("open", "prune_cut_off", run, message, f"rollcage repair{at}")
        return
    if found.copied:
        message = f"it is a copy of run {found.copied} that was cut off; nothing was done in it"
        yield Finding("note", "copy_cut_off", run, message, f"rollcage repair{at}")
        return
    if info.last != "held":
        yield from _to_decide(own, found, at)
    if blobs:
        for digest, data in blobs_of(own, lines):
            named.add(digest)
            if isinstance(data, StoreError):
                yield Finding("damaged", "blob", run, str(data), backup)


def _to_decide(own: Store, run: Run, at: str) -> Iterator[Finding]:
    """Yield the open decisions about a run without a writer."""
    for step in run.steps.values():
        is_open = step.status == "unknown" or step.unclear
        if step.acts and is_open and not step.gone:
            message = f"it is not known whether its step {step.n} ({step.name}) happened"
            helps = f"rollcage resolve {run.id} {step.n}{at} --happened | --did-not-happen"
            yield Finding("open", "outcome_unknown", run.id, message, helps)
    if run.undoing is not None:
        helps = f"rollcage undo {run.id}{at}"
        yield Finding("open", "undo_cut_off", run.id, "its undo has not ended", helps)
    order = order_of(own, run.id)
    if order is not None and run.status not in OVER:
        by = f" by {order.by}" if order.by else ""
        if order.kind == "stop":
            text, helps = "stopped", f"rollcage stop {run.id}{at} --lift"
        else:
            text, helps = "paused", f"rollcage unpause {run.id}{at}"
        yield Finding("open", "stop_order", run.id, f"it was {text}{by}", helps)


def _of_values(own: Store, runs: set[str]) -> Iterator[Finding]:
    """Yield pointers, claims, orders and requests that can't be read, or that name missing runs."""
    missing = set[str]()
    for kind in _READ:
        for key in keys_of(own, kind):
            shown = f"{kind[:-1] if kind != 'once' else 'claim'} {key!r}"
            try:
                data = own.get(kind, key)
                run = "" if data is None or kind == "decisions" else _run_in(kind, key, data)
            except (StoreError, ValueError, KeyError, TypeError) as error:
                message = f"the {shown} can't be read: {error}"
                yield Finding("damaged", "value", "", message)
                continue
            if kind == HEADS and run in missing:  # reported with its pointer
                continue
            if run and run not in runs and not _is_there(own, run):
                missing.add(run)
                bad: Kind = "damaged" if kind in ("names", HEADS, "once") else "note"
                message = f"the {shown} names run {run}, which is not there"
                helps = _BACKUP.format(run=run, url=own.url) if bad == "damaged" else ""
                yield Finding(bad, "run_missing", run, message, helps)


def _run_in(kind: str, key: str, data: bytes) -> str:
    """Return the run that a value names."""
    if kind == "names":
        return data.decode()
    if kind == HEADS:
        return key
    fields = orjson.loads(data)
    if kind == "orders":
        return key
    is_kept = kind == "once" and fields.get("state")  # the run may be missing
    return "" if is_kept else str(fields["run"])


def _of_blobs(own: Store, named: set[str]) -> Iterator[Finding]:
    unused = sum(1 for each in keys_of(own, "blobs") if each not in named)
    if unused:
        message = f"{unused} large values are named by no log: the next prune removes them"
        yield Finding("note", "blobs_unused", "", message)
    trash = sum(1 for _ in keys_of(own, "trash"))
    if trash:
        message = f"the removal of {trash} large values was cut off"
        yield Finding("open", "trash", "", message, f"rollcage repair{store_option(own)}")


def _is_there(own: Store, run: str) -> bool:
    """Return whether a run exists, perhaps begun since the runs were listed."""
    try:
        run_info(own, run)
    except RunNotFound:
        return False
    return True


def _drop_cut_copy(own: Store, run: str) -> bool:
    """Remove an interrupted copy; return whether that was possible."""
    try:
        log = Chain(own.open(run))
    except RunInUse:
        return False
    try:
        if not fold_log(log.lines(), run, {}).copied:
            return False
        drop(own, HEADS, run)
        log.log.replace([])
    finally:
        log.close()
    return True
