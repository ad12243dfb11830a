"""Handle a program that leaves the recorded path: find the steps ahead, and decide their fate.

`Run.ahead` has the rule. This module decides which steps are concurrent with a new effect, and what
happens to recorded effects that it would leave behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rollcage.errors import ArgumentsInvalid, Diverged, Halt
from rollcage.fingerprint.identity import key_digest
from rollcage.fingerprint.transcript import MESSAGES
from rollcage.replay.call import Call, Match
from rollcage.replay.walk import FOLDS, REOPENS, STAYS, Branch, Look, Turn
from rollcage.trace.run import Level, Step
from rollcage.trace.store import store_option

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["leave", "leaving", "look_ahead", "match_question", "rolled_around", "steps_beyond"]

Concurrent = Callable[[Level, Level, Step], bool]
"""Decides on two levels at one position, and a step: may the step still be asked for?"""


def look_ahead(attempt: Attempt, call: Call, look: Look, waits: Step | None = None) -> Match:
    """Match a new effect: find the steps that it would leave behind, and the consequence.

    Args:
        attempt: the attempt.
        call: the call.
        look: the place of the call.
        waits: the recorded step at that place that never began.
    """
    branch, turn = call.branch, call.turn
    new = Match("new" if waits is None else "again", waits, look)
    is_new = call.changes and attempt.has_recording
    if not is_new or not attempt.run.untaken:
        return new
    place = attempt.run.lineage(branch.name, branch.pos + look.move, turn.n)
    if place[-1].branch[:1] == "-":  # a compensating call makes it
        return new
    joins = look.move == REOPENS or (
        look.move != FOLDS and branch.turn is turn and bool(branch.batch or branch.running)
    )
    slot = None if branch.is_beyond(look.move) else call.place.slot
    concurrent = _concurrent(attempt, call, joins=joins, slot=slot, waits=waits)
    ahead = attempt.run.ahead(place, concurrent)
    return new._replace(refusal=leaving(attempt, ahead, f"{call} is new"), ahead=tuple(ahead))


def match_question(attempt: Attempt, call: Call) -> Match:
    """Match a new model call: another first question may belong to another job.

    A later question needs no such check: a model changes nothing, and each new effect that its
    answer leads to is checked itself.
    """
    run, name, new = attempt.run, call.place.branch, Match("new", None, None)
    rank = sum(ranks for (branch, _), ranks in attempt.ranks.items() if branch == name)
    if rank > 1 or run.asked is None or not attempt.has_recording:
        return new
    first, arguments = run.asked
    while first.replacement:
        first = run.steps[first.replacement]
    if first.branch != name or first.taken or first.gone or first.n in run.remade:
        return new
    if not any(step.acts or _waits(step) for step in run.untaken.values()):
        return new
    if _question(arguments) == _question(call.arguments):  # another model, or other instructions
        return new
    place = run.lineage(name, call.branch.pos, call.turn.n)
    concurrent = _concurrent(attempt, None, joins=False, slot=None, waits=None)
    ahead = run.ahead(place, concurrent)
    what = f"the recording begins with another question: {call} is new"
    refusal = leaving(attempt, ahead, what, or_waits=True)
    return new._replace(
        refusal=refusal, ahead=tuple(ahead) if attempt.on_divergence == "undo" else ()
    )


def _question(arguments: Mapping[str, Any]) -> Any:
    """Return what a model is asked, without its instructions."""
    messages = arguments.get(MESSAGES)
    if not isinstance(messages, list):
        return arguments
    return [
        each for each in messages if not (isinstance(each, dict) and each.get("role") == "system")
    ]


def _concurrent(
    attempt: Attempt,
    call: Call | None,
    *,
    joins: bool,
    slot: int | None,
    waits: Step | None,
) -> Concurrent:
    """Return a rule for whether a recorded step may still be asked for beside a new effect.

    Args:
        attempt: the attempt.
        call: the new effect; None for a new block.
        joins: whether the turn of the new effect takes part in the open batch.
        slot: the slot that the effect declares; None where no sibling can be asked for.
        waits: the recorded step at the effect's place, if any.
    """

    def concurrent(mine: Level, its: Level, step: Step) -> bool:
        block, sibling = mine.step, its.step
        assert sibling is not None
        if _is_passed_by(attempt, step, sibling):
            return False
        if mine.kind == "leaf":
            if call is not None and not _may_ask(call, sibling, joins=joins, waits=waits):
                return False
            return joins or _is_beside(sibling, slot, waits)
        if mine.kind == "body":
            return True
        assert block is not None
        if any(first <= n <= last for first, last in block.beyond for n in (sibling.n, step.n)):
            return False
        if attempt.run.comes_after(sibling, block):
            return False
        if not block.changes and sibling.turn != block.turn and sibling.n > block.ended:
            return False  # the block had changed nothing: what came after it has its position
        walk = attempt.branches.get(block.inner)
        if walk is None or walk.opened_in is None:
            return True
        if _is_to_follow(sibling, block.name, walk.opened_in):
            return False
        if walk.beside:
            return True
        named = block.slot if block.declared else None
        return _may_come(sibling, block.name, named, walk.opened_in)

    return concurrent


def steps_beyond(
    attempt: Attempt, outer: Branch, name: str, turn: Turn, slot: int | None
) -> list[Step]:
    """Return the recorded steps that lie ahead of a new block."""
    if not attempt.has_recording or outer.name[:1] == "-" or not attempt.run.untaken:
        return []
    if (outer.batch or outer.running) and outer.turn is turn:
        return []
    place = attempt.run.lineage(outer.name, outer.pos, turn.n)
    inward = _concurrent(attempt, None, joins=False, slot=None, waits=None)
    is_beyond = outer.is_beyond(STAYS)

    def concurrent(mine: Level, its: Level, step: Step) -> bool:
        if mine.branch != outer.name:
            return inward(mine, its, step)
        assert its.step is not None
        return not is_beyond and _may_come(its.step, name, slot, turn)

    return attempt.run.ahead(place, concurrent)


def _waits(step: Step) -> bool:
    """Tell whether a write has its place, but has not begun: it waits for a decision, say."""
    return step.effect == "write" and step.status == "waiting"


def leaving(
    attempt: Attempt, ahead: Iterable[Step], what: str, *, or_waits: bool = False
) -> Halt | None:
    """Return why recorded effects can't be left behind; None if they can.

    Args:
        attempt: the attempt.
        ahead: the steps that would be left.
        what: what would leave them, for the error.
        or_waits: whether writes that have not begun count as effects.
    """
    effects = [
        step
        for step in ahead
        if (step.acts or (or_waits and _waits(step))) and not (step.accepted or step.failed_cleanly)
    ]
    if not effects or attempt.on_divergence == "undo":  # an undo looks at them itself
        return None
    orphans = tuple((attempt.run.id, step.n) for step in effects)
    run, at = attempt.run.id, store_option(attempt.store)
    listed = ", ".join(f"{step.n} ({step.name})" for step in effects[:10])
    listed += f" and {len(effects) - 10} more" if len(effects) > 10 else ""
    if attempt.on_divergence == "halt":
        ways = (
            f"Put the program back; take them back with on_divergence='undo', or with: rollcage "
            f"undo {run}{at}; or let what they did stand, and go on, with on_divergence='warn'. To "
            f"see them: rollcage show {run}{at}; if this is another job, give it another name or "
            f"another input="
        )
        return Diverged(
            f"{what}, while recorded effects of run {run} lie ahead: {listed}. {ways}",
            orphans,
            ways,
        )
    for step in effects:
        if step.status == "unknown":
            return attempt.unknown(step)
    return None


def leave(attempt: Attempt, place: Iterable[Level]) -> None:
    """Let the branches around a new effect leave the recorded path.

    A block that was cut goes on beside its siblings, and so does the body of a call, unless a fork
    has the call made again: then the steps after that call are beyond it.
    """
    for level in place:
        walk = attempt.branch(level.branch)
        if level.kind == "body" and not attempt.run.has_beyond(level):
            return
        if walk.left_at is None:
            walk.left_at = walk.pos if level.kind == "leaf" else level.pos
        if walk.was == "cut":
            return


def rolled_around(attempt: Attempt, call: Call) -> Branch | None:
    """Return the block around a call that was rolled back on record; None without one."""
    for level in attempt.run.lineage(call.place.branch, 0):
        if level.branch in attempt.run.rolled:
            return attempt.branches.get(level.branch)
    return None


def _is_passed_by(attempt: Attempt, step: Step, sibling: Step) -> bool:
    """Tell whether a block around a step was left without an error, and did not ask for the step.

    Args:
        attempt: the attempt.
        step: the recorded step.
        sibling: the step itself, or the outermost call or block around it that counts.
    """
    at = step
    while at is not sibling and (block := attempt.run.owner(at.branch)) is not None:
        walk = attempt.branches.get(block.inner)
        is_left = walk is not None and walk.exited and walk.ok
        if is_left and block.taken and at.n <= block.ended:  # else it is started over
            return True
        at = block
    return False


def _is_beside(sibling: Step, slot: int | None, waits: Step | None) -> bool:
    """Tell whether a recorded step stands beside a new effect, as a call of the same message."""
    if waits is not None and (sibling.turn == waits.turn or waits.n < sibling.n <= waits.beside):
        return True
    return slot is not None and sibling.declared and sibling.slot != slot


def _may_ask(call: Call, sibling: Step, *, joins: bool, waits: Step | None) -> bool:
    """Tell whether the message of a new effect may still ask for a recorded step in its slot.

    A step of another message is left to the other rules.
    """
    slot, calls, contract = sibling.slot, call.turn.calls, call.contract
    if call.place.slot is None or not sibling.declared or sibling.effect == "branch":
        return True
    if sibling.turn not in call.turn.follows and (
        joins if waits is None else sibling.turn != waits.turn
    ):
        return True
    if call.turn.arrived.get(slot, sibling.key) != sibling.key:
        return False
    if calls is None or call.slot >= len(calls):
        return True
    if slot >= len(calls):
        return False
    (mine, own), (name, arguments) = calls[call.slot], calls[slot]
    if name != mine:  # its contract is known once its call has arrived
        return sibling.name != contract.name
    if _key(call, own) != call.key:
        return True  # the framework has changed the arguments of the message
    return _key(call, arguments) == sibling.key


def _key(call: Call, arguments: Any) -> str:
    """Return the key of a call of the same tool with other arguments; empty if they are invalid."""
    contract = call.contract
    try:
        bound = contract.bind(arguments, call.attempt.seal)
    except ArgumentsInvalid:
        return ""
    data = bound.digest_input
    return key_digest(call.kind, contract.name, contract.version, data).hex()


def _may_come(sibling: Step, name: str, slot: int | None, turn: Turn) -> bool:
    """Tell whether a recorded step may still be asked for beside a new block at its position."""
    if sibling.effect == "branch" and sibling.name in turn.opens:
        return not _is_to_follow(sibling, name, turn)
    return slot is not None and sibling.declared and sibling.slot != slot


def _is_to_follow(sibling: Step, name: str, turn: Turn) -> bool:
    """Tell whether a turn announced that a recorded block comes after a block of this name."""
    return sibling.effect == "branch" and name in _all_before(sibling.name, turn.opens)


def _all_before(name: str, opens: dict[str, frozenset[str]]) -> set[str]:
    """Return the names that a branch comes after, through any number of others."""
    found: set[str] = set()
    to_see = list(opens.get(name, ()))
    while to_see:
        each = to_see.pop()
        if each not in found:
            found.add(each)
            to_see.extend(opens.get(each, ()))
    return found
