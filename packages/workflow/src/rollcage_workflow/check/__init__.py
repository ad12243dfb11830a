"""All problems of a plan, found at once before any of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcage_workflow.check.checking import Checking, Workflows
from rollcage_workflow.files import Document
from rollcage_workflow.graph import Checked
from rollcage_workflow.plan import Plan
from rollcage_workflow.tools import Tools, tools_by_name

__all__ = ["Tools", "Workflows", "check", "tools_by_name"]


def check(
    plan: Plan | Document | str | Mapping[str, Any],
    tools: Tools = (),
    workflows: Workflows | None = None,
) -> Checked:
    """Return a plan that can be run.

    Args:
        plan: a `Plan`, its data, or the path of its file.
        tools: the tools of its steps, agents included.
        workflows: the plans that its `workflow:` steps name.

    Raises:
        PlanInvalid: all problems, each with its file and line.
        ContractError: a tool can't be used.
    """
    return Checking(tools_by_name(tools), workflows or {}, ()).plan(plan)
