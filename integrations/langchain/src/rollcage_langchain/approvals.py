"""LangGraph's own way to ask: `interrupt`, answered by `Command(resume=...)`.

The interrupt's value, and the decisions that answer it, have the form of LangChain's
`HumanInTheLoopMiddleware(mode="per_call")`, so that what serves one serves the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakSet

from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt
from rollcage import Approval, ApprovalRequest, Session
from rollcage.errors import ApprovalRequired
from rollcage_adapter import is_object

__all__ = ["ask_by_interrupt", "interrupting"]

_NOBODY: Final = "whoever resumed the graph"  # for a decision without a name, as LangChain's are


def _interrupt(request: ApprovalRequest) -> Approval:
    answer: Any = interrupt(
        {
            "type": "tool_approval",
            "tool_call_id": request.call_id,
            "name": request.name,
            "args": dict(request.args),
            "description": request.verdict.reason,
        }
    )
    fields = answer if is_object(answer) else {}
    by, message = str(fields.get("by") or _NOBODY), fields.get("message")
    match fields.get("type"):
        case "approve":
            return Approval(True, by)
        case "edit":
            return _edited(fields.get("edited_action"), request, by)
        case "reject":
            return Approval.reject(str(message or ""), by=by)
        case "respond" if message is not None:
            return Approval.respond(message, by=by)
        case _:
            known = "approve, edit, reject or respond"
            return Approval.reject(f"the decision was none of {known}", by=by)


def _edited(action: Any, request: ApprovalRequest, by: str) -> Approval:
    args = action.get("args") if is_object(action) else None
    if not is_object(args):
        return Approval.reject("the decision edits a call, and does not say how", by=by)
    if action.get("name", request.name) != request.name:
        return Approval.reject("a call can't be edited to one of another tool", by=by)
    return Approval.edit(args, by=by)


_interrupts: Final[ContextVar[bool]] = ContextVar("rollcage_langchain.interrupts", default=False)


@contextlib.contextmanager
def interrupting(*, interrupts: bool) -> Generator[None]:
    """Let the calls of a block interrupt their graph if a rule asks."""
    token = _interrupts.set(interrupts)
    try:
        yield
    finally:
        _interrupts.reset(token)


_ASKING: Final[WeakSet[Session]] = WeakSet()


def ask_by_interrupt(session: Session) -> None:
    """Let the calls inside `interrupting` interrupt their graph until a person decides.

    Other calls of the session are decided by its own approver. The graph ends by an exception of
    its own.
    """
    if session in _ASKING:
        return
    _ASKING.add(session)
    other: Any = session.approver

    def approver(request: ApprovalRequest) -> Any:
        if _interrupts.get():
            return _interrupt(request)
        if other is None:
            raise ApprovalRequired(
                f"{request.name} needs an approval ({request.verdict.reason}), and no graph that "
                f"could be interrupted makes the call: give the session an approver"
            )
        return getattr(other, "approver", other)(request)

    session.ask(approver, pauses=(GraphBubbleUp,))
