"""Pages: templates over the parts of reports. All recorded values are text in them."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from jinja2 import ChoiceLoader, PackageLoader
from rollcage_views import Step, arguments_text, mode_of, value_text
from rollcage_views.html import Links, StepRow, environment, loader, step_row
from starlette.responses import HTMLResponse

from rollcage_server.access import Asking
from rollcage_server.events import News

__all__ = ["page", "rows"]


class _Pages(Links):
    """Links to pages of this server; they contain only ids of ours and numbers."""

    def run(self, run: str) -> str:
        return f"/runs/{run}"

    def step(self, run: str, step: int) -> str:
        return f"/runs/{run}/steps/{step}"

    def approval(self, approval: str) -> str:
        return f"/inbox#approval-{approval}" if approval else ""

    def resolve(self, run: str, step: int) -> str:
        return f"/inbox#unknown-{run}-{step}"


_templates = environment(ChoiceLoader([PackageLoader("rollcage_server"), loader()]))
_templates.filters |= {"arguments": arguments_text, "mode": mode_of, "value": value_text}
_templates.globals |= {"links": _Pages()}


def page(
    request: Request, template: str, asking: Asking | None = None, status: int = 200, **more: Any
) -> HTMLResponse:
    """Return a page.

    Args:
        request: the request.
        template: its name.
        asking: the viewer; None if not authenticated.
        status: the HTTP status.
        **more: the template's values.
    """
    who = None if asking is None else asking.who
    text = _templates.get_template(template).render(
        who=who,
        rights=set() if who is None else {right.value for right in who.rights},
        csrf="" if asking is None else asking.csrf,
        here=request.url.path,
        **more,
    )
    return HTMLResponse(text, status)


def rows(news: News) -> str:
    """Return the news of a run, as rows for its page: new ones, and changed ones."""
    shown = [
        (_row(news, step), step.line <= news.after)  # the page has that line
        for step in news.steps
    ]
    return _templates.get_template("rows.html").render(
        rows=shown, status=news.status, total=news.total
    )


def _row(news: News, step: Step) -> StepRow:
    inside = 0 if step.parent is None else 1
    return step_row(news.run, step, depth=inside, live=not news.status)
