"""Approvals in a plan, in the store's queue: `rollcage approve ID` decides about them.

A request is bound to its execution, its step, the plan and the inputs: with another plan or another
question, it is another request. After an undo of the step, or a rejection, it is another request as
well. A request that is open when its execution ends is removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Any, Final

from rollcage import ApprovalQueue, Store
from rollcage.gate import ApprovalRequest, Terms, Verdict, not_entitled
from rollcage.stages.queue import Decision
from rollcage.trace import jcs
from rollcage.trace.store import drop

from rollcage_workflow.holds import prefix_of
from rollcage_workflow.plan import Wait
from rollcage_workflow.records import APPROVAL

__all__ = ["Approvals", "answer_of", "close"]

KIND: Final = "asked"  # of documents: the requests of an execution
_ID: Final = 16  # hex digits, as in a call's request


@dataclasses.dataclass(frozen=True, slots=True)
class Approvals:
    """An execution's questions to people.

    Attributes:
        store: the store of its run.
        execution: its id.
        plan: the plan's name.
        digest: the plan's digest.
        inputs: the digest of each input, by name.
        requested_by: the person for whom it runs, who can't approve.
        clock: the time now (Unix, ns).
        settled: the requests that were answered before the execution failed last: a rejection among
            them was the answer to an earlier request, and people are asked again.
    """

    store: Store
    execution: str
    plan: str
    digest: str
    inputs: Mapping[str, str]
    requested_by: str
    clock: Callable[[], int]
    settled: Collection[str] = ()

    def request(
        self, step: str, question: str, wait: Wait, *, run: str, epoch: int, number: int
    ) -> ApprovalRequest:
        """Return the request of a step, without asking.

        Args:
            step: its path.
            question: the question for people.
            wait: how long, and who may decide.
            run: the run's id.
            epoch: how often the step was undone: earlier approvals do not count.
            number: how often the question was rejected before.
        """
        bound: list[Any] = ["rollcage workflow approval", self.execution, step, question]
        bound += [self.digest, epoch, dict(sorted(self.inputs.items()))]
        bound += [number] if number else []
        identity = sha256(jcs(bound)).hexdigest()
        args = {"question": question, "plan": self.plan, "execution": self.execution, "step": step}
        now = self.clock() // 1000
        return ApprovalRequest(
            kind="tool",
            name=APPROVAL.name,
            args={**args, "digest": self.digest},
            key=sha256(jcs([APPROVAL.name, args])).hexdigest(),
            verdict=Verdict.ask(question),
            id=identity[:_ID],
            idempotency_key=identity,
            run=run,
            root=run,
            requested_by=self.requested_by,
            at=now,
            expires=now + int(wait.expires * 1_000_000),
        )

    def ask(self, request: ApprovalRequest, wait: Wait) -> tuple[ApprovalRequest, Decision | None]:
        """Put a request into the queue, if it is not there; return it, and its decision.

        A decision by a person who may not decide is removed: the queue refuses it, so somebody has
        put it there by other means.

        Raises:
            ApprovalCorrupt: the stored request was changed.
            StoreError: the queue can't be read.
        """
        queue, terms = ApprovalQueue(self.store), self._terms(wait)
        self.store.swap(KIND, f"{prefix_of(self.execution)}.{request.id}", None, b"1")
        queue.ask(request, terms)
        asked, decision = self.look(request)
        if decision is not None and not_entitled(decision.answer.by, terms) is not None:
            queue.drop(request.id)
            queue.ask(asked, terms)
            return asked, None
        return asked, decision

    def _terms(self, wait: Wait) -> Terms:
        return Terms(self.requested_by, approvers=frozenset(wait.approvers) or None)

    def look(self, request: ApprovalRequest) -> tuple[ApprovalRequest, Decision | None]:
        """Return the request and its decision like `ask`, without asking."""
        queue = ApprovalQueue(self.store)
        asked = queue.get(request.id) or request
        return asked, queue.decision(asked)

    def is_open(self, request: ApprovalRequest, decision: Decision | None) -> bool:
        """Return whether the request is undecided and may still be decided."""
        return decision is None and self.clock() // 1000 < request.expires

    def over(self, request: ApprovalRequest) -> None:
        """Remove a request from the queue: its decision is on record."""
        _remove(self.store, f"{prefix_of(self.execution)}.{request.id}")


def answer_of(request: ApprovalRequest, decision: Decision | None) -> dict[str, Any]:
    """Return what is put on record of a request that is no longer open: `by`, `reason`, `value`.

    A rejection has no value, but `rejected`: what happened.
    """
    if decision is None or decision.at >= request.expires:
        message = f"nobody approved {request.id} in time"
        return {"by": "", "reason": "", "rejected": message}
    answer = decision.answer
    found: dict[str, Any] = {"by": answer.by, "reason": answer.reason}
    if answer.decision == "rejected":
        why = f": {answer.reason}" if answer.reason else ""
        return found | {"rejected": f"{answer.by or 'somebody'} rejected {request.id}{why}"}
    return found | {"value": answer.args if answer.response is None else answer.response.value}


def close(store: Store, execution: str) -> None:
    """Remove the open requests of an execution that has ended.

    Raises:
        StoreError: the change can't be stored.
    """
    after = prefix = f"{prefix_of(execution)}."
    while keys := [key for key in store.keys(KIND, after) if key.startswith(prefix)]:
        after = keys[-1]
        for key in keys:
            _remove(store, key)


def _remove(store: Store, key: str) -> None:
    ApprovalQueue(store).drop(key.rpartition(".")[2])
    drop(store, KIND, key)
