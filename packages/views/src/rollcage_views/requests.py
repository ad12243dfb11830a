"""The requests for approval in a store, each with its decision, for the people who decide."""

from __future__ import annotations

import dataclasses
import os
from typing import Literal

from rollcage import Approval, ApprovalQueue, ApprovalRequest, Store
from rollcage.trace.store import every_key

__all__ = ["Queued", "Requests"]

State = Literal["waiting", "decided", "expired", "used"]
"""`waiting` for a decision; `decided`, but not used yet; `expired` undecided; `used`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """A request with its decision.

    Attributes:
        id: its id.
        request: the call to decide about.
        decision: the decision, if there is one.
        decided_at: the time of the decision (Unix, µs).
        use: `used` once its run has it on record; else empty.
    """

    id: str
    request: ApprovalRequest
    decision: Approval | None = None
    decided_at: int = 0
    use: Literal["", "used"] = ""

    def state(self, now: int) -> State:
        """Return its state at a time (Unix, µs)."""
        if self.use:
            return "used"
        if now >= self.request.expires:
            return "expired"
        return "waiting" if self.decision is None else "decided"


class Requests:
    """The requests in a store.

    Args:
        store: a folder, a URL or a `Store`.

    Attributes:
        store: the `Store`.
    """

    def __init__(self, store: str | os.PathLike[str] | Store) -> None:
        self._queue = ApprovalQueue(store)
        self.store = self._queue.store

    def ids(self) -> list[str]:
        """Return the ids of all requests.

        Raises:
            StoreError: the store can't be read.
        """
        return [*every_key(self.store, "requests")]

    def get(self, approval: str) -> Queued | None:
        """Return a request with its decision; None if there is none, or it is over.

        Raises:
            ApprovalCorrupt: the request was changed or damaged.
            StoreError: the store can't be read.
        """
        request = self._queue.get(approval)
        if request is None:
            return None
        found = self._queue.decision(request)
        if found is None:
            return Queued(approval, request)
        return Queued(approval, request, found.answer, found.at)

    def decide(self, approval: str, answer: Approval, *, now: int | None = None) -> Queued:
        """Decide about a request, and return it with the decision; only the first decision counts.

        Raises:
            ApprovalInvalid: there is no such request, it is decided or expired, or this person may
                not decide about it.
            ApprovalCorrupt: the request was changed or damaged.
            StoreError: the store can't be read or written.
        """
        asked = self.get(approval)
        self._queue.decide(approval, answer, now=now)
        decided = self.get(approval)
        if decided is None and asked is not None:  # its run has used it at once
            return dataclasses.replace(asked, decision=answer, use="used")
        assert decided is not None
        return decided
