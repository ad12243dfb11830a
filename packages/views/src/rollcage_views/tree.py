"""A run as a tree: agents, their turns, what they called, and what these calls called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rollcage_views.runs import Step

__all__ = ["Node", "tree_of"]


@dataclasses.dataclass(slots=True)
class Node:
    """A place in the tree of a run.

    Attributes:
        title: of a group, `turn 3`, an agent or a branch; empty where it is a step.
        step: the step; None where it is a group.
        children: what is inside, in the order of the trace.
    """

    title: str = ""
    step: Step | None = None
    children: list[Node] = dataclasses.field(default_factory=list["Node"])

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Itself and all that is inside, each with its depth."""
        todo: list[tuple[int, Node]] = [(depth, self)]
        while todo:
            level, node = todo.pop()
            yield level, node
            todo += ((level + 1, child) for child in reversed(node.children))

    def as_data(self) -> dict[str, Any]:
        """For machines: of a step, its number."""
        number = None if self.step is None else self.step.step
        inside = [child.as_data() for child in self.children]
        return {"title": self.title, "step": number, "children": inside}


def tree_of(steps: Sequence[Step]) -> list[Node]:
    """The steps under their agents, branches and turns; nested calls under their parents.

    An agent or a branch is a group where there is one besides the first; so a run of one agent
    that has no name begins with its turns. A step whose parent is not among these stands in its
    turn.
    """
    roots: list[Node] = []
    nodes: dict[int, Node] = {}
    groups: dict[tuple[str, ...], Node] = {}
    for step in steps:
        node = nodes[step.step] = Node(step=step)
        inside = nodes.get(step.parent) if step.parent is not None else None
        if inside is None or inside is node:
            inside = _turn_of(step, groups, roots)
        inside.children.append(node)
    return roots


def _turn_of(step: Step, groups: dict[tuple[str, ...], Node], roots: list[Node]) -> Node:
    """The node of a step's turn, made with those above it where it is the first in it."""
    path = [(step.agent, f"agent {step.agent}"), (step.branch, f"branch {step.branch}")]
    titles = [title for name, title in path if name]
    titles.append(f"turn {step.turn}")
    children = roots
    for depth in range(1, len(titles) + 1):
        place = (*(f"{step.agent}\0{step.branch}",), *titles[:depth])
        group = groups.get(place)
        if group is None:
            group = groups[place] = Node(titles[depth - 1])
            children.append(group)
        children = group.children
    return groups[(f"{step.agent}\0{step.branch}", *titles)]
