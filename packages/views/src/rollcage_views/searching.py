"""Search a store a page at a time: the cost of a page does not grow with the store."""

from __future__ import annotations

import dataclasses
from typing import Final

from rollcage import RunInfo, Store
from rollcage.errors import RollcageError
from rollcage.trace.recorded import trace_of

from rollcage_views.infos import is_pruned
from rollcage_views.jobs import newest_first
from rollcage_views.runs import Step, read_run
from rollcage_views.search import RunFilter, StepFilter
from rollcage_views.viewer import SEES_ALL, Viewer

__all__ = ["FoundRun", "Search", "search_page"]

_LISTED: Final = 1_000  # runs whose names are searched
_BYTES: Final = 32_000_000  # of traces


@dataclasses.dataclass(frozen=True, slots=True)
class FoundRun:
    """A run with matches.

    Attributes:
        info: the run.
        steps: the first matching steps; none if the run's name matches.
        count: how many matching steps there are.
    """

    info: RunInfo
    steps: tuple[Step, ...]
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Search:
    """A page of matches.

    Attributes:
        runs: the runs with matches, the newest first.
        looked: how many runs' steps were searched.
        unread: how many of the runs can't be read, or were pruned.
        last: the id of the last searched run: the next page continues after it.
            Empty if all runs were searched.
    """

    runs: tuple[FoundRun, ...]
    looked: int
    unread: int
    last: str


def search_page(
    store: Store,
    runs: RunFilter,
    steps: StepFilter,
    *,
    viewer: Viewer = SEES_ALL,
    behind: str = "",
    most_runs: int = 100,
    most_steps: int = 50,
    each: int = 10,
) -> Search:
    """Search for steps, and for runs whose name or id has the text, the newest first.

    A viewer without values can't search by values: neither the number of matches nor the extent of
    the search depends on a value. Large values, which are stored next to a trace, are not searched.

    Args:
        store: the store of the runs.
        runs: the conditions on runs; its text is ignored.
        steps: the conditions on steps; its text may also be in the name or id of their run.
        viewer: the viewer.
        behind: the id of a run: only the runs after it are searched.
        most_runs: how many runs' steps are searched.
        most_steps: how many steps and runs are shown; the last run may exceed it.
        each: how many steps of a run are shown.

    Raises:
        StoreError: the store's runs can't be listed.
    """
    by_name = RunFilter(text=steps.text)
    of_runs_alone = steps == StepFilter(text=steps.text)
    found: list[FoundRun] = []
    listed = looked = unread = size = shown = 0
    last = ""
    for info in newest_first(store, since=runs.since, before=runs.before, behind=behind):
        if listed >= _LISTED or looked >= most_runs or size >= _BYTES or shown >= most_steps:
            return Search(tuple(found), looked, unread, last)
        listed, last = listed + 1, info.run
        if info not in runs:
            continue
        like: list[Step] = []
        if is_pruned(info):
            unread += steps.asks
        elif steps.asks:
            looked += 1
            try:
                trace = trace_of(store, info.run)
                size += len(trace.data)
                like = steps.of(viewer.run(read_run(trace, schema=False)).steps)
            except RollcageError:
                unread += 1
        if like or (of_runs_alone and info in by_name):
            found.append(FoundRun(info, tuple(like[:each]), len(like)))
            shown += max(1, min(len(like), each))
    return Search(tuple(found), looked, unread, "")
