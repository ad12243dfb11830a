"""Workers that run executions: with DBOS as scheduler (`pip install "rollcage-workflow[engine]"`).

Without it, `Engine(None, store=...)` and all commands work; a database, limits and schedules don't.
"""

from rollcage_workflow.engine.engine import Engine
from rollcage_workflow.engine.limits import Limit
from rollcage_workflow.engine.schedules import Schedule

__all__ = ["Engine", "Limit", "Schedule"]
