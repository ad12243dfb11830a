"""An approver that asks the person at the client, in the client's own dialog."""

from __future__ import annotations

from typing import Any, Final

import orjson
from rollcage import Approval, ApprovalRequest
from rollcage.gate import person

from rollcage_mcp.conversation import Conversation
from rollcage_mcp.errors import ServerError

__all__ = ["ClientApprover"]

_FORM: Final = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": ["reject", "approve"]},
        "reason": {"type": "string", "title": "Reason, which the model reads"},
    },
    "required": ["decision"],
}


class ClientApprover:
    """Asks by `elicitation/create`; whoever sits at the client decides."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None

    def met(self, conversation: Conversation) -> None:
        """Ask the client of this conversation from now on."""
        self._conversation = conversation

    async def __call__(self, request: ApprovalRequest) -> Approval:
        """What the person at the client says. No answer is no approval."""
        conversation = self._conversation
        assert conversation is not None
        arguments = orjson.dumps(dict(request.args), option=orjson.OPT_INDENT_2).decode()
        text = f"{request.name} requires approval: {request.verdict.reason}\n{arguments}"
        try:
            answer = await conversation.ask(
                "elicitation/create", {"message": text, "requestedSchema": _FORM}
            )
        except ServerError as error:
            return Approval.reject(f"the client can't ask for approval: {error}", by=_WHO)
        said: Any = answer.get("content") or {}
        if answer.get("action") == "accept" and said.get("decision") == "approve":
            return Approval(True, by=self._who(conversation), reason=str(said.get("reason", "")))
        return Approval.reject(str(said.get("reason") or "not approved"), by=_WHO)

    def _who(self, conversation: Conversation) -> str:
        try:
            return person(f"user of {conversation.client.get('name', 'the client')}")
        except ValueError:
            return _WHO


_WHO: Final = "user of the client"
