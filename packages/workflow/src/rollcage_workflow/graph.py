"""A plan as a graph: the order of the steps, and the loops of its jumps."""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from rollcage import Contract

from rollcage_workflow.plan import Jump, Plan, PlanStep

__all__ = [
    "Checked", "Graph", "Loop", "Node", "Unit", "ancestors", "between", "blocks_in", "cycle",
    "loops_of", "names_of", "nodes_of",
    "signals_of",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A step, with everything that it needs to run.

    Attributes:
        name: its name in its block.
        step: its part of the plan.
        before: the steps of its block before it.
        contract: the contract of the tool of a call or an agent.
        body: the function of the tool.
        inner: the steps inside it.
        plan: the plan of a workflow step.
        skips: the steps that a jump ahead skips.
        skipped_by: the steps whose jump skips this one.
    """

    name: str
    step: PlanStep
    before: tuple[str, ...]
    contract: Contract | None = None
    body: Callable[..., Any] | None = None
    inner: Graph | None = None
    plan: Checked | None = None
    skips: frozenset[str] = frozenset()
    skipped_by: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """The steps that a jump repeats: all steps from `first` to `last`.

    Attributes:
        units: the steps, and the loops inside this one.
        names: all of the steps, including the steps of inner loops.
        before: the steps outside that come before one of these.
        opens: see `opens_of`.
    """

    first: str
    last: str
    jump: Jump
    units: tuple[Unit, ...]
    names: frozenset[str]
    before: tuple[str, ...]
    opens: Mapping[str, Collection[str]]


Unit = Node | Loop


class Opens(Mapping[str, Collection[str]]):
    """The branches of steps, in any round or attempt, and the branches before each."""

    def __init__(self, before: Mapping[str, Collection[str]]) -> None:
        self._before = before

    def __getitem__(self, name: str) -> Collection[str]:
        return self._before[re.split(r"[.~]", name, maxsplit=1)[0]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._before)

    def __len__(self) -> int:
        return len(self._before)


def opens_of(units: Iterable[Unit]) -> Opens:
    """Return the steps before each step; within a loop, all steps before the loop."""
    return Opens(_before(units))


def _before(units: Iterable[Unit]) -> dict[str, Collection[str]]:
    found: dict[str, Collection[str]] = {}
    for unit in units:
        if isinstance(unit, Node):
            found[unit.name] = unit.before
        else:
            inner = _before(unit.units)
            found |= {name: (*before, *unit.before) for name, before in inner.items()}
    return found


def names_of(unit: Unit) -> Collection[str]:
    """Return the steps of a unit."""
    return unit.names if isinstance(unit, Loop) else (unit.name,)


def nodes_of(units: Iterable[Unit]) -> Iterator[Node]:
    """Yield the steps of a block, including the steps of its loops."""
    for unit in units:
        if isinstance(unit, Loop):
            yield from nodes_of(unit.units)
        else:
            yield unit


def _ordered(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Return units, each after its dependencies; otherwise in the given order."""
    owner = {name: at for at, unit in enumerate(units) for name in names_of(unit)}
    after: list[list[int]] = [[] for _ in units]
    missing = [0] * len(units)
    for at, unit in enumerate(units):
        before = {owner[name] for name in unit.before if name in owner}
        missing[at] = len(before)
        for each in before:
            after[each].append(at)
    ready = [at for at, count in enumerate(missing) if not count]
    found: list[Unit] = []
    while ready:
        at = heapq.heappop(ready)
        found.append(units[at])
        for each in after[at]:
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(ready, each)
    return tuple(found)


def _is_row(units: tuple[Unit, ...]) -> bool:
    """Return whether each step comes after the one before it. In a row, no step is retried."""
    last = 0
    reaches: dict[str, int] = {}  # by step, the last step before it
    for unit in units:
        if isinstance(unit, Loop) or unit.step.retry is not None:
            return False
        place = max((reaches[name] for name in unit.before if name in reaches), default=0)
        if unit.step.kind != "value":
            if place != last:
                return False
            place = last = last + 1
        reaches[unit.name] = place
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """The steps of a block.

    Attributes:
        units: the units, each after its dependencies.
        last: the last step, whose result is the block's if none is declared.
        at: the place of the block: the plan's name, and the place in the plan.
        is_row: whether each step comes after the one before it, not counting values.
        opens: see `opens_of`.
        undoes: whether the failure of one of the steps undoes the block.
        result: the template of the block's result, if there is one.
    """

    units: tuple[Unit, ...]
    last: str
    at: str
    is_row: bool
    opens: Mapping[str, Collection[str]]
    undoes: bool = False
    result: Any = None

    @classmethod
    def of(cls, units: tuple[Unit, ...], last: str, at: str) -> Graph:
        """Return the graph of a block's units."""
        units = _ordered(units)
        undoes = any(node.step.undoes_its_block for node in nodes_of(units))
        return cls(units, last, at, _is_row(units), opens_of(units), undoes)


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """A plan without findings, with its tools.

    Attributes:
        where: its name in errors.
    """

    plan: Plan
    graph: Graph
    where: str
    tools: Mapping[str, Callable[..., Any]]


def cycle(before: Mapping[str, Iterable[str]]) -> list[str]:
    """Return a circle of steps that wait for each other; empty without one."""
    done: set[str] = set()
    for start in before:
        stack = [(start, iter(before[start]))]
        trail = [start]
        while stack and start not in done:
            name, rest = stack[-1]
            following = next((each for each in rest if each in before and each not in done), None)
            if following is None:
                done.add(name)
                stack.pop()
                trail.pop()
            elif following in trail:
                return [*trail[trail.index(following) :], following]
            else:
                stack.append((following, iter(before[following])))
                trail.append(following)
    return []


def ancestors(before: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Return all steps before each step; there is no cycle."""
    found: dict[str, frozenset[str]] = {}
    for start in before:
        waiting = [start]
        while waiting:
            name = waiting[-1]
            missing = [each for each in before[name] if each not in found]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            inner = (found[each] for each in before[name])
            found[name] = frozenset(before[name]).union(*inner)
    return found


def between(first: str, last: str, above: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the steps from one to another, both included; none if the second comes first."""
    if first != last and first not in above[last]:
        return frozenset()
    return frozenset(
        name
        for name in above
        if (name == first or first in above[name]) and (name == last or name in above[last])
    )


def loops_of(nodes: Mapping[str, Node]) -> tuple[Unit, ...]:
    """Return the units of a block's steps; its loops are disjoint or nested."""
    above = ancestors({name: node.before for name, node in nodes.items()})
    spans = {
        name: span
        for name, node in nodes.items()
        if node.step.next is not None and (span := between(node.step.next.to, name, above))
    }
    return _units(nodes, list(nodes), spans)


def _units(
    nodes: Mapping[str, Node], names: list[str], spans: Mapping[str, frozenset[str]]
) -> tuple[Unit, ...]:
    here = [name for name in spans if spans[name] <= set(names)]
    outermost = [name for name in here if not any(spans[name] < spans[other] for other in here)]
    found: list[Unit] = []
    for name in names:
        around = next((each for each in outermost if name in spans[each]), None)
        if around is None:
            found.append(nodes[name])
        elif name == next(each for each in names if each in spans[around]):
            jump = nodes[around].step.next
            assert jump is not None
            inside = [each for each in names if each in spans[around]]
            rest = {each: span for each, span in spans.items() if each != around}
            outside = {e for each in inside for e in nodes[each].before if e not in spans[around]}
            units = _units(nodes, inside, {e: s for e, s in rest.items() if s <= spans[around]})
            found.append(
                Loop(jump.to, around, jump, units, spans[around], tuple(sorted(outside)),
                     opens_of(units))
            )  # fmt: skip
    return tuple(found)


def signals_of(graph: Graph) -> dict[str, list[Mapping[str, Any]]]:
    """Return by name of a signal what its waits accept: a JSON Schema each."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for block in blocks_in(graph):
        for node in nodes_of(block.units):
            wait = node.step.wait
            if wait is not None and wait.signal is not None:
                accepted = found.setdefault(wait.signal, [])
                accepted += [wait.accepts or {}] * ((wait.accepts or {}) not in accepted)
    return found


def blocks_in(graph: Graph) -> Iterator[Graph]:
    """Yield a block, and all blocks inside it, also of other plans."""
    waiting: list[Graph | Loop] = [graph]
    while waiting:
        block = waiting.pop()
        if isinstance(block, Graph):
            yield block
        for unit in block.units:
            if isinstance(unit, Loop):
                waiting.append(unit)
            elif unit.plan is not None:
                waiting.append(unit.plan.graph)
            elif unit.inner is not None:
                waiting.append(unit.inner)
