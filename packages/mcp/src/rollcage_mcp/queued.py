"""Approval of a queued call, by the person at the client that requests it."""

from __future__ import annotations

import asyncio
from time import time_ns
from typing import Any

from rollcage import Approval, ApprovalInvalid
from rollcage.gate import Terms, not_entitled
from rollcage.trace.store import store_option
from rollcage_views import Queued, Requests, queued_data, visible

from rollcage_mcp.approving import question
from rollcage_mcp.dialog import ask_person, through
from rollcage_mcp.errors import NotConfirmed

__all__ = ["approve_queued"]


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
    try:
        said = await ask_person(_question(queued))
    except NotConfirmed as error:
        raise ApprovalInvalid(_elsewhere(queue, queued, str(error))) from None
    if not said.decision:
        text = f"the person at the client decided nothing: request {queued.id} still waits"
        raise ApprovalInvalid(text)
    name = through(by)
    approves = said.decision == "approve"
    decision = (
        Approval(True, name, said.reason) if approves else Approval.reject(said.reason, by=name)
    )
    decided = await asyncio.to_thread(queue.decide, queued.id, decision)
    return queued_data(decided, time_ns() // 1000)


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
