"""The content of pages and of the API, each as one function of the store and of the viewer."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final

from rollcage import RunInfo, Store, list_runs, run_info
from rollcage.errors import RollcageError, RunNotFound, StoreInvalid
from rollcage.trace.keys import check_run as check_id
from rollcage.trace.recorded import trace_of
from rollcage_views import (
    Hit,
    Job,
    Run,
    RunFilter,
    Sheet,
    Step,
    Viewer,
    hits_of,
    inbox_of,
    jobs_of,
    read_run,
    search_runs,
    sheet_of,
)
from rollcage_views import info_data as data_of

from rollcage_server.errors import BadRequest, NotFound

__all__ = [
    "PAGE",
    "RunSheet",
    "check_run",
    "error_text",
    "filter_of",
    "hits",
    "info_data",
    "jobs",
    "now",
    "run_sheet",
    "runs",
    "step",
    "waiting",
    "whole",
]

PAGE: Final = 100  # steps, or runs, on a page


@dataclasses.dataclass(frozen=True, slots=True)
class RunSheet:
    """A page of a run.

    Attributes:
        info: the run's entry in a list.
        sheet: its steps, as the viewer may see them.
        live: whether the run is being written.
        status: its status: as in `Job`.
    """

    info: RunInfo
    sheet: Sheet
    live: bool
    status: str


def now() -> int:
    """Return the time (Unix, µs)."""
    return time.time_ns() // 1000


def check_run(run: str) -> str:
    """Return a run's id, from a path.

    Raises:
        RunNotFound: the text can't be an id.
    """
    try:
        check_id(run)
    except StoreInvalid:
        raise RunNotFound("this is not a run's id") from None
    return run


def info_data(info: RunInfo, viewer: Viewer) -> dict[str, Any]:
    """Return the store's entry for a run, for machines."""
    data = data_of(info)
    return data if viewer.values else data | {"input": None, "waits": ""}


def jobs(store: Store, *, name: str = "", limit: int = PAGE) -> list[Job]:
    """Return the jobs, those with the newest runs first."""
    return jobs_of(store, name=name or None, limit=limit)


def runs(store: Store, wanted: RunFilter, *, limit: int = PAGE, behind: str = "") -> list[RunInfo]:
    """Return the matching runs, the newest first, optionally only those after one."""
    return search_runs(store, wanted, limit=limit, behind=check_run(behind) if behind else "")


def filter_of(
    *, name: str = "", status: str = "", mode: str = "", since: int | None, before: int | None
) -> RunFilter:
    """Return the filter of a query."""
    return RunFilter(
        names=[name] if name else (),
        statuses=[status] if status else (),
        modes=[mode] if mode else (),
        since=since,
        before=before,
    )


def run_sheet(
    store: Store, run: str, viewer: Viewer, *, first: int = 1, count: int = PAGE
) -> RunSheet:
    """Return a page of a run.

    Raises:
        RunNotFound: there is no such run.
        TraceCorrupt: the displayed part is damaged.
    """
    if not 1 <= count <= 1000:
        raise BadRequest("count: from 1 to 1000 steps")
    trace = trace_of(store, check_run(run))
    info = run_info(store, run)
    live = info.status is None and store.is_live(run)
    sheet = sheet_of(trace, first=first, count=count)
    sheet = dataclasses.replace(sheet, run=viewer.run(sheet.run))
    return RunSheet(info, sheet, live, info.status or ("running" if live else "died"))


def step(store: Store, run: str, number: int, viewer: Viewer) -> tuple[Run, Step]:
    """Return a step of a run, in full.

    Raises:
        RunNotFound: there is no such run.
        NotFound: the run has no such step.
    """
    seen = viewer.run(whole(store, run))
    found = seen.step(number)
    if found is None:
        raise NotFound(f"this run has no step {number}; it has {len(seen.steps)}")
    return seen, found


def whole(store: Store, run: str) -> Run:
    """Return a run as recorded.

    Raises:
        RunNotFound: there is no such run.
        TraceCorrupt: the run is damaged.
    """
    return read_run(trace_of(store, check_run(run)), schema=False)


def waiting(store: Store, viewer: Viewer) -> Any:
    """Return the open decisions."""
    return inbox_of(store, now(), viewer)


def error_text(error: RollcageError, viewer: Viewer) -> str:
    """Return an error's text for a viewer: it may quote values."""
    return str(error) if viewer.values else error.code.replace("_", " ")


def hits(store: Store, viewer: Viewer, *, limit: int) -> list[Hit]:
    """Return the decisions of policies in the newest runs; unreadable runs are skipped."""
    found: list[Hit] = []
    for info in list_runs(store, limit=limit):
        try:
            seen = whole(store, info.run)
        except RollcageError:
            continue
        found += hits_of(viewer.run(seen))
    return found
