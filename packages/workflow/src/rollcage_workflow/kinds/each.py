"""`each:` runs its steps for each element of a list, so many at once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rollcage_workflow.errors import ExpressionFailed
from rollcage_workflow.expressions import fill
from rollcage_workflow.kinds.members import Member, side_by_side
from rollcage_workflow.plan import Each
from rollcage_workflow.reading import of_template
from rollcage_workflow.records import container
from rollcage_workflow.schemas import ANY, Shape, misfit, types

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.graph import Node
    from rollcage_workflow.interpret import Interpreter

__all__ = ["check", "run"]


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    each = node.step.each
    assert each is not None
    at = (*path, "each")
    found = checking.expression(each.over, (*at, "over"), around, takes_null=False)
    shape = ANY if found is None else of_template(f"={found.source}", around.variables)
    if "array" not in types(shape):
        why = misfit(shape, Shape.of({"type": "array"}))
        checking.find((*at, "over"), "wrong_type", str(why))
    shape = shape.resolved()
    item = shape.inside(shape.schema.get("items")) if each.size is None else shape
    inside = around.with_({"item": item, "index": Shape.of({"type": "integer"})})
    graph, result = checking.inner(each, at, inside)
    items = dict(result.schema) if result.schema is result.root else {}
    return dataclasses.replace(node, inner=graph), Shape.of({"type": "array", "items": items})


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`."""
    each, graph = node.step.each, node.inner
    assert each is not None
    assert graph is not None
    items = fill(each.over, place.variables)
    if not isinstance(items, list):
        raise ExpressionFailed(f"{each.over} gives no list")
    passes = _passes(each, items)

    async def body(**_: object) -> Any:
        return await side_by_side(
            interpreter,
            [Member(str(n), f"{place.path}{node.name}[{n}].") for n in range(len(passes))],
            each.max_concurrent,
            place,
            lambda n, here: interpreter.block(graph, here.with_({"item": passes[n], "index": n})),
        )

    named = {"step": node.name, "over": items}
    return await interpreter.session.arun_call(container("each"), named, body)


def _passes(each: Each, items: list[Any]) -> list[Any]:
    if each.size is None:
        return items
    return [items[at : at + each.size] for at in range(0, len(items), each.size)]
