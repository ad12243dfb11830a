"""`value:` makes no call: its result is its filled template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcage_workflow.expressions import fill

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.graph import Node
    from rollcage_workflow.interpret import Interpreter
    from rollcage_workflow.schemas import Shape

__all__ = ["check", "run"]


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    return node, checking.template(node.step.value, (*path, "value"), around)


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`."""
    del interpreter
    return fill(node.step.value, place.variables)
