"""Executions that start at a chosen step, with given results of the steps before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcage_workflow.errors import InputsInvalid
from rollcage_workflow.expressions import plain
from rollcage_workflow.graph import Checked, Node, ancestors, nodes_of
from rollcage_workflow.schemas import invalid, nearest, of_type
from rollcage_workflow.state import Execution

__all__ = ["given_results", "start_of"]


def given_results(checked: Checked, start: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the results of the steps before an execution's first step.

    Results of steps that only compute may be left out: they are computed again. A step that may
    jump must be given, because whether it jumped was decided before.

    Raises:
        InputsInvalid: there is no such step, or the results are not of all steps before
            it; the message lists all problems.
    """
    if not start:
        if given:
            raise InputsInvalid(
                "results are given, but no step to start at: pass start=, or --from"
            )
        return {}
    nodes = {node.name: node for node in nodes_of(checked.graph.units)}
    if start not in nodes:
        raise InputsInvalid(
            f"the plan {checked.plan.name!r} has no step {start!r}{nearest(start, nodes)}"
        )
    above = ancestors({name: node.before for name, node in nodes.items()})[start]
    needed = {
        name
        for name in above
        if nodes[name].step.kind != "value" or nodes[name].step.next is not None
    }
    wrong = [f"{name}: {start} comes after it, so its result has to be given"
             for name in needed - given.keys()]  # fmt: skip
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in above:
            wrong.append(f"{name}: {start} does not come after a step of this name")
            continue
        try:
            found[name] = plain(value)
        except ValueError as error:
            wrong.append(f"{name}: has no JSON form: {error}")
            continue
        why = _misfit(nodes[name], found[name])
        if why is not None:
            wrong.append(f"{name}: {why}")
    if wrong:
        raise InputsInvalid("; ".join(sorted(wrong)))
    return found


def start_of(
    checked: Checked, before: Execution, start: str, given: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return the step at which an execution starts, and the results of the steps before it.

    Raises:
        InputsInvalid: it has started at another step; or see `given_results`.
    """
    if before.plan and start not in ("", before.start):
        where = f"at {before.start}" if before.start else "with its first step"
        raise InputsInvalid(
            f"the execution {before.id!r} started {where}: to start elsewhere, give another id"
        )
    if before.plan:
        return before.start, dict(before.given if given is None else given)
    return start, given_results(checked, start, given or {})


def _misfit(node: Node, value: Any) -> str | None:
    """Return why a value can't be a step's result; null is the result of a skipped step."""
    skipped = value is None and node.step.when is not None
    if node.contract is None or node.step.on_failure == "keep" or skipped:
        return None
    return invalid(value, of_type(node.contract.returns)[0])
