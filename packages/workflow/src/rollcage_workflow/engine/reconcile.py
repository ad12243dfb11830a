"""Unfinished executions of a store that no worker knows."""

from __future__ import annotations

from rollcage import Store

from rollcage_workflow.holds import prefix_of
from rollcage_workflow.orders import Commands
from rollcage_workflow.state import executions

__all__ = ["reconcile"]


def reconcile(store: Store) -> list[str]:
    """Have the next attempt made at each execution that was cut off, or that waits.

    Workers continue all executions that a command started: the command stays open until its attempt
    has ended, and a wait for a time leaves one. This finds executions that were run without a
    command and were killed. It is safe to call often: recorded steps are not done again.

    Returns:
        The ids of these executions.

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
