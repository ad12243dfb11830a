"""The state of an execution, derived from its log, without a second copy."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import orjson
from rollcage import RollcageError, Store, TraceCorrupt, all_runs, newest_run, order_of
from rollcage.trace import decode, jcs
from rollcage.trace.store import store_option

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.holds import Hold, Holds, job_name
from rollcage_workflow.records import APPROVAL, ENDED, INPUT, PLAN
from rollcage_workflow.step_states import StepState, is_undone, step_states

__all__ = ["Execution", "Status", "StepState", "as_of", "execution", "executions"]

Status = Literal[
    "pending", "running", "waiting", "paused", "completed", "failed", "cancelled", "rolled_back",
    "halted", "interrupted",
]  # fmt: skip
"""The state of an execution.

`pending`: no attempt has begun; `running`: an attempt is running; `waiting`: for a signal, a time
or an approval; `paused`: by a person; `completed`; `failed`; `cancelled`: by a person;
`rolled_back`: all its effects were undone; `halted`: a person has to decide first; `interrupted`:
its last attempt was cut off, and the next one continues.
"""
_NOT_HELD: Final = ("running", "completed", "failed", "rolled_back")
OVER: Final = frozenset({"completed", "failed", "cancelled", "rolled_back"})
"""The states in which no attempt follows by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """An execution of a plan.

    Attributes:
        id: its id.
        status: see `Status`.
        plan: the plan's name; empty if no attempt has begun.
        digest: the digest of the newest attempt's plan.
        inputs: its inputs.
        sealed: the names of the inputs that hold a secret: their values are not on record.
        digests: by input, its digest under the store's key, to recognise a different one.
        rows: by block of the plan, whether its steps are calls one after the other.
        start: the step that it started at; empty for the first.
        given: the results of the steps before that.
        signals: by name of a signal, what its waits accept: a JSON Schema each; None if that is not
            known.
        answered: the requests for approval that were answered before it failed last.
        output: the output of a completed one.
        error: the error of a failed one: `step`, `type` and `message`.
        rolls_back: whether a failed one is to be undone.
        waits: its waits, why it halted, or who paused or cancelled it.
        run: its run; empty if there is none.
        attempts: how many there were.
        began: when the first attempt began (Unix, µs).
        ended: when the newest attempt last wrote a line (Unix, µs).
    """

    id: str
    status: Status = "pending"
    plan: str = ""
    digest: str = ""
    inputs: Any = None
    sealed: tuple[str, ...] = ()
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    rows: Mapping[str, bool] = dataclasses.field(default_factory=dict[str, bool])
    start: str = ""
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    signals: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    answered: tuple[str, ...] = ()
    output: Any = None
    error: Any = None
    rolls_back: bool = False
    waits: str = ""
    run: str = ""
    attempts: int = 0
    began: int | None = None
    ended: int | None = None
    _steps: Callable[[], tuple[StepState, ...]] = dataclasses.field(
        default=tuple["StepState", ...], repr=False, compare=False
    )

    @property
    def steps(self) -> tuple[StepState, ...]:
        """The states of its steps, in the order in which they began; read on demand.

        Raises:
            StoreError: the run can't be read.
        """
        return self._steps()

    @property
    def is_over(self) -> bool:
        """Whether no attempt follows by itself."""
        return self.status in OVER


def execution(store: Store, id: str) -> Execution:  # noqa: A002 - what it is called everywhere
    """Return the state of an execution.

    Raises:
        StoreError: its run can't be read.
    """
    hold = Holds(store, id).read()
    info = newest_run(store, id, INPUT)
    # The lock is checked before the log is read, or an end in between would be missed.
    is_live = info is not None and info.status is None and store.is_live(info.run)
    outline = None if info is None else _Outline(store.read(info.run), info.run)
    if outline is None or not (outline.plan or is_live):
        return Execution(id) if hold is None else Execution(id, hold.kind, waits=str(hold))
    return _state_of(store, outline, hold, is_live=is_live)


def as_of(store: Store, run: str, id: str) -> Execution:  # noqa: A002
    """Return the state of an execution by one run: its own, or a fork of it.

    Raises:
        StoreError: the run can't be read.
        WorkflowError: the run is not of this execution.
    """
    is_live = store.is_live(run)
    found = _Outline(store.read(run), run)
    if job_name(found.name) != job_name(id) or not found.plan:
        raise WorkflowError(f"run {run} is not an attempt at the execution {id!r}")
    return _state_of(store, found, None, is_live=is_live)


def executions(store: Store, *, limit: int | None = None) -> list[Execution]:
    """Return the executions in the store, the newest at the end.

    Args:
        store: the store of their runs.
        limit: only the newest ones; older ones then cost nothing.
    """
    seen: set[str] = set()
    found: list[Execution] = []
    for info in all_runs(store):
        if info.given != INPUT or info.fork or info.name in seen:
            continue
        seen.add(info.name)
        each = _readable(store, info.name)
        found += [each] if each.plan else []
        if len(found) == limit:
            break
    return found[::-1]


def _readable(store: Store, name: str) -> Execution:
    """Return an execution; if its log can't be read, one with the error."""
    try:
        return execution(store, name)
    except RollcageError as error:
        return Execution(name, status="halted", plan="?", waits=str(error))


# --- reading --------------------------------------------------------------------------------------

_OF_CALLS: Final = (b'{"event":"step",', b'{"event":"outcome",')  # the beginning of most lines
_OWN: Final = tuple(f'"name":"{each.name}"'.encode() for each in (PLAN, ENDED, APPROVAL))
_SECRET: Final = re.compile(r'<secret [0-9a-f]{32}>|"\$rollcage":"(?:secret|redacted)"')


class _Outline:
    """The lines of a log about an execution as a whole, without its steps.

    The chain of the lines is not checked: the next attempt does so, and `rollcage verify`.

    Attributes:
        run: the run's id.
        name: the name of its job: the execution's id.
        plan: the newest record of the plan; empty without one.
        end: that attempt's record of its end; empty without one.
        over: the line that ended an attempt after that; None: it was cut off, or is live.
        attempts: how many attempts at the plan there were.
        answered: see `Execution`.
        to: the step to which the run was undone after the end; 0: all of it; None: it was not.
        began: the time of the first line (Unix, µs).
        last: the time of the last line that has one.

    Raises:
        TraceCorrupt: one of these lines is damaged.
    """

    def __init__(self, lines: Sequence[bytes], run: str) -> None:
        self.run, self.name = run, ""
        self.plan: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.over: dict[str, Any] | None = None
        self.attempts = self.began = self.last = 0
        self.to: int | None = None
        self.answered: tuple[str, ...] = ()
        self._asked: set[str] = set()
        self._undo: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        for number, line in self._about_the_whole(lines):
            try:
                self._take(orjson.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                message = f"not an event of this format: {error!r}"
                raise TraceCorrupt(f"run {run}", number, message) from None

    @staticmethod
    def _about_the_whole(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(lines, 1):
            if not line.startswith(_OF_CALLS) or any(line.find(own, 0, 200) >= 0 for own in _OWN):
                yield number, line

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        self.last = max(self.last, event.get("time", 0))
        if kind == "run":
            self.name, self.began = event["name"], event["time"]
        elif kind == "forked":
            self.run, self.over = event["run"], None
        elif kind == "attempt":
            self._before, self._undo = self.over, None
            self.attempts, self.over = self.attempts + 1, None
        elif kind == "step":
            self._take_step(event)
        elif kind in ("undoing", "undone") and event["why"] == "undo":
            if self._undo is None:  # not an attempt at the plan
                self.attempts, self.over = self.attempts - 1, self._before
            self._undo = event
            if kind == "undone" and not {"branch", "within"} & event.keys():
                self.to = event.get("to", 0)
        elif kind == "ended" and self._undo is None:
            self.over = event

    def _take_step(self, event: dict[str, Any]) -> None:
        if event["name"] == APPROVAL.name:
            self._asked.add(event["args"]["approval"])
        elif event["branch"]:
            return
        elif event["name"] == PLAN.name:
            if self._undo is not None:  # it finished a begun undo, and then went on
                self.attempts, self.over, self._undo = self.attempts + 1, None, None
            self.plan, self.end, self.to = event["args"], {}, None
        elif event["name"] == ENDED.name:
            self.end = event["args"]
            self.answered = tuple(sorted(self._asked))

    @property
    def status(self) -> str:
        """The status of the newest attempt; empty if it has not ended."""
        return "" if self.over is None else str(self.over["status"])


def _state_of(store: Store, found: _Outline, hold: Hold | None, *, is_live: bool) -> Execution:
    """Return the state of an execution by its run, and by its hold."""
    plan, end = decode(found.plan), decode(found.end)
    undone = found.to is not None and _is_all_undone(store, found.run)
    if not undone and found.to:
        end = {}
    status = "running" if is_live and not found.over else _status(store, found, end, undone=undone)
    if hold is not None and status not in _NOT_HELD:
        status = "rolled_back" if hold.kind == "cancelled" and undone else hold.kind
    else:
        hold = None
    return Execution(
        found.name,
        status=status,
        plan=str(plan.get("name", "")),
        digest=str(plan.get("digest", "")),
        inputs=plan.get("inputs"),
        sealed=(*_sealed(found.plan.get("inputs")), *_sealed(found.plan.get("given"))),
        digests=plan.get("digests") or {},
        rows=plan.get("rows") or {},
        start=str(plan.get("start", "")),
        given=plan.get("given") or {},
        signals=plan.get("signals"),
        answered=found.answered,
        output=end.get("output"),
        error=end.get("error"),
        rolls_back=bool(end.get("rollback")),
        waits=_waits(store, found, undone=undone) if hold is None else str(hold),
        run=found.run,
        attempts=found.attempts,
        began=found.began,
        ended=found.last,
        _steps=functools.cache(functools.partial(_steps_of, store, found.run)),
    )


def _status(store: Store, found: _Outline, end: dict[str, Any], *, undone: bool) -> Status:
    if found.to is not None and not undone and found.status == "ok":
        return "halted"
    if end.get("status") == "completed" and found.status == "ok":
        return "rolled_back" if undone else "completed"
    if end.get("status") == "failed":
        return "rolled_back" if end.get("rollback") and undone else "failed"
    if found.status == "paused":
        return "waiting"
    order = order_of(store, found.run)
    if order is not None and order.kind == "stop":  # in a pause, an attempt is made: its calls wait
        return "paused"
    return "halted" if found.status in ("halted", "partial") else "interrupted"


def _waits(store: Store, found: _Outline, *, undone: bool) -> str:
    order = order_of(store, found.run) if found.status != "ok" else None
    if order is not None and order.kind == "pause":
        by, reason = f" by {order.by}" if order.by else "", f": {order.reason}" * bool(order.reason)
        at = store_option(store)
        return f"its run was paused{by}{reason}. Let it go on: rollcage unpause {found.run}{at}"
    if found.status == "partial":
        return (
            f"the plan no longer has all the steps that are on record: put back the removed "
            f"steps, or undo their effects: rollcage undo {found.run}{store_option(store)}"
        )
    if found.status == "ok" and undone:
        return "undone"
    if found.status == "ok" and found.to:
        return f"it was undone to step {found.to}; the next attempt repeats the steps after it"
    over = found.over or {}
    error = over.get("error") if found.status in ("halted", "paused") else None
    return str(over.get("waits") or (error or {}).get("message") or "")


def _is_all_undone(store: Store, run: str) -> bool:
    return is_undone(store.read(run), f"run {run}")


def _steps_of(store: Store, run: str) -> tuple[StepState, ...]:
    return step_states(store.read(run), f"run {run}")


def _sealed(inputs: Any) -> tuple[str, ...]:
    """Return the names of the inputs that hold a secret."""
    if not isinstance(inputs, dict):
        return ()
    held = cast("dict[str, Any]", inputs)
    return tuple(name for name, each in held.items() if _SECRET.search(jcs(each).decode()))
