"""How a run ends: the status that its last line gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from rollcage.errors import ApprovalRequired, ForkEnded, UnknownOutcome
from rollcage.replay.path import Entry
from rollcage.step.call import OpenStep
from rollcage.step.ledger import Ledger

__all__ = ["EndStatus", "cut_off", "ending", "partial"]

EndStatus = Literal["ok", "error", "halted", "paused", "partial", "would_write", "would_ask"]
"""How a session was left.

`ok`: cleanly, and all that its source recorded was asked for; `error`: by an exception; `halted`:
it may not go on; `paused`: it waits for an approval, an interrupt or a signal; `partial`: cleanly,
while recorded effects were never asked for. The next session of the job builds on any but `ok`. A
fork is `partial` if it never came to the step that it changes. One that is not live may end as
it comes to a write that it may not do (`would_write`), or to a call that somebody has to approve
(`would_ask`).
"""


def ending(ledger: Ledger, error: BaseException | None, left: Sequence[Entry]) -> EndStatus:
    """The status of a run whose session is being left.

    Args:
        ledger: of the session.
        error: what its block raised.
        left: the recorded effects that it never asked for.
    """
    if isinstance(ledger.halted, ForkEnded):
        return cast("EndStatus", ledger.halted.status)
    if ledger.halted is not None:
        return "paused" if isinstance(ledger.halted, ApprovalRequired) else "halted"
    if error is not None:
        return "error"
    if ledger.waits is not None:
        return "paused"
    return "partial" if left or ledger.missed is not None else "ok"


def cut_off(run: str, steps: Sequence[OpenStep]) -> UnknownOutcome:
    """What halts a session that is left while writes are in flight."""
    names = ", ".join(f"step {s.number} ({s.call.contract.name})" for s in steps)
    return UnknownOutcome(
        f"the session was left while writes were in flight: {names} of run {run}. "
        f"Wait for threads and tasks inside of the session",
        run,
        steps[0].number,
    )


def partial(run: str, job: str, ledger: Ledger, left: Sequence[Entry], at: str) -> str:
    """The message about a run that ends while recorded steps that count were never asked for.

    Args:
        run: its id.
        job: its session's name.
        ledger: of the session.
        left: the effects.
        at: what a command needs to find the store: ` --store DIR`, or nothing.
    """
    if ledger.missed is not None:
        missed = ledger.missed
        return (
            f"fork {run} ends 'partial': it never came to step {missed.number} ({missed.name}), so "
            f"nothing was changed in it. A framework with a memory of its own resumes from that: "
            f"give the fork a new thread"
        )
    named = ", ".join(f"step {entry.step} ({entry.name}) of run {entry.run}" for entry in left[:5])
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    idle = "No guarded call was made. " if not ledger.stats.calls else ""
    return (
        f"run {run} ends 'partial': it never asked for {len(left)} recorded "
        f"effect{'s' if len(left) > 1 else ''}: {named}{more}. {idle}They are kept, and the next "
        f"session of {job!r} resumes this run. If the job is done without them (say, because the "
        f"framework's own memory had finished it), close it: rollcage abandon {run}{at}; to undo "
        f"them: rollcage undo {run}{at}"
    )
