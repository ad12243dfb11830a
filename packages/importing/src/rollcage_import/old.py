"""Runs of the format `rollcage/1` become logs of `rollcage/2`: those of a whole store, or one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from rollcage import Store
from rollcage import open_store as open_new
from rollcage.errors import (
    RollcageError,
    RunInUse,
    RunNotFound,
    SourceMissing,
    StoreInvalid,
    StoreReadOnly,
)
from rollcage.heart.adapters import import_generations
from rollcage.store import RunInfo, open_store
from rollcage.store import Store as OldStore
from rollcage.trace import check_events

__all__ = ["Converted", "import_old_runs"]

_MODES = ("record", "resume")


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """An old run, with all that it goes on from.

    Attributes:
        old: the id of its newest generation.
        run: the id of the log that it is now; empty if it could not be imported.
        name: the job's.
        generations: how many old runs it was.
        left_out: what is not taken over, by why.
        there: it had been imported before, and was left as it is.
        refused: why it could not be imported; empty if it was.
    """

    old: str
    run: str
    name: str
    generations: int
    left_out: dict[str, int]
    there: bool = False
    refused: str = ""


def import_old_runs(
    where: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | Store,
    run: str | None = None,
) -> list[Converted]:
    """Import the newest generation of each run of an old store, with all that it goes on from.

    A run is resumed, undone and looked at as if it had been recorded anew. One that was imported
    before is left as it is; looks at runs (`offline`, `verify`, forks) and imports are left out.

    Args:
        where: the old store, a folder or a URL. It is only read.
        store: where the logs go; it may be the same folder.
        run: import this one only.

    Raises:
        RunNotFound: there is no such run.
        StoreError: a store can't be used.
    """
    old, new = open_store(where), open_new(store)
    infos = {each.run: each for each in old.runs()}
    if run is not None and run not in infos:
        raise RunNotFound(f"there is no run {run} in {where}")
    resumed = {each.source for each in infos.values() if each.mode in _MODES}
    wanted = [
        each
        for each in infos.values()
        if each.mode in _MODES and (each.run == run if run is not None else each.run not in resumed)
    ]
    _take_key(old, new)
    return [_import(old, new, each, infos) for each in sorted(wanted, key=lambda one: one.run)]


def _take_key(old: OldStore, new: Store) -> None:
    """Have secrets be known by the HMACs that they have: without that, no call would match."""
    try:
        key = old.secret_key()
    except StoreReadOnly:  # it has none: nothing in it is secret
        return
    if new.get("keys", "seal") is None:
        new.swap("keys", "seal", None, key)
    if new.get("keys", "seal") != key:
        raise StoreInvalid(
            "the new store has a key of its own already, so secrets would not be the same there: "
            "import into an empty store"
        )


def _import(old: OldStore, new: Store, info: RunInfo, infos: dict[str, RunInfo]) -> Converted:
    lineage = [info.run]
    try:
        for before in _sources(info, infos):
            lineage.insert(0, before)
        traces = [old.read(each) for each in lineage]
        generations: list[list[dict[str, Any]]] = [
            check_events(each.data, each.where) for each in traces
        ]
        run, left_out = import_generations(new, generations, old.get_blob)
    except RunInUse as error:
        return Converted(info.run, "", info.name, len(lineage), {}, there=True, refused=str(error))
    except RollcageError as error:
        return Converted(info.run, "", info.name, len(lineage), {}, refused=str(error))
    return Converted(info.run, run, info.name, len(lineage), left_out)


def _sources(info: RunInfo, infos: dict[str, RunInfo]) -> Iterator[str]:
    source = info.source
    while source is not None:
        found = infos.get(source)
        if found is None:
            raise SourceMissing(f"run {source}, which run {info.run} goes on from, is gone")
        yield source
        source = found.source
