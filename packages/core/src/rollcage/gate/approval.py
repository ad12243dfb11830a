"""Who is asked where a rule asks, with what, and what they may answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from rollcage.gate.verdict import Verdict

__all__ = ["Approval", "ApprovalRequest", "Approver", "Ask", "approval_of"]


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
    """

    kind: str
    name: str
    args: Mapping[str, Any]
    agent: str
    call_id: str
    key: str
    verdict: Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Approval:
    """What an approver says of one call.

    Attributes:
        approved: whether it may run, this once.
        by: who says so.
        reason: why; on a rejection, a model reads it to go on.
    """

    approved: bool
    by: str = ""
    reason: str = ""


Approver = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
"""Decides on a call that a rule asks about. An async one serves async calls only.

One that raises, or gives back something else than an approval, denies.
"""


class Ask(NamedTuple):
    """Who is asked; `pauses` are the exceptions by which a framework goes away to ask elsewhere."""

    approver: Approver
    pauses: tuple[type[BaseException], ...] = ()


def approval_of(answer: object) -> Approval:
    """What an approver gave back, where that is an approval; else a rejection that says so."""
    if isinstance(answer, Approval) and type(answer.approved) is bool:
        return answer
    return Approval(False, reason="the approver gave back no approval")
