"""A call on its way through a run: what is requested, where it arrives, what runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from rollcage.contract.arguments import Arguments
from rollcage.contract.contract import Contract, Effect
from rollcage.errors import CaptureFailed
from rollcage.fingerprint.identity import key_digest
from rollcage.gate import (
    Approval,
    ApprovalRequest,
    Ask,
    AskContext,
    Instead,
    Response,
    StepView,
    Verdict,
    WithLimits,
)
from rollcage.gate.labels import NO_LABELS, FoundLabels, Labels
from rollcage.replay.ahead import Standing
from rollcage.replay.finding import ProbeResult, StandIn
from rollcage.replay.path import Entry
from rollcage.replay.world import Branch, Place, Turn
from rollcage.step.watch import Watch
from rollcage.undo.compensation import Captured
from rollcage.values.copies import own_copy
from rollcage.values.hiding import Seal

__all__ = ["Arrival", "Call", "Consent", "OpenStep", "Prepared", "Progress", "key_of"]


class Call(NamedTuple):
    """What is requested: a contract with its arguments, and where the call comes from.

    It never changes: what becomes of it is in its `Progress`.

    Attributes:
        kind: `tool` or `model`.
        contract: of the tool.
        arguments: validated and bound.
        key: its content identity.
        branch: the branch that it is made in; turn and slot, if they are known.
        agent: who makes it, if the framework says.
        call_id: the framework's id of it.
        conversation: of the framework's own memory.
        standing: the framework's position in that.
        parent: the step whose body makes it.
        undoes: the step (run, step) that it undoes.
        instead: what else an approver may make of it.
        raw: the arguments that a framework holds on to, and runs its body with.
    """

    kind: str
    contract: Contract
    arguments: Arguments
    key: bytes
    branch: str = ""
    turn: Turn | None = None
    slot: int | None = None
    agent: str = ""
    call_id: str = ""
    conversation: str = ""
    standing: Standing | None = None
    parent: OpenStep | None = None
    undoes: tuple[str, int] | None = None
    instead: Instead | None = None
    raw: Mapping[str, Any] | None = None

    @property
    def checkpoint(self) -> str:
        """Its place in the framework's memory; empty without one."""
        return "" if self.standing is None else self.standing.checkpoint

    def is_beside(self, entry: Entry) -> bool:
        """Whether a recorded step is of work that the framework does at once with this call's."""
        here = self.standing
        if here is None or not entry.checkpoint or entry.conversation != self.conversation:
            return False
        return here.is_beside(entry.checkpoint)

    @property
    def passed(self) -> dict[str, Any]:
        """The arguments for the body; copies, if they are needed after it."""
        values = self.arguments.values
        if not self.contract.captures:
            return values
        return {name: own_copy(each) for name, each in values.items()}


def key_of(kind: str, contract: Contract, arguments: Arguments) -> bytes:
    """The content identity of a call."""
    return key_digest(kind, contract.name, contract.version, arguments.digest_input)


class Consent(NamedTuple):
    """The state of a call's approval.

    Attributes:
        request: what was asked last.
        approved: the approval.
        response: answers the call in place of the tool.
        decided: the fields of that decision in the trace.
        waits: who or what is waited for, if nobody has decided yet.
    """

    request: ApprovalRequest | None = None
    approved: Approval | None = None
    response: Response | None = None
    decided: dict[str, Any] | None = None
    waits: str = ""


class Prepared(NamedTuple):
    """What was found out for a call before it may run.

    Attributes:
        captured: what its undo needs.
        refused: why that could not be captured.
        probe: what became of the recorded step in its place.
    """

    captured: Captured | None = None
    refused: CaptureFailed | None = None
    probe: ProbeResult | None = None


_NO_CONSENT: Final = Consent()
_NOTHING_PREPARED: Final = Prepared()


class Progress:
    """What has become of a call so far.

    Attributes:
        call: as it is now: an approver may have changed it.
        asked_key: the key of the call that was asked for.
        shown: its arguments as the trace holds them; `compared`: the same, to look into.
        ask: who is asked, if somebody has to approve it.
        found: the labels of its arguments.
        pace: asked before it may run, if a limit says how many may.
        consent: the state of its approval.
        prepared: what was found out before it may run.
        number: of its step, once it is admitted.
        stand_in: what replaces the tool, in a fork.
        tallied_by: the meters that count the call without a limit, here and of sessions around.
        view: what was last shown of it: to which gate, as which call.
        labels: those of the run, if they are followed.
        carried: those that its result carries, once its end is written.
        streamed: its value is the list of a stream's chunks, which are handed on before its end.
        recorded: the step that answers it, if one does.
        began: whether its body did.
        outcome: how it ended, as the trace has it; None until then, and if that is not written.
    """

    __slots__ = (
        "ask", "asked_key", "began", "call", "carried", "compared", "consent", "found", "labels",
        "number", "outcome", "pace", "prepared", "recorded", "shown", "stand_in", "streamed",
        "tallied_by", "view",
    )  # fmt: skip

    def __init__(self, call: Call, ask: Ask | None = None) -> None:
        self.call = call
        self.asked_key = call.key
        self.shown: Any = orjson.Fragment(call.arguments.digest_input)
        self.compared: Mapping[str, Any] = call.arguments.canonical
        self.ask = ask
        self.found: FoundLabels = NO_LABELS
        self.pace: Callable[[], Verdict | None] | None = None
        self.consent = _NO_CONSENT
        self.prepared = _NOTHING_PREPARED
        self.number = 0
        self.stand_in: StandIn | None = None
        self.tallied_by: tuple[WithLimits, ...] = ()
        self.view: tuple[object, Call, StepView] | None = None
        self.labels: Labels | None = None
        self.carried: frozenset[str] | None = None
        self.streamed = self.began = False
        self.recorded: Entry | None = None
        self.outcome: Mapping[str, Any] | None = None

    @property
    def is_made(self) -> bool:
        """Whether its body has begun, or a recorded step answers it."""
        if self.recorded is not None:
            return True
        return self.began if self.outcome is None else self.outcome["status"] != "not_started"

    @property
    def is_edited(self) -> bool:
        """Whether it is no longer the call that was asked for."""
        return self.call.key != self.asked_key

    def has_changed(self, seal: Seal) -> bool:
        """Whether a framework's own arguments are no longer what was decided on."""
        call = self.call
        if call.raw is None or self.is_edited:
            return False
        return call.contract.takes.has_changed(call.raw, call.arguments, seal)

    def edit(self, arguments: Arguments) -> None:
        """Make it a call with other arguments, of the same tool at the same place."""
        call = self.call
        key = key_of(call.kind, call.contract, arguments)
        self.call = call._replace(arguments=arguments, key=key)
        self.shown = orjson.Fragment(arguments.digest_input)
        self.compared = arguments.canonical
        if self.is_edited:
            self.decide(asked=self.asked_key.hex())

    def answer(self, response: Response) -> None:
        """Make it one that a person answers: the tool does not run, and so changes nothing."""
        self._changes_nothing()
        self.consent = self.consent._replace(response=response)
        self.decide(responded=True)

    def stand_in_for(self, given: StandIn) -> None:
        """Make it one that is answered in place of the tool, in a fork: the tool does not run."""
        effect = self.call.contract.effect
        self._changes_nothing()
        self.stand_in = given
        self.decide(simulated=effect)

    def _changes_nothing(self) -> None:
        contract = self.call.contract
        effect: Effect = "pure" if contract.effect == "pure" else "read"
        contract = dataclasses.replace(contract, effect=effect, undo=None, observe=None, probe=None)
        self.call = self.call._replace(contract=contract)

    def decide(self, **fields: Any) -> None:
        """Keep the fields of a decision for the trace."""
        consent = self.consent
        self.consent = consent._replace(decided={**(consent.decided or {}), **fields})


class Arrival:
    """A call that has arrived at its branch, in its turn and slot, at a time."""

    __slots__ = (
        "advances", "asks", "branch", "call", "compensates", "contract", "is_plain", "key", "kind",
        "now", "placed", "progress", "slot", "strict", "supersedes", "turn", "verdict",
    )  # fmt: skip

    def __init__(
        self,
        progress: Progress,
        branch: Branch,
        turn: Turn,
        verdict: Verdict,
        *,
        strict: bool,
        now: int,
    ) -> None:
        self.progress = progress
        call = progress.call
        self.kind = call.kind
        self.compensates = call.undoes is not None
        self.branch = branch
        self.turn = turn
        self.slot = turn.take_slot(call.slot)
        self.verdict = verdict
        self.now = now  # Unix time, µs
        self.strict = strict
        self.supersedes: tuple[str, int] | None = None  # a recorded refusal that answers it
        self.look()

    def look(self) -> None:
        """Read what the call is now; again after it was changed."""
        progress, strict = self.progress, self.strict
        self.call = call = progress.call
        self.contract = contract = call.contract
        self.key = call.key.hex()
        self.asks = self.verdict.decision == "ask" and progress.consent.approved is None
        # Whether nothing has to be checked or done before it may run, except for what is recorded.
        self.is_plain = (
            self.verdict.decision == "allow"
            and not contract.captures
            and progress.pace is None
            and progress.consent is _NO_CONSENT
            and progress.prepared is _NOTHING_PREPARED
        )
        is_tool = call.kind == "tool"
        # Pure and model calls have no place among reads and writes: they hold in any world.
        self.placed = is_tool and (strict or contract.effect != "pure")
        self.advances = is_tool and (strict or contract.effect in ("write", "scope"))

    @property
    def asked_key(self) -> str:
        """The key of the call that was asked for."""
        return self.progress.asked_key.hex()

    @property
    def args(self) -> Mapping[str, Any]:
        """Its canonical arguments, as the trace holds them."""
        return self.progress.compared

    @property
    def checkpoint(self) -> str:
        """Its place in a framework's memory; empty without one."""
        return self.call.checkpoint

    @property
    def probe_result(self) -> ProbeResult | None:
        """The result of its probe for the recorded step in its place."""
        return self.progress.prepared.probe

    def is_beside(self, entry: Entry) -> bool:
        """Whether a recorded step is of work that the framework does at once with this call's."""
        return self.call.is_beside(entry)

    def asked(self, run: str) -> AskContext:
        """What somebody who is asked to approve it needs to know."""
        fingerprint = self.branch.asked_as(self.turn, self.slot, self.call.key)
        return AskContext(
            fingerprint.hex(), run, self.branch.name, self.turn.number, self.slot, self.now
        )

    def place(self, known: bytes | None = None) -> Place:
        """Its place; `known` is the fingerprint of the recorded step that answers it."""
        return self.branch.place(self.turn, self.slot, self.call.key, known)


class OpenStep:
    """A call that runs, between its step.started and its step.finished."""

    __slots__ = (
        "advances", "began", "branch", "call", "captured", "cleared", "ended", "fingerprint",
        "link_at", "number", "run", "watch", "withdrawn", "world_effect",
    )  # fmt: skip

    def __init__(self, run: str, arrival: Arrival, place: Place) -> None:
        call = arrival.call
        self.run = run
        self.number = arrival.progress.number
        self.call = call
        self.captured = arrival.progress.prepared.captured
        self.branch = arrival.branch
        self.link_at = place.position
        self.fingerprint = place.fingerprint
        self.world_effect = call.kind == "tool" and call.contract.effect == "write"
        self.advances = False
        self.cleared = False  # no order to stop at a close look, and no wait since
        self.withdrawn = False  # its session was left, and recorded so, before its body began
        self.began = self.ended = 0  # monotonic, ns; the driver's
        self.watch: Watch | None = None  # if its body is held to what it declares
