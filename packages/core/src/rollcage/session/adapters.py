"""What an adapter needs of the core, and users do not."""

from rollcage.calls.attempt import Attempt
from rollcage.calls.block import begin_block
from rollcage.calls.branches import leave_block
from rollcage.calls.driver import adrive, drive
from rollcage.calls.memory import enter, restart, see
from rollcage.calls.stage import Work
from rollcage.contract.arguments import Validated, held_by
from rollcage.contract.body import plain_body
from rollcage.contract.contract import Effect
from rollcage.gate.approval import Instead
from rollcage.replay.answers import RunSource, read_answers
from rollcage.replay.call import Call, Match, Place, here, open_sessions
from rollcage.replay.source import where_given
from rollcage.replay.walk import Branch, Turn
from rollcage.trace.run import Event, Outcome, Run, Step
from rollcage.values.answer import Answer, ToolRequest
from rollcage.values.codec import NOT_RECORDED
from rollcage.values.natives import native_of, register_native

__all__ = [
    "NOT_RECORDED", "Answer", "Attempt", "Branch", "Call", "Effect", "Event", "Instead", "Match",
    "Outcome", "Place", "Run", "RunSource", "Step", "ToolRequest", "Turn", "Validated", "Work",
    "adrive", "begin_block", "drive", "enter", "held_by", "here", "leave_block", "native_of",
    "open_sessions", "plain_body", "read_answers", "register_native", "restart", "see",
    "where_given",
]  # fmt: skip
