"""What a package needs of the core that writes logs of runs which were recorded elsewhere."""

from rollcage.contract.arguments import Arguments
from rollcage.contract.contract import Contract
from rollcage.fingerprint.identity import idempotency_key, jcs, uuid7
from rollcage.gate.verdict import Verdict
from rollcage.heart.arrival import arrive
from rollcage.heart.block import begin_block
from rollcage.heart.branches import ended, leave_block
from rollcage.heart.call import Call, Place, open_sessions, refusal
from rollcage.heart.clock import Clock
from rollcage.heart.driver import drive
from rollcage.heart.ending import end
from rollcage.heart.flow import admit, enter, inside
from rollcage.heart.lines import BAD
from rollcage.heart.log import FORMAT, Chain
from rollcage.heart.matching import find_match
from rollcage.heart.opening import Opened
from rollcage.heart.run import CHANGES, KEY, Event, Outcome, Run, Step, fold_lines
from rollcage.heart.session import Session
from rollcage.heart.stage import Hooks, Stage
from rollcage.heart.stages.secrets import Secrets
from rollcage.heart.walk import Branch, Turn
from rollcage.trace.messages import MessagesRead

__all__ = [
    "BAD", "CHANGES", "FORMAT", "KEY", "Arguments", "Branch", "Call", "Chain", "Clock", "Contract",
    "Event", "Hooks", "MessagesRead", "Opened", "Outcome", "Place", "Run", "Secrets", "Session",
    "Stage", "Step", "Turn", "Verdict", "admit", "arrive", "begin_block", "drive", "end", "ended",
    "enter", "find_match", "fold_lines", "idempotency_key", "inside", "jcs", "leave_block",
    "open_sessions", "refusal", "uuid7",
]  # fmt: skip
