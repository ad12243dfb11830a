"""Match a call against the recording: `find_match` looks, and changes nothing.

A refusal is part of the result, and not raised: a stage may find a way around it.

==============================  ===================================================================
the step at the call's place    the match
==============================  ===================================================================
ended, and can answer           `hit`; with a refusal if its value can't be replayed
failed, and nothing came after  `again`: the call runs at the place of the step
waits: a place is reserved      `again`, unless recorded effects lie ahead
unknown, or failed unclearly    `again`; a write has a refusal, or somebody has to be asked
none, in a live attempt         `new`, unless recorded effects lie ahead
none, offline                   `new`, with the refusal that nothing is recorded
==============================  ===================================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from rollcage.errors import ForkEnded, Halt, NotReplayable, UnknownOutcome
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import Call, Match
from rollcage.replay.divergence import look_ahead, match_question
from rollcage.replay.missing import changed, miss
from rollcage.replay.walk import Look
from rollcage.trace.run import CHANGES, Step
from rollcage.trace.store import store_option

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["find_match"]

_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's


def find_match(attempt: Attempt, call: Call) -> Match:
    """Return the match of a call. Changes nothing."""
    effect, name = call.effect, call.place.branch
    branch = call.branch = attempt.branches.get(name) or attempt.branch(name)
    look: Look | None = None
    if call.waiting:
        step: Step | None = attempt.run.steps[call.waiting]
    elif effect in ("pure", "model"):
        step = _anywhere(attempt, call)
    else:
        slot = call.place.slot
        look = branch.look(call.key, effect, call.turn, slot)
        if look.step is None and slot is not None and not attempt.live:
            look = branch.look(call.key, effect, call.turn, None)  # it was recorded in another turn
        step = look.step
    if call.contract.source == "live" and effect not in CHANGES and not call.waiting:
        step = None
    if step is not None:
        if _can_answer(attempt, step):
            unusable = _unusable(attempt, call, step) if step.flawed else None
            if unusable is None or not _may_run_again(attempt, call):
                return _tuple(Match, ("hit", step, look, unusable, (), None))
            return Match("again", step, look)
    elif attempt.is_fresh and not attempt.run.unclear:
        return _tuple(Match, ("new", None, look, None, (), None))
    return _unanswered(attempt, call, step, look)


def _may_run_again(attempt: Attempt, call: Call) -> bool:
    """Tell whether a call may run again although its result is on record and can't be replayed."""
    says_so = call.contract.on_miss == "live"
    if call.changes:
        return says_so and attempt.live
    return says_so or attempt.live  # it changes nothing


def _unanswered(attempt: Attempt, call: Call, step: Step | None, look: Look | None) -> Match:
    """Match a call that no recorded step answers; `step` is at its place."""
    effect = call.effect
    refusal, asks = _unsure(attempt, call, step)
    if step is not None and refusal is not None:
        return Match("again", step, look, refusal)
    contract = call.contract
    if not attempt.live:
        looks = contract.source == "live" or contract.on_miss == "live"
        if looks and effect not in CHANGES:  # a write never runs without its intent on record
            return Match("new" if step is None else "again", step, look)
        return Match("new", step, look, miss(attempt, call))
    is_remade = call.changes and step is not None and step.n in attempt.run.remade
    must_not = attempt.dry and (effect == "write" or call.verdict is not None)
    if (must_not or is_remade) and not call.simulates:
        return Match("new", step, look, _ends(call))
    if step is not None:
        is_new = step.status == "waiting" or (call.is_edited and step.n in attempt.run.edits)
        if is_new and not call.waiting and look is not None:
            return look_ahead(attempt, call, look, step)._replace(asks=asks)
        return Match("again", step, look, asks=asks)
    if refusal is None and attempt.has_recording and not call.simulates:
        needs_record = contract.on_miss in ("fail", "error_result")
        if needs_record and not attempt.run.is_undoing(call.place.branch):
            refusal = miss(attempt, call)
        else:
            refusal = changed(attempt, call)
    if refusal is not None:
        return Match("new", None, look, refusal)
    if look is None:
        new = match_question(attempt, call) if effect == "model" else Match("new", None, None)
        return new._replace(asks=asks)
    return look_ahead(attempt, call, look)._replace(asks=asks)


def _anywhere(attempt: Attempt, call: Call) -> Step | None:
    """Return a pure result, or a model's answer: of this asker, or else of another branch.

    A step of another branch either answers or is no match at all: it has its place there, so no
    other call can run in it.
    """
    known = attempt.run.anywhere.get(call.key, ())
    found = [step for step in known if step.status != "waiting"]
    waits = [step for step in known if step.status == "waiting" and step.is_open]
    name = call.place.branch
    if call.effect == "pure":
        mine = (step for step in (*found, *waits) if step.branch == name)
        return next((s for s in found if _can_answer(attempt, s)), None) or next(mine, None)
    if call.rank is None:
        call.rank = attempt.ranks[name, call.key]
        attempt.ranks[name, call.key] += 1
    left = [step for step in found if step.is_open and step.status != "unknown"]
    own = [s for s in (*waits, *left) if s.branch == name and s.rank == call.rank]
    if own:
        return own[-1]  # the newest: a borrowed answer may have the same rank
    others = (s for s in left if s.branch != name and _can_answer(attempt, s))
    return min(others, key=lambda step: step.n, default=None)


def _can_answer(attempt: Attempt, step: Step) -> bool:
    """Tell whether a step can answer: its outcome is known, and was acted upon if it failed."""
    if step.n in attempt.run.edits or step.n in attempt.run.remade:
        return False
    if step.status == "ok":
        return True
    if step.status != "error":
        return False
    retry = attempt.options.retry_failed
    if not attempt.live or retry is False or step.happened is not None:
        return True
    if step.n in attempt.run.fixed:
        return True
    return retry is None and not attempt.run.is_frontier(step)


def _ends(call: Call) -> ForkEnded:
    if call.effect == "write":
        return ForkEnded(f"{call} would be written", "would_write", call.contract.name)
    return ForkEnded(f"{call} would be asked about", "would_ask", call.contract.name)


def _unusable(attempt: Attempt, call: Call, step: Step) -> Halt | None:
    """Return why the result of a recorded step can't be replayed, if known beforehand."""
    if not step.flawed or step.outcome is None:
        return None
    if step.effect not in CHANGES and b'"cut":true' in step.outcome and "cut" in step.result:
        if not call.streams:
            return NotReplayable(f"the recorded stream of step {step.n} was not read to its end")
        # the reader of the stream died before its end, and nothing came after: there may be more
        is_whole = not attempt.live or not attempt.run.is_frontier(step)
        return None if is_whole else NotReplayable(f"the stream of step {step.n} was cut off")
    if b'"lossy":' not in step.outcome:
        return None
    reason = step.result.get("lossy")
    if reason is None:
        return None
    return NotReplayable(
        f"step {step.n} ({step.name}) was performed, but its result can't be given back: "
        f"{reason}. Put its result on record: rollcage resolve {attempt.run.id} {step.n}"
        f"{store_option(attempt.store)} --happened --result JSON"
    )


def _unsure(attempt: Attempt, call: Call, step: Step | None) -> tuple[Halt | None, Verdict | None]:
    """Return why a write can't simply run, or the question to ask before it does.

    The step at its place has an unknown outcome; or that step, or the same call before, has failed,
    and its effect may have happened in part.
    """
    if call.effect != "write" or call.contract.idempotent or call.supplied is not None:
        return None, None
    if step is not None and step.n in attempt.run.edits:
        return None, None
    if step is None or step.status == "waiting":
        step = attempt.run.unclear_step(call.key)
        if step is None:
            return None, None
    elif step.status == "unknown":
        return attempt.unknown(step), None
    elif not step.unclear:
        return None, None
    if call.session.approver is None:
        return _may_have_happened(attempt, call, step), None
    reason = f"it may have happened already, at step {step.n}, which failed"
    if call.verdict is None:
        return None, Verdict.ask(reason, code="may_have_happened")
    both = f"{call.verdict.reason.rstrip('.')}; {reason}"
    return None, dataclasses.replace(call.verdict, reason=both)


def _may_have_happened(attempt: Attempt, call: Call, step: Step) -> UnknownOutcome:
    run, n = attempt.run.id, step.n
    return UnknownOutcome(
        f"{call} failed at step {n} of run {run}, and it may have happened already, so it is "
        f"not made again. Find out, and say so: {attempt.resolves(n)}; if this error means that "
        f"nothing happened, name its type in the tool's raises=",
        run,
        n,
    )
