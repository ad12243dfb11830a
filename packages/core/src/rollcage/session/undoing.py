"""Undo of a run from outside, and the plan of one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Any, Final, TypedDict, Unpack

import orjson

from rollcage.calls.driver import adrive, drive
from rollcage.calls.gate import Entry
from rollcage.calls.stage import Stage
from rollcage.contract.compensation import ToolSource
from rollcage.gate import recorded_facade
from rollcage.session.options import Options
from rollcage.session.session import Session
from rollcage.trace.store import Store, open_store
from rollcage.trace.told import Observer
from rollcage.undo.program import Request, plan
from rollcage.undo.report import InDoubt, UndoPlan, UndoReport

__all__ = [
    "aplan_undo", "aundo_run", "plan_undo", "undo_run",
]  # fmt: skip

Where = str | os.PathLike[str] | Store
Tools = Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None


class PlanOptions(TypedDict, total=False):
    """The options of the undo of a run, or of the plan of one: see `undo_run`."""

    to: int | None
    branch: str | None
    tools: Tools
    in_doubt: InDoubt
    accept: Iterable[int]


class UndoOptions(PlanOptions, total=False):
    """Further options for carrying it out: see `undo_run`."""

    expected: UndoPlan | str | None
    gate: Iterable[Entry]
    approver: Any
    observers: Iterable[Observer]
    stages: Iterable[Stage]
    take: bool


def undo_run(store: Where, run: str, **options: Unpack[UndoOptions]) -> UndoReport:
    """Take back what a run has done, the newest effect first. A resume goes on from what is left.

    Everything is looked at before anything is touched: where somebody else has changed a state
    since, nothing is. An undo that was cut off is finished with it.

    Args:
        store: where the run is.
        run: its id.
        **options: all of them can be left out:

            * `to`: the last step that stays; None: everything is taken back. What the body of a
              call did that stays, and has ended, stays with it.
            * `branch`: only what was done in blocks of this name (or path: `outer/inner`), and what
              came after them.
            * `tools`: the tools that are called and that observe: functions declared with `tool`,
              contracts, or a mapping of them; None: all that this process declared; `...` among
              others: those, too, but for the names that are given.
            * `in_doubt`: what is done with a step of which nobody knows whether it happened:
              `"list"` it, or `"restore"` what was before, if its plan had been made.
            * `accept`: steps that count as undone: somebody has put right by hand what they did,
              or accepts it as it is.
            * `expected`: the plan that somebody has seen (see `plan_undo`), or its digest. It is
              compared while nobody else can write the run: if the undo would do something else,
              nothing is touched. After an undo that was cut off it may be what is left of the plan.
            * `gate`, `approver`, `observers`, `stages`: of the compensating calls, as in `Session`.
            * `take`: whether the run is taken over from a writer that seems to live.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: somebody is at it.
        PlanChanged: it would do something else than what was expected; nothing was touched.
        ToolMissing: a tool that is needed is not here, or is another version; nothing was touched.
        SessionError: it can't be done: an observed state can't be looked at, say.
    """
    request = _request(options)
    with _Undoing(store, run, options) as session:
        return session.take_back(request)


async def aundo_run(store: Where, run: str, **options: Unpack[UndoOptions]) -> UndoReport:
    """`undo_run` for async tools, or sync ones in threads."""
    request = _request(options)
    undoing = await asyncio.to_thread(_Undoing, store, run, options)  # it reads the log
    async with undoing as session:
        return await session.atake_back(request)


def plan_undo(store: Where, run: str, **options: Unpack[PlanOptions]) -> UndoPlan:
    """Return what `undo_run` would do, by the states as they are now; nothing is changed.

    It takes `to`, `branch`, `tools`, `in_doubt` and `accept`, and raises as `undo_run` does, but
    for a run in use.
    """
    request = _request(options)
    with _looking(store, run, options) as session:
        found: UndoPlan = drive(plan(session.attempt, request, is_async=False))
        return found


async def aplan_undo(store: Where, run: str, **options: Unpack[PlanOptions]) -> UndoPlan:
    """`plan_undo` for async tools, or sync ones in threads."""
    request = _request(options)
    looking = await asyncio.to_thread(_looking, store, run, options)  # it reads the log
    async with looking as session:
        found: UndoPlan = await adrive(plan(session.attempt, request, is_async=True))
        return found


def _request(options: UndoOptions | PlanOptions) -> Request:
    get: Any = options.get
    request = Request(
        to=get("to"), branch=get("branch"), in_doubt=get("in_doubt", "list"),
        expected=get("expected"), accept=frozenset(get("accept", ())),
    )  # fmt: skip
    request.check()
    return request


class _Undoing(Session):
    """An attempt that undoes: an undo that has begun is not finished before it, but with it."""

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
        """Undo what is asked for."""
        return drive(self._undo(request, is_async=False))  # type: ignore[no-any-return] # a flow gives anything

    async def atake_back(self, request: Request) -> UndoReport:
        """Undo what is asked for, in an async session."""
        return await adrive(self._undo(request, is_async=True))  # type: ignore[no-any-return] # a flow gives anything


def _looking(store: Where, run: str, options: PlanOptions) -> Session:
    """A session that reads a run and writes nothing."""
    return Session(
        "undo",
        store=store,
        source=run,
        replay="offline",
        gate=_facades(store, run),
        options=Options(tools=options.get("tools")),
    )


_FACADE: Final = b'{"facade":'


def _facades(store: Where, run: str) -> tuple[Any, ...]:
    """The facades by which attempts at a run were held: its undo is held by them, too.

    Raises:
        RunNotFound: there is no such run.
        PackageMissing: the package that knows them is not installed.
    """
    lines = open_store(store).read(run)
    held = (orjson.loads(line).get("gate", ()) for line in lines if _FACADE in line)
    found = {
        (str(each["facade"]["name"]), str(each["facade"]["digest"])): each["facade"]
        for gate in held
        for each in gate
        if "facade" in each
    }
    return tuple(recorded_facade(each) for each in found.values())
