"""The commands that end the waits of an execution, to be copied."""

from __future__ import annotations

import re
import shlex
from typing import Final

from rollcage import Store
from rollcage.trace.store import store_option

from rollcage_workflow.state import Execution

__all__ = ["commands_for"]

# The reasons come from a trace, which anyone may have written: nothing else becomes a command.
_SIGNAL: Final = re.compile(r"waits for the signal ([A-Za-z0-9_-]{1,64})")
_APPROVAL: Final = re.compile(r"\brollcage approve ([0-9a-z]+)\b")


def commands_for(found: Execution, store: Store) -> list[str]:
    """Return the commands for an execution's waits, in the order of its reasons."""
    if found.status != "waiting":
        return []
    at, name = store_option(store), shlex.quote(found.id)
    commands: list[str] = []
    for reason in found.waits.split("; "):
        if signal := _SIGNAL.fullmatch(reason):
            commands.append(f"rollcage workflow signal {name} {signal[1]} --data JSON{at}")
        elif asked := _APPROVAL.search(reason):
            commands.append(f"rollcage approve {asked[1]}{at}")
    return commands
