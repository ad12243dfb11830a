"""The states of a plan's steps, from the log of an execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from rollcage.trace.chain import parse
from rollcage.trace.run import Run, Step, fold_lines

from rollcage_workflow.records import ENDED, GIVEN, PLAN, PREFIX, UNTOLD

__all__ = ["StepState", "is_undone", "step_states"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepState:
    """A step of a plan in its execution.

    Attributes:
        path: its place: `mails/3/send`.
        state: `completed`, `given` (by a fork, too), `failed`, `running` (or cut off there),
            `blocked`, `undone` or `unknown`.
        name: the name of its tool.
        duration: how long its call ran (s), where it first ran; None without an end.
    """

    path: str
    state: str
    name: str
    duration: float | None


_TAKEN_BACK: Final = ("verified", "compensated", "accepted")


def is_undone(lines: Sequence[bytes], where: str) -> bool:
    """Return whether all effects of a run were undone.

    Raises:
        TraceCorrupt: the log was changed or damaged.
    """
    return not any(step.acts for step in fold_lines(parse([*lines], where), where, {}).held())


def step_states(lines: Sequence[bytes], where: str) -> tuple[StepState, ...]:
    """Return the steps of a plan, in the order in which they began.

    Args:
        lines: the lines of the log.
        where: its name in errors.

    Raises:
        TraceCorrupt: the log was changed or damaged.
    """
    events = parse([*lines], where)
    read = _Read(events, fold_lines(events, where, {}))
    found: dict[tuple[str, str], StepState] = {}
    for each in read.states():
        known = found.pop((each.path, each.name), None)
        if known is not None and each.state == "blocked":
            each = known  # noqa: PLW2901 - it was refused once, and is something else now
        found[each.path, each.name] = each
    return tuple(found.values())


class _Read:
    """The lines of a log, with its run."""

    def __init__(self, events: Sequence[dict[str, Any]], run: Run) -> None:
        self._events, self._run = events, run
        self._ids: dict[int, str] = {}
        self._took: dict[int, int] = {}
        for event in events:
            if event["event"] == "step":
                self._ids[event["step"]] = event.get("call_id", "")
            if "duration" in event:
                self._took.setdefault(event["step"], event["duration"])

    def states(self) -> list[StepState]:
        """Return the state of each requested step of the plan that was not left behind since."""
        found: list[StepState] = []
        for event in self._events:
            if event["event"] == "refused" and event["kind"] == "tool":
                refused = self._path_of(event["branch"], event.get("call_id", ""))
                found.append(StepState(_told(refused), "blocked", event["name"], None))
            elif event["event"] == "step":
                step = self._run.steps[event["step"]]
                if self._is_shown(step):
                    took = self._took.get(step.n)
                    path = _told(self._path(step))
                    duration = None if took is None else took / 1e6
                    found.append(StepState(path, self._state(step), step.name, duration))
        return found

    def _is_shown(self, step: Step) -> bool:
        if step.effect in ("branch", "model") or step.name in (PLAN.name, ENDED.name):
            return False
        return step.gone not in ("again", "left", "moved") and not step.compensates

    def _state(self, step: Step) -> str:
        if step.gone == "undone" or step.rolled or step.back in _TAKEN_BACK:
            return "undone"
        if step.name == GIVEN.name or step.n in self._run.fixed:
            return "given"
        if step.status in ("ok", "error"):
            return "completed" if step.status == "ok" else "failed"
        return "unknown" if step.acts else "running"

    def _path(self, step: Step) -> list[str]:
        return self._path_of(step.branch, self._ids[step.n])

    def _path_of(self, branch: str, call_id: str) -> list[str]:
        """Return the path of a call in a branch.

        The call's own id is a part of it if the call is a step of a plan, not a call of a step's
        agent.
        """
        path, is_of_plan = self._around(branch)
        return [*path, call_id] if call_id and is_of_plan else path

    def _around(self, branch: str) -> tuple[list[str], bool]:
        """Return the path of a branch, and whether its calls are steps of a plan."""
        owner = self._run.owner(branch)
        if owner is None:
            return [], True
        if owner.effect == "branch":
            path, is_of_plan = self._around(owner.branch)
            return [*path, owner.name], is_of_plan
        return self._path(owner), owner.name.startswith(PREFIX)


def _told(path: list[str]) -> str:
    return "/".join(part for part in path if not part.startswith(UNTOLD))
