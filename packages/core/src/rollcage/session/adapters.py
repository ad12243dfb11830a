"""What an adapter, or a stage of another package, needs of the core, and users do not."""

from rollcage.calls.attempt import Attempt
from rollcage.calls.block import begin_block
from rollcage.calls.branches import leave_block
from rollcage.calls.driver import adrive, drive
from rollcage.calls.flow import kept
from rollcage.calls.memory import enter, restart, see
from rollcage.calls.stage import Work
from rollcage.contract.arguments import ModelRequest, Validated, held_by
from rollcage.contract.contract import Effect, plain_body
from rollcage.fingerprint.transcript import Transcript, common_length
from rollcage.gate.approval import Instead
from rollcage.replay.answers import RunSource, read_answers
from rollcage.replay.call import Call, Match, Place, here, open_sessions
from rollcage.replay.missing import miss
from rollcage.replay.outcome import LARGE, failure, success
from rollcage.replay.source import where_given
from rollcage.replay.walk import Branch, Look, Turn
from rollcage.trace.run import Event, Outcome, Run, Step, spans_of
from rollcage.undo.plan import consult
from rollcage.values.answer import Answer, ToolRequest
from rollcage.values.codec import NOT_RECORDED, encode
from rollcage.values.exceptions import encode_exception
from rollcage.values.hiding import Seal
from rollcage.values.natives import native_of, register_native

__all__ = [
    "LARGE", "NOT_RECORDED", "Answer", "Attempt", "Branch", "Call", "Effect", "Event", "Instead",
    "Look", "Match", "ModelRequest", "Outcome", "Place", "Run", "RunSource", "Seal", "Step",
    "ToolRequest", "Transcript", "Turn", "Validated", "Work", "adrive", "begin_block",
    "common_length", "consult", "drive", "encode", "encode_exception", "enter", "failure",
    "held_by", "here", "kept", "leave_block", "miss", "native_of", "open_sessions", "plain_body",
    "read_answers", "register_native", "restart", "see", "spans_of", "success", "where_given",
]  # fmt: skip
