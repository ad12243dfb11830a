"""The states of a plan's steps, by their places in it: those of all elements as one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from rollcage_workflow.outline import Box, Outline
from rollcage_workflow.records import NOW
from rollcage_workflow.state import Execution

__all__ = ["Shown", "States", "inside", "shown_in", "states_of", "telling"]

Shown = Mapping[tuple[str, ...], str]
"""By the names of the steps that a step is in, and its own: its state.

One of the states of `StepState`, or: `cut_off`; `waiting`, or `paused`, where it is a step that the
execution stands in; `skipped`; `computed`, where nothing is recorded; `not_started`.
"""

States = Mapping[str, list[str]]
"""By the path of a step in a block: its states, of all the elements for which it was done."""

_FIRST: Final = ("unknown", "blocked", "failed", "running", "completed", "given", "undone")
"""Of a step that was done for several elements, the first of these is shown."""


def states_of(execution: Execution | None) -> dict[str, list[str]]:
    """By path, the states of an execution's steps; of none, none."""
    found: dict[str, list[str]] = {}
    for step in () if execution is None else execution.steps:
        found[step.path] = [step.state]
    return found


def telling(states: Collection[str]) -> str:
    """Of several states, the most informative."""
    return min(states, key=_FIRST.index)


def inside(states: States, box: Box) -> dict[str, list[str]]:
    """The states of the steps in a block: of `mails/0/send` and `mails/1/send`, those of `send`.

    Of a `repeat:`, those of the last round in which a step was done.
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
    """The state of each step of a plan in an execution, recorded or not."""
    clocks = {step.path: ["now"] for step in execution.steps if step.name == NOW.name}
    now = _Now(execution.status, execution.waits)
    return dict(_shown(outline.boxes, states_of(execution), clocks, now, ()))


class _Now(NamedTuple):
    """The state of what is around a step; empty if that has not begun."""

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
            own = "waiting"  # that it was reached is on record, and nothing that comes after it
        elif own == "running" and status != "running":
            own = status if box.inner and status in ("waiting", "paused") else "cut_off"
        elif not own:
            own = _without(box, boxes, states, now)
        path = (*around, box.name)
        yield path, own
        if box.inner:
            within = "" if own in ("not_started", "skipped") else status
            if own == "completed" and status != "running":
                within = "completed"  # what did not run in it never will
            part = now._replace(status=within)
            yield from _shown(box.inner, inside(states, box), inside(clocks, box), part, path)


def _without(box: Box, boxes: tuple[Box, ...], states: States, now: _Now) -> str:
    """The state of a step of which nothing is recorded."""
    if now.status == "completed":
        return "computed" if box.kind == "value" and not box.when else "skipped"
    if box.kind != "wait" or now.status != "waiting":
        return "not_started"
    if box.when and box.says not in now.waits:
        return "not_started"  # or skipped: what it waits for would be named
    before = [each for each in boxes if each.name in box.before]
    is_open = any(e.name not in states and not e.when and e.kind != "value" for e in before)
    return "not_started" if is_open else "waiting"
