"""Filters for runs and for steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final, NamedTuple

from rollcage import RunInfo, Store
from rollcage.errors import RollcageError
from rollcage.trace.recorded import trace_of

from rollcage_views.infos import mode_of
from rollcage_views.jobs import newest_first
from rollcage_views.runs import Step, read_run
from rollcage_views.steps import call_text, outcome_text
from rollcage_views.text import arguments_text
from rollcage_views.viewer import SEES_ALL, Viewer

MARKS: Final = (
    "undone", "rolled_back", "unclear", "once", "left_behind", "moved", "again", "accepted",
    "answered",
)  # fmt: skip
"""Conditions of a step besides its state."""

__all__ = ["MARKS", "FoundStep", "RunFilter", "StepFilter", "search_runs", "search_steps"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepFilter:
    """Conditions on steps; an empty part has no condition.

    Attributes:
        tools: globs over the names of tools, models and branches.
        states: of `rollcage_views.STATES`, or of `MARKS`.
        agents: globs over the names of agents.
        since: the earliest beginning (Unix, µs).
        text: a text in the arguments, the outcome or the name, in any case.
    """

    tools: Sequence[str] = ()
    states: Sequence[str] = ()
    agents: Sequence[str] = ()
    since: int | None = None
    text: str = ""

    def __contains__(self, step: Step) -> bool:
        return (
            _is_one_of(step.name, self.tools)
            and _is_one_of(step.agent, self.agents)
            and (self.since is None or step.time >= self.since)
            and (not self.states or bool(_states(step) & set(self.states)))
            and (not self.text or self.text.casefold() in _text_of(step).casefold())
        )

    @property
    def asks(self) -> bool:
        """Whether there is any condition."""
        return self != StepFilter()

    def of(self, steps: Iterable[Step]) -> list[Step]:
        """Return the matching steps."""
        return [step for step in steps if step in self]


@dataclasses.dataclass(frozen=True, slots=True)
class RunFilter:
    """Conditions on runs; an empty part has no condition.

    Attributes:
        names: globs over the names of jobs.
        statuses: as in `RunInfo`; `unfinished` for runs without a status.
        modes: as in `mode_of`.
        since: the earliest beginning (Unix, µs).
        before: the time before which they began (Unix, µs).
        text: a text in the name, in any case, or the beginning or end of the id.
    """

    names: Sequence[str] = ()
    statuses: Sequence[str] = ()
    modes: Sequence[str] = ()
    since: int | None = None
    before: int | None = None
    text: str = ""

    def __contains__(self, info: RunInfo) -> bool:
        return (
            _is_one_of(info.name, self.names)
            and (not self.statuses or (info.status or "unfinished") in self.statuses)
            and (not self.modes or mode_of(info) in self.modes)
            and (self.since is None or info.begun >= self.since)
            and (self.before is None or info.begun < self.before)
            and (not self.text or self._has_text(info))
        )

    def _has_text(self, info: RunInfo) -> bool:
        part = self.text.lower()
        in_name = self.text.casefold() in info.name.casefold()
        return in_name or info.run.startswith(part) or info.run.endswith(part)


class FoundStep(NamedTuple):
    """A matching step, and its run."""

    info: RunInfo
    step: Step


def search_runs(
    store: Store, wanted: RunFilter, *, limit: int | None = None, behind: str = ""
) -> list[RunInfo]:
    """Return the matching runs, the newest first.

    Args:
        store: the store.
        wanted: the conditions.
        limit: only so many.
        behind: the id of a run: only the runs after it in the list.

    Raises:
        StoreError: the store can't be read.
    """
    found = newest_first(store, behind=behind)
    return list(islice((info for info in found if info in wanted), limit))


def search_steps(
    store: Store,
    runs: RunFilter,
    steps: StepFilter,
    *,
    viewer: Viewer = SEES_ALL,
    limit: int | None = None,
) -> Iterator[FoundStep]:
    """Return the matching steps, steps of the newest runs first.

    Unreadable and pruned runs are skipped. A viewer without values can't search by values.

    Args:
        store: the store.
        runs: the conditions on their runs.
        steps: the conditions.
        viewer: the viewer.
        limit: only of so many runs, the newest.

    Raises:
        StoreError: the store's runs can't be listed.
    """
    for info in search_runs(store, runs, limit=limit):
        try:
            seen = viewer.run(read_run(trace_of(store, info.run)))
        except RollcageError:
            continue
        yield from (FoundStep(info, step) for step in steps.of(seen.steps))


def _is_one_of(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _states(step: Step) -> set[str]:
    marks = {
        "undone": step.undone in ("verified", "compensated"), "rolled_back": step.rolled,
        "unclear": step.unclear, "once": step.once is not None, "left_behind": step.gone == "left",
        "moved": step.gone == "moved", "again": step.gone == "again", "accepted": step.accepted,
        "answered": step.answered,
    }  # fmt: skip
    return {step.state, *(name for name in MARKS if marks[name])}


def _text_of(step: Step) -> str:
    parts = (step.name, step.agent, arguments_text(step.args), call_text(step), outcome_text(step))
    return "\n".join(parts)
