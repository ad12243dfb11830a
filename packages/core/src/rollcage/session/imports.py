"""What a package needs of the core that writes logs of runs which were recorded elsewhere."""

from rollcage.calls.beginning import arrive
from rollcage.calls.block import begin_block
from rollcage.calls.branches import ended, leave_block
from rollcage.calls.driver import drive
from rollcage.calls.flow import admit, end, enter, inside
from rollcage.calls.stage import Hooks, Stage
from rollcage.contract.arguments import Arguments
from rollcage.contract.contract import Contract
from rollcage.fingerprint.identity import idempotency_key, jcs, uuid7
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import Call, Place, open_sessions, refusal
from rollcage.replay.matching import find_match
from rollcage.replay.walk import Branch, Turn
from rollcage.session.opening import Opened
from rollcage.session.options import Clock
from rollcage.session.session import Session
from rollcage.trace.chain import FORMAT, Chain
from rollcage.trace.lines import BAD
from rollcage.trace.messages import MessagesRead
from rollcage.trace.run import CHANGES, KEY, Event, Outcome, Run, Step, fold_lines

__all__ = [
    "BAD", "CHANGES", "FORMAT", "KEY", "Arguments", "Branch", "Call", "Chain", "Clock", "Contract",
    "Event", "Hooks", "MessagesRead", "Opened", "Outcome", "Place", "Run", "Session",
    "Stage", "Step", "Turn", "Verdict", "admit", "arrive", "begin_block", "drive", "end", "ended",
    "enter", "find_match", "fold_lines", "idempotency_key", "inside", "jcs", "leave_block",
    "open_sessions", "refusal", "uuid7",
]  # fmt: skip
