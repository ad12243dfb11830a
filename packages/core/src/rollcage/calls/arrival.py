"""Let a call arrive: fix its branch, turn and slot, and keep them during preparation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcage.contract.compensation import arguments_of
from rollcage.errors import ArgumentsInvalid, ForkEnded, SessionError, SessionHalted
from rollcage.replay.call import Call, Match
from rollcage.replay.matching import find_match
from rollcage.trace.run import CHANGES
from rollcage.undo.program import open_undo

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["arrive", "hold", "put_on_record", "release"]


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
    if attempt.run.undoing is not None and attempt.undo_busy is None and attempt.live:
        raise attempt.halt(open_undo(attempt.run, attempt.store))
    if attempt.run.imported is not None and not call.changes and call.kind == "tool":
        _change_as_recorded(attempt, call)
    if attempt.run.edits and not call.is_edited:
        _edit(attempt, call)


def _change_as_recorded(attempt: Attempt, call: Call) -> None:
    """Treat a call as a write if an imported run has it as one: no trace tells its effect."""
    recorded = attempt.recorded_by_key[call.place.branch, call.key]
    if any(step.effect == "write" for step in recorded):
        call.effect, call.changes = "write", True


def _find_place(attempt: Attempt, call: Call) -> None:
    call.before = attempt.stats.calls + attempt.stats.seen
    attempt.stats.calls += 1
    place = call.place
    for where in call.hooks.where:
        call.place = place = where(call, place) or place
    if place.call_id:
        attempt.asked[place.agent, place.call_id] += 1
    around = place.around
    if around is not None and not around.is_on_record:
        put_on_record(attempt, around)
    call.branch = branch = attempt.branches.get(place.branch) or attempt.branch(place.branch)
    call.turn, call.slot = attempt.turn_of(place, branch)


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


def hold(call: Call, match: Match) -> None:
    """Keep the place of a call during its preparation."""
    branch = call.branch
    call.is_prepared = True
    branch.preparing += 1
    branch.open_turn = call.turn
    if match.step is not None and not call.waiting:
        call.claim, match.step.claimed = match.step, True


def release(call: Call) -> None:
    """Release the place kept during the preparation of a call."""
    if call.is_prepared:
        call.is_prepared = False
        call.branch.preparing -= 1
    if call.claim is not None:
        call.claim.claimed = False
        call.claim = None


def put_on_record(attempt: Attempt, call: Call) -> None:
    """Write the intent of a read whose body makes calls, because these stand inside of it."""
    if call.event["effect"] not in CHANGES:
        attempt.write(call.event, asked=call.asked)
    call.is_on_record = True
