"""Use up the steps in a framework's own memory, and start work over.

A framework with a memory (a saved state, a checkpointer) goes on from it without a call. The
recorded steps in that memory are *seen*: used up in the order of the log, as if they had been asked
for.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rollcage.calls.branches import reenter
from rollcage.errors import Halt
from rollcage.replay.walk import Branch, Turn
from rollcage.trace.run import CHANGES, Outcome, Run, Step, spans_of
from rollcage.values.hiding import hidden

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.stage import Work
    from rollcage.replay.call import Call

__all__ = [
    "Histories",
    "enter",
    "forget_rolled",
    "is_known_otherwise",
    "note_id",
    "put_back",
    "restart",
    "see",
    "see_histories",
]


def see(attempt: Attempt, step: Step, turn: Turn | None = None) -> bool:
    """Use up a step in a framework's memory, without a call.

    Args:
        attempt: the attempt.
        step: a recorded step that has ended and holds.
        turn: the turn of this attempt for the step; None: a turn of its own.

    Returns:
        Whether the step stands at the current position of its branch.
    """
    branch = attempt.branch(step.branch)
    if step.effect in CHANGES and not _is_at(branch, step):
        return False
    if step.outcome is None:
        return False
    attempt.use(step, branch, turn or Turn())
    if step.effect == "model":
        attempt.ranks[step.branch, step.key] += 1
    attempt.stats.seen += 1
    outcome = Outcome(step.status, step.outcome)
    for settled in attempt.hooks.settled:
        settled(None, outcome, step)
    return True


def enter(attempt: Attempt, step: Step, turn: Turn) -> Branch | None:
    """Open a recorded block whose steps are in a framework's memory.

    Returns:
        The branch of the block, to be left by the caller; None if the block does not stand at the
            current position of its branch.
    """
    if step.changes and not _is_at(attempt.branch(step.branch), step):
        return None
    return reenter(attempt, step, turn)


def _is_at(branch: Branch, step: Step) -> bool:
    """Tell whether a branch stands at a step's position, on the recorded path."""
    return step.pos == branch.pos and branch.left_at is None


def restart(attempt: Attempt, steps: Iterable[Step]) -> None:
    """Let steps be asked for again, because a framework starts a piece of work over.

    This covers the steps of their bodies, and the blocks around them that were left.
    """
    with attempt.lock:
        run = attempt.run
        gone: set[int] = set()
        for step in steps:
            gone.add(step.n)
            gone.update(each.n for each in run.inside(step.inner))
            owner = run.owner(step.branch)
            while owner is not None and owner.effect == "branch":
                walk = attempt.branches.get(owner.inner)
                if walk is None or not walk.exited:
                    break
                gone.add(owner.n)
                gone.update(each.n for each in run.inside(owner.inner))
                owner = run.owner(owner.branch)
        again = [run.steps[n] for n in gone]
        forget_rolled(attempt, again)
        for step in again:
            run.release(step)
        kept = [n for a, b in attempt.replayed for n in range(a, b + 1) if n not in gone]
        attempt.replayed = spans_of(kept)
        attempt.restarted += sorted(gone)
        attempt.has_recording, attempt.is_fresh = True, False
        names = {step.branch for step in again} | {step.inner for step in again}
        for name in names & attempt.branches.keys():
            old = attempt.branches.pop(name)
            new = attempt.branch(name)
            new.running = old.running
            new.opening, new.outer, new.was = old.opening, old.outer, old.was
            new.ends, new.opened_in, new.beside = old.ends, old.opened_in, old.beside
            new.exited, new.ok = old.exited, old.ok
        attempt.count_ranks()


def put_back(attempt: Attempt, step: Step) -> None:
    """Let a waiting step be asked for again, even while other steps of its batch are running."""
    branch = attempt.branch(step.branch)
    if not branch.running:
        restart(attempt, [step])
        return
    attempt.run.release(step)
    branch.put_back(step)
    attempt.restarted.append(step.n)
    attempt.has_recording, attempt.is_fresh = True, False


def forget_rolled(attempt: Attempt, among: Iterable[Step] | None = None) -> bool:
    """Treat rolled back blocks with no step after them as never run.

    Args:
        attempt: the attempt.
        among: only these steps; None: every block.

    Returns:
        Whether there were any.
    """
    run = attempt.run
    names = None if among is None else {step.inner for step in among}
    found = False
    for name in sorted(run.rolled, key=lambda each: len(run.lineage(each, 0))):  # outer first
        block = run.owner(name)
        if (names is not None and name not in names) or block is None or name not in run.rolled:
            continue
        if not run.acted_upon(block):
            held = sorted(step.n for step in run.done_in(name))
            line = {"event": "undone", "why": "rolled back", "steps": held, "reopens": [block.n]}
            attempt.note(line)
            found = True
    return found


# --- histories of messages ---


def is_known_otherwise(call: Call, step: Step | None) -> bool:
    """Tell whether the framework knows a call by another id than the step that answers it.

    An id that quotes a secret which is declared meanwhile is noted once for each call.
    """
    return (
        step is not None
        and "id" not in (call.kept or ())
        and step.call_id != call.place.call_id
        and step.effect != "pure"
        and call.attempt.live
    )


def note_id(call: Call, step: Step | None) -> Work:
    """Put the new id on record before the call returns: a saved history has no other one."""
    assert step is not None
    call.keep("id", call.place.call_id)
    call.attempt.note({"event": "moved", "step": step.n, "call_id": call.place.call_id})
    yield from call.attempt.settle(is_async=call.is_async)


Histories = Mapping[str | None, Iterable[str]]
"""By agent, the ids of the calls that its history shows as answered; None: of any agent."""


def see_histories(attempt: Attempt, histories: Histories, branch: str) -> None:
    """Use up the steps in histories of messages, and the model's answers before them.

    Args:
        attempt: the attempt of the framework.
        histories: see `Session.seen`.
        branch: where the framework goes on: the steps of other bodies are left alone.

    Raises:
        Halt: a history shows a call as answered that has no outcome on record.
    """
    if not attempt.recorded:
        return
    with attempt.lock:
        if not (attempt.run.untaken or attempt.run.unanswered):
            return  # nothing recorded is left to be seen: a long history is not read again
        wanted: dict[str | None, Counter[str]] = {}
        seal = attempt.seal  # the log has names and ids without the secrets in them
        for known, ids in histories.items():
            agent = hidden(known, seal).value
            shown, given = Counter(hidden(each, seal).value for each in ids), _given(attempt, agent)
            if any(count > given[call_id] for call_id, count in shown.items()):
                wanted[agent] = shown
        if wanted:
            _check_answered(attempt, wanted)
            _see(attempt, wanted, _body(attempt.run, branch))


def _see(attempt: Attempt, wanted: dict[str | None, Counter[str]], body: str) -> None:
    answers: list[Step] = []  # of models, which a seen step may come after
    for step in _left(attempt.run, body):
        agent = step.agent if step.agent in wanted else None
        if agent not in wanted:
            continue
        if step.effect == "model":
            answers.append(step)
        elif step.call_id:
            shown = wanted[agent]
            if shown[step.call_id] > _given(attempt, agent)[step.call_id]:
                if step.status not in ("ok", "error"):
                    return
                along = [e for e in answers if (e.branch, e.agent) == (step.branch, step.agent)]
                if not all(map(functools.partial(see, attempt), (*along, step))):
                    return  # it can't be taken as done, nor can what came after it
                attempt.asked[step.agent, step.call_id] += 1
                answers = [each for each in answers if each not in along]
            elif step.call_id not in shown:  # a history has no holes
                del wanted[agent]


def _left(run: Run, body: str) -> list[Step]:
    """Return the steps of a body that nothing has asked for, in the order of the log."""
    found = [step for step in run.untaken.values() if not run.is_consumed(step)]
    found += [
        step
        for steps in run.anywhere.values()
        for step in steps
        if step.effect == "model" and not step.taken
    ]
    of_body = {step.n: step for step in found if _body(run, step.branch) == body}
    return [of_body[n] for n in sorted(of_body)]


def _body(run: Run, branch: str) -> str:
    """Return the branch of the innermost tool body around a branch; empty without one."""
    while (owner := run.owner(branch)) is not None:
        if owner.effect != "branch":
            return branch
        branch = owner.branch
    return ""


def _given(attempt: Attempt, agent: str | None) -> Counter[str]:
    """Count by id the calls of an agent, or of all, that this attempt was asked for or has seen."""
    found: Counter[str] = Counter()
    for (of, call_id), count in attempt.asked.items():
        if agent in (None, of):
            found[call_id] += count
    return found


def _check_answered(attempt: Attempt, wanted: Mapping[str | None, Counter[str]]) -> None:
    """Halt if a history shows a call as answered that has no outcome on record.

    A framework may have kept the halt of the session as the answer to that call.
    """
    run = attempt.run
    if not run.unanswered:
        return
    answered = Counter(
        (step.agent, step.call_id)
        for step in run.steps.values()
        if step.call_id and step.status in ("ok", "error")
    )
    for (agent, call_id), n in run.unanswered.items():
        shown = wanted.get(agent) or wanted.get(None)
        call = agent, call_id
        if shown is None or attempt.asked[call] or shown[call_id] <= answered[call]:
            continue
        if n and run.steps[n].status == "unknown":
            raise attempt.halt(attempt.unknown(run.steps[n]))
        raise attempt.halt(
            Halt(
                f"the framework's history shows call {call_id} as answered, but it never ran: run "
                f"{run.id} was halted there. Resume from a state that was saved earlier, or remove "
                f"that call and its answer from the history"
            )
        )
