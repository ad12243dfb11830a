"""Request approvals: the call to decide on, the possible answers, and the answers that count."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Self, cast

from rollcage.gate.persons import looks_like, person, same_person
from rollcage.gate.verdict import Verdict, is_writable

__all__ = [
    "Approval",
    "ApprovalRequest",
    "Approver",
    "Instead",
    "Pending",
    "Refusal",
    "Response",
    "Terms",
    "judged",
    "not_entitled",
    "untimely",
]

DAY: Final = 24 * 60 * 60.0  # seconds
_UNNAMED: Final = Verdict("ask", "", "approval_required")


@dataclasses.dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Describe a call that requires approval before anything of it happens.

    Attributes:
        kind: `tool` or `model`.
        name: the tool's name.
        args: the canonical arguments, as the trace shows them: without secrets.
        agent: the agent's name; empty if the framework does not provide it.
        call_id: the framework's id of the call; empty without one.
        key: the call's content identity (64 hex digits).
        verdict: the rule's verdict.
        id: a short name of the request: the beginning of its idempotency key.
        idempotency_key: identifies the call over all resumes of its run: its key, in the world in
            which its turn started (64 hex digits). After an undo, the same call is another request.
        policy: the digest of the policy that asks; empty without one.
        run: the run that asks.
        root: the first run of its lineage.
        branch: the branch of the run; empty for the main one.
        turn: the turn of the call in the run.
        slot: the call's place in its turn.
        requested_by: the person for whom the run acts; their own approval does not count.
        at: when it was requested (Unix, µs).
        expires: when approvals stop counting (Unix, µs).
    """

    kind: str
    name: str
    args: Mapping[str, Any]
    agent: str = ""
    call_id: str = ""
    key: str = ""
    verdict: Verdict = _UNNAMED
    id: str = ""
    idempotency_key: str = ""
    policy: str = ""
    run: str = ""
    root: str = ""
    branch: str = ""
    turn: int = 0
    slot: int = 0
    requested_by: str = ""
    at: int = 0
    expires: int = 0


# --- answers -------------------------------------------------------------------------------------


class Response(NamedTuple):
    """Answer in place of the tool, which then does not run."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Approval:
    """Decide on one call.

    Attributes:
        approved: whether the call may run, this once.
        by: the approver's name; an approval without a name does not count. `Approval(True,
            by="ann")`.
        reason: why; a model reads the reason of a rejection to continue.
        args: all the arguments to run the call with instead, as values or in the form of the
            request. Leave out only secrets: they stay, and can't be edited. The tool's own schema
            checks the arguments, and the rules decide on them anew. None: as requested.
        response: answers the call in place of the tool; such a call is not `approved` to run.
        of: the id, or the idempotency key, of the request. If given, any other request is refused.
    """

    approved: bool
    by: str = ""
    reason: str = ""
    args: Mapping[str, Any] | None = None
    response: Response | None = None
    of: str = ""

    @classmethod
    def edit(cls, args: Mapping[str, Any], *, by: str = "", reason: str = "") -> Self:
        """Let the call run with these arguments."""
        return cls(True, by, reason, args)

    @classmethod
    def reject(cls, reason: str = "", *, by: str = "") -> Self:
        """Keep the call from running."""
        return cls(False, by, reason)

    @classmethod
    def respond(cls, value: Any, *, by: str = "", reason: str = "") -> Self:
        """Answer the call with this result; the tool does not run."""
        return cls(False, by, reason, response=Response(value))

    @property
    def decision(self) -> str:
        """Return `approved`, `edited`, `responded` or `rejected`."""
        if self.approved:
            return "approved" if self.args is None else "edited"
        return "rejected" if self.response is None else "responded"


class Pending(NamedTuple):
    """Postpone the decision: the session halts, and a later one asks again."""

    message: str


class Refusal(NamedTuple):
    """Say why the call must not run: a machine-readable code, and a reason."""

    code: str
    reason: str


Reply = Approval | Pending | Refusal
Approver = Callable[[ApprovalRequest], Reply | Awaitable[Reply]]
"""Decides on a call that requires approval. An async approver serves async calls only.

One that raises, or returns anything else, denies.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Instead:
    """Run a guarded call with an approver's edited arguments or response.

    Attributes:
        edited: the body to call with the edited arguments, by name; None if they can't reach the
            tool.
        answered: turns an approver's response into a result of the body; None if it can't.
    """

    edited: Callable[..., Any] | None = None
    answered: Callable[[Any], Any] | None = None


# --- which answers count -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """Hold the terms under which approvals count in a session.

    Attributes:
        requested_by: the person for whom the run acts, and who can't approve its calls.
        policy: the digest of the policy; empty without one.
        expires: how long after its request an approval counts (seconds).
        approvers: the persons who may approve; None: anybody but `requested_by`.
        around: the terms of the enclosing session, which apply as well.
    """

    requested_by: str = ""
    policy: str = ""
    expires: float = DAY
    approvers: frozenset[str] | None = None
    around: Terms | None = None


def judged(answer: object, request: ApprovalRequest, terms: Terms) -> Reply:
    """Return the decision of an approver's answer, of whatever type.

    Anybody may reject, under any name. An approval, or an answer in place of the tool, counts only
    under the name of a person other than the requester.
    """
    if isinstance(answer, (Pending, Refusal)):
        return answer
    if not isinstance(answer, Approval) or not _is_whole(answer):
        return Refusal("approver_failed", "the approver returned no approval")
    if answer.of and answer.of not in (request.id, request.idempotency_key):
        return Refusal("approval_other_call", "the approval is for another call")
    try:
        by = person(answer.by)
    except ValueError as error:
        if answer.decision == "rejected":
            return dataclasses.replace(answer, by="")
        return Refusal("approval_unnamed", f"the approval names no person: {error}")
    answer = dataclasses.replace(answer, by=by)
    if answer.decision == "rejected":
        return answer
    if terms.policy != request.policy:
        reason = "the policy has changed since approval was requested"
        return Refusal("approval_other_policy", reason)
    return not_entitled(by, terms) or answer


def not_entitled(by: str, terms: Terms) -> Refusal | None:
    """Return why this person's approval does not count; None if it does."""
    if looks_like(by, terms.requested_by):
        reason = f"{by} requested the call and can't approve it; another person has to"
        if not same_person(by, terms.requested_by):
            reason = (
                f"the name {by!a} looks like that of the person who requested the call, who can't "
                f"approve it; another person has to"
            )
        return Refusal("approval_by_proposer", reason)
    if terms.approvers is not None and not any(same_person(by, a) for a in terms.approvers):
        return Refusal("approval_not_entitled", f"{by} is not one of the approvers")
    return None if terms.around is None else not_entitled(by, terms.around)


def untimely(asked_at: int, expires: int, now: int) -> Refusal | None:
    """Return why an approval does not count at this time (all Unix, µs); None if it does."""
    if now < asked_at:
        return Refusal("approval_clock", "the clock went backwards while the call was waiting")
    if now >= expires:
        return Refusal("approval_expired", "nobody approved the call in time")
    return None


def _is_whole(approval: Approval) -> bool:
    """Tell whether the parts of an approval have the right types, and none contradicts another."""
    texts: tuple[object, ...] = (approval.by, approval.reason, approval.of)
    args: object = approval.args
    response: object = approval.response
    return (
        isinstance(cast("object", approval.approved), bool)
        and all(isinstance(each, str) and is_writable(each) for each in texts)
        and (args is None or (isinstance(args, Mapping) and approval.approved))
        and (response is None or (isinstance(response, Response) and not approval.approved))
    )
