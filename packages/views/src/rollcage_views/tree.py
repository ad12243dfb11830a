"""A run as a tree: agents, their turns, their calls, and the calls inside of these calls."""

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
        title: of a group, `turn 3`, an agent or a branch; empty for a step.
        step: the step; None for a group.
        children: the nodes inside, in the order of the trace.
    """

    title: str = ""
    step: Step | None = None
    children: list[Node] = dataclasses.field(default_factory=list["Node"])

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Yield the node and all nodes inside, each with its depth."""
        todo: list[tuple[int, Node]] = [(depth, self)]
        while todo:
            level, node = todo.pop()
            yield level, node
            todo += ((level + 1, child) for child in reversed(node.children))

    def as_data(self) -> dict[str, Any]:
        """Return the tree for machines, with the numbers of steps."""
        number = None if self.step is None else self.step.step
        inside = [child.as_data() for child in self.children]
        return {"title": self.title, "step": number, "children": inside}


def tree_of(steps: Sequence[Step]) -> list[Node]:
    """Return the steps under their agents, branches and turns; nested calls under their parents.

    An agent or a branch is a group if there is more than the first one; so a run with one agent
    without a name begins with its turns. A step whose parent is not in the list stands in its turn.
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
    """Return the node of a step's turn; make it, and the nodes above it, for the first step."""
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
