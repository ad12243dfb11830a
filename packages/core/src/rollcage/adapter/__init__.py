"""What adapters share: declarations, a model's requests and answers, and objects with other bodies.

An adapter translates between its framework and `rollcage.Session`; it decides nothing. All that two
of them would do alike is here, so that each holds only what its framework asks for.
"""

from rollcage.adapter.answers import RecordedAnswers, Trace
from rollcage.adapter.bodies import fixed, gathered
from rollcage.adapter.declarations import (
    Declarations,
    check_names,
    declare,
    declare_tool,
    declared_contract,
    guard_each,
    required_contract,
    type_hints,
)
from rollcage.adapter.exposing import expose, exposes, guarded_contract
from rollcage.adapter.guards import (
    GUARD,
    BodyForm,
    GuardedBody,
    GuardedCall,
    GuardedTool,
    guard_of,
    guarding,
)
from rollcage.adapter.late import LateTools
from rollcage.adapter.mcp import (
    McpListing,
    mcp_blocks,
    mcp_content,
    mcp_definition,
    mcp_definitions,
    mcp_failure,
)
from rollcage.adapter.models import (
    CallNumbers,
    GuardedModel,
    ModelCall,
    model_contract,
    model_request,
    offered,
    option,
)
from rollcage.adapter.natives import Parts, register_parts
from rollcage.adapter.places import slot_of
from rollcage.adapter.running import Running, refuse_bare, refuses_unguarded, session_here
from rollcage.adapter.shapes import (
    as_object,
    as_written,
    is_list,
    is_model_class,
    is_object,
    is_tuple,
)
from rollcage.adapter.signatures import Signature
from rollcage.adapter.swap import subclass, swapped
from rollcage.adapter.watching import watch_methods
from rollcage.contract.arguments import Validated, held_by
from rollcage.contract.body import plain_body
from rollcage.contract.contract import Effect
from rollcage.errors import ArgumentsInvalid, Blocked, Halt, SessionHalted
from rollcage.gate import Ask, Instead
from rollcage.replay.ahead import WorkAttempt
from rollcage.session.current import step_here
from rollcage.session.scope import Asked, asking, call_id_here, facade_here
from rollcage.step.waiting import stepped
from rollcage.values.answer import Answer, ToolRequest
from rollcage.values.codec import NOT_RECORDED

REFUSED = (Blocked, ArgumentsInvalid)
"""What answers a call that did not run: show its text to the model, the agent goes on."""

HALTED = (Halt, SessionHalted)
"""What ends the agent: nothing runs in this session any more."""

__all__ = [
    "GUARD",
    "HALTED",
    "NOT_RECORDED",
    "REFUSED",
    "Answer",
    "Ask",
    "Asked",
    "BodyForm",
    "CallNumbers",
    "Declarations",
    "Effect",
    "GuardedBody",
    "GuardedCall",
    "GuardedModel",
    "GuardedTool",
    "Instead",
    "LateTools",
    "McpListing",
    "ModelCall",
    "Parts",
    "RecordedAnswers",
    "Running",
    "Signature",
    "ToolRequest",
    "Trace",
    "Validated",
    "WorkAttempt",
    "as_object",
    "as_written",
    "asking",
    "call_id_here",
    "check_names",
    "declare",
    "declare_tool",
    "declared_contract",
    "expose",
    "exposes",
    "facade_here",
    "fixed",
    "gathered",
    "guard_each",
    "guard_of",
    "guarded_contract",
    "guarding",
    "held_by",
    "is_list",
    "is_model_class",
    "is_object",
    "is_tuple",
    "mcp_blocks",
    "mcp_content",
    "mcp_definition",
    "mcp_definitions",
    "mcp_failure",
    "model_contract",
    "model_request",
    "offered",
    "option",
    "plain_body",
    "refuse_bare",
    "refuses_unguarded",
    "register_parts",
    "required_contract",
    "session_here",
    "slot_of",
    "step_here",
    "stepped",
    "subclass",
    "swapped",
    "type_hints",
    "watch_methods",
]
