"""A plan as a Mermaid flowchart, optionally with the states of an execution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rollcage_workflow.outline import Box, Outline
from rollcage_workflow.state import Execution
from rollcage_workflow.states import States, inside, states_of, telling

__all__ = ["picture"]

_CLASSES: Final = {
    "completed": "fill:#d7f0dc,stroke:#2c7a3f",
    "given": "fill:#eef4ee,stroke:#2c7a3f,stroke-dasharray: 4",
    "failed": "fill:#f6d5d5,stroke:#a33",
    "blocked": "fill:#f6d5d5,stroke:#a33",
    "unknown": "fill:#fbe7c2,stroke:#a06a00",
    "running": "fill:#dbe8fb,stroke:#2456a6",
    "undone": "fill:#eee,stroke:#777,stroke-dasharray: 4",
}
_WORDS: Final = frozenset(
    {"end", "graph", "flowchart", "subgraph", "direction", "style", "class", "classdef", "click",
     "call", "href", "default", "linkstyle"}
)  # fmt: skip
_SHAPES: Final = {"wait": ("([", "])"), "value": ("[/", "/]"), "agent": ("{{", "}}")}


def picture(outline: Outline, execution: Execution | None = None) -> str:
    """Return the flowchart of a plan: paste it into a page that draws Mermaid.

    Args:
        outline: the outline of the plan.
        execution: colours each step by its state in this execution; a step in a block, by the
            most informative state of its elements.
    """
    states = states_of(execution)
    lines = ["flowchart TD"]
    lines += _block(outline.boxes, "", states)
    used = sorted({state for each in states.values() for state in each} & _CLASSES.keys())
    lines += [f"  classDef {state} {_CLASSES[state]}" for state in used]
    return "\n".join(lines) + "\n"


def _block(boxes: tuple[Box, ...], around: str, states: States, deep: int = 1) -> Iterator[str]:
    margin = "  " * deep
    for box in boxes:
        name = f"{around}{_id(box.name)}"
        label = _text(box.name if not box.says else f"{box.name}: {box.says}")
        if box.inner:
            yield f'{margin}subgraph {name}["{label}"]'
            yield from _block(box.inner, f"{name}__", inside(states, box), deep + 1)
            yield f"{margin}end"
        else:
            left, right = _SHAPES.get(box.kind, ("[", "]"))
            yield f'{margin}{name}{left}"{label}"{right}'
        if box.name in states:
            yield f"{margin}class {name} {telling(states[box.name])}"
        for before in box.before:
            message = f'|"{_text(box.when)}"|' if box.when else ""
            yield f"{margin}{around}{_id(before)} -->{message} {name}"
        if box.jump is not None:
            yield f'{margin}{name} -.->|"{_text(str(box.jump))}"| {around}{_id(box.jump.to)}'


def _id(name: str) -> str:
    """Return a step's name that is no word of Mermaid's; safe even for a forged outline."""
    kept = "".join(each if each.isalnum() else "_" for each in name)
    return f"{kept}_" if kept.lower() in _WORDS else kept


def _text(text: str) -> str:
    """Escape a text for Mermaid and for a browser."""
    kept = "".join(each if each.isprintable() else " " for each in text[:80])
    for sign, entity in (("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        kept = kept.replace(sign, entity)
    return kept
