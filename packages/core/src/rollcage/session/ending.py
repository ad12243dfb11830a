"""How a run ends: the status that its last line gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollcage.errors import ApprovalRequired, UnknownOutcome
from rollcage.replay.path import Entry
from rollcage.step.call import Step
from rollcage.step.ledger import Ledger

__all__ = ["Status", "cut_off", "effects", "ending"]

Status = Literal["ok", "error", "halted", "paused", "partial"]
"""How a session was left.

`ok`: cleanly, and all that its source recorded was asked for; `error`: by an exception; `halted`:
it may not go on; `paused`: it waits for an approval, an interrupt or a signal; `partial`: cleanly,
while recorded effects were never asked for. The next session of the job builds on any but `ok`.
"""


def ending(ledger: Ledger, error: BaseException | None, left: Sequence[Entry]) -> Status:
    """The status of a run whose session is being left.

    Args:
        ledger: of the session.
        error: what its block raised.
        left: the recorded effects that it never asked for.
    """
    if ledger.halted is not None:
        return "paused" if isinstance(ledger.halted, ApprovalRequired) else "halted"
    if error is not None:
        return "error"
    if ledger.waits is not None:
        return "paused"
    return "partial" if left else "ok"


def cut_off(run: str, steps: Sequence[Step]) -> UnknownOutcome:
    """What halts a session that is left while writes are in flight."""
    names = ", ".join(f"step {s.number} ({s.call.contract.name})" for s in steps)
    return UnknownOutcome(
        f"the session was left while writes were in flight: {names} of run {run}. "
        f"Wait for threads and tasks inside of the session",
        run,
        steps[0].number,
    )


def effects(left: Sequence[Entry]) -> str:
    """How many recorded effects, and the first of them, for a message."""
    named = ", ".join(f"step {entry.step} ({entry.name})" for entry in left[:5])
    return f"{len(left)} recorded effect{'s' if len(left) > 1 else ''}: {named}"
