"""A recorded run as data: `Run`, its `Step`s and `Attempt`s, folded from a log by `read_run`."""

from rollcage_views.runs.folding import LogFolding, fold_log, read_run
from rollcage_views.runs.run import AskedApproval, Attempt, RefusedCall, Run, Totals
from rollcage_views.runs.step import STATES, State, Step

__all__ = [
    "STATES",
    "AskedApproval",
    "Attempt",
    "LogFolding",
    "RefusedCall",
    "Run",
    "State",
    "Step",
    "Totals",
    "fold_log",
    "read_run",
]
