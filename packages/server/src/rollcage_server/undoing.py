"""An undo: planned by a worker with the tools, displayed, and carried out if the plan still holds.

The server has no tools. It writes commands, and reads the workers' results.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from rollcage import Store
from rollcage.errors import PlanChanged
from rollcage_workflow.orders import Commands, Result

from rollcage_server.access import Asking
from rollcage_server.errors import Conflict, NotFound
from rollcage_server.reading import check_run

__all__ = ["Confirming", "Planning", "answer", "confirm", "plan"]

_PATIENCE: Final = 5.0  # seconds to wait for a worker before the answer is "not yet"
_LOOK: Final = 0.1
_KEY: Final = re.compile(r"[0-9a-f]{32}\.(plan|undo)\.[0-9a-f]{32}")


class Planning(BaseModel):
    """The request for an undo's plan."""

    model_config = ConfigDict(extra="forbid")

    to: int | None = Field(None, ge=1, le=2**31 - 1, description="The last step that stays")
    wait: float = Field(_PATIENCE, ge=0, le=20, description="Seconds to wait for a worker")


class Confirming(BaseModel):
    """The confirmation of an undo."""

    model_config = ConfigDict(extra="forbid")

    plan: str = Field(max_length=128, description="The key of its plan")
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="Digest of the plan that was seen")
    wait: float = Field(_PATIENCE, ge=0, le=20, description="Seconds to wait for a worker")


def plan(asking: Asking, run: str, body: Planning) -> Mapping[str, Any]:
    """Have a worker plan an undo.

    Raises:
        RunNotFound: there is no such run.
        Conflict: no plan can be made.
    """
    commands = Commands(asking.store)
    key = commands.plan(check_run(run), by=asking.who.name, to=body.to)
    return _awaited(asking.store, run, key, body.wait)


def confirm(asking: Asking, run: str, body: Confirming) -> Mapping[str, Any]:
    """Have a worker carry out a plan, if it still holds; a second confirmation changes nothing.

    Raises:
        NotFound: there is no such plan of this run.
        PlanChanged: an undo would differ from the plan; names the differences, and earlier undos.
        Conflict: the undo was refused.
    """
    commands = Commands(asking.store)
    planned = _result(commands, check_run(run), body.plan)
    if planned is None or planned.outcome != "planned" or planned.data is None:
        raise NotFound("there is no such plan of this run; ask for one")
    if planned.data["digest"] != body.digest:
        raise PlanChanged("the plan has changed since you saw it; look at it again")
    key = commands.undo(
        run,
        by=asking.who.name,
        to=planned.command.to,
        plan_digest=body.digest,
        once=body.plan.rpartition(".")[2],
    )
    return _awaited(asking.store, run, key, body.wait)


def answer(store: Store, run: str, key: str) -> Mapping[str, Any]:
    """Return the state of a command: its plan or result, or that no worker has taken it yet.

    Raises:
        NotFound: there is no such command of this run.
    """
    commands = Commands(store)
    result = _result(commands, check_run(run), key)
    if result is None:
        return {"run": run, "command": key, "outcome": "waiting", "detail": "", "data": None}
    data = dataclasses.asdict(result)
    kept = {name: data[name] for name in ("outcome", "detail", "worker", "time", "data")}
    return {"run": run, "command": key} | kept


def _awaited(store: Store, run: str, key: str, wait: float) -> Mapping[str, Any]:
    until = time.monotonic() + wait
    answered = answer(store, run, key)
    while answered["outcome"] == "waiting" and time.monotonic() < until:
        time.sleep(_LOOK)
        answered = answer(store, run, key)
    if answered["outcome"] == "changed":
        raise PlanChanged(answered["detail"])
    if answered["outcome"] == "refused":
        raise Conflict(f"the worker {answered['worker']} refused: {answered['detail']}")
    return answered


def _result(commands: Commands, run: str, key: str) -> Result | None:
    """Return the result of a command about this run.

    Raises:
        NotFound: the key is of another run.
    """
    if _KEY.fullmatch(key) is None:
        raise NotFound("there is no such command of this run")
    asked = commands.get(key)  # first: a worker writes the result, and then removes the command
    result = commands.result(key)
    known = asked if result is None else result.command
    if known is None or known.run != run or known.do not in ("plan", "undo"):
        raise NotFound("there is no such command of this run")
    return result
