"""A session that writes down what something else has recorded: for packages that import runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from rollcage.errors import RunNotFound
from rollcage.fingerprint.identity import uuid7
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store.protocol import RunInfo, Store

__all__ = ["import_session", "imported_run"]


def import_session(
    name: str,
    *,
    store: str | os.PathLike[str] | Store,
    format: Literal["otel", "langfuse", "langsmith"],  # noqa: A002 - what it is
    trace: str,
    source: bytes,
    skipped: Mapping[str, int],
    clock: Clock,
) -> Session:
    """A session that writes one run of the mode `imported`: nothing resumes or undoes that.

    Whoever imports gives the calls of the origin one after the other, each with a body that does
    nothing but give what is recorded there, and sets the clock to when that was. What was left out
    there is `NOT_RECORDED`, in arguments and results. Credentials never reach the disk.

    Args:
        name: the job's.
        store: see `Session`.
        format: what the run is imported from.
        trace: its id there.
        source: what was read of it; its keyed digest is kept.
        skipped: how many spans become no step, by why.
        clock: gives the times, and what the run's id is made of: the same again is the same run.

    Raises:
        DetectorMissing: what finds credentials is not installed.
    """
    # Made as one that runs nothing: that is never a fork, even if its process was started as one.
    session = Session(name, store=store, replay="offline", secrets="detected", clock=clock)
    opening = session._opening  # noqa: SLF001 - of its room
    digest = opening.key.sign(source.decode("utf-8", "surrogateescape"))
    imported: dict[str, Any] = {"format": format, "trace": trace, "digest": digest}
    if skipped:
        imported["skipped"] = dict(skipped)
    options = dataclasses.replace(opening.options, replay="off", imported=imported)
    session._opening = dataclasses.replace(opening, options=options)  # noqa: SLF001 - the same
    return session


def imported_run(store: Store, clock: Clock) -> RunInfo | None:
    """The run that a session with this clock would write, if the store has it."""
    run = uuid7(clock.wall() // 1_000_000, clock.random(10))
    try:
        return store.info(run)
    except RunNotFound:
        return None
