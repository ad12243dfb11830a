"""Search over runs and their steps: by names, tools, agents, states, and by values if allowed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import Query, Request
from rollcage_views import STATES, RunFilter, Search, StepFilter, Viewer, search_page, step_data
from starlette.responses import Response

from rollcage_server.access import Asking, AskingNow, Routes
from rollcage_server.api import Behind, Data
from rollcage_server.errors import BadRequest
from rollcage_server.reading import PAGE, check_run, info_data
from rollcage_server.rendering import page
from rollcage_server.roles import Right

__all__ = ["searching", "searching_api"]

searching = Routes()
searching_api = Routes("/api/v1", documented=True)

Text = Annotated[str, Query(max_length=200)]
Moment = Annotated[int | None, Query(ge=0, le=2**62, description="Unix time (µs)")]
_STATES: Final = (*STATES, "undone")
_GLOB: Final = frozenset("*?[")


@searching_api.get("/search", Right.SEE)
def found(
    asking: AskingNow,
    text: Text = "",
    name: Text = "",
    tool: Text = "",
    agent: Text = "",
    state: Text = "",
    since: Moment = None,
    behind: Behind = "",
) -> Response:
    """Search for steps and runs, the newest first; for more, pass the answer's `behind`."""
    given = {"text": text, "name": name, "tool": tool, "agent": agent, "state": state}
    return Data(_data(_search(asking, given, since, behind), asking.who.viewer))


@searching.get("/search", Right.SEE)
def shown(
    request: Request,
    asking: AskingNow,
    text: Text = "",
    name: Text = "",
    tool: Text = "",
    agent: Text = "",
    state: Text = "",
    since: Text = "",
    behind: Behind = "",
) -> Response:
    """Return the page of a search and its matches."""
    given = {"text": text, "name": name, "tool": tool, "agent": agent, "state": state}
    asked = any(given.values()) or bool(since)
    result = _search(asking, given, _midnight(since), behind) if asked else None
    return page(request, "search.html", asking, result=result, states=_STATES, size=PAGE,
                asked={**given, "since": since})  # fmt: skip


def _search(asking: Asking, given: dict[str, str], since: int | None, behind: str) -> Search:
    if given["state"] not in ("", *_STATES):
        raise BadRequest(f"state: one of {', '.join(_STATES)}")
    runs = RunFilter(names=_globs(given["name"]), since=since)
    steps = StepFilter(
        tools=_globs(given["tool"]),
        agents=_globs(given["agent"]),
        states=[given["state"]] if given["state"] else (),
        text=given["text"],
    )
    behind = check_run(behind) if behind else ""
    return search_page(asking.store, runs, steps, viewer=asking.who.viewer, behind=behind)


def _globs(text: str) -> Sequence[str]:
    """Return globs for names that contain a text, or that match it if it has a `*`."""
    return [text if _GLOB & {*text} else f"*{text}*"] if text else ()


def _midnight(day: str) -> int | None:
    """Return the beginning of a day (Unix, µs).

    Raises:
        BadRequest: the text is no day.
    """
    if not day:
        return None
    try:
        began = dt.datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError:
        raise BadRequest("since: a day, as 2027-01-31") from None
    return max(0, int(began.timestamp())) * 1_000_000


def _data(result: Search, viewer: Viewer) -> dict[str, Any]:
    return {
        "runs": [
            {
                "run": info_data(each.info, viewer),
                "steps": [step_data(step) for step in each.steps],
                "count": each.count,
            }
            for each in result.runs
        ],
        "looked": result.looked,
        "unread": result.unread,
        "behind": result.last or None,
    }
