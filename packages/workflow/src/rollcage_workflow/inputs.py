"""The inputs of an execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcage_workflow.errors import InputsInvalid
from rollcage_workflow.expressions import plain
from rollcage_workflow.graph import Checked
from rollcage_workflow.schemas import Shape, invalid

__all__ = ["given_inputs"]


def given_inputs(checked: Checked, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an execution, with the plan's defaults.

    Raises:
        InputsInvalid: they are not what the plan declares; says all that is wrong.
    """
    plan, wrong = checked.plan, []
    found: dict[str, Any] = {}
    for name in given.keys() - plan.inputs.keys():
        known = ", ".join(plan.inputs) or "it has none"
        wrong.append(f"{name}: the plan {plan.name!r} has no such input ({known})")
    for name, schema in plan.inputs.items():
        if name not in given and "default" not in schema:
            wrong.append(f"{name}: is missing")
            continue
        try:
            found[name] = plain(given[name] if name in given else schema["default"])
        except ValueError as error:
            wrong.append(f"{name}: has no JSON form: {error}")
            continue
        why = invalid(found[name], Shape.of(schema))
        if why is not None:
            wrong.append(f"{name}: {why}")
    if wrong:
        raise InputsInvalid("; ".join(sorted(wrong)))
    return found
