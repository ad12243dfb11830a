"""Pages: templates, and what they can say of recorded values. All of it is text, never markup."""

from __future__ import annotations

from typing import Any

import jinja2
from fastapi import Request
from rollcage_views import (
    arguments_text,
    call_text,
    counted,
    duration_text,
    outcome_text,
    state_text,
    time_text,
    value_text,
    visible,
)
from starlette.responses import HTMLResponse

from rollcage_server.access import Asking
from rollcage_server.events import News

__all__ = ["page", "rows"]

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("rollcage_server"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {
    "arguments": arguments_text,
    "call": call_text,
    "counted": counted,
    "duration": duration_text,
    "outcome": outcome_text,
    "state": state_text,
    "time": time_text,
    "value": value_text,
    "visible": visible,
}


def page(
    request: Request, template: str, asking: Asking | None = None, status: int = 200, **said: Any
) -> HTMLResponse:
    """A page.

    Args:
        request: asks for it.
        template: its name.
        asking: who looks; None where nobody is known.
        status: of HTTP.
        **said: what the template tells.
    """
    who = None if asking is None else asking.who
    text = _templates.get_template(template).render(
        who=who,
        rights=set() if who is None else {right.value for right in who.rights},
        csrf="" if asking is None else asking.csrf,
        here=request.url.path,
        **said,
    )
    return HTMLResponse(text, status)


def rows(news: News) -> str:
    """What is new in a run, as rows for its page: new ones, and old ones that changed."""
    return _templates.get_template("rows.html").render(news=news)
