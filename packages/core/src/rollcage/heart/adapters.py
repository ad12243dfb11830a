"""What an adapter needs of the core, and users do not."""

from rollcage.contract.arguments import Validated, held_by
from rollcage.contract.body import plain_body
from rollcage.contract.contract import Effect
from rollcage.gate.approval import Instead
from rollcage.heart.answers import RunSource, read_answers
from rollcage.heart.attempt import Attempt
from rollcage.heart.block import begin_block
from rollcage.heart.branches import leave_block
from rollcage.heart.call import Call, Match, Place, here, open_sessions
from rollcage.heart.driver import adrive, drive
from rollcage.heart.memory import enter, restart, see
from rollcage.heart.run import Event, Outcome, Run, Step
from rollcage.heart.source import where_given
from rollcage.heart.stage import Work
from rollcage.heart.walk import Branch, Turn
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
