"""Begin a call: let it arrive, then answer it, refuse it, keep it waiting, or write its intent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollcage.calls.branches import ended, go_otherwise
from rollcage.calls.memory import is_known_otherwise, note_id
from rollcage.calls.stage import Work
from rollcage.contract.compensation import arguments_of
from rollcage.errors import (
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    Diverged,
    ForkEnded,
    Halt,
    ReplayMiss,
    SessionError,
    SessionHalted,
    UnknownOutcome,
)
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import Call, Match, Place, refusal
from rollcage.replay.divergence import leave, rolled_around
from rollcage.replay.matching import find_match
from rollcage.replay.missing import explained
from rollcage.replay.walk import Look
from rollcage.trace.run import Event, Outcome, Step, spans_of
from rollcage.undo.program import (
    await_undo,
    is_being_undone,
    open_undo,
    take_back,
    undoes_elsewhere,
)
from rollcage.values.hiding import hidden

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["afresh", "arrive", "begin", "dropped", "let_go", "refuse", "release", "reserve"]


def begin(attempt: Attempt, call: Call) -> Work | None:
    """Decide on a call and write its intent, or take the step that answers it.

    Returns:
        Work to do first, outside of the lock; then `begin` is called again.

    Raises:
        Blocked: a guard denies the call.
        Halt: the call can't go on, nor can any other.
    """
    arrive(attempt, call)
    if call.waiting and _lost_its_place(attempt.run.steps[call.waiting]):
        return afresh(call)
    call.verdict = None
    if call.session.gate.decides:
        _judge(attempt, call)
    match = find_match(attempt, call)
    kind = match.kind
    if attempt.undo is not None or attempt.run.rolled:
        undo = _undo_first(attempt, call, match)
        if undo is not None:
            return undo
    if match.asks is not None:
        call.verdict = match.asks
    hooks, is_hit = call.hooks, kind == "hit"
    is_recorded = not is_hit and (match.step is not None or attempt.run.unclear)
    for prepare in hooks.prepare if is_recorded else hooks.prepare_new:
        work: Work | None = prepare(call, match)
        if work is not None:
            _hold(call, match.step)
            return work
    if is_hit and match.refusal is None:
        return _give(attempt, call, match)
    if match.refusal is not None:
        raise _refused(attempt, call, match.refusal)
    if call.verdict is not None and call.granted != call.verdict:
        raise _unanswered(attempt, call, call.verdict)
    if match.ahead and attempt.on_divergence == "undo" and any(step.acts for step in match.ahead):
        _hold(call, match.step)
        ahead = take_back(attempt, match.ahead, why="divergence", is_async=call.is_async)
        return afresh(call, ahead)
    _start(attempt, call, match)
    return None


# --- arriving -------------------------------------------------------------------------------------


def arrive(attempt: Attempt, call: Call) -> None:
    """Let a call in: its place is fixed from the first time on."""
    if attempt.closed or (call.session.around is not None and call.session.is_over):
        raise SessionError(
            f"{call.contract.name} was called in session {call.session.name!r}, which was left"
        )
    if call.slot < 0:
        _find_place(attempt, call)
    elif call.is_prepared:
        release(call)
    if attempt.halted is not None:
        raise SessionHalted(f"the session was halted: {attempt.halted}") from attempt.halted
    run = attempt.run
    if run.undoing is not None and attempt.undo is None and attempt.live:
        raise attempt.halt(open_undo(run, attempt.store))
    if run.imported is not None and not call.changes and call.kind == "tool":
        _change_as_recorded(attempt, call)
    if run.edits and not call.is_edited:
        _edit(attempt, call)


def _change_as_recorded(attempt: Attempt, call: Call) -> None:
    """Treat a call as a write if an imported run has it as one: no trace tells its effect."""
    recorded = attempt.recorded_by_key[call.place.branch, call.key]
    if any(step.effect == "write" for step in recorded):
        call.effect, call.changes = "write", True


def _find_place(attempt: Attempt, call: Call) -> None:
    stats, place = attempt.stats, call.place
    call.before = stats.calls + stats.seen
    stats.calls += 1
    for where in call.hooks.where:
        call.place = place = where(call, place) or place
    if call.kept:
        call.arrived = {**call.kept}
    if place.agent or place.call_id:
        call.place = place = _without_secrets(place)
    if place.call_id:
        attempt.asked[place.agent, place.call_id] += 1
    around = place.around
    if around is not None and not around.is_on_record:
        attempt.put_on_record(around)
    call.branch = branch = attempt.branches.get(place.branch) or attempt.branch(place.branch)
    call.turn, call.slot = attempt.turn_of(place, branch)
    if place.slot is not None:
        call.turn.arrived[place.slot] = call.key


def _without_secrets(place: Place) -> Place:
    """Return a place whose names are as the log has them: rules and observers see them, too."""
    seal = place.attempt.seal
    agent, call_id = hidden(place.agent, seal).value, hidden(place.call_id, seal).value
    if (agent, call_id) == (place.agent, place.call_id):
        return place
    return dataclasses.replace(place, agent=agent, call_id=call_id)


def _edit(attempt: Attempt, call: Call) -> None:
    """Replace the program's arguments by the arguments of a fork."""
    step = find_match(attempt, call).step
    if step is not None and step.n in attempt.run.edits:
        call.is_edited = True
        try:
            call.edit(arguments_of(attempt.run.edits[step.n]), attempt.seal)
        except ArgumentsInvalid as error:
            why = f"the fork can't make the call of step {step.n} like that: {error}"
            raise attempt.halt(ForkEnded(why, "halted", call.contract.name)) from None


def _undo_first(attempt: Attempt, call: Call, match: Match) -> Work | None:
    """Return the work for a call that meets an undo in progress, or a block that was undone."""
    if attempt.undo is not None and _must_wait(attempt, call, match):
        _hold(call, None)
        return afresh(call, await_undo(attempt, is_async=call.is_async))
    if match.kind == "new" and attempt.live and call.changes:
        block = rolled_around(attempt, call)
        if block is not None:
            return go_otherwise(attempt, block, is_async=call.is_async)
    return None


def _must_wait(attempt: Attempt, call: Call, match: Match) -> bool:
    """Tell whether a call has to wait until an undo of another thread or task has ended.

    A new effect would come in between, and what is being taken back answers no call.
    """
    if call.changes and match.kind != "hit":
        return undoes_elsewhere(attempt)
    return match.step is not None and is_being_undone(attempt, match.step.n)


def _lost_its_place(step: Step) -> bool:
    """Tell whether a waiting step was undone, or rolled back with the block around it."""
    return bool(step.gone) or step.rolled


def afresh(call: Call, work: Work | None = None) -> Work:
    """Do work that changes the steps that hold; what stages know of the call is too old then.

    A call that waits gives up its place: the step there may have been undone.
    """
    yield from work or ()
    if call.waiting and _lost_its_place(call.attempt.run.steps[call.waiting]):
        let_go(call.attempt, call)
    yield from dropped(call)
    call.forget()


def dropped(call: Call) -> Work:
    """Tell the stages that a call ends, or is decided anew, before it began."""
    for each in call.hooks.dropped:
        yield from each(call) or ()


def _hold(call: Call, step: Step | None) -> None:
    """Keep the place of a call, and the recorded step that may answer it, during preparation."""
    branch = call.branch
    call.is_prepared = True
    branch.preparing += 1
    branch.open_turn = call.turn
    if step is not None and not call.waiting:
        call.claim, step.claimed = step, True
        branch.follow(step, call.turn)  # before a sibling, which may begin first


def release(call: Call) -> None:
    """Release the place kept during the preparation of a call."""
    if call.is_prepared:
        call.is_prepared = False
        call.branch.preparing -= 1
    if call.claim is not None:
        call.claim.claimed = False
        call.claim = None


# --- deciding -------------------------------------------------------------------------------------


def _judge(attempt: Attempt, call: Call) -> None:
    """Let the gate decide on a call.

    Raises:
        Blocked: it denies the call.
    """
    verdict = call.session.gate.decide(call)
    if verdict is None:
        return
    if not attempt.live:  # the record counts, and needs no approval
        call.today, recorded = verdict, find_match(attempt, call)
        if recorded.kind == "hit" or recorded.refusal is not None:
            return
    call.verdict = verdict
    if verdict.decision == "deny":
        raise refuse(call, verdict)


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


def _give(attempt: Attempt, call: Call, match: Match) -> Work | None:
    """Answer the call with a recorded step, or return the work that has to be done first."""
    if call.place.call_id and is_known_otherwise(call, match.step):
        _hold(call, match.step)
        return note_id(call, match.step)
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
    return None


def _move_answer(attempt: Attempt, call: Call, step: Step, outcome: Outcome) -> None:
    """Assign a model's answer from another branch to this asker from now on.

    The move is put on record: a later attempt may ask in another order.
    """
    event = _intent_of(attempt, call, None, None)
    event["from"] = step.n
    attempt.write(event, outcome, call.asked)


def reserve(attempt: Attempt, call: Call, match: Match) -> Step:
    """Put a waiting call on record, at its place: a step that has not begun."""
    with attempt.lock:
        branch, step = call.branch, match.step
        if match.look is not None:
            branch.move(match.look, call.turn)
        if step is None:
            event = _intent_of(attempt, call, None, match.look, match.ahead)
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
    if step is not None:
        attempt.run.replace(step)
        branch.follow(step, call.turn)
    call.event = event = _intent_of(attempt, call, step, look, match.ahead)
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


def _intent_of(
    attempt: Attempt,
    call: Call,
    step: Step | None,
    look: Look | None,
    ahead: Sequence[Step] = (),
) -> Event:
    """Return the line of the step that a call begins.

    Args:
        attempt: the attempt.
        call: the call.
        step: the recorded step at its place; None without one.
        look: its place; None if it waits there, and for pure and model calls.
        ahead: the steps that it leaves behind.
    """
    branch, contract, place = call.branch, call.contract, call.place
    if look is not None:
        start = look.start
    else:
        start = step.start if call.waiting and step is not None else branch.pos
    event = attempt.begin_step(
        contract.name, call.effect, call.key, call.arguments, branch, call.turn, call.slot,
        place, start, step,
    )  # fmt: skip
    if call.waiting:
        event["pos"] = attempt.run.steps[call.waiting].pos
        if call.changes and branch.running == 1 and not branch.preparing:
            event.pop("during", None)  # what runs there is this call itself
    elif not call.changes and start > branch.pos:
        event["pos"] = start  # a batch is open that its turn did not see begin
    if call.kind == "model":
        event["rank"] = call.rank
    elif attempt.run.unclear or attempt.run.continues:
        retries = _retries(attempt, call, step, ahead)
        if retries:
            event["retries"] = retries
    if contract.version:
        event["version"] = contract.version
    if contract.framework:
        event["framework"] = contract.framework
    if place.agent:
        event["agent"] = place.agent
    if place.call_id:
        event["call_id"] = place.call_id
    return event


def _retries(attempt: Attempt, call: Call, step: Step | None, ahead: Sequence[Step]) -> int:
    """Return the step whose idempotency key a repeated call uses; 0: the call has its own."""
    run = attempt.run
    if call.key in run.unclear and step is None and call.supplied is None:
        if not call.contract.idempotent:
            return 0
        unclear = (run.steps[n] for n in run.unclear[call.key])
        repeated = (each for each in unclear if _may_repeat(call, each, ahead))
        return next((each.n for each in repeated), 0)
    if run.continues and step is not None and step.borrowed:  # what another run began
        return step.n if step.status == "unknown" or step.unclear else 0
    return 0


def _may_repeat(call: Call, unclear: Step, ahead: Sequence[Step]) -> bool:
    """Tell whether the program knows of the failure that an equal call would repeat.

    It does not if its own call for that step is still to come, or was issued at once with this one.
    """
    if not unclear.taken and not unclear.gone and unclear not in ahead:
        return False
    slot, turn = call.place.slot, call.turn
    is_of_turn = unclear.turn == turn.n or unclear.turn in turn.follows
    if not is_of_turn or not unclear.declared or slot in (None, unclear.slot):
        return True
    return turn.has_moved(unclear.slot, slot)
