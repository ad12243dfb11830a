"""Explain why no recorded step answers a call: find the nearest step, or a change of the tool.

The explanation is made only for a halt: the arguments of recorded calls are not kept in memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import orjson

from rollcage.errors import Diverged, NotReplayable, ReplayMiss, RollcageError
from rollcage.fingerprint.identity import key_digest
from rollcage.trace.run import CHANGES

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.replay.call import Call
    from rollcage.replay.nearest import Recorded
    from rollcage.trace.run import Step

__all__ = ["changed", "explained", "miss"]

_IN_A_THREAD = (
    ". It was called in a thread, and threads have no order that a replay could follow: give each "
    "call a slot, with `with session.turn() as turn:` and in the thread `with turn.slot(i):`, or "
    "each thread a branch, `session.branch(name)`"
)


def miss(attempt: Attempt, call: Call) -> ReplayMiss:
    """Return the error of an unrecorded call that may not run, with the nearest call."""
    run, contract = attempt.run, call.contract
    message = _near(attempt, call) or "nothing is recorded at this place"
    asked = len(run.anywhere.get(call.key, ())) if call.kind == "model" else 0
    if asked:
        many = (
            "the one recorded answer to this request was"
            if asked == 1
            else f"all {asked} recorded answers to this request were"
        )
        message = f"{many} replayed already; the model was called once more"
    if call.place.turn is None and threading.current_thread() is not threading.main_thread():
        message += _IN_A_THREAD
    return ReplayMiss(f"no recorded step for {contract.name} in run {run.id}: {message}")


def explained(attempt: Attempt, call: Call, refusal: Diverged) -> Diverged:
    """Add the nearest recorded call to the error of a new call."""
    near = _near(attempt, call)
    if not near:
        return refusal
    message = f"{refusal}. {near[0].upper()}{near[1:]}"
    return Diverged(message, refusal.orphans, refusal.ways)


def _near(attempt: Attempt, call: Call) -> str:
    """Describe the recorded call nearest to an unrecorded one, and the difference."""
    from rollcage.replay.nearest import nearest  # most programs miss nothing

    run, contract = attempt.run, call.contract
    recorded = list(_calls(attempt))
    used = {
        each
        for each in recorded
        if (step := run.steps.get(each.step)) is not None and step.effect != "pure" and step.taken
    }
    near = nearest(recorded, contract.name, contract.version, call.arguments, used)
    if near is None:
        return ""
    found, differs = near
    return f"the nearest recorded call is step {found.step} ({found.name}); it differs in {differs}"


def _calls(attempt: Attempt) -> Iterator[Recorded]:
    """Read the recorded calls that hold; none if the log can't be read any more."""
    from rollcage.replay.nearest import Recorded  # most programs miss nothing
    from rollcage.trace.messages import MessagesRead

    run, (store, name) = attempt.run, attempt.recorded_in
    lines: list[bytes] = []
    with contextlib.suppress(RollcageError):  # the miss is the error to report
        lines = store.read(name)
    messages = MessagesRead()
    for line in lines:
        event = orjson.loads(line)
        with contextlib.suppress(ValueError):
            messages.restore(event)
        if event.get("event") != "step" or event["effect"] == "branch":
            continue
        step = run.steps.get(event["step"])
        if step is not None and not step.gone and step.status != "waiting":
            args = event.get("args") or {}
            yield Recorded(step.n, step.name, event.get("version", ""), args)


def changed(attempt: Attempt, call: Call) -> NotReplayable | None:
    """Return why a call must not run: its tool has changed since the call was recorded.

    With another version, or another declared effect, the recorded result can't be replayed, and is
    not silently made again. None if there is no such step, or the tool says `on_miss="live"`.
    """
    contract, run, name = call.contract, attempt.run, call.place.branch
    if contract.on_miss == "live" or call.kind != "tool" or run.is_undoing(name):
        return None
    changes = call.effect in CHANGES
    for step in attempt.recorded_by_key[name, call.key]:
        if step.effect != call.effect and (changes or step.acts) and _is_unasked(step):
            return _other_effect(attempt, step, call)
    if not changes:
        return None
    for step in run.untaken.values():
        if step.branch != name or step.name != contract.name or not step.acts:
            continue
        if step.version != contract.version and step.status == "ok":
            key = key_digest(call.kind, contract.name, step.version, call.data).hex()
            if key == step.key:
                return NotReplayable(
                    f"step {step.n} of run {run.id} performed {contract.name} as version "
                    f"{step.version!r}; the tool is now {contract.version!r} and is not silently "
                    f'run again. Give the tool its old version, or declare on_miss="live" on it'
                )
    return None


def _is_unasked(step: Step) -> bool:
    return step.status == "ok" and not step.gone and not step.taken


def _other_effect(attempt: Attempt, step: Step, call: Call) -> NotReplayable:
    return NotReplayable(
        f"step {step.n} of run {attempt.run.id} ran {step.name} with the effect {step.effect!r}; "
        f"the tool now declares {call.effect!r} and is not silently run again. Declare "
        f'on_miss="live" on it to run it'
    )
