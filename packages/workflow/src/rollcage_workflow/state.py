"""The state of an execution, derived from its traces: nothing keeps a second copy of it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import orjson
from rollcage import RollcageError, TraceCorrupt
from rollcage.store import RunInfo, Store, job_name, newest_run, store_option
from rollcage.trace import TAG, Run, Traced, decode, fold, read_run

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.holds import Hold, Holds
from rollcage_workflow.records import ENDED, PLAN, PREFIX
from rollcage_workflow.step_states import StepState, step_states

__all__ = ["Execution", "Status", "StepState", "as_of", "execution", "executions"]

Status = Literal[
    "pending", "running", "waiting", "paused", "completed", "failed", "cancelled", "rolled_back",
    "halted", "interrupted",
]  # fmt: skip
"""The state of an execution.

`pending`: no attempt has begun; `running`: one goes on now; `waiting`: for a signal, a time or an
approval; `paused`: somebody stopped it; `completed`; `failed`; `cancelled`: somebody ended it;
`rolled_back`: whatever came of it, all that it did was undone; `halted`: somebody has to
decide something first; `interrupted`: its last attempt was cut off, and the next one goes on.
"""
_NOT_HELD: Final = ("running", "completed", "failed", "rolled_back")
OVER: Final = frozenset({"completed", "failed", "cancelled", "rolled_back"})
"""Where no attempt goes on by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """An execution of a plan.

    Attributes:
        id: under which it was started.
        status: see `Status`.
        plan: the plan's name; empty where no attempt has begun.
        digest: of the plan that the newest attempt was given.
        inputs: what it was given.
        sealed: the names of the inputs that hold a secret: their values are not on record.
        digests: by input, its digest under the store's key: by it, another one is recognised.
        rows: by block of the plan, whether its steps are calls one after the other.
        start: the step that it started at; empty where that was the first.
        given: the results of the steps before that.
        anew: the attempt whose rollback it began anew after, or would; empty where it never did.
        output: of a completed one.
        error: of a failed one: `step`, `type` and `message`.
        rolls_back: whether what a failed one did is to be undone.
        waits: what it waits for, why it halted, or who paused or cancelled it.
        run: the newest attempt; empty where there is none.
        attempts: how many there were.
        began: when the first attempt did (Unix, µs).
        ended: when the newest attempt last wrote something (Unix, µs).
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
    anew: str = ""
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
        """What became of its steps, in the order in which they began; read when it is asked for.

        Raises:
            StoreError: the newest run can't be read.
        """
        return self._steps()

    @property
    def is_over(self) -> bool:
        """Whether no attempt goes on by itself."""
        return self.status in OVER


def execution(store: Store, id: str) -> Execution:  # noqa: A002 - what it is called everywhere
    """The state of an execution.

    Raises:
        StoreError: its newest run can't be read.
    """
    runs = store.runs(name=id)
    found = _newest_attempt(store, runs, id)
    hold = Holds(store, id).read()
    if found is None:
        return Execution(id) if hold is None else Execution(id, hold.kind, waits=str(hold))
    state = _status_of(store, found, runs, hold)
    return (
        dataclasses.replace(state, anew=found.planned.id) if _all_undone(found.planned) else state
    )


def as_of(store: Store, run: str, id: str) -> Execution:  # noqa: A002
    """The state of an execution at the end of one run, or of a fork of it, whatever came since.

    Raises:
        StoreError: that run can't be read.
        WorkflowError: it is none of the execution.
    """
    trace, is_live = store.read(run), False
    info, found = trace.info or store.info(run), _outline(trace)
    if found.finished is None:
        is_live = _is_live(store, info)
        found = _outline(store.read(run))
    if job_name(info.name) != job_name(id) or not _is_attempt(found):
        raise WorkflowError(f"run {run} is no attempt at the execution {id!r}")
    return _status_of(store, _Attempt(info, found, is_live, found), [info], None)


class _Attempt(NamedTuple):
    """An attempt, as far as its run was read.

    Attributes:
        info: of its run.
        run: that.
        is_live: whether it was live before it was read.
        planned: the run that holds its plan: if it was cut off before it could, that of the
            attempt which it goes on with.
    """

    info: RunInfo
    run: Run
    is_live: bool
    planned: Run


def _status_of(
    store: Store, attempt: _Attempt, runs: Sequence[RunInfo], hold: Hold | None
) -> Execution:
    """The state of an execution by its newest attempt, and by what holds it."""
    newest, run, is_live, last_planned = attempt
    planned = _args(store, last_planned, PLAN.name)
    plan, ended = decode(planned), decode(_args(store, run, ENDED.name))
    if _save_point(run):
        ended = {}
    status = "running" if is_live and run.finished is None else _status(store, newest, run, ended)
    if hold is not None and status not in _NOT_HELD:
        is_undone = hold.kind == "cancelled" and _all_undone(run)
        status = "rolled_back" if is_undone else hold.kind
    else:
        hold = None
    return Execution(
        newest.name,
        status=status,
        plan=str(plan.get("name", "")),
        digest=str(plan.get("digest", "")),
        inputs=plan.get("inputs"),
        sealed=(*_sealed(planned.get("inputs")), *_sealed(planned.get("given"))),
        digests=plan.get("digests") or {},
        rows=plan.get("rows") or {},
        start=str(plan.get("start", "")),
        given=plan.get("given") or {},
        anew=str(plan.get("anew", "")),
        output=ended.get("output"),
        error=ended.get("error"),
        rolls_back=bool(ended.get("rollback")),
        waits=_waits(store, newest, run) if hold is None else str(hold),
        run=newest.run,
        attempts=sum(each.input == newest.input and each.mode in _ATTEMPTS for each in runs),
        began=min(each.time for each in runs if each.input == newest.input),
        ended=run.last_time,
        _steps=functools.cache(functools.partial(_steps_of, store, last_planned.id)),
    )


def executions(store: Store, *, limit: int | None = None) -> list[Execution]:
    """The executions that the store knows, the newest attempt last; runs without input are none.

    Args:
        store: where their runs are kept.
        limit: only so many, of which the newest attempts are the newest; the older ones cost
            nothing then.
    """
    seen: set[str] = set()
    found: list[Execution] = []
    many = None if limit is None else 2 * limit
    while True:
        runs = store.runs(limit=many)
        for name in dict.fromkeys(each.name for each in reversed(runs) if each.input is not None):
            if name not in seen and (limit is None or len(found) < limit):
                seen.add(name)
                each = _readable(store, name)
                found += [each] if each.plan else []
        if many is None or limit is None or len(runs) < many or len(found) >= limit:
            return found[::-1]
        many *= 4


def _readable(store: Store, name: str) -> Execution:
    """An execution; of one whose trace can't be read, that it can't."""
    try:
        return execution(store, name)
    except RollcageError as error:
        return Execution(name, status="halted", plan="?", waits=str(error))


_UNENDED: Final = ("unfinished", "error", "halted", "paused")
_OWN: Final = f'"name":"{PREFIX}'.encode()  # in a line of what an execution puts on record
_OF_STEPS: Final = (b'{"event":"step.', b'{"event":"branch.')  # how their lines begin
_ENDED: Final = (b'{"event":"step.finished"', b'{"event":"branch.')
_ATTEMPTS: Final = ("record", "resume")
_SECRET: Final = re.compile(r'<secret [0-9a-f]{32}>|"\$rollcage":"(?:secret|redacted)"')


def _is_live(store: Store, info: RunInfo) -> bool:
    """Whether a run goes on; asked before it is read, or it may end in between, unseen."""
    return info.status is None and store.live(info.run)


def _newest_attempt(store: Store, runs: Sequence[RunInfo], name: str) -> _Attempt | None:
    """The newest run of an execution; no session that only has its name, and none that looks back.

    Those of an execution have one input, which no other session of the name has.
    """
    inputs = dict.fromkeys(info.input for info in reversed(runs))
    for each in inputs:
        info = newest_run(runs, name, of=each)
        if info is None:
            continue
        is_live = _is_live(store, info)
        run = _outline(store.read(info.run))
        planned = run if _is_attempt(run) else _planned_before(store, runs, info, run)
        if planned is not None or (is_live and _is_silent(run) and not run.steps):
            return _Attempt(info, run, is_live, planned or run)
    return None


def _planned_before(store: Store, runs: Sequence[RunInfo], info: RunInfo, run: Run) -> Run | None:
    """The last attempt that recorded its plan, before some that were cut off too early."""
    known = {each.run: each for each in runs}
    source = known.get(info.source or "")
    while source is not None and source.pruned is None and _is_silent(run):
        run = _outline(store.read(source.run))
        if _is_attempt(run):
            return run
        source = known.get(source.source or "")
    return None


def _is_silent(run: Run) -> bool:
    """Whether it is an attempt that has not recorded its plan: only its input has."""
    given = run.started.get("input") or {}
    return not _is_attempt(run) and [*(given.get("value") or ())] == ["plan"]


def _is_attempt(run: Run) -> bool:
    return any(step.name == PLAN.name and not step.branch for step in run.steps)


def _outline(trace: Traced) -> Run:
    """A run with only those lines that are about the execution as a whole: its steps cost nothing.

    The chain of the lines is not checked: the next attempt does so, and `rollcage verify`.

    Raises:
        TraceCorrupt: one of these lines is none.
    """
    lines = trace.data.splitlines()
    # Those of steps and branches are passed over, but for what an execution itself puts on record.
    of_whole = [
        (n, line)
        for n, line in enumerate(lines, 1)
        if not line.startswith(_OF_STEPS)
        or (line.find(_OWN, 0, 200) >= 0 and not line.startswith(_ENDED))
        or n == len(lines)
    ]
    at = 0
    try:
        events: list[tuple[int, dict[str, Any]]] = []
        for at, line in of_whole:
            events.append((at, orjson.loads(line)))
        return fold(events)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"not an event of this format: {error!r}"
        raise TraceCorrupt(trace.where, at, message) from None


def _steps_of(store: Store, run: str) -> tuple[StepState, ...]:
    return step_states(read_run(store.read(run), schema=False))


def _args(store: Store, run: Run, name: str) -> dict[str, Any]:
    """What the last such call was given, encoded."""
    found = [step for step in run.steps if step.name == name and step.branch in ("", ENDED.name)]
    return {} if not found else {n: _whole(store, each) for n, each in found[-1].args.items()}


def _whole(store: Store, encoded: Any) -> Any:
    """An argument; a large one lies beside the trace."""
    if isinstance(encoded, dict) and encoded.get(TAG) == "blob":
        return orjson.loads(store.get_blob(str(encoded["sha256"])))
    return encoded


def _sealed(inputs: Any) -> tuple[str, ...]:
    """The names of the inputs that hold a secret."""
    if not isinstance(inputs, dict):
        return ()
    held = cast("dict[str, Any]", inputs)
    return tuple(name for name, each in held.items() if _SECRET.search(orjson.dumps(each).decode()))


def _status(store: Store, info: RunInfo, run: Run, ended: dict[str, Any]) -> Status:
    if _save_point(run):
        return "halted"
    if ended.get("status") == "completed" and run.status == "ok":
        return "rolled_back" if _all_undone(run) else "completed"
    if ended.get("status") == "failed":
        return "rolled_back" if ended.get("rollback") and _all_undone(run) else "failed"
    if run.status == "paused":
        return "waiting"
    order = store.stop_order(info.run)
    if order is not None and not order.is_pause:  # the next attempt is made, and its calls wait
        return "paused"
    return "halted" if run.status in ("halted", "partial") else "interrupted"


def _all_undone(run: Run) -> bool:
    """Whether an undo of all of it, and of what it was built on, came to its end."""
    last = run.rewinds[-1] if run.rewinds else None
    whole = last is not None and not last["to"] and not last.get("branch")
    return whole and last is not None and not last.get("incomplete")


def _save_point(run: Run) -> int:
    """The step that a completed run was undone to, and that its end came after; 0: to none."""
    last = run.rewinds[-1] if run.rewinds else {}
    to = 0 if last.get("branch") else int(last.get("to", 0))
    ends = (step.step for step in run.steps if step.name == ENDED.name)
    return to if run.status == "ok" and any(step > to for step in ends) else 0


def _waits(store: Store, info: RunInfo, run: Run) -> str:
    order = store.stop_order(info.run) if run.status in _UNENDED else None
    if order is not None and order.is_pause:
        by, reason = f" by {order.by}" if order.by else "", f": {order.reason}" * bool(order.reason)
        at = store_option(store)
        return f"its run was paused{by}{reason}. Let it go on: rollcage unpause {order.run}{at}"
    if run.status == "partial":
        return (
            f"the plan does not ask for all that is on record any more: put back the steps that "
            f"were removed, or undo what they did: rollcage undo {run.id}"
        )
    if run.status == "ok" and _all_undone(run):
        return "undone"
    if to := _save_point(run):
        return f"it was undone to step {to}; the next attempt does again what came after that"
    finished = run.finished or {}
    error = finished.get("error") if run.status in ("halted", "paused") else None
    return str(finished.get("reason") or (error or {}).get("message") or "")
