"""Runs of the format `rollcage/1` become logs of `rollcage/2`: the runs of a folder, or one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

from rollcage import Store, open_store
from rollcage.errors import RollcageError, RunInUse, RunNotFound, SourceMissing, StoreInvalid

from rollcage_import.generations import ImportRefused, import_generations
from rollcage_import.old_store import MODES, OldFolder, OldRun

__all__ = ["Converted", "import_old_runs"]


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """An old run, with the runs that it continues.

    Attributes:
        old: the id of its newest generation.
        run: the id of its log; empty if it could not be imported.
        name: the job's name.
        generations: how many old runs it was.
        left_out: the omitted parts, by reason.
        there: whether it had been imported before, and was not changed.
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
    """Import the newest generation of each run of an old store, with the runs that it continues.

    A run can be resumed, undone and shown as if it had been recorded now. A run that was imported
    before is not changed; offline replays, verifications, forks and imports are left out.

    A session inside of another one had a run of its own in the old format, which does not record
    its place in the outer run. Neither is imported: a resume of the outer run would not find the
    inner calls, and would repeat them.

    Args:
        where: the folder of the old store. It is only read.
        store: the store of the logs; it may be the same folder.
        run: import only this run.

    Raises:
        RunNotFound: there is no such run.
        StoreError: a store can't be used.
    """
    old, new = OldFolder(where), open_store(store)
    infos: dict[str, OldRun] = {}
    found: list[Converted] = []
    for each in old.runs():
        try:
            infos[each] = old.info(each)
        except RollcageError as error:
            found.append(Converted(each, "", "", 1, {}, refused=str(error)))
    if run is not None:
        found = [each for each in found if each.old == run]
        if not found and run not in infos:
            raise RunNotFound(f"there is no run {run} in {where}")
    resumed = {each.source for each in infos.values() if each.mode in MODES}
    wanted = [
        each
        for each in infos.values()
        if each.mode in MODES and (each.run == run if run is not None else each.run not in resumed)
    ]
    _take_key(old, new)
    nested = _nested(infos)
    found += [_import(old, new, each, infos, nested) for each in wanted]
    return sorted(found, key=lambda each: each.old)


def _take_key(old: OldFolder, new: Store) -> None:
    """Copy the key of the old store: without it, no call with a secret would match.

    Raises:
        StoreInvalid: the new store has another key.
    """
    key = old.key()
    if key is None:  # nothing in it is secret
        return
    if new.get("keys", "seal") is None:
        new.swap("keys", "seal", None, key)
    if new.get("keys", "seal") != key:
        raise StoreInvalid(
            "the new store has a key of its own already, so secrets would not be the same there: "
            "import into an empty store"
        )


def _nested(infos: Mapping[str, OldRun]) -> dict[str, tuple[OldRun, OldRun]]:
    """Return the runs that contain others or are inside of others, by their ids.

    Each with such a pair: the outer run and the inner one.
    """
    found: dict[str, tuple[OldRun, OldRun]] = {}
    for inner in infos.values():
        outer = infos.get(inner.within)
        if outer is not None and inner.mode in MODES and outer.mode in MODES:
            found.setdefault(outer.run, (outer, inner))
            found.setdefault(inner.run, (outer, inner))
    return found


def _import(
    old: OldFolder,
    new: Store,
    info: OldRun,
    infos: Mapping[str, OldRun],
    nested: Mapping[str, tuple[OldRun, OldRun]],
) -> Converted:
    lineage = [info.run]
    try:
        for before in _sources(info, infos):
            lineage.insert(0, before)
        for each in lineage:
            if each in nested:
                raise _inseparable(*nested[each])
        generations = [old.read(each) for each in lineage]
        run, left_out = import_generations(new, generations, old.blob)
    except RunInUse as error:
        return Converted(info.run, "", info.name, len(lineage), {}, there=True, refused=str(error))
    except RollcageError as error:
        return Converted(info.run, "", info.name, len(lineage), {}, refused=str(error))
    return Converted(info.run, run, info.name, len(lineage), left_out)


def _inseparable(outer: OldRun, inner: OldRun) -> ImportRefused:
    """Return the error for two runs that can't be imported, with the next step."""
    return ImportRefused(
        f"run {inner.run} ({inner.name}) is of a session inside of run {outer.run} "
        f"({outer.name}). Here both are one run, and the old one does not say where in it that "
        f"session stood: a resume would make its calls again. Finish or undo run {outer.run} with "
        f"the version of Rollcage that recorded it, and begin the job anew here"
    )


def _sources(info: OldRun, infos: Mapping[str, OldRun]) -> Iterator[str]:
    seen = {info.run}
    source = info.source
    while source is not None:
        found = infos.get(source)
        if found is None:
            raise SourceMissing(f"run {source}, which run {info.run} goes on from, is gone")
        if source in seen:
            raise ImportRefused(f"run {info.run} goes on from itself, by way of run {source}")
        seen.add(source)
        yield source
        source = found.source
