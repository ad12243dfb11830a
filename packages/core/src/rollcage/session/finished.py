"""Undo of a run that is not live: finished, or crashed; in whichever process has its tools."""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Literal

from rollcage.errors import SessionError
from rollcage.gate import Approver, Detecting, PolicyGuard, Rule, Sealing, Verdict, recorded_facade
from rollcage.gate import Given as Guarded
from rollcage.replay.path import Entry
from rollcage.session.opened import check_approved
from rollcage.session.run import Key, Run
from rollcage.session.session import Session
from rollcage.step.call import Call
from rollcage.step.capture import Setting
from rollcage.step.looking import Looking
from rollcage.step.observing import Observer
from rollcage.step.requests import Effect
from rollcage.step.undoing import Order, plan_steps
from rollcage.store.jobs import store_option
from rollcage.store.protocol import Store
from rollcage.store.url import open_store
from rollcage.undo.compensation import Tools, ToolSource
from rollcage.undo.undo import InDoubt, UndoPlan, UndoReport

__all__ = ["aplan_undo", "aundo_run", "plan_undo", "undo_run"]

Where = str | os.PathLike[str] | Store
Given = Mapping[str, ToolSource] | Iterable[ToolSource] | None


def undo_run(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    gate: Iterable[Guarded] = (),
    policy: PolicyGuard | str | os.PathLike[str] | None = None,
    rules: Sequence[Rule] = (),
    approver: Approver | None = None,
    observers: Iterable[Observer] = (),
    in_doubt: InDoubt = "list",
    durability: Literal["os", "disk"] = "os",
) -> UndoReport:
    """Undo what a run did behind step `to`, and all of its source that it had not come to.

    The undo is appended to the run's trace; one that was cut off goes on where it was. Afterwards,
    the next session of this name replays up to `to`, and runs on.

    Args:
        store: where the run is kept.
        run: its id.
        to: the last of its steps that stays; None takes everything back.
        tools: the tools that are called and that observe: functions declared with
            `@rollcage.tool`, contracts, or a mapping of them; None: all that this process declared.
        gate: what decides on each compensating call, as in `Session`.
        policy: a policy, or the file that it is in; as the first of `gate`.
        rules: rules, as the last of `gate`.
        approver: decides where a rule asks.
        observers: each is told what becomes of each step, as in `Session`.
        in_doubt: what is done with a step whose outcome is unknown: `"list"`
            it, or `"restore"` what was before, where its plan was made by then.
        durability: as in `Session`.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: it has a live writer, or is being resumed or undone.
        ToolMissing: a tool that is needed is not here, or is another version.
        SessionError: it can't be done, another run builds on it, say; nothing was changed.
    """
    last = _step(to)
    with _reopened(
        store,
        run,
        tools=tools,
        gate=gate,
        policy=policy,
        rules=rules,
        approver=approver,
        observers=observers,
        durability=durability,
    ) as session:
        return session.undo(last, in_doubt=in_doubt)


async def aundo_run(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    gate: Iterable[Guarded] = (),
    policy: PolicyGuard | str | os.PathLike[str] | None = None,
    rules: Sequence[Rule] = (),
    approver: Approver | None = None,
    observers: Iterable[Observer] = (),
    in_doubt: InDoubt = "list",
    durability: Literal["os", "disk"] = "os",
) -> UndoReport:
    """`undo_run` for async tools, or sync ones in threads."""
    last = _step(to)
    async with _reopened(
        store,
        run,
        tools=tools,
        gate=gate,
        policy=policy,
        rules=rules,
        approver=approver,
        observers=observers,
        durability=durability,
    ) as session:
        return await session.aundo(last, in_doubt=in_doubt)


def plan_undo(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    in_doubt: InDoubt = "list",
) -> UndoPlan:
    """What `undo_run` would do, by the states as they are now; nothing is changed or written.

    Raises as `undo_run` does, but for a run in use.
    """
    order = Order(run, _step(to), in_doubt=in_doubt)
    looking, setting = _looked_at(store, run, tools)
    plan: UndoPlan = looking.run(plan_steps(order, setting))
    return plan


async def aplan_undo(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    in_doubt: InDoubt = "list",
) -> UndoPlan:
    """`plan_undo` for async tools, or sync ones in threads."""
    order = Order(run, _step(to), in_doubt=in_doubt, is_async=True)
    looking, setting = _looked_at(store, run, tools)
    plan: UndoPlan = await looking.arun(plan_steps(order, setting))
    return plan


def _step(to: int | None) -> int | None:
    if to is not None and to < 1:
        raise SessionError(f"to={to} is not a step; steps count from 1")
    return to


def _reopened(store: Where, run: str, **given: Any) -> Session:
    """A session on a run that was there before it: what is done in it is appended to that."""
    own = open_store(store)
    own.read(run)  # or a folder is made where there is no store
    return Session("undo", store=own, replay="off", _reopens=run, **given)


def _looked_at(store: Where, run: str, tools: Given) -> tuple[Looking, Setting]:
    """What performs a look at a run, and what the flow of one needs to know."""
    opened, lineage = Run.inspect(open_store(store), run)
    settings = lineage.settings
    sealing = Detecting if settings.get("secrets") == "detected" else Sealing
    given = settings.get("facade")
    facade = None if given is None else recorded_facade(opened.store, given)
    setting = Setting(
        seal=sealing(Key(opened.store).sign),
        barrier=False,
        root=opened.root,
        tools=Tools(tools),
        take_back=_nothing_taken_back,
        decide=_nothing_runs,
        allow=functools.partial(check_approved, facade),
        at=store_option(opened.store),
        run=run,
    )
    return Looking(opened.store, opened.recall), setting


def _nothing_runs(call: Call) -> Verdict:
    return Verdict.deny(f"a look makes no call of {call.contract.name}")


def _nothing_taken_back(
    orphans: tuple[Entry, ...],
    waits: bool,  # noqa: FBT001 - the engine calls it
) -> Generator[Effect, Any, str]:
    del waits
    yield from ()
    return f"a look undoes none of {len(orphans)} effects"
