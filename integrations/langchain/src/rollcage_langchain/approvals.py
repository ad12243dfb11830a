"""LangGraph's own way to ask: `interrupt`, answered by `Command(resume=...)`.

The interrupt's value, and the decisions that answer it, have the form of LangChain's
`HumanInTheLoopMiddleware(mode="per_call")`, so that what serves one serves the other.
"""

from __future__ import annotations

from typing import Any, Final

from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt
from rollcage import Approval, ApprovalRequest
from rollcage.adapter import Ask, is_object

__all__ = ["INTERRUPT"]

_NOBODY: Final = "whoever resumed the graph"  # whose decision says no name, as LangChain's do not


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


INTERRUPT: Final = Ask(_interrupt, (GraphBubbleUp,))
"""Interrupts the graph until somebody has decided; it goes away by its own exception."""
