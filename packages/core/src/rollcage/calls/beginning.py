"""Begin a call: answer it, refuse it, keep it waiting, or write its intent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcage.calls.arrival import arrive, hold
from rollcage.calls.branches import ended, go_otherwise
from rollcage.calls.intent import intent_of
from rollcage.calls.stage import Work
from rollcage.errors import ApprovalRequired, Blocked, Diverged, Halt, ReplayMiss, UnknownOutcome
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import Call, Match, refusal
from rollcage.replay.divergence import leave, rolled_around
from rollcage.replay.matching import find_match
from rollcage.replay.missing import explained
from rollcage.trace.run import Event, Outcome, Step, spans_of
from rollcage.undo.program import take_back

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["begin", "let_go", "refuse", "reserve"]


def begin(attempt: Attempt, call: Call) -> Work | None:
    """Decide on a call and write its intent, or take the step that answers it.

    Returns:
        Work to do first, outside of the lock; then `begin` is called again.

    Raises:
        Blocked: a guard denies the call.
        Halt: the call can't go on, nor can any other.
    """
    arrive(attempt, call)
    gate = call.session.gate
    call.verdict = None
    if gate.decides and (verdict := gate.decide(call)) is not None:
        if not attempt.live:  # the record counts, and needs no approval
            call.today, recorded = verdict, find_match(attempt, call)
            is_moot = recorded.kind == "hit" or recorded.refusal is not None
            call.verdict = None if is_moot else verdict
        else:
            call.verdict = verdict
        if call.verdict is not None and verdict.decision == "deny":
            raise refuse(call, verdict)
    match = find_match(attempt, call)
    kind = match.kind
    if match.asks is not None:
        call.verdict = match.asks
    if kind == "new" and attempt.run.rolled and attempt.live and call.changes:
        block = rolled_around(attempt, call)
        if block is not None:
            return go_otherwise(attempt, block, is_async=call.is_async)
    hooks, is_hit = call.hooks, kind == "hit"
    is_recorded = not is_hit and (match.step is not None or attempt.run.unclear)
    for prepare in hooks.prepare if is_recorded else hooks.prepare_new:
        work: Work | None = prepare(call, match)
        if work is not None:
            hold(call, match)
            return work
    if is_hit and match.refusal is None:
        _give(attempt, call, match)
        return None
    if match.refusal is not None:
        raise _refused(attempt, call, match.refusal)
    if call.verdict is not None and call.granted != call.verdict:
        raise _unanswered(attempt, call, call.verdict)
    if match.ahead and attempt.on_divergence == "undo" and any(step.acts for step in match.ahead):
        hold(call, match)
        return take_back(attempt, match.ahead, why="divergence", is_async=call.is_async)
    _start(attempt, call, match)
    return None


def _refused(attempt: Attempt, call: Call, refusal: Halt) -> Halt:
    """Return the error of a call that can't go on; the session halts, unless others may go on."""
    if not attempt.live and isinstance(refusal, UnknownOutcome):
        return refusal  # recorded for this call: other calls may be answered
    if isinstance(refusal, ReplayMiss) and call.contract.on_miss == "error_result":
        return refusal
    if isinstance(refusal, Diverged):
        refusal = explained(attempt, call, refusal)
    return attempt.halt(refusal)


def _unanswered(attempt: Attempt, call: Call, verdict: Verdict) -> Halt:
    which = "the session" if call.session.around is None else "the outermost session"
    return attempt.halt(
        ApprovalRequired(
            f"{call.contract.name} needs an approval ({verdict.reason}), and {which} has "
            f"nobody to ask: give it an approver"
        )
    )


def refuse(call: Call, verdict: Verdict) -> Blocked:
    """Put a refused call on record, and return the error to raise; for stages.

    The place of the call is used up, and nothing of it runs.

    Args:
        call: a call that has not begun.
        verdict: a denial: its reason is for the model, its code for programs.
    """
    attempt, turn = call.attempt, call.turn.n  # a call that never gets a place makes no turn known
    event = refusal(
        call.contract, call.kind, call.arguments, verdict, call.place,
        turn=turn, slot=call.slot if turn else None,
    )  # fmt: skip
    event["key"] = call.key
    with attempt.lock:
        if call.waiting:
            event["step"] = call.waiting
        let_go(attempt, call)
        attempt.stats.blocked += 1
        attempt.note(event)
    return Blocked(verdict.message, rule=verdict.rule, code=verdict.code)


def _give(attempt: Attempt, call: Call, match: Match) -> None:
    """Answer the call with a recorded step."""
    if match.look is not None:
        call.branch.move(match.look, call.turn)
    step = match.step
    assert step is not None
    assert step.outcome is not None
    call.recorded = step
    if step.effect == "model" and step.branch != call.place.branch and attempt.live:
        _move_answer(attempt, call, step, Outcome(step.status, step.outcome))
    else:
        attempt.use(step, call.branch, call.turn)
    attempt.stats.hits += 1
    if call.hooks.settled or call.session.gate.settles:
        outcome = Outcome(step.status, step.outcome)
        for settled in call.hooks.settled:
            settled(call, outcome, step)
        attempt.notify(call, outcome, step)


def _move_answer(attempt: Attempt, call: Call, step: Step, outcome: Outcome) -> None:
    """Assign a model's answer from another branch to this asker from now on.

    The move is put on record: a later attempt may ask in another order.
    """
    event = intent_of(attempt, call, None, None)
    event["from"] = step.n
    attempt.write(event, outcome, call.asked)


def reserve(attempt: Attempt, call: Call, match: Match) -> Step:
    """Put a waiting call on record, at its place: a step that has not begun."""
    with attempt.lock:
        branch, step = call.branch, match.step
        if match.look is not None:
            branch.move(match.look, call.turn)
        if step is None:
            event = intent_of(attempt, call, None, match.look)
            event["waits"] = True
            _leave_for(attempt, call, match, event)
            attempt.write(event, asked=call.asked)
            step = attempt.run.steps[event["step"]]
        else:
            branch.follow(step, call.turn)
            if match.ahead:
                _leave_for(attempt, call, match, left := {"event": "left"})
                attempt.note(left)
        if call.changes:
            branch.begin(call.turn)
        attempt.run.replace(step)
        call.waiting = step.n
        return step


def let_go(attempt: Attempt, call: Call) -> None:
    """Give up a waiting call: its place is used up."""
    with attempt.lock:
        waiting, call.waiting = call.waiting, 0
        if waiting and call.changes:
            ended(attempt, call.branch, None)


def _leave_for(attempt: Attempt, call: Call, match: Match, event: Event) -> None:
    """Leave the recorded path for a new effect; its line names the steps left behind."""
    if not call.changes or not attempt.has_recording:
        return
    if match.step is None or match.ahead:
        leave(attempt, attempt.run.lineage(call.branch.name, call.branch.pos))
    if match.ahead:
        event["left"] = spans_of(each.n for each in match.ahead)


def _start(attempt: Attempt, call: Call, match: Match) -> None:
    """Start the call's body: write its intent, or begin its line."""
    branch, step, look, changes = call.branch, match.step, match.look, call.changes
    if look is not None:
        branch.move(look, call.turn)
    if step is not None and not step.taken:
        attempt.run.replace(step)
        branch.follow(step, call.turn)
    call.event = event = intent_of(attempt, call, step, look)
    if attempt.has_recording:
        _leave_for(attempt, call, match, event)
    if call.verdict is not None:
        event["verdict"] = call.verdict.as_data()
    for marks in call.hooks.marks:
        event.update(marks(call) or ())
    if call.supplied is not None:
        if call.made_at is not None:
            event["once"] = call.made_at
        attempt.stats.supplied += 1
        _supply(attempt, call, event, call.supplied)
        return
    attempt.stats.misses += 1
    if changes:  # a write whose intent is not on record never runs
        attempt.put(event)
        if not call.waiting:
            branch.begin(call.turn)
        call.is_on_record = True


def _supply(attempt: Attempt, call: Call, event: Event, outcome: Outcome) -> None:
    """Record the outcome that a stage supplies, in one line; nothing runs."""
    attempt.write(event, outcome, call.asked)
    step = attempt.run.steps[event["step"]]
    call.recorded = step
    if call.changes:
        if not call.waiting:
            call.branch.begin(call.turn)
        call.branch.end(step)
    attempt.notify(call, outcome, step)
