"""The heart: a run is the fold of its log.

Read it in this order: `run` (the fold), `walk` (where an attempt stands, and which step answers a
call), `attempt` (a call begins, its body runs, it ends), `session` (the public face), `undo`.
"""

from rollcage.heart.block import BranchHandle, Transaction, TurnHandle
from rollcage.heart.declare import CurrentStep, current_step, tool
from rollcage.heart.finished import aplan_undo, aundo_run, plan_undo, undo_run
from rollcage.heart.fork import Fork
from rollcage.heart.options import Options
from rollcage.heart.resolving import abandon_run, resolve_step
from rollcage.heart.session import Session
from rollcage.heart.stage import Guard, Observer, Stage
from rollcage.heart.store import Log, Store, open_store
from rollcage.undo.compensation import compensate

__all__ = [
    "BranchHandle", "CurrentStep", "Fork", "Guard", "Log", "Observer", "Options", "Session",
    "Stage", "Store", "Transaction", "TurnHandle", "abandon_run", "aplan_undo", "aundo_run",
    "compensate", "current_step", "open_store", "plan_undo", "resolve_step", "tool", "undo_run",
]  # fmt: skip
