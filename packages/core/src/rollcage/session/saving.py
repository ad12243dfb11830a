"""Opens a source by what was kept of it, and keeps what is read of one: see `replay.saved`."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from rollcage.errors import RunNotFound, StoreError
from rollcage.replay.recording import Lineage
from rollcage.replay.saved import Saved, TraceEnd, dump, load_saved
from rollcage.store.protocol import Lock, Reader, StepsStore
from rollcage.trace.reader import last_time, tail_of

__all__ = ["ReadTrace", "keep_saved", "take_saved"]

_log: Final = logging.getLogger("rollcage")
_WORTH: Final = 10_000  # lines of one trace from which on it is kept; of several always


class ReadTrace(NamedTuple):
    """A trace of a lineage, by its lines.

    Attributes:
        run: its id.
        where: what messages call it.
        data: the lines.
        settings: of its `run.started`, what a session that resumes it must have, too.
    """

    run: str
    where: str
    data: bytes
    settings: dict[str, Any]


def take_saved(
    reader: Reader,
    run: str,
    locks: list[Lock] | None,
    check: Callable[[str, Mapping[str, Any]], None],
) -> Saved | None:
    """What was kept of a run and of all that it builds on; None if it can't be relied on.

    Each older trace must still be there and end as it did then; if `locks` are given, it is locked
    into them; `check` refuses a run by its settings.

    Raises:
        StoreError: one of them is in use, or has an order to stop.
        SessionError: one of them was recorded with other settings.
    """
    saved = _saved(reader, run)
    if saved is None or not isinstance(reader, StepsStore):
        return None
    held: list[Lock] = []
    try:
        for older in reversed(saved.traces[:-1]):
            if locks is not None:
                held.append(reader.lock(older.run))
            check(older.run, older.settings)
            if reader.head(older.run) != older.head:
                saved = None
                break
    except RunNotFound:
        saved = None
    except BaseException:
        _release(held)
        raise
    if saved is None:
        _release(held)
    elif locks is not None:
        locks += held
    return saved


def _release(locks: list[Lock]) -> None:
    for lock in locks:
        lock.release()


def _saved(reader: Reader, run: str) -> Saved | None:
    """What was kept of a lineage, if it belongs to the trace as it is now."""
    if not isinstance(reader, StepsStore):
        return None
    data = reader.get_steps(run)
    if data is None:
        return None
    try:
        found, info = reader.measure(run), reader.info(run)
        if found is None or info.pruned is not None:
            return None
        if info.head is not None and info.head != found.head:
            return None  # whoever reads it finds out why
        saved = load_saved(data, found.digest, reader.secret_key())
        return saved if saved is not None and saved.traces[-1].run == run else None
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error, StoreError) as error:
        _log.debug("what was kept of run %s can't be used: %r", run, error)
        return None


def keep_saved(
    reader: Reader, base: Saved | None, traces: Sequence[ReadTrace], lineage: Lineage
) -> None:
    """Keep what was read of a lineage, if reading it again would take long.

    Args:
        reader: where its traces are.
        base: what was kept of the oldest of them.
        traces: those that were read after them, oldest first.
        lineage: what all of them hold, as it was read.
    """
    if not traces or not isinstance(reader, StepsStore):
        return
    newest = traces[-1]
    older = [] if base is None else base.traces
    if len(older) + len(traces) < 2 and newest.data.count(b"\n") < _WORTH:
        return
    ends = [TraceEnd(t.run, tail_of(t.data).head.hex(), t.settings) for t in traces]
    saved = Saved(lineage, older + ends, last_time(newest.data))
    try:
        data = dump(saved, sha256(newest.data).hexdigest(), reader.secret_key())
    except StoreError as error:
        _log.debug("run %s opens no faster: %s", newest.run, error)
        return
    reader.put_steps(newest.run, data)
    if older:
        reader.put_steps(older[-1].run, None)  # it is in this one
