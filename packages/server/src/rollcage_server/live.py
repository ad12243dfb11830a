"""The news of a live run, as messages for pages and programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import orjson
from fastapi import Request
from rollcage.errors import StoreError
from rollcage_views import Viewer, step_data

from rollcage_server.access import Asking, means_of
from rollcage_server.errors import BadRequest
from rollcage_server.events import EventStream, Form, News, message
from rollcage_server.roles import Right

__all__ = ["after_of", "live", "renderer"]

_PLAIN: Final = ("event", "time", "step", "status", "name", "kind", "of", "by", "decision")
"""The fields of an event for a viewer without values."""


def after_of(request: Request) -> int:
    """Return the last line of a run that the client knows.

    Raises:
        BadRequest: it is no number.
    """
    last_seen = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not last_seen.isascii() or not last_seen.isdecimal() or len(last_seen) > 12:
        raise BadRequest("Last-Event-ID is the number of a line")
    return int(last_seen)


def live(request: Request, asking: Asking, run: str, form: Form, after: int) -> EventStream:
    """Return the messages of a run for a viewer.

    Raises:
        TooMany: the cap on viewers is reached.
    """
    means = means_of(request)
    means.hub.check_room()
    who = asking.who
    values = who.may(Right.VALUES)

    def still() -> bool:
        try:
            if asking.csrf and means.sessions.is_ended(asking.csrf):
                return False
        except StoreError:
            pass  # while the store is away there is no news; it is asked again
        now = means.authority.still(who)
        return now is not None and now.may(Right.SEE) and now.may(Right.VALUES) == values

    order = request.query_params.get("order", "")
    return EventStream(means.hub.stream(run, form, after, order, values=values, still=still))


def renderer(html: Callable[[News], str]) -> Callable[[News, Form, bool], bytes]:
    """Return a function that makes messages from news.

    Args:
        html: makes the rows of a page.
    """

    def render(news: News, form: Form, values: bool) -> bytes:  # noqa: FBT001 - as the hub has it
        seen = _as_seen(news, Viewer(values=values))
        if form == "html":
            return message("rows", html(seen), news.line)
        data = {
            "run": seen.run, "line": seen.line, "status": seen.status, "total": seen.total,
            "steps": [step_data(each) for each in seen.steps], "events": seen.events,
        }  # fmt: skip
        return message("news", orjson.dumps(data).decode(), news.line)

    return render


def _as_seen(news: News, viewer: Viewer) -> News:
    def event(each: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in each.items()
            if (name != "hash" if viewer.values else name in _PLAIN)
        }

    steps = [viewer.step(each) for each in news.steps]
    return dataclasses.replace(news, steps=steps, events=list(map(event, news.events)))
