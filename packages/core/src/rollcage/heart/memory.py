"""A framework's own memory: steps that are used up without a call, and asked for once more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollcage.heart.run import CHANGES, Outcome, Step, spans_of
from rollcage.heart.walk import Turn

if TYPE_CHECKING:
    from rollcage.heart.attempt import Attempt

__all__ = ["restart", "see"]


def see(attempt: Attempt, step: Step) -> bool:
    """Use up a step that nobody asks for, for a framework's memory holds it.

    Returns:
        Whether it stands where its branch is now.
    """
    branch = attempt.branch(step.branch)
    if step.effect in CHANGES:
        is_over = branch.batch and not branch.running and not branch.is_to_come(branch.pos)
        if step.pos != branch.pos and is_over:
            branch.fold()
        if step.pos != branch.pos or branch.left_at is not None:
            return False
    assert step.outcome is not None
    attempt.use(step, branch, Turn())
    attempt.stats.seen += 1
    outcome = Outcome(step.status, step.outcome)
    for settled in attempt.hooks.settled:
        settled(None, outcome, step)
    attempt.notify(None, outcome, step)
    return True


def restart(attempt: Attempt, steps: Iterable[Step]) -> None:
    """Have steps be asked for again: a framework starts a piece of work over."""
    with attempt.lock:
        gone = {step.n for step in steps}
        for n in gone:
            attempt.run.release(attempt.run.steps[n])
        kept = [n for a, b in attempt.replayed for n in range(a, b + 1) if n not in gone]
        attempt.replayed = spans_of(kept)
        attempt.restarted += sorted(gone)
        attempt.has_recording, attempt.is_fresh = True, False
        for name in {attempt.run.steps[n].branch for n in gone}:
            old = attempt.branches.pop(name, None)
            if old is not None:
                new = attempt.branch(name)
                new.running, new.left_at = old.running, old.left_at
                new.opening, new.outer, new.was = old.opening, old.outer, old.was
                new.ends, new.opened_in, new.beside = old.ends, old.opened_in, old.beside
