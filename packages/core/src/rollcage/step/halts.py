"""The errors that halt a session: what happened, and each command or option that helps."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rollcage.contract.contract import Contract
from rollcage.errors import (
    Diverged,
    ForkEnded,
    Halt,
    NotReplayable,
    ReplayMiss,
    UnknownOutcome,
)
from rollcage.replay.nearest import described, nearest
from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording
from rollcage.step.call import Arrival

__all__ = [
    "changed", "contradicted", "diverged", "lossy", "missing", "started_over", "undone_branch",
    "unknown", "would_ask", "would_write",
]  # fmt: skip


def unknown(run: str, step: int, name: str, at: str, *, why: str = "") -> UnknownOutcome:
    """The outcome of a write is unknown.

    Args:
        run: where the step first ran.
        step: its number there.
        name: of its tool.
        at: what a command line needs to find the store.
        why: what cut it off, if that is known.
    """
    command = f"rollcage resolve {run} {step}{at}"
    return UnknownOutcome(
        f"the outcome of step {step} of run {run} ({name}) is unknown: it may have happened or "
        f"not{why}. Find out, then run: {command} --happened --result JSON; or, "
        f"if it did not happen: {command} --did-not-happen",
        run,
        step,
    )


def _ways_on(run: str, at: str) -> str:
    """What can be done with a run that diverges from its recording."""
    return (
        f"To see what was done: rollcage show {run}{at}; to undo it: rollcage undo {run}{at}; to "
        f'keep it and start over: rollcage abandon {run}{at}; or replay="off" just this once'
    )


def diverged(
    arrival: Arrival, orphans: Sequence[Entry], run: str, at: str, *, left: str = ""
) -> Diverged:
    """A new write would leave recorded effects behind.

    Args:
        arrival: the new write.
        orphans: what it would leave behind.
        run: the session's own.
        at: what a command line needs to find the store.
        left: which of them could not be undone, as text; empty if that was not tried.
    """
    contract, args = arrival.contract, arrival.args
    path = arrival.branch.path
    recorded = () if path is None else path.entries
    used = set[Entry]() if path is None else path.taken.used
    listed = ", ".join(f"step {e.step} ({e.name})" for e in orphans[:5])
    more = f" and {len(orphans) - 5} more" if len(orphans) > 5 else ""
    near = nearest(orphans, contract.name, contract.version, args, used)
    if near is None or near[0].name != contract.name:
        near = nearest([*orphans, *recorded], contract.name, contract.version, args, used)
    like = ""
    if near is not None:
        entry, differs = near
        was = {field: entry.args[field] for field in args if field in entry.args} | entry.args
        like = (
            f" The nearest recorded call is step {entry.step}, {described(entry.name, was)}; it "
            f"differs in {differs}."
        )
    tried = " "
    if left:
        tried = (
            f" Not all of them could be undone:\n{left}\nOnce that is fixed, the next session "
            f"finishes the undo; to see what it would do: rollcage undo {run}{at} --plan\n"
        )
    return Diverged(
        f"a new write, {described(contract.name, args)}, would leave recorded effects behind: "
        f"{listed}{more} of run {orphans[0].run}.{like}{tried}If this is another job than the "
        f"recorded one, give each its own input: Session(name, input=...). {_ways_on(run, at)}",
        tuple((e.run, e.step) for e in orphans),
    )


def started_over(
    name: str,
    args: Mapping[str, Any],
    work: str,
    orphans: Sequence[tuple[str, str, int]],
    run: str,
    at: str,
) -> Diverged:
    """Work that a framework has started over makes a new write and leaves earlier ones behind.

    Args:
        name: of the tool.
        args: of the call.
        work: the name of what was started over.
        orphans: the earlier writes: the tool's name, and the step.
        run: the session's own.
        at: what a command line needs to find the store.
    """
    listed = ", ".join(f"step {step} ({tool})" for tool, _, step in orphans[:5])
    return Diverged(
        f"{work} was started over, by a retry or after an interrupt, and makes a new write, "
        f"{described(name, args)}, that its earlier attempt did not make; what that one had "
        f"written would be left behind: {listed} of run {orphans[0][1]}. Let each attempt write "
        f'the same (guard the model, keep times and ids out of the arguments), undo it with "with '
        f'session.transaction(...)" around the work, or accept it: '
        f'Session(on_divergence="warn"). {_ways_on(run, at)}',
        tuple((each, step) for _, each, step in orphans),
    )


def undone_branch(branch: str, run: str, at: str) -> Diverged:
    """A branch that was undone before the run went on diverges from its recording.

    Args:
        branch: its name.
        run: the session's own.
        at: what a command line needs to find the store.
    """
    return Diverged(
        f"the recorded calls of {branch} were undone before the run went on, so they can be "
        f"replayed only in their recorded form, and this call differs. {_ways_on(run, at)}",
        (),
    )


def contradicted(entry: Entry, at: str) -> Halt:
    """A framework's history has an answer to a call that is recorded without one."""
    if entry.status == "unknown":
        return unknown(entry.run, entry.step, entry.name, at)
    return Halt(
        f"the framework's history shows call {entry.call_id} ({entry.name}) as answered, but it "
        f"never ran: the session was halted there (step {entry.step} of run {entry.run}: "
        f"{entry.outcome['reason']}). Resume from a state that was saved earlier, or remove that "
        f"call and its answer from the history"
    )


def missing(arrival: Arrival, recording: Recording) -> ReplayMiss:
    """Nothing is recorded for a call that may not run."""
    call, contract, path = arrival.call, arrival.contract, arrival.branch.path
    entries = list(path.entries) if path is not None else []
    entries += recording.pure.values()
    for queue in recording.models.values():
        entries += queue
    near = nearest(entries, contract.name, contract.version, arrival.args, recording.taken.used)
    message = "nothing is recorded at this place"
    if near is not None:
        entry, differs = near
        nearby = f"step {entry.step} ({entry.name})"
        message = f"the nearest recorded call is {nearby}; it differs in {differs}"
    asked = len(recording.models.get(arrival.key, ()))
    if arrival.kind == "model" and asked:
        many = (
            "the one recorded answer to this request was"
            if asked == 1
            else f"all {asked} recorded answers to this request were"
        )
        message = f"{many} replayed already; the model was called once more"
    if call.turn is None and threading.current_thread() is not threading.main_thread():
        message += (
            ". It was called in a thread, and threads have no order that a replay could "
            "follow: give each call a slot, with `with session.turn() as turn:` and in the "
            "thread `with turn.slot(i):`, or each thread a branch, `session.branch(name)`"
        )
    return ReplayMiss(f"no recorded step for {contract.name}: {message}")


def lossy(entry: Entry, at: str) -> NotReplayable:
    """A recorded write was performed, and its result can't be replayed."""
    return NotReplayable(
        f"step {entry.step} of run {entry.run} ({entry.name}) was performed, but its "
        f"result can't be replayed: {entry.flaw}. Record its result: rollcage resolve "
        f"{entry.run} {entry.step}{at} --happened --result JSON; or declare "
        f'on_miss="live" on the tool to run it again'
    )


def changed(what: str, entry: Entry, contract: Contract) -> NotReplayable:
    """A call is recorded, but its tool now declares `another version` or `another effect`."""
    if what == "another version":
        return NotReplayable(
            f"step {entry.step} of run {entry.run} performed {contract.name} as version "
            f"{entry.version!r}; the tool is now {contract.version!r} and is not silently "
            f'run again. Give the tool its old version, or declare on_miss="live" on it'
        )
    return NotReplayable(
        f"step {entry.step} of run {entry.run} ran {contract.name} with the effect "
        f"{entry.effect!r}; the tool now declares {contract.effect!r} and is not "
        f'silently run again. Declare on_miss="live" on it to run it'
    )


def would_write(arrival: Arrival, entry: Entry | None) -> ForkEnded:
    """A fork has come to a write that it may not perform.

    Args:
        arrival: the write.
        entry: what is recorded of it, if anything, and can't answer it.
    """
    name = arrival.contract.name
    why = "" if entry is None else _state(entry)
    known = f" (step {entry.step} of run {entry.run}: {why})" if entry is not None and why else ""
    return ForkEnded(
        f"the fork ends before a write that it would have made: {described(name, arrival.args)}"
        f"{known}. To go on, say what it gives: --answer {name}=JSON, answers={{{name!r}: ...}} in "
        f"Python; to perform it: --live, live=True",
        "would_write",
        name,
    )


def would_ask(arrival: Arrival) -> ForkEnded:
    """A fork has come to a call that somebody would have to approve."""
    name = arrival.contract.name
    return ForkEnded(
        f"the fork ends before a call that requires approval: {described(name, arrival.args)} "
        f"({arrival.verdict.reason}). To go on, say what it gives: --answer {name}=JSON, "
        f"answers={{{name!r}: ...}} in Python; to have it approved and made: --live, live=True",
        "would_ask",
        name,
    )


def _state(entry: Entry) -> str:
    """Why a recorded step can't answer a call; empty if that is up to the fork."""
    if entry.status == "unknown":
        return "its outcome is unknown"
    texts = {"blocked": "it was refused", "not_started": "it never ran"}
    return entry.flaw or texts.get(entry.status, "")
