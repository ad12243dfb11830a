"""The requests of a step's flow to the outside: a closed set, performed by the driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from rollcage.gate import Verdict
from rollcage.replay.path import Path
from rollcage.step.call import Arrival, OpenStep, Progress

__all__ = [
    "Admit",
    "BeginAsking",
    "BeginUndo",
    "Consult",
    "EndAsking",
    "Execute",
    "Flow",
    "GetBlob",
    "KeepBlob",
    "LedgerUpdate",
    "MarkUndone",
    "Note",
    "OpenUndo",
    "PutBlob",
    "Raised",
    "Recall",
    "Request",
    "Resolve",
    "Returned",
    "Rewind",
    "Settle",
    "Stop",
    "Sync",
    "WaitForCall",
    "Waiting",
]


@dataclasses.dataclass(slots=True)
class Admit:
    """Place and match a call, and write the result. Answered by an `Admission`.

    A call that something had to be done for first comes again with its `arrival`.
    """

    progress: Progress
    verdict: Verdict
    arrival: Arrival | None = None


@dataclasses.dataclass(slots=True)
class Consult:
    """Call a user's function that is not a body: an approver, an `observe` or a `probe`.

    Answered by `Returned` or `Raised`. A sync one is called in a thread if the loop must not wait
    for it; unless it needs its context (`here`).
    """

    function: Callable[..., Any]
    what: str  # in a message
    positional: tuple[Any, ...] = ()
    words: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    here: bool = False
    after: OpenStep | None = None  # whose body has ended just now


@dataclasses.dataclass(slots=True)
class Recall:
    """Read what the session's run and its lineage hold. Answered by a `Lineage`, or `Raised`."""


@dataclasses.dataclass(slots=True)
class WaitForCall:
    """Wait for what another call finds out, or until the run is no longer paused.

    Answered by `Returned` or `Raised`.
    """

    until: Future[None]


@dataclasses.dataclass(slots=True)
class BeginAsking:
    """Somebody is about to be asked. Answered by whether that is new."""

    request: str


@dataclasses.dataclass(slots=True)
class EndAsking:
    """It was decided."""

    request: str


@dataclasses.dataclass(slots=True)
class BeginUndo:
    """An undo begins; `paths` say what earlier ones have done."""

    paths: dict[str, Path]


@dataclasses.dataclass(slots=True)
class OpenUndo:
    """Open the branch in which the step of a fingerprint is undone. Answered by its name."""

    fingerprint: str
    attempt: int


@dataclasses.dataclass(slots=True)
class MarkUndone:
    """A step was undone: if its recording lies ahead, that no longer holds."""

    run: str
    step: int


@dataclasses.dataclass(slots=True)
class Rewind:
    """What is recorded no longer holds: the world is not the one that it was recorded in."""


@dataclasses.dataclass(slots=True)
class KeepBlob:
    """See that a large value of the source is in the run's own store, too."""

    digest: str


@dataclasses.dataclass(slots=True)
class Execute:
    """Run the tool's own body. Answered by `Returned` or `Raised`."""

    step: OpenStep
    body: Callable[..., Any]
    is_async: bool | None = None  # None: as the drive is


@dataclasses.dataclass(slots=True)
class Settle:
    """Write how a step ended. `halt`, if given, halts the session."""

    step: OpenStep
    outcome: dict[str, Any]
    encoded: bytes  # the outcome as the trace holds it
    halt: Exception | None = None
    marks: dict[str, Any] | None = None  # what else is written


@dataclasses.dataclass(slots=True)
class Resolve:
    """Write what became of a step whose outcome was unknown."""

    step: OpenStep
    outcome: dict[str, Any]
    encoded: bytes
    marks: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class Stop:
    """Halt the session with an error."""

    error: Exception


@dataclasses.dataclass(slots=True)
class Note:
    """Write an event as it is; `name` is the step's, for observers, if the event has none."""

    event: dict[str, Any]
    name: str = ""


@dataclasses.dataclass(slots=True)
class Sync:
    """Wait for the store. Answered by `Returned` or `Raised`.

    Attributes:
        before: the step whose body begins only after that, if there is one.
        sent: it is enough that a killed process loses nothing: if so already, nobody waits.
    """

    before: OpenStep | None = None
    sent: bool = False


@dataclasses.dataclass(slots=True)
class PutBlob:
    """Keep a large value."""

    digest: str
    data: bytes


@dataclasses.dataclass(slots=True)
class GetBlob:
    """Fetch a recorded large value; answered by its bytes, or `Raised` if it is not there."""

    digest: str


@dataclasses.dataclass(slots=True)
class Returned:
    """What a body gave back; `cut`: a stream whose consumer wanted no more of it."""

    value: Any
    cut: bool = False


@dataclasses.dataclass(slots=True)
class Raised:
    """What a body raised; cancellation and interrupts included."""

    error: BaseException
    began: bool = True  # False: cut off before the body's first instruction


Waiting = Sync | Consult | WaitForCall
"""What may take long, besides bodies: a thread performs it in one way, a task in another."""

LedgerUpdate = BeginAsking | EndAsking | BeginUndo | OpenUndo | MarkUndone | Rewind
"""What the ledger is notified of."""

Request = (
    Admit
    | Settle
    | Resolve
    | Stop
    | Note
    | PutBlob
    | GetBlob
    | KeepBlob
    | Recall
    | LedgerUpdate
    | Execute
    | Waiting
)
Flow = Generator[Request, Any, Returned | Raised]
