"""What an adapter needs of the core, and users do not."""

from rollcage.contract.arguments import Validated, held_by
from rollcage.contract.body import plain_body
from rollcage.contract.contract import Effect
from rollcage.gate.approval import Instead
from rollcage.heart.answers import RunSource, read_answers
from rollcage.heart.call import Call, Match, Place, here
from rollcage.heart.session import open_sessions
from rollcage.values.answer import Answer, ToolRequest
from rollcage.values.codec import NOT_RECORDED
from rollcage.values.natives import native_of, register_native

__all__ = [
    "NOT_RECORDED", "Answer", "Call", "Effect", "Instead", "Match", "Place", "RunSource",
    "ToolRequest", "Validated", "held_by", "here", "native_of", "open_sessions", "plain_body",
    "read_answers", "register_native",
]  # fmt: skip
