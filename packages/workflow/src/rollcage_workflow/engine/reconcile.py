"""What has to go on, by what the store says, and no worker knows of."""

from __future__ import annotations

from rollcage import Store

from rollcage_workflow.holds import prefix_of
from rollcage_workflow.orders import Commands
from rollcage_workflow.state import executions

__all__ = ["reconcile"]


def reconcile(store: Store) -> list[str]:
    """Have the next attempt made at each execution that was cut off, or that waits.

    Workers do so by themselves with all that was started by a command: it stays open until its
    attempt has ended, and what waits for a time leaves one. This finds those that were run without,
    and were killed. Often called, always safe: what is recorded is not done again.

    Returns:
        The ids of those that were woken.

    Raises:
        StoreError: the store can't be read.
    """
    commands = Commands(store)
    asked = {key.partition(".")[0] for key in commands.open_keys()}
    found: list[str] = []
    for each in executions(store):
        if each.status in ("interrupted", "waiting") and prefix_of(each.id) not in asked:
            commands.wake(each.id)
            found.append(each.id)
    return found
