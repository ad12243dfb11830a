"""A call on its way through a run: what is requested, where it arrives, what runs, what counts."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import orjson

from rollcage.compensation import Captured
from rollcage.contract import Arguments, Contract
from rollcage.errors import CaptureFailed
from rollcage.fingerprint import key_digest
from rollcage.gate import Approval, Ask, Verdict
from rollcage.replay import Entry
from rollcage.world import Branch, Place, Turn

__all__ = ["Admission", "Arrival", "Call", "Need", "Stats", "Step", "Told"]


@dataclasses.dataclass(slots=True)
class Stats:
    """What a session has done so far.

    Attributes:
        calls: how many calls it placed.
        hits: how many were answered from the recording.
        misses: how many ran.
        blocked: how many a rule refused.
        errors: how many ended with an exception, live or replayed.
        orphans: recorded effects that were left behind.
        drifted: hits whose fresh execution differed (`verify`).
        seconds_saved: what the hits took when they ran.
        tokens_saved: what the replayed model calls had used.
    """

    calls: int = 0
    hits: int = 0
    misses: int = 0
    blocked: int = 0
    errors: int = 0
    orphans: int = 0
    drifted: int = 0
    seconds_saved: float = 0.0
    tokens_saved: int = 0


class Told(NamedTuple):
    """What was found out about a recorded step of unknown outcome.

    Attributes:
        happened: None where nobody can tell.
        outcome: where it happened, as the trace holds it, and its digest (hex).
        undo: what that adds to what stands of its undo.
    """

    happened: bool | None
    outcome: dict[str, Any] | None = None
    digest: str = ""
    undo: dict[str, Any] | None = None


class Call:
    """What is requested: a contract with its arguments, and where the call comes from."""

    __slots__ = (
        "agent", "approved", "arguments", "ask", "branch", "call_id", "captured", "compared",
        "contract", "key", "kind", "parent", "refused", "shown", "slot", "told", "turn", "undoes",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        contract: Contract,
        arguments: Arguments,
        *,
        branch: str = "",
        turn: Turn | None = None,
        slot: int | None = None,
        agent: str = "",
        call_id: str = "",
        parent: Step | None = None,
        ask: Ask | None = None,
        undoes: tuple[str, int] | None = None,
    ) -> None:
        self.kind = kind
        self.contract = contract
        self.arguments = arguments
        self.shown: Any = orjson.Fragment(arguments.digest_input)  # as the trace holds them
        self.compared = arguments.canonical  # the same, to look into
        self.key = key_digest(kind, contract.name, contract.version, arguments.digest_input)
        self.branch = branch
        self.turn = turn
        self.slot = slot
        self.agent = agent
        self.call_id = call_id
        self.parent = parent
        self.ask = ask
        self.undoes = undoes
        self.approved: Approval | None = None
        self.captured: Captured | None = None
        self.told: Told | None = None
        self.refused: CaptureFailed | None = None


class Arrival:
    """A call that has arrived at its branch, in its turn and slot, at a time."""

    __slots__ = (
        "advances",
        "branch",
        "call",
        "contract",
        "now",
        "placed",
        "slot",
        "turn",
        "verdict",
    )

    def __init__(
        self, call: Call, branch: Branch, turn: Turn, verdict: Verdict, *, strict: bool, now: int
    ) -> None:
        self.call = call
        self.contract = contract = call.contract
        self.branch = branch
        self.turn = turn
        self.slot = turn.take_slot(call.slot)
        self.verdict = verdict
        self.now = now  # Unix time, µs
        is_tool = call.kind == "tool"
        # Pure and model calls have no place among reads and writes: they hold in any world.
        self.placed = is_tool and (strict or contract.effect != "pure")
        self.advances = is_tool and (strict or contract.effect in ("write", "scope"))

    def place(self) -> Place:
        """Its place, where it is not answered from the recorded path."""
        return self.branch.place(self.turn, self.slot, self.call.key)


class Step:
    """A call that runs, between its step.started and its step.finished."""

    __slots__ = (
        "advances", "began", "branch", "call", "ended", "fingerprint", "link_at", "number", "run",
        "world_effect",
    )  # fmt: skip

    def __init__(self, run: str, number: int, arrival: Arrival, place: Place) -> None:
        call = arrival.call
        self.run = run
        self.number = number
        self.call = call
        self.branch = arrival.branch
        self.link_at = place.position
        self.fingerprint = place.fingerprint
        self.world_effect = call.kind == "tool" and call.contract.effect == "write"
        self.advances = False
        self.began = self.ended = 0  # monotonic, ns; the driver's


class Need(NamedTuple):
    """What has to be done before a call may run; then it comes again with its `arrival`.

    Attributes:
        what: somebody has to `approve` it; the recorded step is unknown and its tool may `tell`
            what became of it; recorded effects are to be taken back first (`undo`); the states
            that it will change have to be kept (`capture`).
        entry: the recorded step that stands for it, if any.
        orphans: the effects to take back.
    """

    what: Literal["approve", "tell", "undo", "capture"]
    arrival: Arrival
    entry: Entry | None = None
    orphans: tuple[Entry, ...] = ()


class Admission(NamedTuple):
    """The ledger's answer to a call: one of step, entry, error and need, and what is written.

    With both a step and an entry, the tool runs only to be compared (`verify`), and the event is
    written once that is done.
    """

    event: dict[str, Any] | None
    step: Step | None = None
    entry: Entry | None = None
    error: BaseException | None = None
    need: Need | None = None
