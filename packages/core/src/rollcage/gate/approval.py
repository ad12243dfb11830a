"""Who is asked where a rule asks, with what, what they may answer, and which answers count."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self, cast

from rollcage.gate.persons import looks_like, person, same_person
from rollcage.gate.verdict import Verdict

__all__ = [
    "Approval",
    "ApprovalRequest",
    "Approver",
    "Ask",
    "AskContext",
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
    """A call that a rule wants to be approved, before anything of it happens.

    Attributes:
        kind: `tool` or `model`.
        name: the tool's name.
        args: the canonical arguments, as the trace shows them: secrets are no part.
        agent: the agent's name, where the framework tells; else empty.
        call_id: the framework's id of the call; empty where it has none.
        key: the call's content identity (64 hex digits).
        verdict: what the rule said.
        id: a short name of the request: the beginning of its idempotency key.
        idempotency_key: which call of which run it is, over all resumes of that run: its key, in
            the world that its turn started in (64 hex digits).
        policy: the digest of the policy that asks; empty without one.
        run: the run in which it is asked.
        root: the first run of its lineage.
        branch: the branch of the run; empty for the main one.
        turn: where in the run, with `slot`.
        slot: the call's place in its turn.
        requested_by: who the run acts for; an approval of theirs does not count.
        at: when it is asked (Unix, µs).
        expires: from when on no approval of it counts (Unix, µs).
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
    """What an approver answers in place of the tool, which then does not run."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Approval:
    """What an approver says of one call.

    Attributes:
        approved: whether it may run, this once.
        by: who says so, by name: without one it lets nothing run (`Approval(True, by="ann")`).
        reason: why; on a rejection, a model reads it to go on.
        args: all the arguments with which it is to run instead, as values or in the form of the
            request. Left out are only those that hold a secret: they stay, and can't be edited.
            The tool's own schema checks them, and the rules decide on them anew. None: as asked.
        response: answers the call in place of the tool; such a call is not `approved` to run.
        of: the id, or the idempotency key, of the request that this answers. Where it is said, any
            other request is refused.
    """

    approved: bool
    by: str = ""
    reason: str = ""
    args: Mapping[str, Any] | None = None
    response: Response | None = None
    of: str = ""

    @classmethod
    def edit(cls, args: Mapping[str, Any], *, by: str = "", reason: str = "") -> Self:
        """It may run with these arguments."""
        return cls(True, by, reason, args)

    @classmethod
    def reject(cls, reason: str = "", *, by: str = "") -> Self:
        """It must not run."""
        return cls(False, by, reason)

    @classmethod
    def respond(cls, value: Any, *, by: str = "", reason: str = "") -> Self:
        """It does not run; this is its result."""
        return cls(False, by, reason, response=Response(value))

    @property
    def decision(self) -> str:
        """`approved`, `edited`, `responded` or `rejected`."""
        if self.approved:
            return "approved" if self.args is None else "edited"
        return "rejected" if self.response is None else "responded"


class Pending(NamedTuple):
    """Nobody has decided yet: the session halts, and a later one asks again."""

    message: str


class Refusal(NamedTuple):
    """Why nothing that was said lets the call run: a machine-readable code, and words."""

    code: str
    reason: str


Reply = Approval | Pending | Refusal
Approver = Callable[[ApprovalRequest], Reply | Awaitable[Reply]]
"""Decides on a call that a rule asks about. An async one serves async calls only.

One that raises, or gives back something else, denies.
"""


class Ask(NamedTuple):
    """Who is asked; `pauses` are the exceptions by which a framework goes away to ask elsewhere."""

    approver: Approver
    pauses: tuple[type[BaseException], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Instead:
    """What else than its body as it is a guarded call can come to, where an approver says so.

    Attributes:
        edited: the body that runs with the arguments that it is called with, by name; None where
            they can't reach the tool.
        answered: makes of an approver's response what the body would have given back; None where
            that can't be done.
    """

    edited: Callable[..., Any] | None = None
    answered: Callable[[Any], Any] | None = None


# --- which answers count -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """Under which approvals count in a session.

    Attributes:
        requested_by: who the run acts for: they can't approve its calls.
        policy: the digest of the policy; empty without one.
        expires: how long after it was asked for an approval counts (seconds).
        approvers: who may approve; None: anybody else than `requested_by`.
        around: those of the session around, which have to hold as well.
    """

    requested_by: str = ""
    policy: str = ""
    expires: float = DAY
    approvers: frozenset[str] | None = None
    around: Terms | None = None

    def within(self, around: Terms) -> Terms:
        """These, inside of a session with others: the stricter ones count."""
        policy = self.policy or around.policy
        if self.policy and around.policy:
            policy = sha256(f"{around.policy}{self.policy}".encode()).hexdigest()
        expires = min(self.expires, around.expires)
        return dataclasses.replace(self, policy=policy, expires=expires, around=around)


class AskContext(NamedTuple):
    """A call as it stood when it was asked about: where, and when (Unix, µs)."""

    fingerprint: str  # in the world that its turn started in
    run: str
    branch: str
    turn: int
    slot: int
    at: int


def judged(answer: object, request: ApprovalRequest, terms: Terms) -> Reply:
    """What an approver's answer comes to, whatever it gave back.

    Anybody may say no, in whatever name. A yes, and an answer in place of the tool, count in the
    name of a person, and not of who asked.
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
        said = "the policy has changed since approval was requested"
        return Refusal("approval_other_policy", said)
    return not_entitled(by, terms) or answer


def not_entitled(by: str, terms: Terms) -> Refusal | None:
    """Why a yes of this person does not count, if so."""
    if looks_like(by, terms.requested_by):
        said = f"{by} requested the call and can't approve it; another person has to"
        if not same_person(by, terms.requested_by):
            said = (
                f"the name {by!a} can be taken for that of who requested the call, who can't "
                f"approve it; another person has to"
            )
        return Refusal("approval_by_proposer", said)
    if terms.approvers is not None and not any(same_person(by, a) for a in terms.approvers):
        return Refusal("approval_not_entitled", f"{by} is not one of the approvers")
    return None if terms.around is None else not_entitled(by, terms.around)


def untimely(asked_at: int, expires: int, now: int) -> Refusal | None:
    """Why an approval does not count at this time (all Unix, µs), if so."""
    if now < asked_at:
        return Refusal("approval_clock", "the clock went backwards while the call was waiting")
    if now >= expires:
        return Refusal("approval_expired", "nobody approved the call in time")
    return None


def _is_whole(approval: Approval) -> bool:
    """Whether each part of it is what it should be, and none contradicts another."""
    texts: tuple[object, ...] = (approval.by, approval.reason, approval.of)
    args: object = approval.args
    response: object = approval.response
    return (
        isinstance(cast("object", approval.approved), bool)
        and all(isinstance(each, str) and _is_writable(each) for each in texts)
        and (args is None or (isinstance(args, Mapping) and approval.approved))
        and (response is None or (isinstance(response, Response) and not approval.approved))
    )


def _is_writable(text: str) -> bool:
    """Whether UTF-8 can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
