"""What a call takes of the limits: around its flow, until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollcage.gate import StepView, Verdict, WithLimits
from rollcage.step.call import Call, Progress
from rollcage.step.requests import Flow

__all__ = ["Start", "limited", "tally_begun", "tally_ended"]

Start = Callable[[Progress, Verdict], Flow]
"""Makes the flow of a call, from what policy and limits say together."""


def limited(
    progress: Progress,
    view: StepView,
    verdict: Verdict,
    meter: WithLimits,
    start: Start,
    run: str,
    asked: Callable[[], None] | None = None,
) -> Flow:
    """The flow of a call that limits apply to.

    Nothing is taken before the flow is driven: a stream that nobody reads, and a call whose outcome
    is given once more, take nothing. What was taken is given back however the flow ends.

    Args:
        progress: of the call.
        view: the same, as the gate sees it.
        verdict: the policy's; if that denies, nothing is taken.
        meter: the session's.
        start: makes the flow of the call, from what policy and limits say together.
        run: the run that the call is made in: the session's, or one of a session inside of it.
        asked: called if a limit asks.
    """
    if verdict.decision == "deny":
        return (yield from start(progress, verdict))
    ticket = meter.take(view, _place(progress.call, run))
    if asked is not None and ticket.verdict is not None and ticket.verdict.decision == "ask":
        asked()
    before = progress.pace
    if ticket.paced:
        progress.pace = ticket.pace if before is None else lambda: before() or ticket.pace()
    try:
        return (yield from start(progress, ticket.over(verdict)))
    finally:
        outcome = _outcome(progress)
        ticket.end(
            made=progress.is_made,
            failed=outcome.get("status") == "error",
            usage=outcome.get("usage"),
        )


def tally_begun(progress: Progress) -> None:
    """Count a call, from when its flow is driven, in the sessions that limit nothing."""
    for meter in progress.tallied_by:
        meter.tally(1)


def tally_ended(progress: Progress) -> None:
    """Its flow has ended or was interrupted: add its usage; one not made no longer counts."""
    if not progress.is_made:
        for meter in progress.tallied_by:
            meter.tally(-1)
    elif usage := _outcome(progress).get("usage"):
        for meter in progress.tallied_by:
            meter.tally(0, usage)


def _outcome(progress: Progress) -> Mapping[str, Any]:
    """How a call ended, now or when it was recorded; empty if that is not known."""
    if progress.recorded is not None:
        return progress.recorded.outcome
    return progress.outcome or {}


def _place(call: Call, run: str) -> tuple[object, ...] | None:
    """What names this very call: a framework may make it again."""
    if call.turn is None or call.slot is None:
        return None
    parent = None if call.parent is None else call.parent.number
    return run, call.branch, parent, call.turn.number, call.slot
