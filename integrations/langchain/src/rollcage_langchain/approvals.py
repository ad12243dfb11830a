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
    said = answer if is_object(answer) else {}
    decision, by, message = (said.get(field) for field in ("type", "by", "message"))
    if decision == "approve":
        return Approval(True, by=str(by or ""))
    if decision == "reject":
        return Approval(False, by=str(by or ""), reason=str(message or ""))
    return Approval(False, reason="the decision was neither approve nor reject")


INTERRUPT: Final = Ask(_interrupt, (GraphBubbleUp,))
"""Interrupts the graph until somebody has decided; it goes away by its own exception."""
