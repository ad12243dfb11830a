"""Undo a run from outside its program, or plan the undo."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Any, Final, TypedDict, Unpack

import orjson

from rollcage.calls.driver import adrive, drive
from rollcage.calls.gate import Entry
from rollcage.calls.stage import Stage
from rollcage.contract.compensation import ToolSource
from rollcage.errors import PackageMissing
from rollcage.session.options import Options
from rollcage.session.session import Session
from rollcage.trace.store import Store, open_store
from rollcage.trace.threads import in_thread
from rollcage.trace.told import Observer
from rollcage.undo.program import Request, plan
from rollcage.undo.report import InDoubt, UndoPlan, UndoReport

__all__ = [
    "aplan_undo", "aundo_run", "plan_undo", "undo_run",
]  # fmt: skip

Where = str | os.PathLike[str] | Store
Tools = Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None


class PlanOptions(TypedDict, total=False):
    """Name the options of `undo_run` and `plan_undo`: see `undo_run`."""

    to: int | None
    branch: str | None
    tools: Tools
    in_doubt: InDoubt
    accept: Iterable[int]


class UndoOptions(PlanOptions, total=False):
    """Name further options for carrying out an undo: see `undo_run`."""

    expected: UndoPlan | str | None
    gate: Iterable[Entry]
    approver: Any
    observers: Iterable[Observer]
    stages: Iterable[Stage]
    take: bool


def undo_run(store: Where, run: str, **options: Unpack[UndoOptions]) -> UndoReport:
    """Take back the effects of a run, the newest first. A resume goes on from the rest.

    Everything is examined before anything is touched: if another program has changed a state since,
    nothing is undone. An interrupted undo is finished with it.

    Args:
        store: the store of the run.
        run: the id of the run.
        **options: all are optional:

            * `to`: the last step that stays; None: everything is taken back. Ended calls in the
                body of a call that stays, stay with it.
            * `branch`: only the effects of blocks with this name (or path: `outer/inner`), and
                later effects.
            * `tools`: the tools to call and to observe with: functions declared with `tool`,
                contracts, or a mapping of them; None: all tools declared in this process; `...`
                among others: those tools as well, except for the names that are given.
            * `in_doubt`: the response to a step of unknown outcome: `"list"` it, or `"restore"` the
                state before it, if its plan had been made.
            * `accept`: steps that count as undone: a person has repaired the effect by hand, or
                accepts it.
            * `expected`: a plan that a person has seen (see `plan_undo`), or its digest. It is
                compared while no other process can write the run: if the undo would differ, nothing
                is touched. After an interrupted undo, the rest of the plan is accepted.
            * `gate`, `approver`, `observers`, `stages`: for the compensating calls, as in
                `Session`.
            * `take`: whether to take the run over from a writer that seems alive.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: another process is writing the run.
        PlanChanged: the undo would differ from the expected plan; nothing was touched.
        ToolMissing: a required tool is missing, or has another version; nothing was touched.
        SessionError: undo is not possible: for example, a state can't be observed.
    """
    request = _request(options)
    with _Undoing(store, run, options) as session:
        return session.take_back(request)


async def aundo_run(store: Where, run: str, **options: Unpack[UndoOptions]) -> UndoReport:
    """Undo a run as `undo_run` does, with async tools, or sync tools in threads."""
    request = _request(options)
    undoing = await in_thread(_Undoing, store, run, options)  # it reads the log
    async with undoing as session:
        return await session.atake_back(request)


def plan_undo(store: Where, run: str, **options: Unpack[PlanOptions]) -> UndoPlan:
    """Return the plan of `undo_run`, by the current states; nothing is changed.

    The options are `to`, `branch`, `tools`, `in_doubt` and `accept`; the errors are the errors of
    `undo_run`, except for a run in use.
    """
    request = _request(options)
    with _looking(store, run, options) as session:
        found: UndoPlan = drive(plan(session.attempt, request, is_async=False))
        return found


async def aplan_undo(store: Where, run: str, **options: Unpack[PlanOptions]) -> UndoPlan:
    """Plan an undo as `plan_undo` does, with async tools, or sync tools in threads."""
    request = _request(options)
    looking = await in_thread(_looking, store, run, options)  # it reads the log
    async with looking as session:
        found: UndoPlan = await adrive(plan(session.attempt, request, is_async=True))
        return found


def _request(options: UndoOptions | PlanOptions) -> Request:
    get: Any = options.get
    return Request(
        to=get("to"), branch=get("branch"), in_doubt=get("in_doubt", "list"),
        expected=get("expected"), accept=frozenset(get("accept", ())),
    )  # fmt: skip


class _Undoing(Session):
    """Hold an attempt that undoes: it finishes a begun undo as a part of its own."""

    finishes_undo = False

    def __init__(self, store: Where, run: str, options: UndoOptions) -> None:
        super().__init__(
            "undo",
            store=store,
            run=run,
            replay="continue",
            gate=(*_facades(store, run), *options.get("gate", ())),
            approver=options.get("approver"),
            observers=options.get("observers", ()),
            stages=options.get("stages", ()),
            options=Options(tools=options.get("tools"), take=options.get("take", False)),
        )

    def take_back(self, request: Request) -> UndoReport:
        """Carry out the requested undo."""
        return drive(self._undo(request, is_async=False))  # type: ignore[no-any-return] # a flow gives anything

    async def atake_back(self, request: Request) -> UndoReport:
        """Carry out the requested undo in an async session."""
        return await adrive(self._undo(request, is_async=True))  # type: ignore[no-any-return] # a flow gives anything


def _looking(store: Where, run: str, options: PlanOptions) -> Session:
    """Return a session that reads a run and writes nothing."""
    return Session(
        "undo",
        store=store,
        source=run,
        replay="offline",
        gate=_facades(store, run),
        options=Options(tools=options.get("tools")),
    )


_FACADE: Final = b'{"facade":'
GUARDS: Final = "rollcage.guards"
"""The group of entry points that make a guard of what a gate has put on record of it."""


def _facades(store: Where, run: str) -> tuple[Any, ...]:
    """Return the facades of a run's attempts, which apply to its undo as well.

    Raises:
        RunNotFound: there is no such run.
        PackageMissing: the package of the facades is not installed.
    """
    lines = open_store(store).read(run)
    held = (orjson.loads(line).get("gate", ()) for line in lines if _FACADE in line)
    found = {
        (str(each["facade"]["name"]), str(each["facade"]["digest"])): each["facade"]
        for gate in held
        for each in gate
        if "facade" in each
    }
    return tuple(_recorded(each) for each in found.values())


def _recorded(facade: Mapping[str, Any]) -> Any:
    """Return what holds a session to a facade that is on record, from the package that has it."""
    from importlib.metadata import entry_points  # only an undo under a facade pays for it

    for entry in entry_points(group=GUARDS, name="facade"):
        return entry.load()(facade)
    raise PackageMissing(
        f"the run was held to the facade {facade['name']!r}, so nothing of it is undone without "
        f"rollcage-governance, which is not installed: pip install 'rollcage[governance]'",
        "governance",
    )
