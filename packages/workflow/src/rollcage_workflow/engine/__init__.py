"""Workers that run executions: with DBOS as scheduler (`pip install "rollcage-workflow[engine]"`).

Without it, `Engine(None, store=...)`, all commands and schedules work; a database and limits don't.
"""

from rollcage_workflow.engine.engine import Engine
from rollcage_workflow.engine.limits import Limit
from rollcage_workflow.engine.schedules import Schedule
from rollcage_workflow.engine.ticking import LeftOut

__all__ = ["Engine", "LeftOut", "Limit", "Schedule"]
