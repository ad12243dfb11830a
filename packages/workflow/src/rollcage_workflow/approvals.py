"""Approvals that a plan waits for, in the store's queue: `rollcage approve ID` decides there.

A request is bound to its execution, its step, the plan and the inputs: of another plan, or asked
with other words, it is another request. After an undo of the step, it is another one, too.
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

_ID: Final = 16  # hex digits, as those of a call's request


@dataclasses.dataclass(frozen=True, slots=True)
class Approvals:
    """What an execution asks people.

    Attributes:
        store: where its run is kept.
        execution: its id.
        plan: the plan's name.
        digest: the plan's.
        inputs: by name, the digest of what it was given.
        requested_by: for whom it runs: they can't approve.
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
        """Return the request of a step; nobody is asked.

        Args:
            step: its path.
            question: what people are asked.
            wait: how long, and who may decide.
            run: the run's id.
            epoch: how often the step was undone: what was approved before that does not count.
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
        """Put a request into the queue, if it is not there; return it, and what was decided.

        Raises:
            ApprovalCorrupt: what is there was changed.
            StoreError: it can't be determined.
        """
        approvers = frozenset(wait.approvers) or None
        ApprovalQueue(self.store).ask(request, Terms(self.requested_by, approvers=approvers))
        return self.look(request)

    def look(self, request: ApprovalRequest) -> tuple[ApprovalRequest, Decision | None]:
        """Do as `ask`, but ask nobody: return what was decided, if it was asked before."""
        queue = ApprovalQueue(self.store)
        asked = queue.get(request.id) or request
        return asked, queue.decision(asked)

    def is_open(self, request: ApprovalRequest, decision: Decision | None) -> bool:
        """Return whether somebody may still decide on it, and nobody has."""
        return decision is None and self.clock() // 1000 < request.expires

    def settle(
        self, request: ApprovalRequest, decision: Decision | None, wait: Wait
    ) -> dict[str, Any]:
        """Return what was decided.

        Raises:
            StepFailed: it was rejected, or not in time, or by somebody who may not decide on it.
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
        """Take a request out of the queue: what was decided is on record."""
        ApprovalQueue(self.store).drop(request.id)
