"""What guards receive of a call's end: around its flow, however that ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rollcage.gate import ALLOWED, Settled, StepView, Verdict
from rollcage.replay.path import Entry
from rollcage.step.admission import Admission
from rollcage.step.requests import Flow, Raised, Returned, Settle

__all__ = ["seen", "settling"]


def settling(
    flow: Flow, view: StepView, verdict: Verdict, report: Callable[[Settled], None]
) -> Flow:
    """The flow of a call, whose end is reported.

    Args:
        flow: of the call, with all else that is around it.
        view: the call, as guards were shown it.
        verdict: the decision on it.
        report: is called with it, once.
    """
    details = Settled(view, verdict, "blocked")
    answer: Any = None
    try:
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                ended: Returned | Raised = stop.value
                return ended
            if type(effect) is Settle:
                details = _settled(view, verdict, effect.outcome)
            answer = yield effect
            if isinstance(answer, Admission) and answer.entry is not None:
                details = _settled(view, verdict, answer.entry.outcome, replayed=True)
    finally:
        report(details)


def seen(view: StepView, entry: Entry) -> Settled:
    """A recorded step that nobody asked for, because a framework's own memory holds it."""
    return _settled(view, ALLOWED, entry.outcome, replayed=True)


def _settled(
    view: StepView, verdict: Verdict, outcome: Mapping[str, Any], *, replayed: bool = False
) -> Settled:
    usage = outcome.get("usage")
    return Settled(
        view,
        verdict,
        outcome["status"],
        replayed,
        MappingProxyType(outcome),
        None if usage is None else MappingProxyType(usage),
    )
