"""`Engine`: what starts executions, and runs those that others start."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from rollcage import Store, open_store

from rollcage_workflow.check import Tools, Workflows, check
from rollcage_workflow.engine.alone import serve_alone
from rollcage_workflow.engine.limits import Limit
from rollcage_workflow.engine.reconcile import reconcile
from rollcage_workflow.engine.schedules import Schedule, Schedules
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

AnyPlan = Plan | Checked | Document | str | Mapping[str, Any]


class Engine:
    """Executions that are started here, or anywhere, and run by whichever worker is there.

    What is started, and all that becomes of it, is in the store. The engine's database decides
    when, and which worker; it can be lost. Without one (`url=None`), workers look into the store
    alone: there are no limits over all of them, and no schedules.

    Args:
        url: of the database of the scheduler: `sqlite:///FILE` or `postgresql://HOST/DB`.
        store: where the runs are kept: a folder, a URL or a `Store`; the same for all workers.
        plans: those that are run here.
        tools: what their steps call.
        workflows: the plans that their `workflow:` steps name.
        concurrency: how many attempts one worker has at once.
        limits: by plan, what holds over all workers.
        patience: how long an attempt waits for a time in memory (seconds).
        every: seconds between two looks for what is to be done.
        **session: further arguments of each attempt's `rollcage.Session`.

    Raises:
        PlanInvalid: something is wrong with a plan.
        WorkflowError: two plans have one name.
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
        """Have an execution started; False where one of this id was before. See `Commands.start`.

        The inputs are checked by the worker that begins it; here, where the plan is known here.

        Raises:
            InputsInvalid: they are not what the plan declares; or `start` is no step of it, or
                `given` is not what the steps before that give.
            WorkflowError: they are no JSON.
            StoreError: it can't be kept.
        """
        if plan in self.plans:
            given_inputs(self.plans[plan], inputs or {})
            given_results(self.plans[plan], start, given or {})
        return self.commands.start(plan, inputs, id=id, by=by, at=at, start=start, given=given)

    def schedule(self, schedule: Schedule) -> None:
        """Have a plan started again and again. See `Schedules.put`."""
        if self.url is None:
            raise WorkflowError("schedules need an engine's database: pass its URL")
        self.schedules.put(schedule)

    def reconcile(self) -> list[str]:
        """Have all go on that began without the engine, or is unknown to it. See `reconcile`."""
        return reconcile(self.store)

    def serve(self, stop: threading.Event, *, grace: float = 30.0, once: bool = False) -> None:
        """Be a worker, until `stop` is set; then attempts end at their next step.

        Args:
            stop: ends it.
            grace: seconds that the steps in flight have to end. What goes on after that is cut off,
                as if the process was killed.
            once: end when nothing is due any more. This takes no engine's database.

        Raises:
            WorkflowError: this process was started as a fork, or has an engine that
                serves, or the URL is none.
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
        if self.url is None:
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
        Transact(
            self.url,
            worker,
            concurrency=self._concurrency,
            limits=self._limits,
            every=self._every,
        ).serve(stop, grace=grace)


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
