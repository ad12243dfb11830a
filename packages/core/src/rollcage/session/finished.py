"""Undo of a run that is not live: finished, or crashed; in whichever process has its tools."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, TypedDict, Unpack

from rollcage.gate import (
    Approver,
    Ask,
    Detecting,
    FacadeGuard,
    Given,
    PolicyGuard,
    Rule,
    Sealing,
    Verdict,
    all_given,
    recorded_facade,
)
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage
from rollcage.session.calls import Calls
from rollcage.session.deciding import check_approved
from rollcage.session.leaving import leave
from rollcage.session.means import Means
from rollcage.session.opening import enter, sealed_within
from rollcage.session.run import Key, OpenRun
from rollcage.session.scope import Lent, here, looking_under
from rollcage.session.undoing import aundo, undo
from rollcage.step.call import Progress
from rollcage.step.capture import Setting
from rollcage.step.clock import Clock
from rollcage.step.gating import Gate
from rollcage.step.ledger import Ledger
from rollcage.step.looking import Looking
from rollcage.step.observing import Observer
from rollcage.step.requests import Request
from rollcage.step.undo_checks import UndoRequest
from rollcage.step.undoing import plan_steps
from rollcage.store.jobs import store_option
from rollcage.store.protocol import Store
from rollcage.store.url import open_store
from rollcage.undo.compensation import KnownTools, ToolSource
from rollcage.undo.report import InDoubt, UndoPlan, UndoReport

__all__ = ["aplan_undo", "aundo_run", "plan_undo", "undo_run"]

Where = str | os.PathLike[str] | Store


class PlanOptions(TypedDict, total=False):
    """The options of the undo of a finished run, or of the plan of one: see `undo_run`."""

    to: int | None
    tools: Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None
    in_doubt: InDoubt


class UndoOptions(PlanOptions, total=False):
    """Further options for carrying it out: see `undo_run`."""

    expected: UndoPlan | str | None
    gate: Iterable[Given]
    policy: PolicyGuard | str | os.PathLike[str] | None
    rules: Sequence[Rule]
    approver: Approver | None
    observers: Iterable[Observer]
    durability: Literal["os", "disk"]


def undo_run(store: Where, run: str, **options: Unpack[UndoOptions]) -> UndoReport:
    """Undo what a run did after step `to`, and all of its source that it had not come to.

    The undo is appended to the run's trace; one that was interrupted is continued. Afterwards, the
    next session of this name replays up to `to` and runs the rest.

    Args:
        store: where the run is kept.
        run: its id.
        **options: all of them can be left out:

            * `to`: the last of its steps that stays; None undoes everything.
            * `tools`: the tools that are called and that observe: functions declared with
              `@rollcage.tool`, contracts, or a mapping of them; None: all that this process
              declared; `...` among others: those, too, but for the names that are given.
            * `in_doubt`: what is done with a step whose outcome is unknown: `"list"` it, or
              `"restore"` what was before, if its plan had been made.
            * `expected`: the plan that somebody has seen (see `plan_undo`), or its digest. It is
              compared while nobody else can write the run: if the undo would do something else,
              nothing is done. After an interrupted undo, it may be what is left of the plan.
            * `gate`: what decides on each compensating call, as in `Session`.
            * `policy`: a policy, or the file that it is in; as the first of `gate`.
            * `rules`: rules, as the last of `gate`.
            * `approver`: decides if a rule asks.
            * `observers`: each is notified of what becomes of each step, as in `Session`.
            * `durability`: as in `Session`.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: it has a live writer, or is being resumed or undone.
        PlanChanged: it would do something else than what was expected; nothing was done.
        ToolMissing: a tool that is needed is not here, or is another version.
        SessionError: it can't be done, another run builds on it, say; nothing was changed.
    """
    request = _expecting(_request(run, options), options)
    with _reopened(store, run, options) as calls:
        return undo(calls, request)


async def aundo_run(store: Where, run: str, **options: Unpack[UndoOptions]) -> UndoReport:
    """`undo_run` for async tools, or sync ones in threads."""
    request = _expecting(_request(run, options, is_async=True), options)
    with _reopened(store, run, options) as calls:
        return await aundo(calls, request)


def plan_undo(store: Where, run: str, **options: Unpack[PlanOptions]) -> UndoPlan:
    """What `undo_run` would do, by the states as they are now; nothing is changed or written.

    It takes `to`, `tools` and `in_doubt`, and raises as `undo_run` does, but for a run in use.
    """
    request = _request(run, options)
    looking, setting, facade = _looked_at(store, run, options)
    with looking_under(facade):
        plan: UndoPlan = looking.run(plan_steps(request, setting))
    return plan


async def aplan_undo(store: Where, run: str, **options: Unpack[PlanOptions]) -> UndoPlan:
    """`plan_undo` for async tools, or sync ones in threads."""
    request = _request(run, options, is_async=True)
    looking, setting, facade = _looked_at(store, run, options)
    with looking_under(facade):
        plan: UndoPlan = await looking.arun(plan_steps(request, setting))
    return plan


def _request(
    run: str,
    options: PlanOptions,
    expected: UndoPlan | str | None = None,
    *,
    is_async: bool = False,
) -> UndoRequest:
    to, in_doubt = options.get("to"), options.get("in_doubt", "list")
    return UndoRequest(run=run, to=to, in_doubt=in_doubt, expected=expected, is_async=is_async)


def _expecting(request: UndoRequest, options: UndoOptions) -> UndoRequest:
    return dataclasses.replace(request, expected=options.get("expected"))


@contextlib.contextmanager
def _reopened(store: Where, run: str, options: UndoOptions) -> Generator[Calls]:
    """The calls of a finished run; they are appended to its trace."""
    own = open_store(store)
    own.read(run)  # otherwise a folder would be made if there is no store
    guards = all_given(
        options.get("gate", ()),
        policy=options.get("policy"),
        facade=None,
        rules=options.get("rules", ()),
    )
    outer = here()
    lent = None if outer is None else outer.calls.lend(outer)
    with own.opening():
        opened, writer, lineage = OpenRun.reopen(own, run)
    name, clock, approver = lineage.settings["name"], Clock(), options.get("approver")
    gate = Gate(name, guards, user_input=None, strict=False, clock=clock.monotonic)
    try:
        if lent is not None:
            gate.nest(lent.above)
        seal, facade = _recorded(opened, lineage, lent)
        means = Means(
            gate=gate,
            seal=seal,
            tools=KnownTools(options.get("tools")),
            ask=None if approver is None else Ask(approver),
            facade=facade or (None if outer is None else outer.calls.facade),
            durable=options.get("durability") == "disk",
            observers=tuple(options.get("observers", ())),
            clock=clock,
        )
        ledger = Ledger(
            run=run,
            mode="record",
            recording=None,
            chain="effects",
            on_divergence="halt",
            seed=lineage.settings["seed"],
            steps=lineage.last_step,
            turns=lineage.last_turn,
            at=store_option(own),
        )
        calls = Calls(name, opened, writer, ledger, own, means.within(lent))
    except BaseException:
        gate.close()
        opened.close()
        raise
    enter(calls)
    try:
        yield calls
    except BaseException as error:
        leave(calls, error)
        raise
    leave(calls, None)


def _recorded(
    run: OpenRun, lineage: Lineage, lent: Lent | None = None
) -> tuple[Sealing, FacadeGuard | None]:
    """What replaces secrets in a run, and what was approved for it.

    What was approved then, or is now, may undo its effects.
    """
    settings = lineage.settings
    given = settings.get("facade")
    facade = None if given is None else recorded_facade(given)
    key = Key(run.store)
    seal = (Detecting if settings.get("secrets") == "detected" else Sealing)(key.sign)
    return sealed_within(seal, key, lent), facade


def _looked_at(
    store: Where, run: str, options: PlanOptions
) -> tuple[Looking, Setting, FacadeGuard | None]:
    """What reads a run without changing it, what its flow needs to know, and what was approved."""
    opened, lineage = OpenRun.inspect(open_store(store), run)
    seal, facade = _recorded(opened, lineage)
    setting = Setting(
        seal=seal,
        barrier=False,
        root=opened.root,
        tools=KnownTools(options.get("tools")),
        undo_orphans=_undoes_nothing,
        decide=_nothing_runs,
        allow=functools.partial(check_approved, facade),
        at=store_option(opened.store),
        run=run,
    )
    return Looking(opened.store, opened.recall), setting, facade


def _nothing_runs(progress: Progress) -> Verdict:
    return Verdict.deny(f"a look makes no call of {progress.call.contract.name}")


def _undoes_nothing(
    orphans: tuple[Entry, ...],
    waits: bool,  # noqa: FBT001 - the engine calls it
) -> Generator[Request, Any, str]:
    del waits
    yield from ()
    return f"a look undoes none of {len(orphans)} effects"
