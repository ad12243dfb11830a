"""`repeat:` runs its steps repeatedly, until a condition holds."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from rollcage_workflow.errors import StepFailed
from rollcage_workflow.expressions import fill, is_true
from rollcage_workflow.graph import Graph
from rollcage_workflow.plan import Repeat
from rollcage_workflow.records import UNTOLD, container
from rollcage_workflow.schemas import ANY, Shape

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.graph import Node
    from rollcage_workflow.interpret import Interpreter

__all__ = ["check", "run"]

_TOGETHER: Final = 100
"""How many rounds with branches share an enclosing branch, which releases them at its end."""


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    repeat = node.step.repeat
    assert repeat is not None
    at = (*path, "repeat")
    inside = around.with_({"round": Shape.of({"type": "integer"}), "last": ANY})
    graph, result = checking.inner(repeat, at, inside, until=repeat.until)
    return dataclasses.replace(node, inner=graph), result


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`."""
    repeat, graph = node.step.repeat, node.inner
    assert repeat is not None
    assert graph is not None

    async def body(**_: object) -> Any:
        return await _rounds(interpreter, repeat, graph, place, f"{place.path}{node.name}")

    return await interpreter.session.arun_call(container("repeat"), {"step": node.name}, body)


async def _rounds(
    interpreter: Interpreter, repeat: Repeat, graph: Graph, place: BlockPlace, path: str
) -> Any:
    last: Any = None
    with contextlib.ExitStack() as group:
        for number in range(1, repeat.most + 1):
            place.flow.check()
            here = place.with_(
                {"round": number, "last": last},
                suffix="",
                path=f"{path}[{number}].",
                after=(),
                round=f"{number}/",
            )
            if interpreter.is_row(graph):
                done = await interpreter.steps(graph, here)
            else:
                if number % _TOGETHER == 1:
                    group.close()
                    name = f"{UNTOLD}{number // _TOGETHER}"
                    group.enter_context(interpreter.session.branch(name))
                with interpreter.session.branch(str(number)):
                    done = await interpreter.steps(graph, here)
            seen = {**here.variables, **done}
            last = done[graph.last] if graph.result is None else fill(graph.result, seen)
            if is_true(repeat.until, {**seen, "last": last}):
                return last
    if repeat.then == "go_on":
        return last
    raise StepFailed(f"{path}: {repeat.until} was not true after any of {repeat.most} rounds")
