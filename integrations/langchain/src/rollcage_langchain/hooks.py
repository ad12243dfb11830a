"""The framework's hook around a tool call: where it stands, and what a refusal looks like."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import pydantic
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolInvocationError
from langgraph.types import Command
from rollcage import Session
from rollcage.adapter import (
    REFUSED,
    Declarations,
    Effect,
    asking,
    guarded_contract,
    is_list,
    is_object,
)
from rollcage.errors import ContractError

from rollcage_langchain.approvals import INTERRUPT
from rollcage_langchain.tools import guard_tools, guarding

__all__ = ["Answer", "Hook", "agent_name", "refusal", "tool_node_wrappers"]

Answer = ToolMessage | Command[Any]
T = TypeVar("T")


def tool_node_wrappers(
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
    messages_key: str = "messages",
    interrupt: bool = False,
) -> dict[str, Any]:
    """What a plain `ToolNode` needs of Rollcage: `ToolNode(tools, **tool_node_wrappers(session))`.

    As `RollcageMiddleware` does, but when the session halts its error is raised: no other way ends
    a graph whose edges are not ours. (With `handle_tool_errors=True` the node swallows it; nothing
    guarded runs after it all the same.)

    Args:
        session: guards the calls.
        effects: see `guard_tools`; for tools that are not guarded yet.
        contracts: the same.
        messages_key: the node's own `messages_key`.
        interrupt: see `RollcageMiddleware`.
    """
    hook = Hook(session, effects, contracts, messages_key, interrupt=interrupt)

    def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        try:
            guarded, placed = hook.placed(request)
            with placed, hook.recorded(guarded) as answered:
                return answered(execute(guarded))
        except REFUSED as error:
            return refusal(request, error)

    async def awrap(
        request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        try:
            guarded, placed = hook.placed(request)
            with placed, hook.recorded(guarded) as answered:
                return answered(await execute(guarded))
        except REFUSED as error:
            return refusal(request, error)

    return {"wrap_tool_call": wrap, "awrap_tool_call": awrap}


def refusal(request: ToolCallRequest, error: Exception) -> ToolMessage:
    """The error message that answers a call that did not run."""
    call = request.tool_call
    return ToolMessage(
        content=str(error), name=call["name"], tool_call_id=call["id"], status="error"
    )


def agent_name() -> str:
    """The name of the agent around, as `create_agent(name=)` has it; empty without one."""
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    found = (config.get("metadata") or {}).get("lc_agent_name")
    return found if isinstance(found, str) else ""


class Hook:
    """Says where each tool call stands, and sees to it that its tool is guarded."""

    def __init__(
        self,
        session: Session,
        effects: Mapping[str, Effect] | None = None,
        contracts: Declarations | None = None,
        messages_key: str = "messages",
        *,
        interrupt: bool = False,
    ) -> None:
        self.session = session
        self._ask = INTERRUPT if interrupt else None
        self._effects = effects or {}
        self._contracts = contracts or {}
        self._messages_key = messages_key
        self._guarded: dict[int, tuple[BaseTool, BaseTool]] = {}
        self._request = _guarding(self)

    def placed(
        self, request: ToolCallRequest
    ) -> tuple[ToolCallRequest, contextlib.AbstractContextManager[None]]:
        """The request with a guarded tool, and what lets the call stand in its turn and slot."""
        request = self._request(
            tool_call=request.tool_call,
            tool=request.tool,
            state=request.state,
            runtime=request.runtime,
        )
        turn, slot = _turn_and_slot(request, self._messages_key)
        call_id = request.tool_call["id"] or ""
        return request, self.session.place(
            turn=turn, slot=slot, agent=agent_name(), call_id=call_id, ask=self._ask
        )

    @contextlib.contextmanager
    def recorded(self, request: ToolCallRequest) -> Generator[Callable[[T], T]]:
        """Put the call on record where it is refused before it comes to its tool's body.

        LangChain answers a call whose arguments do not pass, or whose tool does not exist, with an
        error message; so does a middleware that refuses one itself.
        """
        call, tool = request.tool_call, request.tool
        with asking() as asked:

            def answered(answer: T) -> T:
                if isinstance(answer, ToolMessage) and answer.status == "error":
                    note(str(answer.content))
                return answer

            def note(said: str) -> None:
                if asked.reached:
                    return
                contract = None if tool is None else guarded_contract(tool)
                self.session.refused(contract or call["name"], call["args"], reason=said)

            try:
                yield answered
            except (ToolInvocationError, pydantic.ValidationError):
                note("")
                raise

    def guarded(self, tool: BaseTool) -> BaseTool:
        """A tool that nobody guarded (another middleware's, say), guarded; made once."""
        guard = guarding(tool)
        if guard is self.session:
            return tool
        if guard is not None:
            raise ContractError(f"{tool.name} is guarded by another session than its agent")
        found = self._guarded.get(id(tool))
        if found is None:
            name = tool.name
            effects: dict[str, Effect] = {n: e for n, e in self._effects.items() if n == name}
            contracts = {n: c for n, c in self._contracts.items() if n == name}
            guarded = guard_tools([tool], self.session, effects=effects, contracts=contracts)
            found = self._guarded.setdefault(id(tool), (tool, guarded[0]))
        return found[1]


def _guarding(hook: Hook) -> type[ToolCallRequest]:
    """The requests that a hook hands on: whatever tool somebody puts in, it is guarded there.

    A middleware behind the hook may swap the tool, by `override` or by setting it.
    """

    class Request(ToolCallRequest):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "tool" and value is not None:
                value = hook.guarded(value)
            super().__setattr__(name, value)

    return Request


# --- where a call stands -------------------------------------------------------------------------


class _ThisMessage:
    """A message without an id, as a turn: it is the same turn as long as it is the same object."""

    def __init__(self, message: AIMessage) -> None:
        self._message = message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ThisMessage) and other._message is self._message

    def __hash__(self) -> int:
        return id(self._message)


def _turn_and_slot(request: ToolCallRequest, messages_key: str) -> tuple[object, int | None]:
    """The message that issued a call, and the call's index in it; none where nobody can tell."""
    call = request.tool_call
    for message in reversed(_messages(request.state, messages_key)):
        if isinstance(message, AIMessage):
            calls = message.tool_calls
            slots = [i for i, each in enumerate(calls) if each is call]
            slots = slots or [i for i, each in enumerate(calls) if each["id"] == call["id"]]
            if slots:
                slot = slots[0] if len(slots) == 1 else None
                return message.id or _ThisMessage(message), slot
    return None, None


def _messages(state: Any, messages_key: str) -> Sequence[Any]:
    found: Any = state
    if is_object(state):
        found = state.get(messages_key)
    elif not is_list(state):
        found = getattr(state, messages_key, None)
    return found if is_list(found) else []
