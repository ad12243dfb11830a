"""`RollcageMiddleware`: Rollcage for `create_agent`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langgraph.prebuilt.tool_node import ToolCallRequest
from rollcage import Session
from rollcage_adapter import (
    Declarations,
    Effect,
    alook_back,
    expose_provider_tools,
    expose_settings,
    look_back,
)

from rollcage_langchain.hooks import Answer, Hook

__all__ = ["RollcageMiddleware"]

H = TypeVar("H", bound=Callable[..., Any])


def _signed(hook: H) -> H:
    """Cache a hook's signature: LangChain's tracing reads it with each call."""
    signed: Any = hook
    signed.__signature__ = inspect.signature(hook)
    return hook


class RollcageMiddleware(AgentMiddleware[Any, Any, Any]):
    """Guards an agent's tool calls: `create_agent(..., middleware=[RollcageMiddleware(session)])`.

    It tells the session each call's turn, slot, id and agent. A refusal is answered with a
    `ToolMessage(status="error")` that gives the reason. Once the session is halted, no tool and no
    model is called any more: the agent's graph is interrupted, and leaving the session raises the
    error that halted it. (An agent inside of a tool raises it at once, so that the tool's step does
    not count as finished.)

    Args:
        session: the session that guards the calls.
        effects: see `guard_tools`; for tools that are not guarded yet. The middleware guards them
            too, including other middleware's tools.
        contracts: see `guard_tools`.
        interrupt: if a rule asks, interrupt the graph, like LangChain's own human-in-the-loop
            middleware, to be resumed by its decisions: `Command(resume={"type": "approve"})`
            lets the call run, `"edit"` with `"edited_action": {"name": …, "args": …}` lets it run
            with these arguments, `"reject"` with a `"message"` refuses it, and `"respond"` answers
            it with the message in place of the tool; `"by"` names the person. It needs a
            checkpointer. Otherwise the session's approver is asked; without one, the session halts.
    """

    def __init__(
        self,
        session: Session,
        *,
        effects: Mapping[str, Effect] | None = None,
        contracts: Declarations | None = None,
        interrupt: bool = False,
    ) -> None:
        super().__init__()
        self.session = session
        self._hook = Hook(session, effects, contracts, interrupt=interrupt)

    # --- tools -----------------------------------------------------------------------------------

    @_signed
    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]
    ) -> Answer:
        """Place the call, and answer it if it is refused."""
        return cast("Answer", self._hook.call(request, handler))

    @_signed
    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """Place the call, and answer it if it is refused."""
        return cast("Answer", await self._hook.acall(request, handler))

    # --- the model -------------------------------------------------------------------------------

    def _expose(self, request: ModelRequest[Any]) -> None:
        """Refuse tools of the model's provider that the session's facade does not give."""
        expose_provider_tools(self.session, request.tools)
        expose_settings(self.session, request.model_settings, request.model)

    @_signed
    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Tell the session the agent of this call."""
        self._expose(request)
        look_back(self.session)
        with self._hook.asked(request.messages, request.tools):
            return handler(request)

    @_signed
    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Tell the session the agent of this call."""
        self._expose(request)
        await alook_back(self.session)
        with self._hook.asked(request.messages, request.tools):
            return await handler(request)
