"""What stays of a run whose trace was pruned: a document of its own, from which it is still listed.

Its kind is `pruned`, its key the run's id. It is written before anything is removed, and holds what
the index held of the run until then, so that it is listed, and found by its job, as before.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

import orjson

from rollcage.errors import RunConflict, RunPruned, StoreError
from rollcage.store.protocol import Pruned, RunInfo, RunTrace
from rollcage.trace.reader import split_tail, tail_of

__all__ = [
    "KIND",
    "UNTOLD",
    "check_there",
    "check_unneeded",
    "goes_on",
    "gone",
    "info_in",
    "is_damaged",
    "pruned_in",
    "pruned_of",
    "stub_of",
]

KIND: Final = "pruned"  # of documents
_WORKS: Final = ("record", "resume")  # the modes of runs that go on from another one
UNTOLD: Final = Pruned(0, "", 0, "")
"""Of a run that was pruned, where what was left of it was damaged."""
_KEPT: Final = ("run", "name", "mode", "source", "time", "status", "input")


def pruned_of(info: RunInfo, by: str, time: int) -> RunInfo:
    """What the index holds of a run from now on, whose trace is about to be removed.

    Raises:
        StoreError: it has not ended, or nothing attests that what is there is all of it.
    """
    if info.status is None or info.count is None or info.head is None:
        raise StoreError(
            f"run {info.run} has not ended, or its end is not attested. Without its trace, what it "
            f"did could not be known later, so the trace stays"
        )
    pruned = Pruned(time, by, info.count, info.head)
    return dataclasses.replace(info, pruned=pruned, count=None, head=None)


def check_unneeded(run: str, later: Iterable[RunInfo]) -> None:
    """Refuse to remove a run that others go on from: `later` are those that name it.

    Raises:
        StoreError: one of them is there.
    """
    for info in later:
        if info.mode in _WORKS and info.pruned is None:
            raise StoreError(
                f"run {run} stays: run {info.run} of {info.name!r} builds on it, and has to be "
                f"pruned first"
            )


def stub_of(info: RunInfo) -> bytes:
    """The document that stays of a run that was pruned."""
    assert info.pruned is not None
    fields = {name: getattr(info, name) for name in _KEPT}
    return orjson.dumps(fields | {"pruned": dataclasses.asdict(info.pruned)}) + b"\n"


def info_in(stub: bytes, where: str) -> RunInfo:
    """What the document says of its run.

    Raises:
        StoreError: it is damaged.
    """
    try:
        fields: dict[str, Any] = orjson.loads(stub)
        return RunInfo(**{name: fields[name] for name in _KEPT}, pruned=Pruned(**fields["pruned"]))
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreError(f"{where}, what is left of a pruned run, is damaged: {error}") from None


def pruned_in(stub: bytes) -> Pruned:
    """When its run was pruned, and by whom; `UNTOLD` where the document is damaged.

    That there is one says that the run was pruned, which must not be forgotten.
    """
    try:
        return info_in(stub, "").pruned or UNTOLD
    except StoreError:
        return UNTOLD


def is_damaged(stub: bytes) -> bool:
    """Whether what is left of a pruned run can't be read; one that was mended says `UNTOLD`."""
    try:
        info_in(stub, "")
    except StoreError:
        return True
    return False


def gone(info: RunInfo) -> RunPruned:
    """The error for whoever needs the trace of a run that was pruned."""
    assert info.pruned is not None
    again = 'To do its job again, start a new run with replay="off"'
    if info.pruned == UNTOLD:
        return RunPruned(
            f"run {info.run} of {info.name!r} was pruned. What was left of it was damaged: nobody "
            f"can tell when, or by whom. {again}"
        )
    when = dt.datetime.fromtimestamp(info.pruned.time / 1e6, tz=dt.UTC).strftime("%Y-%m-%d %H:%M")
    by = f" by {info.pruned.by}" if info.pruned.by else ""
    return RunPruned(
        f"run {info.run} of {info.name!r} was pruned{by} on {when} UTC: it ended "
        f"{info.status!r} with {info.pruned.count} lines, and its trace is gone. "
        f"{again}"
    )


def check_there(trace: RunTrace) -> None:
    """Refuse what is only the skeleton of a run: no value is left in it.

    Raises:
        RunPruned: it is.
    """
    if trace.info is not None and trace.info.pruned is not None:
        raise gone(trace.info)


def goes_on(trace: RunTrace, here: bytes, where: str) -> bytes | None:
    """The lines that a run has beyond those that are here of it; None where it has none.

    Raises:
        RunConflict: what is here is no part of it, nor the other way round.
    """
    here = split_tail(here)[0]
    if trace.data.startswith(here):
        return trace.data[len(here) :] or None
    if here.startswith(trace.data):
        return None
    lines = zip(here.splitlines(), trace.data.splitlines(), strict=False)
    same = next((at for at, (own, other) in enumerate(lines, 1) if own != other), 1) - 1
    raise RunConflict(
        f"run {trace.run} is in {where} already, with other lines after line {same}: "
        f"both were resumed, resolved or undone since they were copied. One of them has to go: "
        f"nothing was changed (it ends with {tail_of(here).head.hex()[:12]}… there, and with "
        f"{tail_of(trace.data).head.hex()[:12]}… here)"
    )
