"""What the errors say that halt a session: what happened, and each way on, as it is typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollcage.errors import Diverged, Halt, UnknownOutcome
from rollcage.replay.path import Entry, described, nearest
from rollcage.step.call import Call

__all__ = ["contradicted", "diverged", "unknown"]


def unknown(run: str, step: int, name: str, at: str, *, why: str = "") -> UnknownOutcome:
    """Nobody can tell whether a write happened.

    Args:
        run: where the step first ran.
        step: its number there.
        name: of its tool.
        at: what a command line needs to find the store.
        why: what cut it off, if that is known.
    """
    return UnknownOutcome(
        f"nobody can tell whether step {step} of run {run} ({name}) happened{why}. Find out, then "
        f"say so: rollcage resolve {run} {step}{at} --happened [--result JSON] | --did-not-happen",
        run,
        step,
    )


def diverged(
    call: Call, orphans: Sequence[Entry], recorded: Iterable[Entry], run: str, at: str
) -> Diverged:
    """A new write would leave recorded effects behind.

    Args:
        call: the new write.
        orphans: what it would leave behind.
        recorded: all that it might have been meant for.
        run: the session's own.
        at: what a command line needs to find the store.
    """
    contract, args = call.contract, call.compared
    listed = ", ".join(f"step {e.step} ({e.name})" for e in orphans[:5])
    more = f" and {len(orphans) - 5} more" if len(orphans) > 5 else ""
    near = nearest(orphans, contract.name, contract.version, args)
    if near is None or near[0].name != contract.name:
        near = nearest([*orphans, *recorded], contract.name, contract.version, args)
    like = ""
    if near is not None:
        entry, differs = near
        was = {field: entry.args[field] for field in args if field in entry.args} | entry.args
        like = (
            f" The nearest recorded call is step {entry.step}, {described(entry.name, was)}; it "
            f"differs in {differs}."
        )
    return Diverged(
        f"a new write, {described(contract.name, args)}, would leave recorded effects behind: "
        f"{listed}{more} of run {orphans[0].run}.{like} Where the job works on something else by "
        f"now, give each its own input: Session(name, input=...). Look at what was done: rollcage "
        f"show {run}{at}. Take it back: rollcage undo {run}{at}. Or leave it as it is and begin "
        f'afresh: rollcage abandon {run}{at}, or replay="off" for this once',
        tuple((e.run, e.step) for e in orphans),
    )


def contradicted(entry: Entry, at: str) -> Halt:
    """A framework's history holds an answer to a call that is recorded without one."""
    if entry.status == "unknown":
        return unknown(entry.run, entry.step, entry.name, at)
    return Halt(
        f"the framework's history shows call {entry.call_id} ({entry.name}) as answered, but it "
        f"never ran: the session was halted there (step {entry.step} of run {entry.run}: "
        f"{entry.outcome['reason']}). Go on from a state that was saved before, or take that call "
        f"and its answer out of the history"
    )
