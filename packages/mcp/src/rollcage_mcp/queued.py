"""Approval of a queued call, by the person at the client that requests it.

A model may make this request. So the person decides, in the client's dialog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import time_ns
from typing import Any, cast

from rollcage import Approval, ApprovalInvalid
from rollcage.gate import Terms, not_entitled, person
from rollcage.trace.store import store_option
from rollcage_views import Queued, Requests, queued_data, visible

from rollcage_mcp.approving import question
from rollcage_mcp.asking import Asking, asking_here
from rollcage_mcp.errors import ServerError
from rollcage_mcp.sealed import once

__all__ = ["approve_queued", "through"]


async def approve_queued(store: str, part: str, *, by: str) -> dict[str, Any]:
    """Ask the person at the client whether a waiting call may run; record the answer.

    Args:
        store: the store of the queue.
        part: the request's id, or its beginning.
        by: the person's name.

    Returns:
        The request with its decision, for machines.

    Raises:
        ApprovalInvalid: nothing was decided; the message says why, and what to do instead.
        RollcageError: the queue can't be read or written.
    """
    queue = Requests(store)
    queued = await asyncio.to_thread(_waiting, queue, part)
    refused = not_entitled(by, Terms(queued.request.requested_by))
    if refused is not None:
        raise ApprovalInvalid(f"request {queued.id}: {refused.reason}")
    answer = await _said(queue, queued)
    content: Any = answer.get("content") if answer.get("action") == "accept" else None
    said = cast("Mapping[str, Any]", content) if isinstance(content, dict) else {}
    reason, name = str(said.get("reason") or ""), through(by)
    match said.get("decision"):
        case "approve":
            decision = Approval(True, name, reason)
        case "reject":
            decision = Approval.reject(reason, by=name)
        case _:
            text = f"the person at the client decided nothing: request {queued.id} still waits"
            raise ApprovalInvalid(text)
    decided = await asyncio.to_thread(queue.decide, queued.id, decision)
    return queued_data(decided, time_ns() // 1000)


def through(who: str) -> str:
    """Return the name for decisions at the client that is asking now."""
    asking = asking_here.get()
    client: Any = None if asking is None else asking.asker[1].get("name")
    try:
        return person(f"{who} through {client or 'a client'}")
    except ValueError:
        return f"{who} through a client"


async def _said(queue: Requests, queued: Queued) -> Mapping[str, Any]:
    """Return the person's answer: the result of the elicitation."""
    asking = asking_here.get()
    if asking is None or not asking.asker[0]:
        raise ApprovalInvalid(_elsewhere(queue, queued, "this client has no dialog"))
    asked = _question(queued)
    if asking.has_requests:
        try:
            return await asking.ask("elicitation/create", asked)
        except ServerError as error:
            why = f"this client can't ask its person ({error})"
            raise ApprovalInvalid(_elsewhere(queue, queued, why)) from None
    return await _required(asking, asked)


async def _required(asking: Asking, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer of a client that takes no requests, and repeats the call with it."""
    reply = await asking.require(asked, once())
    answer: Any = reply.get("approval") if isinstance(reply, dict) else None
    return cast("Mapping[str, Any]", answer) if isinstance(answer, dict) else {}


def _question(queued: Queued) -> dict[str, Any]:
    request = queued.request
    asked = question(request)
    whose = (
        f"Run {request.run} waits for this approval. It acts for {visible(request.requested_by)}."
    )
    return {**asked, "message": f"{asked['message']}\n{whose}"}


def _elsewhere(queue: Requests, queued: Queued, why: str) -> str:
    command = f"rollcage approve {queued.id}{store_option(queue.store)}"
    return (
        f"{why}, and only a person can approve: nothing was decided. Have somebody run "
        f"`{command}` in a terminal, or decide in Mission Control (`rollcage ui`)"
    )


def _waiting(queue: Requests, part: str) -> Queued:
    """Return the one request whose id begins so, if it waits for a decision."""
    found = [each for each in queue.ids() if part and each.startswith(part)]
    name = part if part in found else found[0] if len(found) == 1 else ""
    queued = queue.get(name) if name else None
    if queued is None:
        many = f"{len(found)} requests begin" if found else "no request begins"
        raise ApprovalInvalid(f"{many} with {part[:40]!r}; list_approvals lists them")
    state = queued.state(time_ns() // 1000)
    if state != "waiting":
        raise ApprovalInvalid(f"request {queued.id} does not wait for a decision: it is {state}")
    return queued
