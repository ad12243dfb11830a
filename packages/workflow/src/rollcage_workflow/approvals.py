"""Approvals in a plan, in the store's queue: `rollcage approve ID` decides about them.

A request is bound to its execution, its step, the plan and the inputs: with another plan or another
question, it is another request. After an undo of the step, it is another request as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from rollcage import ApprovalQueue, Store
from rollcage.gate import ApprovalRequest, Terms, Verdict, not_entitled
from rollcage.stages.queue import Decision
from rollcage.trace import jcs

from rollcage_workflow.errors import StepFailed
from rollcage_workflow.plan import Wait
from rollcage_workflow.records import APPROVAL

__all__ = ["Approvals"]

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
    """

    store: Store
    execution: str
    plan: str
    digest: str
    inputs: Mapping[str, str]
    requested_by: str
    clock: Callable[[], int]

    def request(
        self, step: str, question: str, wait: Wait, *, run: str, epoch: int
    ) -> ApprovalRequest:
        """Return the request of a step, without asking.

        Args:
            step: its path.
            question: the question for people.
            wait: how long, and who may decide.
            run: the run's id.
            epoch: how often the step was undone: earlier approvals do not count.
        """
        bound: list[Any] = ["rollcage workflow approval", self.execution, step, question]
        bound += [self.digest, epoch, dict(sorted(self.inputs.items()))]
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

        Raises:
            ApprovalCorrupt: the stored request was changed.
            StoreError: the queue can't be read.
        """
        approvers = frozenset(wait.approvers) or None
        ApprovalQueue(self.store).ask(request, Terms(self.requested_by, approvers=approvers))
        return self.look(request)

    def look(self, request: ApprovalRequest) -> tuple[ApprovalRequest, Decision | None]:
        """Return the request and its decision like `ask`, without asking."""
        queue = ApprovalQueue(self.store)
        asked = queue.get(request.id) or request
        return asked, queue.decision(asked)

    def is_open(self, request: ApprovalRequest, decision: Decision | None) -> bool:
        """Return whether the request is undecided and may still be decided."""
        return decision is None and self.clock() // 1000 < request.expires

    def settle(
        self, request: ApprovalRequest, decision: Decision | None, wait: Wait
    ) -> dict[str, Any]:
        """Return the decision.

        Raises:
            StepFailed: the request was rejected, or decided too late, or by a person who may not
                decide.
        """
        if decision is None or decision.at >= request.expires:
            raise StepFailed(f"nobody approved {request.id} in time")
        answer = decision.answer
        if answer.decision == "rejected":
            why = f": {answer.reason}" if answer.reason else ""
            raise StepFailed(f"{answer.by or 'somebody'} rejected {request.id}{why}")
        allowed = frozenset(wait.approvers) if wait.approvers else None
        refusal = not_entitled(answer.by, Terms(self.requested_by, approvers=allowed))
        if refusal is not None:
            raise StepFailed(f"{request.id}: {refusal.reason}")
        value = answer.response.value if answer.response is not None else answer.args
        return {"by": answer.by, "reason": answer.reason, "value": value}

    def over(self, request: ApprovalRequest) -> None:
        """Remove a request from the queue: its decision is on record."""
        ApprovalQueue(self.store).drop(request.id)
