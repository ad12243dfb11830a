"""The ledger's answer to a call: it may run, a recorded step answers it, or what comes first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

from rollcage.gate import (
    AskContext,
)
from rollcage.replay.path import Entry
from rollcage.step.call import Arrival, OpenStep

__all__ = ["Admission", "Precondition"]


class Precondition(NamedTuple):
    """What has to be done before a call may run; then it comes again with its `arrival`.

    Attributes:
        what: somebody has to `approve` it; the recorded run went on with other arguments, which an
            approver had put in their place (`edit`); the recorded step is unknown and its tool may
            say what became of it (`probe`); recorded effects are to be undone first (`undo`); the
            states that it will change have to be kept (`capture`); a fork gives it other arguments
            (`change`); an earlier slot of its turn is
            being probed, and it has to `wait` for that.
        entry: the recorded step in its place, if any.
        orphans: the effects to undo.
        asked: what whoever has to approve it needs to know.
        until: what it waits for.
        args: what it has instead.
    """

    what: Literal["approve", "edit", "probe", "undo", "capture", "wait", "change"]
    arrival: Arrival
    entry: Entry | None = None
    orphans: tuple[Entry, ...] = ()
    asked: AskContext | None = None
    until: Future[None] | None = None
    args: Mapping[str, Any] | None = None


@dataclasses.dataclass(slots=True, eq=False)  # a NamedTuple would take twice as long to make
class Admission:
    """The ledger's answer to a call: one of step, entry, error and first, and what is written.

    With both a step and an entry, the tool runs only to be compared (`verify`), and the event is
    written once that is done. `first` is what has to be done before anything is taken; in a paused
    run, to wait until it is not: only then the call arrives.
    """

    event: dict[str, Any] | None
    step: OpenStep | None = None
    entry: Entry | None = None
    error: BaseException | None = None
    first: Precondition | Future[None] | None = None
