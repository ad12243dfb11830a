"""Open and join branches: a branch is a step, with an intent and an outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from rollcage.errors import Diverged, ReplayMiss
from rollcage.replay.call import Place
from rollcage.replay.divergence import leaving, steps_beyond
from rollcage.replay.walk import Branch, Turn
from rollcage.trace.run import Outcome, Step, spans_of
from rollcage.undo.program import is_being_undone, take_back

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.driver import Flow
    from rollcage.trace.run import Event

__all__ = ["ended", "go_otherwise", "join", "last_worlds", "leave_block", "open_block", "reenter"]


def open_block(
    attempt: Attempt,
    place: Place,
    kind: str,
    name: str,
    after: Iterable[Branch],
    arguments: Any,
    key: str,
    marks: Event | None = None,
) -> Branch:
    """Open a branch: a step of the branch around it, found there or new.

    `marks`: further fields of its line.
    """
    if place.around is not None and not place.around.is_on_record:
        attempt.put_on_record(place.around)
    outer = attempt.branch(place.branch)
    before = list(after)
    turn, slot = attempt.turn_of(place, outer)
    look = outer.look(key, "branch", turn, place.slot)
    outer.move(look, turn)
    begun_by = outer.turn if outer.batch or outer.running else None
    step = look.step
    if step is not None and is_being_undone(attempt, step.n):
        step = None
    if step is None:
        if not attempt.live:
            what = f"{kind} {name!r} is not recorded in run {attempt.run.id}"
            raise attempt.halt(ReplayMiss(what))
        event = attempt.begin_step(
            name, "branch", key, arguments, outer, turn, slot, place, look.start
        )
        event["kind"] = kind
        event.update(marks or ())
        if beyond := steps_beyond(attempt, outer, name, turn, place.slot):
            event["beyond"] = spans_of(each.n for each in beyond)
        if before:
            event["after"] = [each.opening.n for each in before if each.opening is not None]
        attempt.write(event)
        step, was = attempt.run.steps[event["step"]], "new"
        outer.begin(turn)
    else:
        was = _take(attempt, outer, step, turn)
    inner = _begun(attempt, outer, step, turn, was)
    if before:
        inner.ends = frozenset().union(*(_worlds_of(each) for each in before))
    inner.beside = was != "new" or begun_by is turn
    return inner


def reenter(attempt: Attempt, step: Step, turn: Turn) -> Branch:
    """Open a recorded block at the current position of its branch, without a program's request."""
    outer = attempt.branch(step.branch)
    inner = _begun(attempt, outer, step, turn, _take(attempt, outer, step, turn))
    inner.beside = True
    return inner


def _take(attempt: Attempt, outer: Branch, step: Step, turn: Turn) -> str:
    """Use up a recorded block; return how much of it is recorded."""
    is_whole = step.status == "ok" or (
        step.status == "error" and not (attempt.live and attempt.run.goes_on(step))
    )
    attempt.run.take(step)
    if is_whole:
        outer.use(step, turn)
    else:
        outer.follow(step, turn)
        if not step.changes:
            _go_on(attempt, outer, step, turn)
        outer.begin(turn)
    attempt.replay(step)
    return "whole" if is_whole else "cut"


def _go_on(attempt: Attempt, outer: Branch, step: Step, turn: Turn) -> None:
    """Put on record that a failed block in which nothing was changed goes on, and where."""
    if not turn.n:
        attempt.number(turn)
    event: Event = {"event": "moved", "step": step.n, "pos": outer.pos}
    if outer.running or outer.preparing:
        event["during"] = True
    attempt.note(event)


def _begun(attempt: Attempt, outer: Branch, step: Step, turn: Turn, was: str) -> Branch:
    inner = attempt.branch(step.inner)
    inner.opening, inner.outer, inner.opened_in, inner.was = step, outer, turn, was
    inner.exited = inner.ok = False
    return inner


def leave_block(attempt: Attempt, inner: Branch, *, ok: bool) -> None:
    """Leave the block of a branch; the branch is joined once nothing in it runs."""
    with attempt.lock:
        inner.exited, inner.ok = True, ok
        if not inner.running:
            join(attempt, inner)


def join(attempt: Attempt, inner: Branch) -> None:
    """Add the effects of a block to the outer branch: its last world, or nothing."""
    if attempt.halted is not None or attempt.closed:
        return
    step, outer = inner.opening, inner.outer
    assert step is not None
    assert outer is not None
    skipped = [each for each in attempt.run.inside(inner.name) if each.acts and not each.taken]
    if inner.batch:
        inner.fold()
    status = "ok" if inner.ok else "error"
    world = _last_world(inner)
    data = orjson.dumps({"status": status, "value": world})
    differs = step.outcome != data
    if differs and not (status == "error" and skipped):
        changed = step.changes
        attempt.note({"event": "outcome", "step": step.n}, Outcome(status, data))
        if inner.was == "whole" and changed:
            outer.rehash()
        elif inner.was == "whole" and step.changes:  # it was like a read until now
            assert inner.opened_in is not None
            outer.begin(inner.opened_in)
            outer.end(step)
    if inner.was != "whole":
        ended(attempt, outer, step)


def _last_world(branch: Branch) -> str | None:
    """Return the world at a branch's position; None if nothing was changed in it."""
    return branch.world().hex() if branch.pos else None


def ended(attempt: Attempt, branch: Branch, step: Step | None) -> None:
    """Count an ended write or block; its branch may be waiting for it."""
    branch.end(step)
    if branch.exited and not branch.running and branch.opening is not None:
        join(attempt, branch)


def _worlds_of(branch: Branch) -> frozenset[str]:
    step = branch.opening
    assert step is not None
    world = _last_world(branch) if step.outcome is None else step.result["value"]
    return branch.ends if world is None else frozenset([world])


def last_worlds(before: Iterable[Branch]) -> list[str]:
    """Return the last worlds of the branches on which a branch depends, sorted."""
    return sorted(frozenset[str]().union(*(_worlds_of(each) for each in before)))


def go_otherwise(attempt: Attempt, block: Branch, *, is_async: bool) -> Flow:
    """Halt for a block that was rolled back on record, and takes another path now.

    The later steps are left behind, or taken back; the next attempt finds the block at the
    frontier, and makes it anew.

    Raises:
        Diverged: always; or another halt, if the later steps can't be left.
    """
    step, outer = block.opening, block.outer
    assert step is not None
    assert outer is not None
    with attempt.lock:
        place = attempt.run.lineage(outer.name, step.pos, step.turn)
        ahead = attempt.run.ahead(place, lambda _mine, _its, _step: False)
        what = f"block {step.name!r} was rolled back on record, and goes otherwise now"
        refusal = leaving(attempt, ahead, what)
        if refusal is not None:
            raise attempt.halt(refusal)
        if ahead and attempt.on_divergence == "warn":
            attempt.note({"event": "left", "left": spans_of(each.n for each in ahead)})
    if ahead and attempt.on_divergence == "undo":
        yield from take_back(attempt, ahead, why="divergence", is_async=is_async)
    raise attempt.halt(Diverged(f"{what}: the next attempt makes it anew", ()))
