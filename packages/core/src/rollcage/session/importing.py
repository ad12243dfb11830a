"""A session that writes down what something else has recorded: for packages that import runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from rollcage.errors import RunNotFound
from rollcage.fingerprint.identity import uuid7
from rollcage.session.session import Session
from rollcage.step.driver import Clock
from rollcage.store.protocol import RunInfo, Store

__all__ = ["ImportSession"]


class ImportSession(Session):
    """Writes one run of the mode `imported`: nothing resumes it, and nothing of it can be undone.

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

    def __init__(
        self,
        name: str,
        *,
        store: str | os.PathLike[str] | Store,
        format: Literal["otel", "langfuse", "langsmith"],  # noqa: A002 - what it is
        trace: str,
        source: bytes,
        skipped: Mapping[str, int],
        clock: Clock,
    ) -> None:
        super().__init__(name, store=store, replay="off", secrets="detected", clock=clock)
        digest = self._key.sign(source.decode("utf-8", "surrogateescape"))
        imported: dict[str, Any] = {"format": format, "trace": trace, "digest": digest}
        if skipped:
            imported["skipped"] = dict(skipped)
        self._options = dataclasses.replace(self._options, imported=imported)

    def there(self) -> RunInfo | None:
        """The run that this would write, where the store has it; to be asked before entering."""
        run = uuid7(self._clock.wall() // 1_000_000, self._clock.random(10))
        try:
            return self.store.info(run)
        except RunNotFound:
            return None
