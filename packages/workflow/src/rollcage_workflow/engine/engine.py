"""`Engine`: start executions, and run executions that others start."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rollcage import Store, open_store

from rollcage_workflow.check import Tools, Workflows, check
from rollcage_workflow.engine.alone import serve_alone
from rollcage_workflow.engine.limits import Limit
from rollcage_workflow.engine.reconcile import reconcile
from rollcage_workflow.engine.schedules import Schedule, Schedules
from rollcage_workflow.engine.ticking import LeftOut, Ticker
from rollcage_workflow.engine.worker import Worker
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.files import Document
from rollcage_workflow.forking import refuse_fork
from rollcage_workflow.graph import Checked
from rollcage_workflow.inputs import given_inputs
from rollcage_workflow.orders import Commands
from rollcage_workflow.plan import Plan
from rollcage_workflow.starting import given_results

__all__ = ["Engine"]

_log: Final = logging.getLogger("rollcage.workflow")
AnyPlan = Plan | Checked | Document | str | Mapping[str, Any]


def _log_it(found: LeftOut) -> None:
    _log.warning("%s", found)


class Engine:
    """Executions that are started anywhere, and run by any available worker.

    All commands, and all their effects, are in the store. The engine's database decides when a
    command is taken, and by which worker; it can be lost. Without one (`url=None`), workers look
    only into the store: there are no limits over all of them, and no schedules.

    Args:
        url: the database of the scheduler: `sqlite:///FILE` or `postgresql://HOST/DB`.
        store: the store of the runs: a folder, a URL or a `Store`; the same for all workers.
        plans: the plans that are run here.
        tools: the tools of their steps.
        workflows: the plans that their `workflow:` steps name.
        concurrency: how many attempts one worker has at once.
        limits: by plan, the limits over all workers.
        patience: how long an attempt waits for a time in memory (seconds).
        every: seconds between two looks for due commands.
        **session: further arguments of each attempt's `rollcage.Session`.

    Raises:
        PlanInvalid: a plan has problems.
        WorkflowError: two plans have the same name.
    """

    def __init__(
        self,
        url: str | None,
        *,
        store: str | os.PathLike[str] | Store,
        plans: Iterable[AnyPlan] = (),
        tools: Tools = (),
        workflows: Workflows | None = None,
        concurrency: int = 20,
        limits: Mapping[str, Limit] | None = None,
        patience: float = 2.0,
        every: float = 1.0,
        **session: Any,
    ) -> None:
        self.url = url
        self.store = open_store(store)
        self.commands = Commands(self.store)
        self.schedules = Schedules(self.store)
        self.plans = _by_name(plans, tools, workflows)
        self._tools = tools
        self._concurrency = concurrency
        self._limits = dict(limits or {})
        self._patience = patience
        self._every = every
        self._session = session
        if self._limits and url is None:
            raise WorkflowError("limits over all workers need an engine's database: pass its URL")

    def start(
        self,
        plan: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        id: str,  # noqa: A002 - what it is called everywhere
        by: str,
        at: float = 0.0,
        start: str = "",
        given: Mapping[str, Any] | None = None,
    ) -> bool:
        """Have an execution started; return False if its id was started before.

        See `Commands.start`.

        The worker that begins the execution checks the inputs; this call does so if it knows the
        plan.

        Raises:
            InputsInvalid: the inputs are not as declared; or the plan has no step `start`, or
                `given` is not the results of the steps before it.
            WorkflowError: the inputs are not JSON.
            StoreError: the command can't be stored.
        """
        if plan in self.plans:
            given_inputs(self.plans[plan], inputs or {})
            given_results(self.plans[plan], start, given or {})
        return self.commands.start(plan, inputs, id=id, by=by, at=at, start=start, given=given)

    def schedule(self, schedule: Schedule) -> None:
        """Have a plan started repeatedly. See `Schedules.put`."""
        self.schedules.put(schedule)

    def reconcile(self) -> list[str]:
        """Continue all executions without the engine, or unknown to it. See `reconcile`."""
        return reconcile(self.store)

    def serve(
        self,
        stop: threading.Event,
        *,
        grace: float = 30.0,
        once: bool = False,
        left_out: Callable[[LeftOut], None] = _log_it,
    ) -> None:
        """Be a worker, until `stop` is set; then attempts end at their next step.

        Args:
            stop: ends it.
            grace: seconds for steps in flight to end. Later steps are cut off,
                as if the process was killed.
            once: end when nothing is due. This works only without an engine's database.
            left_out: called at the beginning, for each schedule of which times were left out while
                no worker ran; by default, it is logged.

        Raises:
            WorkflowError: this process was started as a fork, or has an engine that
                serves, or the URL is not valid.
        """
        refuse_fork()
        worker = Worker(
            self.store,
            self.plans,
            tools=[*self._tools.values()] if isinstance(self._tools, Mapping) else self._tools,
            name=f"{os.uname().nodename}/{os.getpid()}/{uuid.uuid4().hex[:8]}",
            patience=self._patience,
            session=self._session,
        )
        ticker = Ticker(self.store, every=self._every)
        if self.url is None:
            if once:
                ticker.once(left_out)
            with contextlib.nullcontext() if once else ticker.serving(stop, left_out):
                serve_alone(
                    worker,
                    stop,
                    concurrency=self._concurrency,
                    every=self._every,
                    grace=grace,
                    once=once,
                )
            return
        if once:
            raise WorkflowError("once is for a worker without an engine's database")
        try:
            from rollcage_workflow.engine.transact import Transact
        except ImportError as error:
            raise WorkflowError(
                f"an engine's database needs DBOS ({error}): "
                f"pip install 'rollcage-workflow[engine]'"
            ) from None
        made = Transact(
            self.url,
            worker,
            concurrency=self._concurrency,
            limits=self._limits,
            every=self._every,
        )
        with ticker.serving(stop, left_out):
            made.serve(stop, grace=grace)


def _by_name(
    plans: Iterable[AnyPlan], tools: Tools, workflows: Workflows | None
) -> dict[str, Checked]:
    found: dict[str, Checked] = {}
    for each in plans:
        checked = each if isinstance(each, Checked) else check(each, tools, workflows)
        if checked.plan.name in found:
            raise WorkflowError(f"two plans are called {checked.plan.name!r}")
        found[checked.plan.name] = checked
    return found
