"""Approvals that a plan waits for, in the store's queue: `rollcage approve ID` decides there.

A request is bound to its execution, its step, the plan and the inputs: of another plan, or asked
with other words, it is another request. After a rollback, it is another one, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from rollcage.gate import ApprovalQueue, ApprovalRequest, Queued, Terms, Verdict, not_entitled
from rollcage.store import Store
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
        store: where its runs are kept.
        execution: its id.
        plan: the plan's name.
        digest: the plan's.
        inputs: by name, the digest of what it was given.
        requested_by: for whom it runs: they can't approve.
        clock: the time now (Unix, ns).
        anew: of an execution that was rolled back and is run again, see `Execution.anew`: what was
            approved before that does not count.
    """

    store: Store
    execution: str
    plan: str
    digest: str
    inputs: Mapping[str, str]
    requested_by: str
    clock: Callable[[], int]
    anew: str = ""

    def ask(self, step: str, question: str, wait: Wait, *, run: str) -> Queued:
        """The request of a step, put into the queue where it is not there yet.

        Raises:
            ApprovalCorrupt: what is there was changed.
            StoreError: it can't be determined.
        """
        queue = ApprovalQueue(self.store)
        request = self._request(step, question, wait, run)
        queue.ask(request.id, request)
        found = queue.get(request.id)
        assert found is not None
        return found

    def look(self, step: str, question: str, wait: Wait, *, run: str) -> Queued:
        """As `ask`, and nobody is asked: what was decided, if it was asked before."""
        request = self._request(step, question, wait, run)
        return ApprovalQueue(self.store).get(request.id) or Queued(request.id, request)

    def _request(self, step: str, question: str, wait: Wait, run: str) -> ApprovalRequest:
        bound = ["rollcage workflow approval", self.execution, step, question, self.digest]
        bound += [self.anew] if self.anew else []
        identity = sha256(jcs([*bound, dict(sorted(self.inputs.items()))])).hexdigest()
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

    def is_open(self, asked: Queued) -> bool:
        """Whether somebody may still decide on it, and nobody has."""
        return asked.decision is None and self.clock() // 1000 < asked.request.expires

    def settle(self, asked: Queued, wait: Wait) -> dict[str, Any]:
        """What was decided.

        Raises:
            StepFailed: it was rejected, or not in time, or by somebody who may not decide on it.
        """
        decision = asked.decision
        if decision is None or asked.decided_at >= asked.request.expires:
            raise StepFailed(f"nobody approved {asked.id} in time")
        if decision.decision == "rejected":
            why = f": {decision.reason}" if decision.reason else ""
            raise StepFailed(f"{decision.by or 'somebody'} rejected {asked.id}{why}")
        allowed = frozenset(wait.approvers) if wait.approvers else None
        refusal = not_entitled(decision.by, Terms(self.requested_by, approvers=allowed))
        if refusal is not None:
            raise StepFailed(f"{asked.id}: {refusal.reason}")
        value = decision.response.value if decision.response is not None else decision.args
        return {"by": decision.by, "reason": decision.reason, "value": value}

    def used(self, asked: Queued, *, run: str) -> None:
        """Say in the queue that an execution went on by it."""
        ApprovalQueue(self.store).use(asked.id, run, now=self.clock() // 1000)
