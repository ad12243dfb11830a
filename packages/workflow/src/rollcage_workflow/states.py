"""The states of a plan's steps, by their places in it, with all elements of a step combined."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from rollcage_workflow.outline import Box, Outline
from rollcage_workflow.records import NOW
from rollcage_workflow.state import Execution

__all__ = ["Shown", "States", "inside", "shown_in", "states_of", "telling"]

Shown = Mapping[tuple[str, ...], str]
"""The state of a step, by the names of its enclosing steps and its own.

One of the states of `StepState`, or: `cut_off`; `waiting`, or `paused`, for the current step of the
execution; `skipped`; `computed`, without a record; `not_started`.
"""

States = Mapping[str, list[str]]
"""The states of a step in a block for all of its elements, by its path."""

_FIRST: Final = ("unknown", "blocked", "failed", "running", "completed", "given", "undone")
"""Of a step with several elements, the first of these states is shown."""


def states_of(execution: Execution | None) -> dict[str, list[str]]:
    """Return the states of an execution's steps, by path; empty without an execution."""
    found: dict[str, list[str]] = {}
    for step in () if execution is None else execution.steps:
        found[step.path] = [step.state]
    return found


def telling(states: Collection[str]) -> str:
    """Return the most informative of several states."""
    return min(states, key=_FIRST.index)


def inside(states: States, box: Box) -> dict[str, list[str]]:
    """Return the states of the steps in a block: `mails/0/send` and `mails/1/send` become `send`.

    For a `repeat:`, the states of the last round in which a step ran.
    """
    found: dict[str, dict[str, list[str]]] = {}  # by step: by element, member or round
    for path, own in states.items():
        name, _, rest = path.partition("/")
        part, _, inner = rest.partition("/")
        if name == box.name and inner:
            found.setdefault(inner, {}).setdefault(part, []).extend(own)
    if box.kind == "repeat":
        return {name: [*parts.values()][-1] for name, parts in found.items()}
    return {name: [each for own in parts.values() for each in own] for name, parts in found.items()}


def shown_in(outline: Outline, execution: Execution) -> Shown:
    """Return the state of each step of a plan in an execution, recorded or not."""
    clocks = {step.path: ["now"] for step in execution.steps if step.name == NOW.name}
    now = _Now(execution.status, execution.waits)
    return dict(_shown(outline.boxes, states_of(execution), clocks, now, ()))


class _Now(NamedTuple):
    """The state of an enclosing step; empty if that has not begun."""

    status: str
    waits: str


def _shown(
    boxes: tuple[Box, ...], states: States, clocks: States, now: _Now, around: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    status = now.status
    for box in boxes:
        own = telling(states[box.name]) if box.name in states else ""
        begun = any(box.name in each.before and each.name in states for each in boxes)
        if box.kind == "wait" and box.name in clocks and status == "waiting" and not begun:
            own = "waiting"  # its beginning is recorded, and nothing after it
        elif own == "running" and status != "running":
            own = status if box.inner and status in ("waiting", "paused") else "cut_off"
        elif not own:
            own = _without(box, boxes, states, now)
        path = (*around, box.name)
        yield path, own
        if box.inner:
            within = "" if own in ("not_started", "skipped") else status
            if own == "completed" and status != "running":
                within = "completed"  # a step that did not run in it never will
            part = now._replace(status=within)
            yield from _shown(box.inner, inside(states, box), inside(clocks, box), part, path)


def _without(box: Box, boxes: tuple[Box, ...], states: States, now: _Now) -> str:
    """Return the state of a step without a record."""
    if now.status == "completed":
        return "computed" if box.kind == "value" and not box.when else "skipped"
    if box.kind != "wait" or now.status != "waiting":
        return "not_started"
    if box.when and box.says not in now.waits:
        return "not_started"  # or skipped: otherwise its wait would be named
    before = [each for each in boxes if each.name in box.before]
    is_open = any(e.name not in states and not e.when and e.kind != "value" for e in before)
    return "not_started" if is_open else "waiting"
