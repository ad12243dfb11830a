"""The plan of an execution as a drawing: its steps with their states, for a page without scripts.

Only the outline in the store is drawn; no plan is decoded, and nothing runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from rollcage import Store
from rollcage_views import Viewer, visible
from rollcage_workflow import Execution
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.layout import Line, NodePlace, layout_of
from rollcage_workflow.outline import Box, Outline, kept_outline
from rollcage_workflow.states import shown_in

__all__ = ["Drawing", "drawing_of", "outline_of"]

_LONGEST: Final = 27  # characters in a line of a step
_MANY: Final = 2000  # steps that a browser can draw at once
_KINDS: Final = {"agent": "agent ", "workflow": "plan ", "team": "team: ", "wait": "wait: "}


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step: its place, its state, and its lines of text, each cut to its place."""

    x: int
    y: int
    width: int
    height: int
    state: str
    title: str
    name: str
    lines: tuple[tuple[str, str], ...]
    is_around: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing of an execution.

    Attributes:
        width: in pixels.
        height: in pixels.
        steps: inner steps come after their enclosing step.
        paths: the lines, as SVG paths; and whether they are jumps.
        states: how many steps are in which state, the most first.
        missing: why there is no drawing; then the rest is empty.
    """

    width: int = 0
    height: int = 0
    steps: tuple[DrawnStep, ...] = ()
    paths: tuple[tuple[str, bool], ...] = ()
    states: tuple[tuple[str, int], ...] = ()
    missing: str = ""


def outline_of(store: Store, execution: Execution, viewer: Viewer) -> Outline | None:
    """Return the outline of an execution's plan for a viewer; None if none was kept.

    Raises:
        WorkflowError: the stored document is not an outline.
        StoreError: the outline can't be read.
    """
    outline = kept_outline(store, execution.digest) if execution.digest else None
    return None if outline is None else outline.seen(values=viewer.values)


def drawing_of(store: Store, execution: Execution, viewer: Viewer) -> Drawing:
    """Return the drawing of an execution for a viewer.

    Raises:
        StoreError: the store can't be read.
    """
    if not execution.plan:
        return Drawing(missing="It has not begun: its plan is known when it begins.")
    try:
        outline = kept_outline(store, execution.digest)
    except WorkflowError:
        return Drawing(missing="The store's outline of its plan can't be read.")
    if outline is None:
        why = "by an older version, or because the plan has more than 5,000 steps"
        return Drawing(missing=f"It can't be drawn: no outline of its plan was kept, {why}.")
    layout = layout_of(outline.seen(values=viewer.values))
    if len(layout.places) > _MANY:
        return Drawing(missing=f"It has {len(layout.places)} steps, too many to draw.")
    states = shown_in(outline, execution)
    steps = tuple(_step(place, states[place.path]) for place in layout.places)
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.state] = counts.get(step.state, 0) + 1
    return Drawing(
        layout.width + 2,
        layout.height + 2,
        steps,
        tuple((_path(line), line.back) for line in layout.lines),
        tuple(sorted(counts.items(), key=lambda each: -each[1])),
    )


def _step(place: NodePlace, state: str) -> DrawnStep:
    box = place.box
    texts = [(visible(text).replace("\n", " "), kind) for text, kind in _texts_of(box)]
    title = ": ".join(("/".join(map(visible, place.path)), state.replace("_", " ")))
    return DrawnStep(
        place.x + 1,
        place.y + 1,
        place.width,
        place.height,
        state,
        "\n".join((title, *(text for text, _ in texts))),
        _cut(visible(box.name)),
        tuple((_cut(text), kind) for text, kind in texts),
        bool(box.inner),
    )


def _texts_of(box: Box) -> Iterator[tuple[str, str]]:
    """Yield a step's further lines, and the kind of each."""
    if box.says:
        yield f"{_KINDS.get(box.kind, '')}{box.says.replace('=', '', 1)}", "says"
    if box.when:
        yield f"if {box.when.removeprefix('=')}", "when"
    if box.jump is not None:
        sign = "↪" if box.jump.most is None else "↩"
        yield f"{sign} {box.jump.to} if {box.jump}", "when"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _path(line: Line) -> str:
    """Return a line as an SVG path: straight beside a block, bent between two rows."""
    (x, y), *rest = ((x + 1, y + 1) for x, y in line.points)
    if line.back:
        return f"M{x} {y}" + "".join(f"L{to} {down}" for to, down in rest)
    ((to, down),) = rest
    half = (y + down) // 2
    return f"M{x} {y}L{to} {down}" if x == to else f"M{x} {y}C{x} {half} {to} {half} {to} {down}"
