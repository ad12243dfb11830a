"""Pages: what people see, without JavaScript too."""

from __future__ import annotations

from fastapi import Request
from rollcage import order_of
from rollcage.trace.store import store_option
from rollcage_views import (
    States,
    align,
    in_order,
    rule_counts,
    standing,
    timeline_of,
    tree_of,
    usage_of,
    words,
)
from rollcage_views.html import diff_page, run_head, step_row, step_rows, track_rows
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rollcage_server import reading
from rollcage_server.access import AskingNow, Routes
from rollcage_server.api import Behind, First
from rollcage_server.live import after_of, live
from rollcage_server.orders import order_key
from rollcage_server.rendering import page
from rollcage_server.roles import Right

__all__ = ["pages"]

pages = Routes()


@pages.get("/", Right.SEE)
def jobs(request: Request, asking: AskingNow, name: str = "") -> Response:
    """Return the jobs, a line each."""
    return page(request, "jobs.html", asking, jobs=reading.jobs(asking.store, name=name), name=name)


@pages.get("/runs", Right.SEE)
def runs(
    request: Request,
    asking: AskingNow,
    name: str = "",
    status: str = "",
    mode: str = "",
    behind: Behind = "",
) -> Response:
    """Return the runs, with filters."""
    wanted = reading.filter_of(name=name, status=status, mode=mode, since=None, before=None)
    found = reading.runs(asking.store, wanted, behind=behind)
    asked = {"name": name, "status": status, "mode": mode}
    return page(request, "runs.html", asking, runs=found, asked=asked, size=reading.PAGE)


@pages.get("/runs/{run}", Right.SEE)
def run(request: Request, asking: AskingNow, run: str, first: First = 1) -> Response:
    """Return a run: its steps, a page at a time, and its actions."""
    shown = reading.run_sheet(asking.store, run, asking.who.viewer, first=first)
    order = order_of(asking.store, run)
    seen = shown.sheet.run
    return page(
        request, "run.html", asking, shown=shown, order=order, size=reading.PAGE,
        sorted_by=order_key(order),
        head=run_head(seen, status=shown.status, whole=False),
        rows=step_rows(seen, at=store_option(asking.store), live=shown.live),
    )  # fmt: skip


@pages.get("/runs/{run}/standing", Right.SEE)
def open_things(request: Request, asking: AskingNow, run: str) -> Response:
    """Return the open problems of a run: unknown, left behind, not requested."""
    seen = reading.whole(asking.store, run)
    notes = words(standing(seen), seen.status, run, store_option(asking.store))
    usage = usage_of(seen)
    return page(request, "standing.html", asking, run=run, words=notes, usage=usage)


@pages.get("/runs/{run}/live", Right.SEE)
async def run_live(request: Request, asking: AskingNow, run: str) -> Response:
    """Return the news of a run, as rows for its page."""
    await run_in_threadpool(asking.store.ends, reading.check_run(run))
    return live(request, asking, run, "html", after_of(request))


@pages.get("/runs/{run}/steps/{number}", Right.SEE)
def step(request: Request, asking: AskingNow, run: str, number: int) -> Response:
    """Return a step in full."""
    seen, found = reading.step(asking.store, run, number, asking.who.viewer)
    row = step_row(seen.id, found, states=States(seen), at=store_option(asking.store))
    return page(request, "step.html", asking, run=seen, step=found, row=row)


@pages.get("/runs/{run}/tree", Right.SEE)
def tree(request: Request, asking: AskingNow, run: str) -> Response:
    """Return a run as a tree, and over time."""
    seen = asking.who.viewer.run(reading.whole(asking.store, run))
    return page(request, "tree.html", asking, run=seen, nodes=tree_of(seen.steps),
                tracks=track_rows(timeline_of(seen)))  # fmt: skip


@pages.get("/diff", Right.SEE)
def diff(request: Request, asking: AskingNow, a: str = "", b: str = "") -> Response:
    """Two runs beside each other."""
    found = None
    if a and b:
        viewer = asking.who.viewer
        one, two = (reading.whole(asking.store, each) for each in (a, b))
        heads = run_head(viewer.run(one)), run_head(viewer.run(two))
        found = diff_page(heads, align(in_order(one), in_order(two)), viewer)
    return page(request, "diff.html", asking, a=a, b=b, page=found)


@pages.get("/inbox", Right.SEE)
def inbox(request: Request, asking: AskingNow) -> Response:
    """Return the open decisions."""
    found = reading.waiting(asking.store, asking.who.viewer)
    return page(request, "inbox.html", asking, inbox=found)


@pages.get("/policies", Right.SEE)
def policies(request: Request, asking: AskingNow, limit: int = 50) -> Response:
    """Return the decisions of policies in the newest runs, also in shadow mode."""
    hits = reading.hits(asking.store, asking.who.viewer, limit=min(max(limit, 1), 200))
    return page(request, "policies.html", asking, hits=hits, counts=rule_counts(hits))


@pages.get("/audit", Right.AUDIT)
def audit(request: Request, asking: AskingNow) -> Response:
    """Return the audit log."""
    lines = asking.audit.lines(newest=reading.PAGE)
    return page(request, "audit.html", asking, lines=lines[::-1])
