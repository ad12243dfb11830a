"""The registry of tools: which are proposed, approved, active, and by whom."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from rollcage_governance import Registry
from starlette.responses import Response

from rollcage_server.access import Asking, AskingNow, Routes
from rollcage_server.api import Data
from rollcage_server.rendering import page
from rollcage_server.roles import Right

__all__ = ["governed", "governed_api"]

governed = Routes()
governed_api = Routes("/api/v1", documented=True)


@governed_api.get("/tools", Right.SEE)
def listed(asking: AskingNow) -> Response:
    """List the tools of the registry; their contracts are what `rollcage tools show` tells."""
    return Data({"tools": _tools(asking)})


@governed.get("/tools", Right.SEE)
def shown(request: Request, asking: AskingNow) -> Response:
    """The tools of the registry."""
    return page(request, "tools.html", asking, tools=_tools(asking))


def _tools(asking: Asking) -> list[dict[str, Any]]:
    state = Registry(asking.store).state()
    return [
        {
            "kind": each.kind,
            "tool": each.name,
            "status": each.status,
            "packs": sorted(each.packs),
            "digest": None if each.pin is None else each.pin.digest,
            "approved_by": None if each.pin is None else each.pin.approved_by,
            "proposed_by": None if each.proposal is None else each.proposal.by,
        }
        for _, each in sorted(state.tools.items())
    ]
