"""The shared parts of adapters: declarations, models' requests and answers, replaced bodies.

An adapter translates between its framework and a `Session`; it decides nothing. The parts that two
adapters would have in common are here, so that each adapter holds only its framework's own.
"""

from rollcage.errors import ArgumentsInvalid, Blocked, Halt, SessionHalted
from rollcage.session.adapters import (
    NOT_RECORDED,
    Answer,
    Effect,
    Instead,
    ToolRequest,
    Validated,
    held_by,
    plain_body,
)

from rollcage_adapter.answers import RecordedAnswers, Trace
from rollcage_adapter.asking import Asked, asking, refuse
from rollcage_adapter.bodies import fixed, gathered, stepped
from rollcage_adapter.conversations import CallNumbers, MessageForm
from rollcage_adapter.declarations import (
    Declarations,
    check_names,
    declare,
    declare_tool,
    declared_contract,
    guard_each,
    required_contract,
    type_hints,
)
from rollcage_adapter.exposing import expose, exposes, facades_of, guarded_contract, refused_by
from rollcage_adapter.guards import (
    GUARD,
    BodyForm,
    GuardedBody,
    GuardedCall,
    GuardedTool,
    guard_of,
    guarding,
)
from rollcage_adapter.late import LateTools
from rollcage_adapter.mcp import (
    McpListing,
    mcp_blocks,
    mcp_content,
    mcp_definition,
    mcp_definitions,
    mcp_failure,
)
from rollcage_adapter.memory import (
    FrameworkMemory,
    FrameworkWork,
    Spot,
    Standing,
    alook_back,
    follow,
    look_back,
)
from rollcage_adapter.models import (
    GuardedModel,
    ModelCall,
    model_contract,
    model_options,
    model_request,
    offered,
    option,
)
from rollcage_adapter.natives import Parts, register_parts
from rollcage_adapter.pins import (
    ListedKind,
    Pinned,
    PinnedList,
    ServerPins,
    pinned_servers,
    server_key,
)
from rollcage_adapter.places import calls_of, slot_of
from rollcage_adapter.provider_tools import (
    expose_provider_tools,
    expose_settings,
    provider_tool_contract,
)
from rollcage_adapter.running import (
    Running,
    call_id_here,
    refuse_bare,
    refuses_unguarded,
    session_here,
    step_here,
)
from rollcage_adapter.shapes import (
    as_object,
    as_written,
    is_list,
    is_model_class,
    is_object,
    is_tuple,
)
from rollcage_adapter.signatures import Signature
from rollcage_adapter.swap import subclass, swapped
from rollcage_adapter.watching import watch_methods

REFUSED = (Blocked, ArgumentsInvalid)
"""The errors that answer a call which did not run: show the text to the model, the agent continues.
"""

HALTED = (Halt, SessionHalted)
"""The errors that end the agent: nothing runs in this session any more."""

__all__ = [
    "GUARD",
    "HALTED",
    "NOT_RECORDED",
    "REFUSED",
    "Answer",
    "Asked",
    "BodyForm",
    "CallNumbers",
    "Declarations",
    "Effect",
    "FrameworkMemory",
    "FrameworkWork",
    "GuardedBody",
    "GuardedCall",
    "GuardedModel",
    "GuardedTool",
    "Instead",
    "LateTools",
    "ListedKind",
    "McpListing",
    "MessageForm",
    "ModelCall",
    "Parts",
    "Pinned",
    "PinnedList",
    "RecordedAnswers",
    "Running",
    "ServerPins",
    "Signature",
    "Spot",
    "Standing",
    "ToolRequest",
    "Trace",
    "Validated",
    "alook_back",
    "as_object",
    "as_written",
    "asking",
    "call_id_here",
    "calls_of",
    "check_names",
    "declare",
    "declare_tool",
    "declared_contract",
    "expose",
    "expose_provider_tools",
    "expose_settings",
    "exposes",
    "facades_of",
    "fixed",
    "follow",
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
    "look_back",
    "mcp_blocks",
    "mcp_content",
    "mcp_definition",
    "mcp_definitions",
    "mcp_failure",
    "model_contract",
    "model_options",
    "model_request",
    "offered",
    "option",
    "pinned_servers",
    "plain_body",
    "provider_tool_contract",
    "refuse",
    "refuse_bare",
    "refused_by",
    "refuses_unguarded",
    "register_parts",
    "required_contract",
    "server_key",
    "session_here",
    "slot_of",
    "step_here",
    "stepped",
    "subclass",
    "swapped",
    "type_hints",
    "watch_methods",
]
