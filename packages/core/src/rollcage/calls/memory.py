"""A framework's own memory: steps that are used up without a call, and asked for once more.

A framework with a memory (a saved state, a checkpointer) goes on by itself where it was. The
recorded steps that its history holds are *seen*: used up in the order of the log, as if they had
been asked for.
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

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["Histories", "enter", "forget_rolled", "put_back", "restart", "see", "see_histories"]


def see(attempt: Attempt, step: Step, turn: Turn | None = None) -> bool:
    """Use up a step that nobody asks for, for a framework's memory holds it.

    Args:
        attempt: the attempt.
        step: a recorded step that has ended and holds.
        turn: the turn of this attempt that it is of; None: one of its own.

    Returns:
        Whether it stands where its branch is now.
    """
    branch = attempt.branch(step.branch)
    if step.effect in CHANGES and not _reach(branch, step):
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
    attempt.notify(None, outcome, step)
    return True


def enter(attempt: Attempt, step: Step, turn: Turn) -> Branch | None:
    """Open a recorded block whose steps a framework's memory holds.

    Returns:
        The branch of the block, which has to be left; None if it does not stand where its branch
        is now.
    """
    if step.changes and not _reach(attempt.branch(step.branch), step):
        return None
    return reenter(attempt, step, turn)


def _reach(branch: Branch, step: Step) -> bool:
    """Whether a branch stands where a step does, or has come to the end of the batch before."""
    is_over = branch.batch and not branch.running and not branch.is_to_come(branch.pos)
    if step.pos != branch.pos and is_over:
        branch.fold()
    return step.pos == branch.pos and branch.left_at is None


def restart(attempt: Attempt, steps: Iterable[Step]) -> None:
    """Have steps be asked for again: a framework starts a piece of work over.

    So are what their bodies did, and the blocks around them that were left.
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
    """Have a step that waits be asked for again, whatever else of its batch is running."""
    branch = attempt.branch(step.branch)
    if not branch.running:
        restart(attempt, [step])
        return
    attempt.run.release(step)
    branch.put_back(step)
    attempt.restarted.append(step.n)
    attempt.has_recording, attempt.is_fresh = True, False


def forget_rolled(attempt: Attempt, among: Iterable[Step] | None = None) -> bool:
    """Have the blocks that were rolled back, and that nothing came after, be as if never run.

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

Histories = Mapping[str | None, Iterable[str]]
"""By agent, the ids of the calls that its history shows as answered; None: of whichever agents."""


def see_histories(attempt: Attempt, histories: Histories, branch: str) -> None:
    """Use up the steps that histories of messages hold, and the model's answers before them.

    Args:
        attempt: the attempt that the framework runs in.
        histories: see `Session.seen`.
        branch: where the framework goes on: the steps of other bodies are left alone.

    Raises:
        Halt: a history shows a call as answered that has no outcome on record.
    """
    if not attempt.recorded:
        return
    with attempt.lock:
        wanted: dict[str | None, Counter[str]] = {}
        for agent, ids in histories.items():
            shown, given = Counter(ids), _given(attempt, agent)
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
    """The steps of a body that nobody has asked for, in the order of the log."""
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
    """The innermost body of a tool that a branch is in, as a branch; empty if it is in none."""
    while (owner := run.owner(branch)) is not None:
        if owner.effect != "branch":
            return branch
        branch = owner.branch
    return ""


def _given(attempt: Attempt, agent: str | None) -> Counter[str]:
    """By id, how many calls of an agent, or of all, this attempt was asked for, or has seen."""
    found: Counter[str] = Counter()
    for (of, call_id), count in attempt.asked.items():
        if agent in (None, of):
            found[call_id] += count
    return found


def _check_answered(attempt: Attempt, wanted: Mapping[str | None, Counter[str]]) -> None:
    """Halt where a history shows a call as answered of which no outcome is on record.

    A framework may have kept what halted the session as the answer to that call.
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
