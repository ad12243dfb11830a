"""A call on its way through a run: what is requested, where it arrives, what runs, what counts."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import orjson

from rollcage.contract import Arguments, Contract
from rollcage.fingerprint import key_digest
from rollcage.gate import Approval, Ask, Verdict
from rollcage.replay import Entry
from rollcage.world import Branch, Place, Turn

__all__ = ["Admission", "Arrival", "Call", "Stats", "Step"]


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


class Call:
    """What is requested: a contract with its arguments, and where the call comes from."""

    __slots__ = (
        "agent", "approved", "arguments", "ask", "branch", "call_id", "compared", "contract", "key",
        "kind", "parent", "shown", "slot", "turn",
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
        self.approved: Approval | None = None


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
        "advances", "began", "branch", "call", "fingerprint", "link_at", "number", "run",
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
        self.began = 0  # monotonic, ns; the driver's


class Admission(NamedTuple):
    """The ledger's answer to a call: one of step, entry and error, and what is to be written.

    With both a step and an entry, the tool runs only to be compared (`verify`), and the event is
    written once that is done. With `asks`, somebody has to approve the call first.
    """

    event: dict[str, Any] | None
    step: Step | None = None
    entry: Entry | None = None
    error: BaseException | None = None
    asks: Arrival | None = None
