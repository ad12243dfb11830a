"""Search a store a page at a time: what a page costs does not grow with the store."""

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

_LISTED: Final = 1_000  # runs whose names are looked at
_BYTES: Final = 32_000_000  # of traces


@dataclasses.dataclass(frozen=True, slots=True)
class FoundRun:
    """A run in which something was found.

    Attributes:
        info: the run.
        steps: the first of the steps that are like what is asked for; none where its name is.
        count: how many there are of them.
    """

    info: RunInfo
    steps: tuple[Step, ...]
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Search:
    """A page of what was found.

    Attributes:
        runs: in which something was found, the newest first.
        looked: through how many runs' steps was looked.
        unread: how many of the runs have steps that can't be read, or were pruned.
        last: the id of the run that was looked at last: the next page is of the runs behind it.
            Empty where all were looked at.
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
    """Look for steps, and for runs whose name or id has the text, the newest first.

    Whoever does not see values does not find by them: how much is found, and how far is looked,
    does not depend on a value. Large values, which are stored next to a trace, are not searched.

    Args:
        store: where the runs are.
        runs: what runs have to be like; its text is not looked at.
        steps: what steps have to be like; its text may also be in the name or id of their run.
        viewer: who looks.
        behind: the id of a run: only the runs that come behind it are looked at.
        most_runs: through the steps of how many runs is looked.
        most_steps: how many steps and runs are shown; those of the last run may be more.
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
