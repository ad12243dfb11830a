"""The open decisions for a person: calls to approve, and steps with an unknown outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rollcage import Store
from rollcage.errors import ApprovalCorrupt, RollcageError
from rollcage.gate import looks_like
from rollcage.trace.recorded import trace_of

from rollcage_views.jobs import Job, jobs_of
from rollcage_views.requests import Queued, Requests
from rollcage_views.runs import Step, read_run
from rollcage_views.status import standing
from rollcage_views.viewer import SEES_ALL, Viewer

__all__ = ["Inbox", "Waiting", "inbox_of", "may_answer", "queued_data"]

_JOBS: Final = 200  # newest jobs that are searched for unknown steps
_SETTLED: Final = ("ok", "abandoned", "undone", "running")


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """A step that a person has to resolve, as `rollcage resolve` takes it.

    Attributes:
        job: the name of its job.
        run: the id of the run.
        step: the step.
        why: `unknown`: it is unknown whether the step happened; `unclear`: it failed, and may have
            had an effect; `not_replayable`: it happened, and its result can't be
            replayed.
    """

    job: str
    run: str
    step: Step
    why: str

    def as_data(self) -> dict[str, Any]:
        """Return the step for machines."""
        return {
            "job": self.job, "run": self.run, "step": self.step.step, "name": self.step.name,
            "kind": self.step.kind, "args": self.step.args, "agent": self.step.agent,
            "time": self.step.time, "why": self.why,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Inbox:
    """The open decisions, the oldest first.

    Attributes:
        approvals: the requests without a decision that are not expired.
        unknown: the steps to resolve.
        damaged: the ids of requests that can't be trusted, with the reason: their calls do not run.
        older: whether there are older jobs that were not searched for steps to resolve.
    """

    approvals: list[Queued]
    unknown: list[Waiting]
    damaged: dict[str, str]
    older: bool = False

    def __len__(self) -> int:
        return len(self.approvals) + len(self.unknown)

    def as_data(self, now: int) -> dict[str, Any]:
        """Return the inbox for machines.

        Args:
            now: Unix time (µs).
        """
        return {
            "approvals": [queued_data(each, now) for each in self.approvals],
            "unknown": [each.as_data() for each in self.unknown],
            "damaged": self.damaged,
            "older": self.older,
        }


def inbox_of(store: Store, now: int, viewer: Viewer = SEES_ALL) -> Inbox:
    """Return the open decisions in a store.

    Args:
        store: the store.
        now: Unix time (µs).
        viewer: the viewer.

    Raises:
        StoreError: the store can't be read.
    """
    queue = Requests(store)
    approvals: list[Queued] = []
    damaged: dict[str, str] = {}
    for name in queue.ids():
        try:
            queued = queue.get(name)
        except ApprovalCorrupt as error:
            damaged[name] = str(error)
            continue
        if queued is not None and queued.state(now) == "waiting":
            approvals.append(queued)
    approvals.sort(key=lambda each: (each.request.at, each.id))
    jobs = jobs_of(store, limit=_JOBS + 1)
    unknown = sorted(_unknown(store, jobs[:_JOBS], viewer), key=lambda each: each.step.time)
    if not viewer.values:
        approvals = [Queued("", viewer.request(each.request)) for each in approvals]
        damaged = {f"request {n}": "damaged" for n, _ in enumerate(damaged, 1)}
    return Inbox(approvals, unknown, damaged, older=len(jobs) > _JOBS)


def may_answer(queued: Queued, person: str) -> bool:
    """Return whether a person may approve: the person for whom the run acts may not."""
    return bool(person) and not looks_like(person, queued.request.requested_by)


def _unknown(store: Store, jobs: Iterable[Job], viewer: Viewer) -> Iterator[Waiting]:
    for job in jobs:
        if job.status in _SETTLED:
            continue
        try:
            seen = read_run(trace_of(store, job.run))
        except RollcageError:
            continue  # damaged, or gone: opening the run reports it
        stands = standing(seen)
        found = [(each, "unknown") for each in stands.unknown]
        found += [(each, "unclear") for each in stands.unclear]
        found += [(each, "not_replayable") for each in stands.lost]
        for effect, why in found:
            step = seen.step(effect.step)
            if step is not None:
                yield Waiting(job.name, effect.run, viewer.step(step), why)


def queued_data(queued: Queued, now: int) -> dict[str, Any]:
    """Return a request for approval for machines.

    Args:
        queued: the request, from the queue.
        now: Unix time (µs).
    """
    request, decision = queued.request, queued.decision
    data: dict[str, Any] = {
        "id": queued.id,
        "state": queued.state(now),
        "kind": request.kind,
        "name": request.name,
        "args": dict(request.args),
        "agent": request.agent,
        "verdict": request.verdict.as_data(),
        "run": request.run,
        "root": request.root,
        "idempotency_key": request.idempotency_key,
        "policy": request.policy,
        "requested_by": request.requested_by,
        "at": request.at,
        "expires": request.expires,
        "use": queued.use,
    }
    if decision is not None:
        data["decision"] = {
            "decision": decision.decision,
            "by": decision.by,
            "reason": decision.reason,
            "at": queued.decided_at,
            "args": None if decision.args is None else dict(decision.args),
        }
        if decision.response is not None:
            data["decision"]["value"] = decision.response.value
    return data
