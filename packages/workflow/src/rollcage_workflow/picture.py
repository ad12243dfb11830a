"""A plan as a Mermaid flowchart, with the states of an execution where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rollcage_workflow.graph import Checked, Graph, Loop, Node, Unit
from rollcage_workflow.plan import Step
from rollcage_workflow.state import Execution

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
_FIRST: Final = ("unknown", "blocked", "failed", "running", "completed", "given", "undone")
"""Of a step that was done for several elements, the first of these is shown."""
_WORDS: Final = frozenset(
    {"end", "graph", "flowchart", "subgraph", "direction", "style", "class", "classdef", "click",
     "call", "href", "default", "linkstyle"}
)  # fmt: skip
_SHAPES: Final = {"wait": ("([", "])"), "value": ("[/", "/]"), "agent": ("{{", "}}")}


States = Mapping[str, list[str]]
"""By the path of a step in a block: its states, of all the elements for which it was done."""


def picture(checked: Checked, execution: Execution | None = None) -> str:
    """The flowchart of a plan: paste it where Mermaid is drawn.

    Args:
        checked: the plan.
        execution: colours each step by its state in this one; a step in a block, by that which
            tells most of all the elements for which it was done.
    """
    steps = () if execution is None else execution.steps
    states = {step.path: [step.state] for step in steps}
    lines = ["flowchart TD"]
    lines += _block(checked.graph, "", states)
    used = sorted({step.state for step in steps} & _CLASSES.keys())
    lines += [f"  classDef {state} {_CLASSES[state]}" for state in used]
    return "\n".join(lines) + "\n"


def _block(graph: Graph, around: str, states: States, deep: int = 1) -> Iterator[str]:
    margin = "  " * deep
    for node in _nodes(graph.units):
        step, name = node.step, f"{around}{_id(node.name)}"
        label = _label(node)
        if node.inner is not None:
            yield f'{margin}subgraph {name}["{label}"]'
            inside = _inside(states, node)
            yield from _block(node.inner, f"{name}__", inside, deep + 1)
            yield f"{margin}end"
        else:
            left, right = _SHAPES.get(step.kind, ("[", "]"))
            yield f'{margin}{name}{left}"{label}"{right}'
        if node.name in states:
            yield f"{margin}class {name} {min(states[node.name], key=_FIRST.index)}"
        for before in node.before:
            said = f'|"{_text(step.when)}"|' if step.when is not None else ""
            yield f"{margin}{around}{_id(before)} -->{said} {name}"
        if step.next is not None:
            said = f"{_text(step.next.when)}, at most {step.next.most} times"
            yield f'{margin}{name} -.->|"{said}"| {around}{_id(step.next.to)}'


def _inside(states: States, node: Node) -> dict[str, list[str]]:
    """The states of the steps in a block: of `mails/0/send` and `mails/1/send`, those of `send`.

    Of a `repeat:`, those of the last round in which a step was done.
    """
    found: dict[str, dict[str, list[str]]] = {}  # by step: by element, member or round
    for path, own in states.items():
        name, _, rest = path.partition("/")
        part, _, inner = rest.partition("/")
        if name == node.name and inner:
            found.setdefault(inner, {}).setdefault(part, []).extend(own)
    if node.step.repeat is not None:
        return {name: [*parts.values()][-1] for name, parts in found.items()}
    return {name: [each for own in parts.values() for each in own] for name, parts in found.items()}


def _nodes(units: tuple[Unit, ...]) -> Iterator[Node]:
    for unit in units:
        if isinstance(unit, Loop):
            yield from _nodes(unit.units)
        else:
            yield unit


def _label(node: Node) -> str:
    said = _said(node.step)
    return _text(node.name if not said else f"{node.name}: {said}")


def _said(step: Step) -> str:
    if step.call or step.agent or step.workflow:
        return str(step.call or step.agent or step.workflow)
    if step.wait is not None:
        wait = step.wait
        return wait.signal or wait.until or wait.approval or f"{wait.seconds:g} s"
    if step.each is not None:
        return f"each of {step.each.over}"
    if step.repeat is not None:
        return f"until {step.repeat.until}"
    return step.team.mode if step.team is not None else ""


def _id(name: str) -> str:
    """A step's name, where it is none of Mermaid's words."""
    return f"{name}_" if name.lower() in _WORDS else name


def _text(text: str) -> str:
    """A text that means nothing to Mermaid or to a browser."""
    kept = "".join(each if each.isprintable() else " " for each in text[:80])
    for sign, entity in (("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        kept = kept.replace(sign, entity)
    return kept
