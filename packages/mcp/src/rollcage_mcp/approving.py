"""An approver that asks the person at the client, in the client's own dialog."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from rollcage import Approval, ApprovalRequest
from rollcage.gate import person
from rollcage_views import escape_json, visible

from rollcage_mcp.conversation import Conversation
from rollcage_mcp.errors import ServerError
from rollcage_mcp.sealed import is_sealed_for, sealed

__all__ = ["ClientApprover", "arguments_of", "decision", "dialog", "named", "question"]

_FORM: Final = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": ["reject", "approve"]},
        "reason": {"type": "string", "title": "Reason, which the model reads"},
    },
    "required": ["decision"],
}


class ClientApprover:
    """Asks by `elicitation/create`; the person at the client decides.

    A client that takes no requests gets the question as the answer to its call (`input_required`),
    and repeats the call with the person's answer.

    Args:
        key: the key that seals the state which such a client returns; with the store's key, another
            process can open it. By default a key of its own.
    """

    def __init__(self, key: Callable[[], bytes] | None = None) -> None:
        own = secrets.token_bytes(32)
        self._key = key or (lambda: own)
        self._conversation: Conversation | None = None

    def met(self, conversation: Conversation) -> None:
        """Ask the client of this conversation from now on."""
        self._conversation = conversation

    async def __call__(self, request: ApprovalRequest) -> Approval:
        """Return the answer of the person at the client. No answer is no approval."""
        conversation = self._conversation
        assert conversation is not None
        can, client = conversation.asking.asker
        if not can:
            return Approval.reject(
                "the client has no dialog for approvals; rollcage mcp run --queue SECONDS waits "
                "for one in the store's queue",
                by=_WHO,
            )
        if not conversation.asking.has_requests:
            return decision(await self._required(conversation, request), client)
        try:
            answer = await conversation.asking.ask("elicitation/create", question(request))
        except ServerError as error:
            return Approval.reject(f"the client can't ask for approval: {error}", by=_WHO)
        return decision(answer, client)

    async def _required(
        self, conversation: Conversation, request: ApprovalRequest
    ) -> Mapping[str, Any]:
        """Return the answer of a client that takes no requests, now or with its repeated call."""
        key = self._key()
        carried = conversation.asking.carried()
        if carried is not None and is_sealed_for(carried[0], request, key):
            reply = carried[1]  # the proxy was restarted in between
        else:
            reply = await conversation.asking.require(question(request), sealed(request, key))
        answer: Any = reply.get("approval") if isinstance(reply, dict) else None
        return cast("Mapping[str, Any]", answer) if isinstance(answer, dict) else {}


def question(request: ApprovalRequest) -> dict[str, Any]:
    """Return the question to a person about a call: the parameters of `elicitation/create`."""
    said = f"{named(request.name)} requires approval: {visible(request.verdict.reason)}"
    return dialog(said, arguments_of(request.args))


def dialog(*paragraphs: str) -> dict[str, Any]:
    """Return a question to a person: the parameters of `elicitation/create`.

    Args:
        paragraphs: the text. Names are written by `named`, arguments by `arguments_of`, and other
            texts from a server or a model by `rollcage_views.visible`: they can't look like the
            words of Rollcage, nor like another call.
    """
    return {"mode": "form", "message": "\n".join(paragraphs), "requestedSchema": _FORM}


def named(name: str) -> str:
    """Return the name of a tool for a dialog; a name that hides or reorders text, as JSON."""
    return name if name.isprintable() else json.dumps(name)


def arguments_of(args: Mapping[str, Any]) -> str:
    """Return arguments for a dialog, as JSON without characters that hide or reorder text."""
    lines = json.dumps(dict(args), indent=2, default=str, ensure_ascii=False).split("\n")
    return "\n".join(map(escape_json, lines))


def decision(answer: Mapping[str, Any], client: Mapping[str, Any]) -> Approval:
    """Return a person's decision by their answer. Anything but a clear yes is a no.

    Args:
        answer: the result of the elicitation.
        client: the client's description of itself.
    """
    content: Any = answer.get("content")
    reply: Any = content if isinstance(content, dict) else {}
    if answer.get("action") == "accept" and reply.get("decision") == "approve":
        return Approval(True, by=_named(client), reason=str(reply.get("reason") or ""))
    return Approval.reject(str(reply.get("reason") or "not approved"), by=_WHO)


def _named(client: Mapping[str, Any]) -> str:
    try:
        return person(f"user of {client.get('name', 'the client')}")
    except ValueError:
        return _WHO


_WHO: Final = "user of the client"
