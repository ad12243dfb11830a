"""What the flow of a step asks of the outside: a closed set, performed by the drivers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

from rollcage.gate import ApprovalRequest, Ask, Verdict
from rollcage.step import Arrival, Call, Step

__all__ = [
    "Admit",
    "Approve",
    "Effect",
    "Execute",
    "Flow",
    "GetBlob",
    "Note",
    "PutBlob",
    "Raised",
    "Resolve",
    "Returned",
    "Settle",
    "Stop",
    "Sync",
]


@dataclasses.dataclass(slots=True)
class Admit:
    """Place and match a call, and write what comes of it. Answered by an `Admission`.

    With its `arrival`, a call that waited for its approval comes again.
    """

    call: Call
    verdict: Verdict
    arrival: Arrival | None = None


@dataclasses.dataclass(slots=True)
class Approve:
    """Ask whether a call may run. Answered by `Returned` with an `Approval`, or `Raised`."""

    ask: Ask
    request: ApprovalRequest


@dataclasses.dataclass(slots=True)
class Execute:
    """Run the tool's own body. Answered by `Returned` or `Raised`.

    `late` makes the flow that records an end which came after the call was cancelled.
    """

    step: Step
    body: Callable[..., Any]
    late: Callable[[Returned | Raised], Flow]


@dataclasses.dataclass(slots=True)
class Settle:
    """Write how a step ended. `halt`, where given, halts the session with it."""

    step: Step
    outcome: dict[str, Any]
    encoded: bytes  # the outcome as the trace holds it
    halt: Exception | None = None


@dataclasses.dataclass(slots=True)
class Resolve:
    """Write what became of a step whose outcome was unknown."""

    step: Step
    outcome: dict[str, Any]
    encoded: bytes


@dataclasses.dataclass(slots=True)
class Stop:
    """Halt the session with an error."""

    error: Exception


@dataclasses.dataclass(slots=True)
class Note:
    """Write an event as it is."""

    event: dict[str, Any]


@dataclasses.dataclass(slots=True)
class Sync:
    """Wait for the disk. Answered by `Returned` or `Raised`."""


@dataclasses.dataclass(slots=True)
class PutBlob:
    """Keep a large value."""

    digest: str
    data: bytes


@dataclasses.dataclass(slots=True)
class GetBlob:
    """Fetch a recorded large value; answered by its bytes, or `Raised` where it is not there."""

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


Effect = Admit | Approve | Execute | Settle | Resolve | Stop | Note | Sync | PutBlob | GetBlob
Flow = Generator[Effect, Any, Returned | Raised]
