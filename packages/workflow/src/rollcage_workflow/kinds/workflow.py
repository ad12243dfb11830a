"""`workflow:` runs another plan, as one step of this one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rollcage import Contract

from rollcage_workflow.errors import PlanInvalid
from rollcage_workflow.expressions import fill
from rollcage_workflow.failures import settle
from rollcage_workflow.flow import NO_FAILURES
from rollcage_workflow.graph import Checked, Graph, Node
from rollcage_workflow.inputs import given_inputs
from rollcage_workflow.kinds.tools import check_effects
from rollcage_workflow.records import UNTOLD, container
from rollcage_workflow.schemas import ANY, Shape, misfit, nearest

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.interpret import Interpreter

__all__ = ["check", "run"]


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    named = str(node.step.workflow)
    given = {name: checking.template(each, (*path, "inputs", name), around)
             for name, each in node.step.inputs.items()}  # fmt: skip
    if named in checking.above:
        circle = " -> ".join([*checking.above, named])
        checking.find((*path, "workflow"), "cycle", f"a plan within itself: {circle}")
        return node, ANY
    if named not in checking.workflows:
        message = f"there is no workflow {named!r}{nearest(named, checking.workflows)}"
        checking.find((*path, "workflow"), "unknown_step", message)
        return node, ANY
    known = checking.workflows[named]
    try:
        checked = checking.of_plan_in(named).plan(
            known.plan if isinstance(known, Checked) else known
        )
    except PlanInvalid as error:
        checking.findings |= dict.fromkeys(error.findings)
        return node, ANY
    _check_inputs(checking, checked, given, path, named)
    for contract in _contracts_in(checked.graph):
        check_effects(checking, contract, path, around)
    return dataclasses.replace(node, plan=checked), ANY


def _check_inputs(
    checking: Checking, checked: Checked, given: dict[str, Shape], path: Path, named: str
) -> None:
    inputs = checked.plan.inputs
    for name, schema in inputs.items():
        if name not in given and "default" not in schema:
            checking.find((*path, "inputs"), "missing_argument", f"{named} needs {name!r}")
    for name, shape in given.items():
        at = (*path, "inputs", name)
        if name not in inputs:
            message = f"{named} takes no {name!r}{nearest(name, inputs)}"
            checking.find(at, "unknown_argument", message)
            continue
        why = misfit(shape, Shape.of(inputs[name]))
        if why is not None:
            checking.find(at, "wrong_type", f"{named} can't take this: {why}")


def _contracts_in(graph: Graph) -> Iterable[Contract]:
    """Yield the contracts of all calls in a block."""
    waiting: list[Any] = list(graph.units)
    while waiting:
        unit = waiting.pop()
        if not isinstance(unit, Node):
            waiting += unit.units
            continue
        if unit.contract is not None:
            yield unit.contract
        for inner in (unit.inner, None if unit.plan is None else unit.plan.graph):
            if inner is not None:
                waiting += inner.units


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`. The other plan's `on_failure` is about the steps of that plan."""
    checked = node.plan
    assert checked is not None
    inputs = given_inputs(checked, fill(node.step.inputs, place.variables))
    path = f"{place.path}{node.name}."

    async def body(**_: object) -> Any:
        plan = checked.plan
        try:
            async with interpreter.undoing(UNTOLD, where=plan.undoes, otherwise=plan.on_failure):
                return await interpreter.plan(checked, inputs, place.flow, path)
        except NO_FAILURES:
            raise
        except Exception as error:
            settle(error)  # the outer plan has its own rule for this step
            raise

    named = {"plan": checked.plan.name, "inputs": inputs}
    return await interpreter.session.arun_call(container("workflow"), named, body)
