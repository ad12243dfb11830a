"""What lets an execution go on that waits, as commands to copy."""

from __future__ import annotations

import re
import shlex
from typing import Final

from rollcage.store import Store, store_option

from rollcage_workflow.state import Execution

__all__ = ["commands_for"]

_SIGNAL: Final = re.compile(r"\bwaits for the signal ([^\s;]+)")
_APPROVAL: Final = re.compile(r"\brollcage approve ([^\s;]+)")


def commands_for(found: Execution, store: Store) -> list[str]:
    """The commands that bring what an execution waits for, in the order of its reasons."""
    if found.status != "waiting":
        return []
    at, name = store_option(store), shlex.quote(found.id)
    commands: list[str] = []
    for reason in found.waits.split("; "):
        if signal := _SIGNAL.search(reason):
            to = shlex.quote(signal[1])
            commands.append(f"rollcage workflow signal {name} {to} --data JSON{at}")
        elif asked := _APPROVAL.search(reason):
            commands.append(f"rollcage approve {asked[1]}{at}")
    return commands
