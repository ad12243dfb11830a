"""Commands: what people and programs ask workers to do, as documents in the store.

A command is open until what it asks for is in the store; then its result takes its place. Nothing
else knows of it: an engine's database gets the open commands, and can be lost. What a command
does is fenced by the lock of the run that it is about, so that two workers may take the same one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson
from rollcage import Store, run_info
from rollcage.trace.store import drop, every_key

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.expressions import is_finite
from rollcage_workflow.holds import Holds, prefix_of
from rollcage_workflow.sealing import opened, sealed
from rollcage_workflow.state import Execution, execution

__all__ = ["Command", "Commands", "Do", "Result"]

Do = Literal["start", "wake", "cancel", "plan", "undo"]
"""What is asked for.

`start` an execution; `wake` one: another attempt at it; `cancel`: undo what a cancelled one did;
`plan` the undo of a run, and `undo` it.
"""
_OPEN: Final = "commands"
_RESULTS: Final = "results"
_MOST_BYTES: Final = 4_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One thing that is asked for.

    Attributes:
        key: by which it is known.
        do: see `Do`.
        execution: which one, by its id; of `undo`, the name of the run's job.
        plan: of a start, the plan's name.
        by: who asks for it; empty where a worker does so itself.
        time: when it was asked for (Unix, µs).
        reason: why.
        token: distinguishes two that have one key.
        at: not before then (Unix, seconds), unless an approval comes; 0: at once.
        inputs: of a start.
        digest: of a start, the plan that is meant; empty: the one that the worker has.
        start: of a start, the step that it starts at; empty: the first.
        given: of a start, the results of the steps before that.
        again: an execution that failed is run once more.
        approvals: not before one of these requests is decided, unless its time comes.
        attempts: where an execution is run once more, how many attempts there had been.
        run: of an undo or its plan, the run.
        to: of an undo or its plan, the last step that stays.
        plan_digest: of an undo, the plan that somebody has seen; another one is not carried out.
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
    """What became of a command.

    Attributes:
        command: it; without its inputs and given results, which are in the trace.
        outcome: one word: the execution's status, `planned`, `undone`, `incomplete`, `changed`
            if an undo would not do what was planned, or `refused`.
        detail: what there is to say of that.
        worker: who did it.
        time: when (Unix, µs).
        data: of an undo or its plan, that of it: as `rollcage undo --json` prints it.
    """

    command: Command
    outcome: str
    detail: str
    worker: str
    time: int
    data: Mapping[str, Any] | None = None


class Commands:
    """The commands in a store: for who gives them, and for the workers that take them.

    Args:
        store: where the runs are kept.
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
        """Have an execution started; False if one of this id was before: that one counts.

        Args:
            plan: the name of a plan that workers have.
            inputs: by name. They lie in the store as they are until the first attempt has begun:
                give no secrets.
            id: of the execution.
            by: in whose name; they can't approve what it asks for.
            at: not before then (Unix, seconds).
            digest: of the plan, where no other plan of that name will do.
            start: the step to start at. The worker refuses it where the plan has none of this name.
            given: by name, the results of the steps before that.

        Raises:
            WorkflowError: the inputs or the given results are no JSON, or too long.
            StoreError: it can't be kept.
        """
        what = {"inputs": _plain(inputs or {}), "start": start, "given": _plain(given or {})}
        key = f"{prefix_of(id)}.start"
        if self.result(key) is not None or execution(self.store, id).plan:
            return False
        command = _new(key, "start", id, plan=plan, by=by, at=at, digest=digest, **what)
        if not self._put(command):
            return False
        known = self.result(key)  # by a worker that has just done with another one
        return known is None or known.command.token == command.token

    def wake(self, id: str, *, by: str = "", again: int = 0) -> str:  # noqa: A002
        """Have another attempt made at an execution; the key of the command.

        Args:
            id: of the execution.
            by: in whose name.
            again: of one that failed, the number of the attempt after which it is run once more.

        Raises:
            StoreError: it can't be kept.
        """
        key = f"{prefix_of(id)}.wake.{uuid.uuid4().hex}"
        self._put(_new(key, "wake", id, by=by, again=bool(again), attempts=again))
        return key

    def wake_when(self, id: str, at: float, approvals: tuple[str, ...]) -> str:  # noqa: A002
        """Have one made when a time comes, or somebody decides; the same command for the same.

        Raises:
            StoreError: it can't be kept.
        """
        what = hashlib.sha256(orjson.dumps([at, sorted(approvals)])).hexdigest()[:32]
        key = f"{prefix_of(id)}.when.{what}"
        self._put(_new(key, "wake", id, at=at, approvals=approvals))
        return key

    def pause(self, id: str, *, by: str, reason: str = "") -> Execution:  # noqa: A002
        """Let no step of an execution begin until `resume`; what is in flight ends.

        This needs no worker. One that is over stays as it is.

        Raises:
            WorkflowError: nobody has started it, or it is over.
            StoreError: the order can't be given.
        """
        found = self._known(id)
        holds = Holds(self.store, id)
        holds.put("paused", by=by, reason=reason)
        return self._held(found, holds)

    def resume(self, id: str, *, by: str, again: bool = False) -> str:  # noqa: A002
        """End an execution's pause, if it is paused, and have the next attempt made.

        Args:
            id: of the execution.
            by: in whose name.
            again: run one that failed once more.

        Returns:
            The key of the command.

        Raises:
            WorkflowError: nobody has started it, or it is over.
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
        """Let no further step of an execution begin, ever; with `rollback`, have it undone.

        The first needs no worker, the second does. One that ends before that stays completed.

        Raises:
            WorkflowError: nobody has started it, or it is over.
            StoreError: the order can't be given.
        """
        found = self._known(id, rollback=rollback)
        holds = Holds(self.store, id)
        holds.put("cancelled", by=by, reason=reason, rollback=rollback)
        now = self._held(found, holds)
        if rollback and now.run:
            key = f"{prefix_of(id)}.cancel.{uuid.uuid4().hex}"
            self._put(_new(key, "cancel", id, by=by, reason=reason))
        return now

    def plan(self, run: str, *, by: str, to: int | None = None) -> str:
        """Have a worker that has a run's tools say what its undo would do; the key of the command.

        Raises:
            RunNotFound: there is no such run.
            StoreError: it can't be kept.
        """
        info = run_info(self.store, run)
        key = f"{prefix_of(run)}.plan.{uuid.uuid4().hex}"
        self._put(_new(key, "plan", info.name, by=by, run=run, to=to))
        return key

    def undo(
        self, run: str, *, by: str, to: int | None = None, plan_digest: str = "", once: str = ""
    ) -> str:
        """Have a run undone by a worker that has its tools; the key of the command.

        Args:
            run: its id.
            by: in whose name.
            to: the last step that stays; None: none does.
            plan_digest: of the plan that somebody has seen (see `rollcage.UndoPlan.digest`):
                where the undo would do something else by then, nothing is done.
            once: names this asking: who asks twice with the same one asks once.

        Raises:
            RunNotFound: there is no such run.
            StoreError: it can't be kept.
        """
        info = run_info(self.store, run)
        key = f"{prefix_of(run)}.undo.{once or uuid.uuid4().hex}"
        if self.result(key) is None:
            given = {"run": run, "to": to, "plan_digest": plan_digest}
            self._put(_new(key, "undo", info.name, by=by, **given))
        return key

    # --- taking them -----------------------------------------------------------------------------

    def open_keys(self) -> list[str]:
        """The keys of all that are open; what that costs does not grow with those that are not."""
        return [*every_key(self.store, _OPEN)]

    def get(self, key: str) -> Command | None:
        """An open command; None where it is done.

        Raises:
            CommandCorrupt: it is not as it was given.
        """
        data = self.store.get(_OPEN, key)
        return None if data is None else _command(opened(self.store, key, data))

    def result(self, key: str) -> Result | None:
        """What became of a command; None where it is open, or nobody has given it by name.

        Raises:
            CommandCorrupt: it is not as it was written.
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
        """A command's effect is in the store: the first to say so writes its result."""
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
        """Take a command away that nobody can read."""
        drop(self.store, _OPEN, key)

    def started(self, id: str) -> Command | None:  # noqa: A002
        """By what an execution was started; None where no command did that."""
        key = f"{prefix_of(id)}.start"
        known = self.result(key)
        return self.get(key) if known is None else known.command

    # --- inside ----------------------------------------------------------------------------------

    def _known(self, id: str, *, again: bool = False, rollback: bool = False) -> Execution:  # noqa: A002
        found = execution(self.store, id)
        if not found.plan and self.started(id) is None:
            raise WorkflowError(f"there is no execution {id!r}; see: rollcage workflow list")
        if found.is_over and not (again and found.error):
            if rollback and found.status == "cancelled":
                return found
            more = "; to run it once more: resume --again" if found.error else ""
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
    """Inputs or results that are JSON as they are: nothing else is written down unasked."""
    for name, each in inputs.items():
        try:
            orjson.dumps({name: each})
        except TypeError as error:
            raise WorkflowError(f"{name!r} is no JSON: {error}") from None
        if not is_finite(each):
            raise WorkflowError(f"{name!r} is no JSON: NaN and infinity are none")
    return dict(inputs)
