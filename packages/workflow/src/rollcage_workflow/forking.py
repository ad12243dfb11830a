"""A fork of an execution: its plan runs again, and the execution itself is left alone."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from rollcage import Fork, Session
from rollcage.store import Store, open_store

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.state import Execution, as_of

__all__ = ["before_fork", "fork_of", "refuse_fork"]

_FORK: Final = "ROLLCAGE_FORK"


def fork_of(id: str, store: Store, options: Mapping[str, Any]) -> Fork | None:  # noqa: A002
    """The fork that an attempt is to be: as given to its session, or to its process."""
    if options.get("fork") is None and not os.environ.get(_FORK):
        return None
    return Session(id, store=store, fork=options.get("fork")).fork


async def before_fork(fork: Fork, id: str, store: Store) -> Execution:  # noqa: A002
    """The execution at the end of the run that a fork is one of, as one that goes on.

    Raises:
        StoreError: that run can't be read.
        WorkflowError: it is none of the execution.
    """
    where, run = fork.run if isinstance(fork.run, tuple) else (store, os.fspath(fork.run))
    found = await asyncio.to_thread(lambda: as_of(open_store(where), run, id))
    return dataclasses.replace(found, status="running", error=None, rolls_back=False)


def refuse_fork() -> None:
    """Refuse to serve if the process was started as a fork: a fork does what no command asks for.

    Raises:
        WorkflowError: it was.
    """
    if os.environ.get(_FORK):
        raise WorkflowError(
            f"a worker is no fork: run the execution itself (rollcage fork @ID … -- python "
            f"my_plan.py), or unset {_FORK}"
        )
