"""Holds on an execution: a pause, or a cancellation.

Each is a document in the store, so it also holds before the first attempt and between two. The
sender puts the document first and then stops the live attempt; an attempt opens its run first and
then looks for the document. So one of them sees the other, in any order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
import unicodedata
from typing import Any, Final, Literal

import orjson
from rollcage import OrderRefused, Store, lift_order, stop_run
from rollcage.trace.store import drop, every_key

from rollcage_workflow.errors import WorkflowError

__all__ = ["Hold", "Holds", "held", "job_name", "prefix_of"]

_KIND: Final = "holds"
_LONGEST: Final = 2000  # bytes of a reason, as JSON, in an order to stop
Kind = Literal["paused", "cancelled"]


def job_name(name: str) -> str:
    """Return the canonical name of a job, independent of how accents were typed (NFC)."""
    return unicodedata.normalize("NFC", name)


def prefix_of(execution: str) -> str:
    """Return the prefix of the keys of an execution's documents, with its name normalised."""
    return hashlib.sha256(job_name(execution).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """A pause or a cancellation of an execution.

    Attributes:
        kind: which of the two.
        by: the name of the person.
        reason: why.
        rollback: for a cancellation, whether to undo the execution.
        time: when (Unix, µs).
    """

    kind: Kind
    by: str
    reason: str
    rollback: bool
    time: int

    def __str__(self) -> str:
        message = f"{self.kind} by {self.by or 'nobody who gave a name'}"
        return f"{message}: {self.reason}" if self.reason else message


class Holds:
    """The holds of an execution.

    Args:
        store: the store of its runs.
        execution: its id.
    """

    def __init__(self, store: Store, execution: str) -> None:
        self._store = store
        self._execution = job_name(execution)

    def read(self) -> Hold | None:
        """Return the hold, if there is one; a cancellation comes before a pause.

        Raises:
            WorkflowError: the stored document is not a hold.
            StoreError: the hold can't be read.
        """
        return self._read("cancelled") or self._read("paused")

    def put(self, kind: Kind, *, by: str, reason: str = "", rollback: bool = False) -> bool:
        """Hold the execution; return False if there is such a hold already: the first one counts.

        Raises:
            StoreError: the hold can't be stored.
        """
        fields: dict[str, Any] = {"execution": self._execution, "kind": kind, "by": by}
        fields |= {"reason": reason, "rollback": rollback, "time": time.time_ns() // 1000}
        return self._store.swap(_KIND, self._key(kind), None, orjson.dumps(fields))

    def lift(self) -> bool:
        """End the pause; return whether there was one. A cancellation stays.

        Raises:
            StoreError: the change can't be stored.
        """
        return drop(self._store, _KIND, self._key("paused"))

    def stop(self, run: str, hold: Hold) -> None:
        """Make a live run end at its next call.

        Raises:
            StoreError: the order can't be given.
        """
        if run and self._store.is_live(run):
            with contextlib.suppress(OrderRefused):  # the run has just ended
                stop_run(self._store, run, by=hold.by, reason=_shortened(f"{self._was}{hold}"))

    def gave(self, reason: str) -> bool:
        """Return whether an order to stop with this reason was given for a pause."""
        return reason.startswith(f"{self._was}paused")

    def let_go(self, run: str) -> None:
        """Lift the order to stop a run, so that the next attempt can continue it."""
        if run:
            lift_order(self._store, run)

    @property
    def _was(self) -> str:
        """Return the prefix of the reasons of orders that belong to a hold."""
        return f"the execution {self._execution!r} was "

    def _read(self, kind: Kind) -> Hold | None:
        held = self._store.get(_KIND, self._key(kind))
        if held is None:
            return None
        try:
            fields = orjson.loads(held)
            if fields["execution"] != self._execution or fields["kind"] != kind:
                raise ValueError
            by, reason, rollback = (
                str(fields["by"]),
                str(fields["reason"]),
                bool(fields["rollback"]),
            )
            return Hold(kind, by, reason, rollback, int(fields["time"]))
        except (ValueError, TypeError, LookupError):
            raise WorkflowError(
                f"the store's document that says that {self._execution!r} is {kind} is damaged"
            ) from None

    def _key(self, kind: Kind) -> str:
        return f"{prefix_of(self._execution)}.{kind}"


def _shortened(text: str) -> str:
    """Return the beginning of a text that fits into an order to stop, in any script."""
    while len(orjson.dumps(text.encode("utf-8", "replace").decode())) > _LONGEST:
        text = text[: len(text) * 3 // 4]
    return text


def held(store: Store, kind: Kind) -> frozenset[str]:
    """Return the key prefixes of all executions with such a hold: see `prefix_of`.

    Raises:
        StoreError: the holds can't be read.
    """
    ends = f".{kind}"
    keys = (key for key in every_key(store, _KIND) if key.endswith(ends))
    return frozenset(key.removesuffix(ends) for key in keys)
