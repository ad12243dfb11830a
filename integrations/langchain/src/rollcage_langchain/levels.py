"""The place of a call in LangGraph's graphs, read from a namespace and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Level", "levels_of", "read_levels", "round_of", "tasks_of"]


class Level(NamedTuple):
    """A task of a graph, and the checkpoint that its superstep runs from."""

    graph: str  # its namespace; empty for the outermost
    checkpoint: str
    task: str  # its name and id


def levels_of(namespace: str, at: Mapping[str, Any]) -> Sequence[Level]:
    """Return the tasks in a namespace, each with its superstep's checkpoint."""
    levels = [Level(graph, str(at.get(graph, "")), task) for graph, task in tasks_of(namespace)]
    return _of_graphs(levels) if all(level.checkpoint for level in levels) else ()


def read_levels(namespace: str, at: str) -> Sequence[Level]:
    """Return the levels of a recorded place."""
    tasks = tasks_of(namespace)
    return _of_graphs(
        [
            Level(graph, checkpoint, task)
            for (graph, task), checkpoint in zip(
                tasks, at.partition("#")[0].split(","), strict=False
            )
        ]
    )


def round_of(thread: str, at: str) -> str:
    """Name the superstep of a recorded place, the same if it runs again."""
    namespace, _, checkpoints = at.rpartition("@")
    graphs = [task.partition(":")[0] for _, task in tasks_of(namespace)[:-1]]
    return f"{thread}@{'|'.join(graphs)}#{checkpoints.partition('#')[2]}"


def tasks_of(namespace: str) -> list[tuple[str, str]]:
    """Return the tasks of a namespace, each with the namespace of its graph.

    `a:1|b:2` is task `b:2` of the graph that task `a:1` runs; `a:1|1|b:2`, of its second one.
    """
    parts = namespace.split("|")
    return [("|".join(parts[:i]), part) for i, part in enumerate(parts) if ":" in part]


def _of_graphs(levels: list[Level]) -> Sequence[Level]:
    """Return levels in which a task of the functional API is in its caller's superstep."""
    for i in range(1, len(levels)):
        if levels[i].checkpoint == levels[i - 1].checkpoint:
            levels[i] = levels[i]._replace(graph=levels[i - 1].graph)
    return levels
