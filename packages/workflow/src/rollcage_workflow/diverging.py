"""The ways out of a divergence, as an execution takes them."""

from __future__ import annotations

import shlex

from rollcage import Diverged, Store
from rollcage.trace.store import store_option

__all__ = ["name_ways_out"]


def name_ways_out(error: BaseException | None, id: str, store: Store) -> None:  # noqa: A002
    """Name, in a session's error, what `run` and the command line take for an execution.

    The error is changed, not replaced: its session puts it on record.

    Args:
        error: the error; nothing but a divergence is changed.
        id: the id of the execution.
        store: the store of its runs.
    """
    if not isinstance(error, Diverged) or not error.ways or not error.orphans:
        return
    at, run = store_option(store), error.orphans[0][0]
    ways = (
        f"Put the plan back; take them back with on_divergence='undo', or with: rollcage workflow "
        f"run PLAN {shlex.quote(id)} --on-divergence undo{at}; undo all of it with: rollcage undo "
        f"{run}{at}; or let what they did stand, and go on, with on_divergence='warn', or "
        f"--on-divergence warn. To see them: rollcage show {run}{at}; if this is another "
        f"execution, give it another id"
    )
    error.args = (str(error).replace(error.ways, ways),)
    error.ways = ways
