"""Workflows over Rollcage: a plan that is checked before it runs, and survives crashes."""

from rollcage_workflow.builder import PlanBuilder, literal, steps
from rollcage_workflow.check import check
from rollcage_workflow.errors import PlanFinding, PlanInvalid
from rollcage_workflow.governed import plan_contract
from rollcage_workflow.graph import Checked
from rollcage_workflow.plan import Plan
from rollcage_workflow.running import run, run_sync
from rollcage_workflow.state import Execution, execution, executions

__all__ = [
    "Checked",
    "Execution",
    "Plan",
    "PlanBuilder",
    "PlanFinding",
    "PlanInvalid",
    "check",
    "execution",
    "executions",
    "literal",
    "plan_contract",
    "run",
    "run_sync",
    "steps",
]
