"""Plans as tools that start them, for a server of tools with any protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from rollcage import Contract, Store, current_step

from rollcage_workflow.errors import InputsInvalid, WorkflowError
from rollcage_workflow.governed import plan_contract
from rollcage_workflow.graph import Checked
from rollcage_workflow.inputs import given_inputs
from rollcage_workflow.orders import Commands

__all__ = ["orders"]


def orders(plans: Iterable[Checked], store: Store, *, by: str) -> list[Callable[..., Any]]:
    """Return each plan's tool `start.NAME`, which has a worker start an execution.

    It returns the execution's id.

    Call them through a session, like any tool declared with `@rollcage.tool`. A facade gives
    approved ones: their version is the plan's digest, so a changed plan is another version. A
    worker that has another plan of the name refuses to start it.

    A tool's arguments are the plan's `inputs`, and an `id`. Without an `id`, the execution's is
    made from the call's idempotency key: a call that is repeated after a crash starts nothing
    twice.

    Args:
        plans: checked plans.
        store: the store in which the workers look for commands.
        by: the person for whom they start, who can't approve their requests.
    """
    return [_starter(each, store, by) for each in plans]


def _starter(checked: Checked, store: Store, by: str) -> Callable[..., Any]:
    plan, commands = checked.plan, Commands(store)

    def start(inputs: Mapping[str, Any] | None = None, id: str = "") -> dict[str, Any]:  # noqa: A002
        given_inputs(checked, inputs or {})
        step = current_step()
        if not id and step is None:
            raise WorkflowError(f"start.{plan.name}: give an id, or call it through a session")
        key = "" if step is None else hashlib.sha256(step.idempotency_key.encode()).hexdigest()
        found = id or f"{plan.name}-{key[:16]}"
        is_new = commands.start(plan.name, inputs, id=found, by=by, digest=plan.digest)
        look = f"rollcage workflow show {found}"
        return {"id": found, "plan": plan.name, "started": is_new, "look": look}

    start.__name__ = f"start.{plan.name}"
    vars(start)["__rollcage_contract__"] = _contract(checked)
    return start


def _contract(checked: Checked) -> Contract:
    own = plan_contract(checked.plan)
    message = f"Starts the workflow {checked.plan.name}; a worker runs it. {own.description}"
    identity = {"type": "string", "description": "Of the execution: one id starts once."}
    inputs = cast("dict[str, Any]", own.parameters)
    needed = ["inputs"] if inputs["required"] else []
    return Contract(
        name=f"start.{checked.plan.name}",
        version=own.version,
        description=message.strip(),
        parameters={
            "type": "object",
            "properties": {"inputs": inputs, "id": identity},
            "required": needed,
            "additionalProperties": False,
        },
        effect="write",
        idempotent=True,
        raises=(InputsInvalid, WorkflowError),
    )
