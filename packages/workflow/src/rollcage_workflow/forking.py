"""Forks of an execution: its plan runs again, and the execution itself is unchanged."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from rollcage import Stage, Store
from rollcage.session.adapters import where_given

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.state import Execution, as_of

__all__ = ["before_fork", "fork_of", "refuse_fork"]

_STAGE: Final = "ROLLCAGE_STAGE"


def fork_of(options: Mapping[str, Any]) -> Stage | None:
    """Return the fork of an attempt.

    Raises:
        WorkflowError: the process was started as a fork, which executions can't be.
    """
    given: Stage | None = options.get("fork")
    if given is None and os.environ.get(_STAGE):
        raise WorkflowError(
            f"an execution can't be forked by {_STAGE}: give run(…) a fork= (rollcage_fork.Fork)"
        )
    return given


async def before_fork(fork: Stage, id: str, store: Store) -> Execution:  # noqa: A002
    """Return the execution at the end of a fork's original run, as one that continues.

    Raises:
        StoreError: the run can't be read.
        TraceCorrupt: the file of the run is not a log.
        WorkflowError: the run is not of this execution.
    """
    assert fork.copies is not None
    run = fork.copies

    def look() -> Execution:
        source = where_given(run, store)
        return as_of(source.store, source.run, id)

    found = await asyncio.to_thread(look)
    return dataclasses.replace(found, status="running", error=None, rolls_back=False)


def refuse_fork() -> None:
    """Refuse to serve if the process was started as a fork: a fork carries out no command.

    Raises:
        WorkflowError: the process was started as a fork.
    """
    if os.environ.get(_STAGE):
        raise WorkflowError(f"a worker can't be a fork: unset {_STAGE}")
