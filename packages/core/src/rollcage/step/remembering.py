"""Steps that are seen: the gate counts them, and their results have labels, as if asked for."""

from __future__ import annotations

from rollcage.contract.contract import Contract
from rollcage.gate import StepView
from rollcage.replay.path import Entry
from rollcage.step.gating import Gate
from rollcage.step.settling import seen
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception

__all__ = ["remember"]


def remember(gate: Gate, number: int, entry: Entry) -> None:
    """Count a step that was seen, and note what labels its result has.

    Args:
        gate: of the session.
        number: of its event.
        entry: as it is recorded.
    """
    contract = Contract(name=entry.name, version=entry.version, parameters={})
    _count(gate, entry, contract)
    if gate.is_settling:
        gate.settled(seen(_view(gate, entry, contract), entry))
    if gate.labels is not None:
        labels = gate.labels.declared(contract).union(entry.labels)
        gate.labels.note(number, entry.name, labels, _given(entry))


def _count(gate: Gate, entry: Entry, contract: Contract) -> None:
    """Count it in the limits of the gate, and of those around."""
    if gate.meter is not None:
        usage, failed = entry.outcome.get("usage"), entry.status == "error"
        ticket = gate.meter.take(_view(gate, entry, contract))
        ticket.end(made=True, failed=failed, usage=usage)
    if gate.above is not None:
        _count(gate.above.gate, entry, contract)


def _view(gate: Gate, entry: Entry, contract: Contract) -> StepView:
    """A recorded step that nobody asked for, as a guard is shown it."""
    return StepView(
        entry.kind, contract, {}, entry.agent, entry.branch, gate.calls(), {}, entry.key
    )


def _given(entry: Entry) -> object:
    """What a recorded step gave, to look for it in later calls; if that is unknown, anything."""
    try:
        if entry.status == "error":
            return decode_exception(entry.outcome["error"])
        return decode(entry.outcome["value"])
    except Exception:  # noqa: BLE001 - a large value, one of a framework that is not here, ...
        return object()
