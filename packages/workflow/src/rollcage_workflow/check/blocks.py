"""The steps of a block: the order between them, jumps, and the scope of a rollback."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rollcage_workflow.expressions import (
    ExpressionInvalid,
    bare,
    expression,
    names_in,
    templates,
)
from rollcage_workflow.files import Path, written
from rollcage_workflow.graph import (
    Graph,
    Node,
    ancestors,
    between,
    cycle,
    loops_of,
    nodes_of,
)
from rollcage_workflow.kinds import KINDS
from rollcage_workflow.plan import Block, Each, PlanStep
from rollcage_workflow.schemas import ANY, Shape, nearest, table

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking

__all__ = ["block", "inner", "skippable"]

_MOST_CIRCLES: Final = 20
"""So many circles are reported one by one; after that, each circular step is cut free at once."""


def block(
    checking: Checking,
    steps: Mapping[str, PlanStep],
    path: Path,
    around: Around,
    *,
    apart: bool = False,
) -> tuple[Graph, dict[str, Shape]]:
    """Check the steps of a block; members of a team are separate, and don't see each other."""
    for name in steps:
        if name in around.variables:
            checking.find((*path, name), "shadowed", f"a step around this is called {name!r}, too")
    before = {
        name: () if apart else _before(checking, name, step, steps, (*path, name))
        for name, step in steps.items()
    }
    wanted = dict(before)
    order = _order(checking, before, path)
    results: dict[str, Shape] = {}
    nodes: dict[str, Node] = {}
    above = ancestors(before)
    jumps = {name: step.next.to for name, step in steps.items()
             if step.next is not None and step.next.to in steps}  # fmt: skip
    repeated = frozenset[str]().union(*(between(to, name, above) for name, to in jumps.items()))
    skips = {name: between(name, to, above) - {name, to} for name, to in jumps.items()}
    for name, skipped in skips.items():
        for each in skipped:
            before[each] = tuple(dict.fromkeys((*before[each], name)))
    optional, jumped = around.optional, dict[str, frozenset[str]]()
    rolling = {name for name, step in steps.items() if step.undoes_its_block}
    for name in order:
        seen = around.with_({each: results.get(each, ANY) for each in wanted[name]})
        if name in repeated:
            seen = seen.with_({"last": ANY})
        undone = sorted(rolling if repeated else rolling - above[name])
        if undone and not around.undone:
            seen = dataclasses.replace(seen, undone=f"{undone[0]} rolls back")
        skipped_by = frozenset(each for each, skipped in skips.items() if name in skipped)
        seen = seen.with_(
            {each: results[each] for each in sorted(above[name]) if each in results},
            optional=optional | {each for each, by in jumped.items() if by - skipped_by},
        )
        node, results[name] = step(checking, name, steps[name], before[name],
                                   (*path, name), seen)  # fmt: skip
        nodes[name] = dataclasses.replace(
            node, skips=skips.get(name, frozenset()), skipped_by=skipped_by
        )
        if steps[name].when is not None:
            optional |= {name}
        elif skipped_by:
            jumped[name] = skipped_by
        _jump(checking, nodes[name], results[name], (*path, name), seen)
    ordered = {name: nodes[name] for name in steps if name in nodes}
    is_fine = _jumps(checking, steps, before, path) and repeated
    units = loops_of(ordered) if is_fine else (*ordered.values(),)
    return Graph.of(units, [*steps][-1], f"{checking.name}: {written(path)}"), results


def _before(
    checking: Checking, name: str, step: PlanStep, steps: Mapping[str, PlanStep], path: Path
) -> tuple[str, ...]:
    """Return the steps before a step: those whose results it uses, and those that it names."""
    found: list[str] = []
    for index, each in enumerate(step.after):
        if each in steps:
            found.append(each)
        else:
            checking.find((*path, "after", index), "unknown_step",
                      f"there is no step {each!r}{nearest(each, steps)}")  # fmt: skip
    inside = {inner for _, block in step.blocks() for inner in block}
    for source in _sources(step):
        try:
            names = expression(source).names
        except ExpressionInvalid:
            continue
        found += [each for each in sorted(names) if each in steps and each not in inside]
    if step.next is not None:  # the condition sees the step's own result, too
        found = [each for each in found if each != name]
    return tuple(dict.fromkeys(found))


def _order(checking: Checking, before: dict[str, tuple[str, ...]], path: Path) -> list[str]:
    """Return the steps, each after its dependencies; circles are cut."""
    circles = 0
    while circle := cycle(before):
        circles += 1
        message = f"these steps wait for each other: {' -> '.join(circle)}"
        checking.find((*path, circle[0]), "cycle", message)
        waits = circle[0]
        few = circles < _MOST_CIRCLES
        before[waits] = tuple(e for e in before[waits] if few and e != circle[1])
    above = ancestors(before)
    return sorted(before, key=lambda each: len(above[each]))


def _jumps(
    checking: Checking,
    steps: Mapping[str, PlanStep],
    before: Mapping[str, Sequence[str]],
    path: Path,
) -> bool:
    """Return whether all jumps are possible."""
    spans: dict[str, frozenset[str]] = {}
    above = ancestors(before)
    fine = True
    for name, step in steps.items():
        if step.next is None:
            continue
        to, at = step.next.to, (*path, name, "next", "to")
        if to not in steps:
            message = f"there is no step {to!r}{nearest(to, steps)}"
            checking.find(at, "unknown_step", message)
            fine = False
            continue
        if name in above[to]:
            fine = _ahead(checking, steps, name, above, (*path, name, "next")) and fine
            continue
        span = between(to, name, above)
        if not span:
            message = f"neither of {name} and {to} comes after the other: a jump leads along a path"
            checking.find(at, "bad_jump", message)
            fine = False
            continue
        if step.next.most is None:
            message = "is missing; a jump back needs a bound"
            checking.find((*at[:-1], "most"), "unbounded_jump", message)
            fine = False
            continue
        for other, known in spans.items():
            if span & known and not (span < known or known < span):
                message = f"what it does again overlaps with what {other} does again"
                checking.find(at, "bad_jump", message)
                fine = False
        spans[name] = span
    return fine


def _ahead(
    checking: Checking,
    steps: Mapping[str, PlanStep],
    name: str,
    above: Mapping[str, frozenset[str]],
    path: Path,
) -> bool:
    """Return whether a jump ahead is possible."""
    jump = steps[name].next
    assert jump is not None
    skipped = sorted(between(name, jump.to, above) - {name, jump.to})
    jumping = [each for each in skipped if steps[each].next is not None]
    if not skipped:
        message = f"no step stands between {name} and {jump.to}, so there is nothing to skip"
        checking.find((*path, "to"), "bad_jump", message)
    elif jumping:
        message = f"it skips {jumping[0]}, which jumps, too: put that jump on another step"
        checking.find((*path, "to"), "bad_jump", message)
    elif jump.most is not None:
        message = f"{name} jumps ahead, which happens once: most: is for a jump back"
        checking.find((*path, "most"), "bad_jump", message)
    else:
        return True
    return False


def _retried(checking: Checking, node: Node, path: Path) -> None:
    """Refuse a retry that would repeat successful calls."""
    if node.step.retry is None:
        return
    if node.step.kind != "call":
        message = f"a {node.step.kind} can't be retried as a whole: put retry: on its steps"
        checking.find((*path, "retry"), "bad_retry", message)
    elif node.contract is not None and node.contract.effect == "scope":
        message = f"{node.contract.name} makes calls of its own, which would all be made again"
        checking.find((*path, "retry"), "bad_retry", message)


def _timed(checking: Checking, step: PlanStep, path: Path) -> None:
    """Refuse a time limit that could never end anything."""
    if step.timeout is not None and step.wait is not None:
        message = (
            "a wait takes no time of an attempt, so this would not end it: put it into a race with "
            "a member {wait: {seconds: …}}; an approval has expires:"
        )
        checking.find((*path, "timeout"), "bad_timeout", message)


def step(
    checking: Checking,
    name: str,
    step: PlanStep,
    before: tuple[str, ...],
    path: Path,
    around: Around,
) -> tuple[Node, Shape]:
    """Check a step; return it, and the shape of its result."""
    if step.when is not None:
        checking.expression(step.when, (*path, "when"), around, boolean=True)
        _reachable(checking, step.when, (*path, "when"))
        looked_at = names_in([bare(step.when)])
        around = dataclasses.replace(around, guarded=around.guarded | looked_at)
    if step.undoes_itself and not around.undone:
        around = dataclasses.replace(around, undone=f"{name} rolls back")
    if step.timeout is not None:
        around = dataclasses.replace(around, timed=True)
    node = Node(name, step, before)
    node, shape = KINDS[step.kind].check(checking, node, path, around)
    _retried(checking, node, path)
    _timed(checking, step, path)
    if path in checking.form.opaque:
        shape = ANY
    elif step.on_failure == "keep":
        shape = table({"ok": Shape.of({"type": "boolean"}), "value": shape, "error": ANY})
        shape = Shape.of({**shape.schema, "required": ["ok"]})
    return node, shape


def _jump(checking: Checking, node: Node, shape: Shape, path: Path, around: Around) -> None:
    """Check the condition of a step's jump: it sees the step's own result."""
    step = node.step
    if step.next is None:
        return
    own = {node.name: shape, "last": shape}
    is_null = step.when is not None and not node.skips  # a skipped step does not jump ahead
    if step.when is not None and node.skips:
        around = dataclasses.replace(around, guarded=around.guarded | names_in([bare(step.when)]))
    seen = around.with_(own, optional=around.optional | own.keys() if is_null else around.optional)
    checking.expression(step.next.when, (*path, "next", "when"), seen, boolean=True)


def skippable(graph: Graph) -> frozenset[str]:
    """Return the steps of a block whose results may be null, because they are skipped."""
    return frozenset(
        node.name for node in nodes_of(graph.units) if node.step.when is not None or node.skipped_by
    )


def _reachable(checking: Checking, source: str, path: Path) -> None:
    try:
        found = expression(bare(source))
        if not found.names and found({}) is False:
            checking.find(path, "unreachable", "is always false: the step is never reached")
    except Exception:  # noqa: BLE001 - reported as what it is elsewhere
        return


def inner(
    checking: Checking, of: Block, path: Path, around: Around, until: str | None = None
) -> tuple[Graph, Shape]:
    """Check the steps of a block with a result; `until`: the condition that ends it."""
    graph, results = block(checking, of.steps, (*path, "steps"), around)
    seen = around.with_(results, optional=around.optional | skippable(graph))
    if of.result is not None:
        shape = checking.template(of.result, (*path, "result"), seen)
    else:
        shape = results.get(graph.last, ANY)
    if until is not None:
        checking.expression(until, (*path, "until"), seen.with_({"last": shape}), boolean=True)
    return dataclasses.replace(graph, result=of.result), shape


def _sources(step: PlanStep) -> Iterable[str]:
    """Yield all expressions in a step, and in the steps inside it."""
    for kind in ("args", "inputs", "value"):
        yield from (source for _, source in templates(getattr(step, kind)))
    for source in (step.when, step.wait.until if step.wait else None):
        if source is not None:
            yield bare(source)
    if step.wait is not None:
        yield from (source for _, source in templates(step.wait.approval))
    if step.next is not None:
        yield bare(step.next.when)
    for block in (step.each, step.repeat):
        if block is not None:
            yield bare(block.over if isinstance(block, Each) else block.until)
            yield from (source for _, source in templates(block.result))
    for _, steps in step.blocks():
        for inner in steps.values():
            yield from _sources(inner)
