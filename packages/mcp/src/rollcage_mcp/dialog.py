"""Questions to the person at the client of the operations server, in the client's own dialog.

A model may call a tool of that server. So the person decides about each call that lets an effect
happen, and the model only asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from rollcage.gate import person

from rollcage_mcp.asking import Asking, asking_here
from rollcage_mcp.errors import NotConfirmed, ServerError
from rollcage_mcp.sealed import once

__all__ = ["Said", "ask_person", "through"]


class Said(NamedTuple):
    """What the person said. `decision` is empty if it was nothing, or unclear."""

    decision: Literal["approve", "reject", ""]
    reason: str = ""


async def ask_person(question: Mapping[str, Any]) -> Said:
    """Show a question to the person at the client, and wait for the answer.

    Args:
        question: the parameters of `elicitation/create`: see `approving.dialog`.

    Raises:
        NotConfirmed: the client has no dialog, or can't show it.
    """
    asking = asking_here.get()
    if asking is None or not asking.asker[0]:
        raise NotConfirmed("this client has no dialog")
    if not asking.has_requests:
        return _read(await _required(asking, question))
    try:
        return _read(await asking.ask("elicitation/create", question))
    except ServerError as error:
        raise NotConfirmed(f"this client can't ask its person ({error})") from None


def through(who: str) -> str:
    """Return the name for decisions at the client that is asking now."""
    asking = asking_here.get()
    client: Any = None if asking is None else asking.asker[1].get("name")
    try:
        return person(f"{who} through {client or 'a client'}")
    except ValueError:
        return f"{who} through a client"


async def _required(asking: Asking, question: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer of a client that takes no requests, and repeats the call with it."""
    reply = await asking.require(question, once())
    answer: Any = reply.get("approval") if isinstance(reply, dict) else None
    return cast("Mapping[str, Any]", answer) if isinstance(answer, dict) else {}


def _read(answer: Mapping[str, Any]) -> Said:
    """Return what the result of an elicitation says."""
    content: Any = answer.get("content") if answer.get("action") == "accept" else None
    said = cast("Mapping[str, Any]", content) if isinstance(content, dict) else {}
    reason = str(said.get("reason") or "")
    match said.get("decision"):
        case "approve" | "reject" as decision:
            return Said(decision, reason)
        case _:
            return Said("")
