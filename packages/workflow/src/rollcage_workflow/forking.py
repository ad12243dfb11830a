"""A fork of an execution: its plan runs again, and the execution itself is left alone."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from rollcage import Fork, Store
from rollcage.session.adapters import where_given

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.state import Execution, as_of

__all__ = ["before_fork", "fork_of", "refuse_fork"]

_FORK: Final = "ROLLCAGE_FORK"


def fork_of(options: Mapping[str, Any]) -> Fork | None:
    """Return the fork that an attempt is to be, as it was given to its session.

    Raises:
        WorkflowError: its process was started as a fork, which executions can't be.
    """
    given = options.get("fork")
    if given is None and os.environ.get(_FORK):
        raise WorkflowError(
            f"an execution can't be forked by {_FORK}: give run(…) a fork= (rollcage.Fork)"
        )
    return given if given is None or isinstance(given, Fork) else Fork(*given)


async def before_fork(fork: Fork, id: str, store: Store) -> Execution:  # noqa: A002
    """Return the execution at the end of the run that a fork is one of, as one that goes on.

    Raises:
        StoreError: that run can't be read.
        TraceCorrupt: the file that it is in is no log.
        WorkflowError: it is none of the execution.
    """

    def look() -> Execution:
        source = where_given(fork.run, store)
        return as_of(source.store, source.run, id)

    found = await asyncio.to_thread(look)
    return dataclasses.replace(found, status="running", error=None, rolls_back=False)


def refuse_fork() -> None:
    """Refuse to serve if the process was started as a fork: a fork does what no command asks for.

    Raises:
        WorkflowError: it was.
    """
    if os.environ.get(_FORK):
        raise WorkflowError(f"a worker is no fork: unset {_FORK}")
