"""What keeps an execution from going on: that somebody paused it, or cancelled it.

Each is a document in the store, so it holds before the first attempt and between two, too. Who
gives one puts the document first and then stops the attempt that is live; an attempt opens its run
first and then looks for the document. So one of them sees the other, however they overlap.
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
    """Return a name by which a job is known: however its accents were typed, it is one (NFC)."""
    return unicodedata.normalize("NFC", name)


def prefix_of(execution: str) -> str:
    """How the keys of an execution's documents begin: of one name, however Unicode writes it."""
    return hashlib.sha256(job_name(execution).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """That an execution was paused or cancelled.

    Attributes:
        kind: which of the two.
        by: who did it.
        reason: why.
        rollback: of one that was cancelled, whether what it did is to be undone.
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
        store: where its runs are kept.
        execution: its id.
    """

    def __init__(self, store: Store, execution: str) -> None:
        self._store = store
        self._execution = job_name(execution)

    def read(self) -> Hold | None:
        """What holds it, if anything does; that it was cancelled before that it is paused.

        Raises:
            WorkflowError: what is kept there is no hold.
            StoreError: it can't be determined.
        """
        return self._read("cancelled") or self._read("paused")

    def put(self, kind: Kind, *, by: str, reason: str = "", rollback: bool = False) -> bool:
        """Hold it; False if it is held like that already: the first one counts.

        Raises:
            StoreError: that can't be kept.
        """
        fields: dict[str, Any] = {"execution": self._execution, "kind": kind, "by": by}
        fields |= {"reason": reason, "rollback": rollback, "time": time.time_ns() // 1000}
        return self._store.swap(_KIND, self._key(kind), None, orjson.dumps(fields))

    def lift(self) -> bool:
        """End its pause; whether there was one. That it was cancelled stays.

        Raises:
            StoreError: that can't be stored.
        """
        return drop(self._store, _KIND, self._key("paused"))

    def stop(self, run: str, hold: Hold) -> None:
        """Have a run that is live end at its next call.

        Raises:
            StoreError: the order can't be given.
        """
        if run and self._store.is_live(run):
            with contextlib.suppress(OrderRefused):  # it has just ended
                stop_run(self._store, run, by=hold.by, reason=_shortened(f"{self._was}{hold}"))

    def gave(self, reason: str) -> bool:
        """Whether an order to stop, of this reason, was given as the execution was paused."""
        return reason.startswith(f"{self._was}paused")

    def let_go(self, run: str) -> None:
        """Lift the order to stop that a run has, so that the next attempt can go on with it."""
        if run:
            lift_order(self._store, run)

    @property
    def _was(self) -> str:
        """How the reason of each order begins that is given for a hold."""
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
    """A text's start, as long as an order to stop can hold in any script."""
    while len(orjson.dumps(text.encode("utf-8", "replace").decode())) > _LONGEST:
        text = text[: len(text) * 3 // 4]
    return text


def held(store: Store, kind: Kind) -> frozenset[str]:
    """How the keys of all executions begin that are held like that: see `prefix_of`.

    Raises:
        StoreError: it can't be determined.
    """
    ends = f".{kind}"
    keys = (key for key in every_key(store, _KIND) if key.endswith(ends))
    return frozenset(key.removesuffix(ends) for key in keys)
