"""The registry of tools: proposals, approved and active tools; and decisions about them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from rollcage.trace.store import store_option
from rollcage_governance import Registry
from rollcage_governance.lifecycle import Governed
from rollcage_governance.pin import diff
from rollcage_views import visible
from starlette.responses import RedirectResponse, Response

from rollcage_server.access import Asking, AskingNow, Routes
from rollcage_server.actions import audited
from rollcage_server.api import Data
from rollcage_server.rendering import page
from rollcage_server.roles import Right
from rollcage_server.steering import body_of

__all__ = ["governed", "governed_api"]

governed = Routes()
governed_api = Routes("/api/v1", documented=True)

_LONGEST = 20_000  # characters of a proposal, on the page

Name = Annotated[str, Field(min_length=1, max_length=500)]


class Deciding(BaseModel):
    """The proposal to decide about: the one that was displayed."""

    model_config = ConfigDict(extra="forbid")

    tool: Name
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    kind: Literal["tool", "model"] = "tool"
    reason: Annotated[str, Field(max_length=2000)] = ""


def _approve(asking: Asking, body: Deciding) -> dict[str, Any]:
    """Approve the proposal of a tool: from now on, only this form is the tool."""

    def do() -> dict[str, Any]:
        given: dict[str, Any] = {"digest": body.digest, "kind": body.kind}
        by = asking.who.name
        done = Registry(asking.store).approve(body.tool, by=by, why=body.reason, **given)
        return {"tool": done.name, "status": done.status, "digest": body.digest}

    return dict(audited(asking, "tool approve", body.tool, do))


@governed_api.post("/tools/approve", Right.DECIDE)
def approve(asking: AskingNow, body: Deciding) -> Response:
    """Approve a proposal, by its digest; nobody can approve their own proposal."""
    return Data(_approve(asking, body))


@governed.post("/tools/approve", Right.DECIDE)
def form_approve(asking: AskingNow) -> Response:
    """Approve a proposal, by its digest."""
    _approve(asking, body_of(Deciding, asking.form))
    return RedirectResponse("/tools", 303)


@governed_api.get("/tools", Right.SEE)
def listed(asking: AskingNow) -> Response:
    """List the tools of the registry; `rollcage tools show` shows their contracts."""
    return Data({"tools": _tools(asking, _data)})


@governed.get("/tools", Right.SEE)
def shown(request: Request, asking: AskingNow) -> Response:
    """Return the tools of the registry, and their proposals."""
    option = store_option(asking.store)

    def row(each: Governed) -> dict[str, Any]:
        return _data(each) | _review(each, option, values=asking.who.may(Right.VALUES))

    return page(request, "tools.html", asking, tools=_tools(asking, row))


def _tools(asking: Asking, data: Callable[[Governed], dict[str, Any]]) -> list[dict[str, Any]]:
    state = Registry(asking.store).state()
    return [data(each) for _, each in sorted(state.tools.items())]


def _data(each: Governed) -> dict[str, Any]:
    pin, proposal = each.pin, each.proposal
    now = pin or proposal
    return {
        "kind": each.kind,
        "tool": each.name,
        "status": each.status,
        "effect": None if now is None else now.contract.get("effect"),
        "packs": sorted(each.packs),
        "digest": None if pin is None else pin.digest,
        "approved_by": None if pin is None else pin.approved_by,
        "approved": None if pin is None else pin.time,
        "proposed_by": None if proposal is None else proposal.by,
        "proposed_digest": None if proposal is None else proposal.digest,
    }


def _review(each: Governed, option: str, *, values: bool) -> dict[str, Any]:
    """Return the view of a proposal for the person who decides."""
    proposal = each.proposal
    if proposal is None or not values:
        return {"why": "", "changes": "", "command": ""}
    lines = diff({} if each.pin is None else each.pin.contract, proposal.contract).splitlines()
    changes = "\n".join(map(visible, lines))
    if len(changes) > _LONGEST:
        left = len(changes) - _LONGEST
        changes = f"{changes[:_LONGEST]}\n… {left:,} more characters: rollcage tools diff"
    model = " --model" if each.kind == "model" else ""
    named = f"{shlex.quote(each.name)}{model}{option}"
    command = f"rollcage tools approve {named} --digest {proposal.digest}"
    return {"why": proposal.why, "changes": changes, "command": command}
