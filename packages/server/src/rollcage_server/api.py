"""`/api/v1`: the content of the pages, for programs."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import Query, Request
from rollcage import run_info
from rollcage_views import (
    Job,
    Viewer,
    align,
    hits_of,
    pair_data,
    pause_of,
    run_data,
    standing,
    step_data,
    timeline_of,
    usage_of,
)
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rollcage_server import reading
from rollcage_server.access import AskingNow, Routes
from rollcage_server.live import after_of, live
from rollcage_server.orders import told_order
from rollcage_server.roles import Right

__all__ = ["Behind", "Data", "First", "Limit", "api"]

api = Routes("/api/v1", documented=True)

Limit = Annotated[int, Query(ge=1, le=1000)]
First = Annotated[int, Query(ge=1, le=2**31 - 1)]
Behind = Annotated[str, Query(max_length=200, description="The id of a run")]
Moment = Annotated[int | None, Query(ge=0, description="Unix time (µs)")]


class Data(Response):
    """JSON, in the form of views."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the data as bytes."""
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


@api.get("/openapi.json", Right.SEE)
def openapi(request: Request) -> Response:
    """Describe this API."""
    return Data(request.app.openapi())


@api.get("/me", Right.SEE)
def me(asking: AskingNow) -> Response:
    """Tell who makes the request, and their rights."""
    who = asking.who
    return Data({"name": who.name, "roles": sorted(who.roles), "rights": sorted(who.rights),
                 "expires": int(who.expires)})  # fmt: skip


@api.get("/jobs", Right.SEE)
def jobs(asking: AskingNow, name: str = "", limit: Limit = reading.PAGE) -> Response:
    """List jobs, those with the newest runs first."""
    found = reading.jobs(asking.store, name=name, limit=limit)
    return Data({"jobs": [_job(each, asking.who.viewer) for each in found]})


@api.get("/runs", Right.SEE)
def runs(
    asking: AskingNow,
    name: str = "",
    status: str = "",
    mode: str = "",
    since: Moment = None,
    before: Moment = None,
    behind: Behind = "",
    limit: Limit = reading.PAGE,
) -> Response:
    """List runs, the newest first; the next page has the runs `behind` the last one of this."""
    wanted = reading.filter_of(name=name, status=status, mode=mode, since=since, before=before)
    found = reading.runs(asking.store, wanted, limit=limit, behind=behind)
    return Data({"runs": [reading.info_data(each, asking.who.viewer) for each in found]})


@api.get("/runs/{run}", Right.SEE)
def run(asking: AskingNow, run: str) -> Response:
    """Return a run without its steps."""
    found = reading.whole(asking.store, run)
    order = pause_of(asking.store, run_info(asking.store, run))
    told = told_order(order, asking.who.viewer)
    seen = asking.who.viewer.run(found)
    return Data(run_data(seen, standing(found), []) | {"paused": told})


@api.get("/runs/{run}/steps", Right.SEE)
def steps(
    asking: AskingNow,
    run: str,
    first: First = 1,
    count: Limit = reading.PAGE,
) -> Response:
    """List steps of a run, a page at a time."""
    page = reading.run_sheet(asking.store, run, asking.who.viewer, first=first, count=count)
    sheet = page.sheet
    return Data(
        {
            "run": run,
            "status": page.status,
            "first": sheet.first,
            "total": sheet.total,
            "line": sheet.lines,
            "next": sheet.next or None,
            "steps": [step_data(each) for each in sheet.run.steps],
        }
    )


@api.get("/runs/{run}/steps/{number}", Right.SEE)
def step(asking: AskingNow, run: str, number: int) -> Response:
    """Tell a step in full."""
    return Data(step_data(reading.step(asking.store, run, number, asking.who.viewer)[1]))


@api.get("/runs/{run}/timeline", Right.SEE)
def timeline(asking: AskingNow, run: str) -> Response:
    """Return the timeline over all attempts."""
    seen = asking.who.viewer.run(reading.whole(asking.store, run))
    return Data(timeline_of(seen).as_data())


@api.get("/runs/{run}/usage", Right.SEE)
def usage(asking: AskingNow, run: str) -> Response:
    """Return calls, time and tokens, by tool, model and agent."""
    return Data(usage_of(reading.whole(asking.store, run)).as_data())


@api.get("/runs/{run}/hits", Right.SEE)
def hits(asking: AskingNow, run: str) -> Response:
    """Return the decisions of policies, also in shadow mode."""
    seen = asking.who.viewer.run(reading.whole(asking.store, run))
    return Data({"hits": [each.as_data() for each in hits_of(seen)]})


@api.get("/runs/{run}/events", Right.SEE)
async def events(request: Request, asking: AskingNow, run: str) -> Response:
    """Follow a run as Server-Sent Events; `Last-Event-ID` is the last received line."""
    await run_in_threadpool(asking.store.ends, reading.check_run(run))
    return live(request, asking, run, "json", after_of(request))


@api.get("/diff", Right.SEE)
def diff(asking: AskingNow, a: str, b: str) -> Response:
    """Align two runs; a pair whose sides differ has its differences."""
    viewer = asking.who.viewer
    one, two = (reading.whole(asking.store, each) for each in (a, b))
    pairs = align(one.steps, two.steps)
    return Data({"a": a, "b": b, "pairs": [pair_data(viewer.pair(each)) for each in pairs]})


@api.get("/inbox", Right.SEE)
def inbox(asking: AskingNow) -> Response:
    """List the open decisions: calls to approve, steps to resolve."""
    return Data(reading.waiting(asking.store, asking.who.viewer).as_data(reading.now()))


@api.get("/audit", Right.AUDIT)
def audit(asking: AskingNow, newest: Limit = reading.PAGE) -> Response:
    """List the audit log; the chain of the listed lines is checked."""
    return Data({"lines": [each.as_data() for each in asking.audit.lines(newest=newest)]})


@api.get("/audit/check", Right.AUDIT)
def check(
    asking: AskingNow,
    number: Annotated[int, Query(ge=0, le=10**12 - 1)] = 0,
    head: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Check the log's whole chain, and that it continues an earlier `number` and `head`."""
    lines, last = asking.audit.check(number, head)
    return Data({"lines": lines, "head": last})


@api.get("/audit/export", Right.AUDIT)
def export(asking: AskingNow) -> Response:
    """Return the whole log as JSON lines; its chain is checked."""
    data = b"".join(asking.audit.export())
    named = {"Content-Disposition": 'attachment; filename="rollcage-audit.jsonl"'}
    return Response(data, media_type="application/x-ndjson", headers=named)


def _job(job: Job, viewer: Viewer) -> dict[str, Any]:
    attempts = [
        reading.info_data(each.info, viewer) | {"status": each.status} for each in job.attempts
    ]
    return {"name": job.name, "run": job.run, "status": job.status, "began": job.began,
            "paused": told_order(job.pause, viewer), "attempts": attempts,
            "more": job.more}  # fmt: skip
