"""A fork of an execution: its plan runs again, and the execution itself is left alone."""

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
    """Return the fork that an attempt is to be.

    Raises:
        WorkflowError: its process was started as a fork, which executions can't be.
    """
    given: Stage | None = options.get("fork")
    if given is None and os.environ.get(_STAGE):
        raise WorkflowError(
            f"an execution can't be forked by {_STAGE}: give run(…) a fork= (rollcage_fork.Fork)"
        )
    return given


async def before_fork(fork: Stage, id: str, store: Store) -> Execution:  # noqa: A002
    """Return the execution at the end of the run that a fork is one of, as one that goes on.

    Raises:
        StoreError: that run can't be read.
        TraceCorrupt: the file that it is in is no log.
        WorkflowError: it is none of the execution.
    """
    assert fork.copies is not None
    run = fork.copies

    def look() -> Execution:
        source = where_given(run, store)
        return as_of(source.store, source.run, id)

    found = await asyncio.to_thread(look)
    return dataclasses.replace(found, status="running", error=None, rolls_back=False)


def refuse_fork() -> None:
    """Refuse to serve if the process was started as a fork: a fork does what no command asks for.

    Raises:
        WorkflowError: it was.
    """
    if os.environ.get(_STAGE):
        raise WorkflowError(f"a worker is no fork: unset {_STAGE}")
