"""What became of the steps of a plan, read off the run of an attempt."""

from __future__ import annotations

import dataclasses
from typing import Final

from rollcage.trace import Run, Step

from rollcage_workflow.records import ENDED, GIVEN, PLAN, PREFIX, UNTOLD

__all__ = ["StepState", "step_states"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepState:
    """A step of a plan, as the newest attempt shows it.

    Attributes:
        path: its place: `mails/3/send`.
        state: `completed`, `given` (by a fork, too), `failed`, `running` (or cut off there),
            `blocked`, `undone` or `unknown`.
        name: what it calls.
        duration: how long its call ran (s), where it first ran; None without an end.
    """

    path: str
    state: str
    name: str
    duration: float | None


def _is_shown(step: Step) -> bool:
    inner = step.name.startswith(PREFIX) and step.name in (PLAN.name, ENDED.name)
    return step.kind == "tool" and not inner and step.undoes is None


_STATES: Final = {
    "simulated": "given",
    "hit": "completed", "seen": "completed", "ran": "completed", "failed": "failed",
    "blocked": "blocked", "unknown": "unknown", "cut_off": "running", "not_started": "running",
}  # fmt: skip


def step_states(run: Run) -> tuple[StepState, ...]:
    """The steps of a plan, in the order in which they began."""
    paths: dict[int, str] = {}
    blocks: set[int] = set()
    found: list[StepState] = []
    for step in run.steps:
        path = step.branch
        if step.parent is not None and path.startswith("#"):  # what a body calls
            path = "/".join(filter(None, (paths.get(step.parent, ""), path.partition("/")[2])))
        if step.parent is None or step.parent in blocks:  # a step of a plan, not of an agent
            path = "/".join(filter(None, (path, step.call_id)))
        if UNTOLD in path:
            path = "/".join(part for part in path.split("/") if not part.startswith(UNTOLD))
        paths[step.step] = path
        if step.name.startswith(PREFIX):
            blocks.add(step.step)
        if _is_shown(step):
            found.append(_step_state(step, path))
    return tuple(found)


def _step_state(step: Step, path: str) -> StepState:
    duration = None if step.duration is None else step.duration / 1e6
    state = "given" if step.name == GIVEN.name else _STATES[step.state]
    if state == "completed" and (step.outcome or {}).get("status") == "error":
        state = "failed"
    if step.undone in ("verified", "compensated"):
        state = "undone"
    return StepState(path, state, step.name, duration)
