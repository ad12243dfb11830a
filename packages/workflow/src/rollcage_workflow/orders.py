"""Commands: requests of people and programs to workers, as documents in the store.

A command is open until its effect is in the store; then its result takes its place. Commands are
only in the store: an engine's database gets the open commands, and can be lost. The effect of a
command is fenced by the lock of its run, so that two workers may take the same one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson
from rollcage import Store, run_info
from rollcage.trace.store import drop, every_key, store_option

from rollcage_workflow.approvals import close
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.expressions import is_finite
from rollcage_workflow.holds import Holds, prefix_of
from rollcage_workflow.sealing import opened, sealed
from rollcage_workflow.state import Execution, execution

__all__ = ["Command", "Commands", "Do", "Result"]

Do = Literal["start", "wake", "cancel", "plan", "undo"]
"""The action of a command.

`start` an execution; `wake` one: another attempt at it; `cancel`: undo a cancelled one; `plan` the
undo of a run, and `undo` it.
"""
_OPEN: Final = "commands"
_RESULTS: Final = "results"
_MOST_BYTES: Final = 4_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        key: its key.
        do: see `Do`.
        execution: the execution's id; for `undo`, the name of the run's job.
        plan: for a start, the plan's name.
        by: the name of the person; empty for a worker's own command.
        time: when it was given (Unix, µs).
        reason: why.
        token: distinguishes two commands with the same key.
        at: not before this time (Unix, seconds), unless an approval comes; 0: at once.
        inputs: for a start, the inputs.
        digest: for a start, the digest of the plan; empty: the worker's plan.
        start: for a start, the step to start at; empty: the first.
        given: for a start, the results of the steps before that.
        again: whether a failed execution is run once more.
        approvals: not before one of these requests is decided, unless its time comes.
        attempts: if an execution is run once more, the number of earlier attempts.
        run: for an undo or its plan, the run.
        to: for an undo or its plan, the last step that stays.
        plan_digest: for an undo, the confirmed plan; another plan is not carried out.
    """

    key: str
    do: Do
    execution: str
    plan: str = ""
    by: str = ""
    time: int = 0
    reason: str = ""
    token: str = ""
    at: float = 0.0
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    digest: str = ""
    start: str = ""
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    again: bool = False
    approvals: tuple[str, ...] = ()
    attempts: int = 0
    run: str = ""
    to: int | None = None
    plan_digest: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of a command.

    Attributes:
        command: the command, without its inputs and given results, which are in the trace.
        outcome: one word: the execution's status, `planned`, `undone`, `incomplete`, `changed`
            if an undo would differ from the plan, or `refused`.
        detail: an explanation.
        worker: the worker's name.
        time: when (Unix, µs).
        data: for an undo or its plan, its data: as `rollcage undo --json` prints it.
    """

    command: Command
    outcome: str
    detail: str
    worker: str
    time: int
    data: Mapping[str, Any] | None = None


class Commands:
    """The commands in a store: for their senders, and for the workers that take them.

    Args:
        store: the store of the runs.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- giving them -----------------------------------------------------------------------------

    def start(
        self,
        plan: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        id: str,  # noqa: A002 - what it is called everywhere
        by: str,
        at: float = 0.0,
        digest: str = "",
        start: str = "",
        given: Mapping[str, Any] | None = None,
    ) -> bool:
        """Have an execution started; return False if its id exists: the first start counts.

        Args:
            plan: the name of a plan that workers have.
            inputs: by name. They lie in the store in plain text until the first attempt has begun:
                pass no secrets.
            id: the id of the execution.
            by: the person for whom it runs, who can't approve its requests.
            at: not before this time (Unix, seconds).
            digest: the plan's digest, if no other plan of that name will do.
            start: the step to start at. The worker refuses it if the plan has no step of this name.
            given: by name, the results of the steps before that.

        Raises:
            WorkflowError: the inputs or the given results are not JSON, or too long.
            StoreError: the command can't be stored.
        """
        what = {"inputs": _plain(inputs or {}), "start": start, "given": _plain(given or {})}
        key = f"{prefix_of(id)}.start"
        if self.result(key) is not None or execution(self.store, id).plan:
            return False
        command = _new(key, "start", id, plan=plan, by=by, at=at, digest=digest, **what)
        if not self._put(command):
            return False
        known = self.result(key)  # by a worker that has just finished another one
        return known is None or known.command.token == command.token

    def wake(self, id: str, *, by: str = "", again: int = 0) -> str:  # noqa: A002
        """Have another attempt made at an execution; return the key of the command.

        Args:
            id: the id of the execution.
            by: the name of the person.
            again: for a failed execution, the number of the attempt after which it is run once
                more.

        Raises:
            StoreError: the command can't be stored.
        """
        key = f"{prefix_of(id)}.wake.{uuid.uuid4().hex}"
        self._put(_new(key, "wake", id, by=by, again=bool(again), attempts=again))
        return key

    def wake_when(self, id: str, at: float, approvals: tuple[str, ...]) -> str:  # noqa: A002
        """Have an attempt made at a time, or after a decision; equal requests share a command.

        Raises:
            StoreError: the command can't be stored.
        """
        what = hashlib.sha256(orjson.dumps([at, sorted(approvals)])).hexdigest()[:32]
        key = f"{prefix_of(id)}.when.{what}"
        self._put(_new(key, "wake", id, at=at, approvals=approvals))
        return key

    def pause(self, id: str, *, by: str, reason: str = "") -> Execution:  # noqa: A002
        """Let no step of an execution begin until `resume`; steps in flight end.

        This needs no worker. A finished execution is not changed.

        Raises:
            WorkflowError: the execution was not started, or is over.
            StoreError: the order can't be given.
        """
        found = self._known(id)
        holds = Holds(self.store, id)
        holds.put("paused", by=by, reason=reason)
        return self._held(found, holds)

    def resume(self, id: str, *, by: str, again: bool = False) -> str:  # noqa: A002
        """End an execution's pause, if it is paused, and have the next attempt made.

        Args:
            id: the id of the execution.
            by: the name of the person.
            again: whether to run a failed execution once more.

        Returns:
            The key of the command.

        Raises:
            WorkflowError: the execution was not started, or is over.
            StoreError: the order can't be given.
        """
        found = self._known(id, again=again)
        holds = Holds(self.store, id)
        holds.lift()
        holds.let_go(found.run)
        return self.wake(id, by=by, again=found.attempts if again else 0)

    def cancel(
        self,
        id: str,  # noqa: A002
        *,
        by: str,
        reason: str = "",
        rollback: bool = False,
    ) -> Execution:
        """Let no further step of an execution begin, permanently; with `rollback`, undo it.

        Only the rollback needs a worker. An execution that ends first stays completed.

        Raises:
            WorkflowError: the execution was not started, or is over.
            StoreError: the order can't be given.
        """
        found = self._known(id, rollback=rollback)
        holds = Holds(self.store, id)
        holds.put("cancelled", by=by, reason=reason, rollback=rollback)
        now = self._held(found, holds)
        close(self.store, id)
        if rollback and now.run:
            key = f"{prefix_of(id)}.cancel.{uuid.uuid4().hex}"
            self._put(_new(key, "cancel", id, by=by, reason=reason))
        return now

    def plan(self, run: str, *, by: str, to: int | None = None) -> str:
        """Have a worker with a run's tools plan its undo; return the key of the command.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the command can't be stored.
        """
        info = run_info(self.store, run)
        key = f"{prefix_of(run)}.plan.{uuid.uuid4().hex}"
        self._put(_new(key, "plan", info.name, by=by, run=run, to=to))
        return key

    def undo(
        self, run: str, *, by: str, to: int | None = None, plan_digest: str = "", once: str = ""
    ) -> str:
        """Have a run undone by a worker with its tools; return the key of the command.

        Args:
            run: its id.
            by: the name of the person.
            to: the last step that stays; None: none does.
            plan_digest: the digest of the confirmed plan (see `rollcage.UndoPlan.digest`):
                if the undo would differ from it, nothing is done.
            once: names the request: repeated with the same name, it counts once.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the command can't be stored.
        """
        info = run_info(self.store, run)
        key = f"{prefix_of(run)}.undo.{once or uuid.uuid4().hex}"
        if self.result(key) is None:
            given = {"run": run, "to": to, "plan_digest": plan_digest}
            self._put(_new(key, "undo", info.name, by=by, **given))
        return key

    # --- taking them -----------------------------------------------------------------------------

    def open_keys(self) -> list[str]:
        """Return the keys of all open commands; the cost does not grow with the finished ones."""
        return [*every_key(self.store, _OPEN)]

    def get(self, key: str) -> Command | None:
        """Return an open command; None if it is done.

        Raises:
            CommandCorrupt: the command was changed.
        """
        data = self.store.get(_OPEN, key)
        return None if data is None else _command(opened(self.store, key, data))

    def result(self, key: str) -> Result | None:
        """Return the result of a command; None if it is open or unknown.

        Raises:
            CommandCorrupt: the result was changed.
        """
        data = self.store.get(_RESULTS, key)
        if data is None:
            return None
        fields = opened(self.store, key, data)
        outcome, detail, worker = (str(fields[name]) for name in ("outcome", "detail", "worker"))
        at, made = int(fields["time"]), fields.get("data")
        return Result(_command(fields["command"]), outcome, detail, worker, at, made)

    def done(
        self,
        command: Command,
        outcome: str,
        detail: str = "",
        *,
        worker: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the result of a command whose effect is in the store; the first result counts."""
        if command.by:
            kept = dataclasses.asdict(command) | {"inputs": {}, "given": {}}
            fields: dict[str, Any] = {
                "command": kept,
                "outcome": outcome,
                "detail": detail[:10_000],
            }
            fields |= {"worker": worker, "time": time.time_ns() // 1000}
            fields |= {} if data is None else {"data": data}
            self.store.swap(_RESULTS, command.key, None, sealed(self.store, command.key, fields))
        drop(self.store, _OPEN, command.key)

    def drop(self, key: str) -> None:
        """Remove an unreadable command."""
        drop(self.store, _OPEN, key)

    def started(self, id: str) -> Command | None:  # noqa: A002
        """Return the command that started an execution; None if no command did."""
        key = f"{prefix_of(id)}.start"
        known = self.result(key)
        return self.get(key) if known is None else known.command

    # --- inside ----------------------------------------------------------------------------------

    def _known(self, id: str, *, again: bool = False, rollback: bool = False) -> Execution:  # noqa: A002
        found = execution(self.store, id)
        at = store_option(self.store)
        if not found.plan and self.started(id) is None:
            raise WorkflowError(f"there is no execution {id!r}; see: rollcage workflow list{at}")
        if found.is_over and not (again and found.error):
            if rollback and found.status == "cancelled":
                return found
            again_ = f"rollcage workflow resume {shlex.quote(id)} --again{at}"
            more = f". To run it once more: again=True; or: {again_}" if found.error else ""
            raise WorkflowError(f"the execution {id!r} is over: it is {found.status}{more}")
        return found

    def _held(self, found: Execution, holds: Holds) -> Execution:
        hold = holds.read()
        if hold is not None:
            holds.stop(execution(self.store, found.id).run, hold)
        return execution(self.store, found.id)

    def _put(self, command: Command) -> bool:
        data = sealed(self.store, command.key, dataclasses.asdict(command))
        if len(data) > _MOST_BYTES:
            raise WorkflowError(f"{command.execution!r}: the inputs have over {_MOST_BYTES} bytes")
        return self.store.swap(_OPEN, command.key, None, data)


def _new(key: str, do: Do, execution: str, **fields: Any) -> Command:
    now = time.time_ns() // 1000
    return Command(key, do, execution, time=now, token=uuid.uuid4().hex, **fields)


def _command(fields: Mapping[str, Any]) -> Command:
    return Command(**{**fields, "approvals": tuple(fields["approvals"])})


def _plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs or results that are plain JSON: other values are not stored unasked."""
    for name, each in inputs.items():
        try:
            orjson.dumps({name: each})
        except TypeError as error:
            raise WorkflowError(f"{name!r} is not JSON: {error}") from None
        if not is_finite(each):
            raise WorkflowError(f"{name!r} is not JSON: NaN and infinity are not allowed")
    return dict(inputs)
