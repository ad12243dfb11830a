"""The framework's hook around a tool call: the call's place, and the form of a refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from rollcage import Session, current_step
from rollcage_adapter import (
    HALTED,
    REFUSED,
    Declarations,
    Effect,
    LateTools,
    asking,
    guarded_contract,
    refuse,
)

from rollcage_langchain.approvals import ask_by_interrupt, interrupting
from rollcage_langchain.bare import refusing_bare
from rollcage_langchain.memory import follow_checkpoints, followed
from rollcage_langchain.tools import guard_tools
from rollcage_langchain.turns import agent_name, answered_in, issued_in, messages_in

__all__ = ["Answer", "Hook", "tool_node_wrappers"]

Answer = ToolMessage | Command[Any]


def tool_node_wrappers(
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
    messages_key: str = "messages",
    interrupt: bool = False,
) -> dict[str, Any]:
    """Return the wrappers for a plain `ToolNode`: `ToolNode(tools, **tool_node_wrappers(session))`.

    As with `RollcageMiddleware`, the graph is interrupted when the session halts.

    Args:
        session: the session that guards the calls.
        effects: see `guard_tools`; for tools that are not guarded yet.
        contracts: see `guard_tools`.
        messages_key: the node's own `messages_key`.
        interrupt: see `RollcageMiddleware`.
    """
    hook = Hook(session, effects, contracts, messages_key, interrupt=interrupt)

    return {"wrap_tool_call": hook.call, "awrap_tool_call": hook.acall}


class _Call:
    """A running tool call: the request that is passed on, and its answer."""

    request: ToolCallRequest
    answer: Any


class Hook:
    """Records the place of each tool call, and makes sure that its tool is guarded."""

    def __init__(
        self,
        session: Session,
        effects: Mapping[str, Effect] | None = None,
        contracts: Declarations | None = None,
        messages_key: str = "messages",
        *,
        interrupt: bool = False,
    ) -> None:
        follow_checkpoints(session)
        self.session = session
        self._checkpoints = followed(session)
        self._interrupts = interrupt
        if interrupt:
            ask_by_interrupt(session)
        self._messages_key = messages_key
        self._tools = LateTools(session, guard_tools, effects, contracts)
        self._request = _guarding(self._tools)

    def call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Place a tool call; answer it if it is refused, end the graph if it halts."""
        with self._placed(request) as call:
            call.answer = handler(call.request)
        return call.answer

    async def acall(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Do the same as `call`, in asyncio."""
        with self._placed(request) as call:
            call.answer = await handler(call.request)
        return call.answer

    @contextlib.contextmanager
    def asked(self, messages: Iterable[Any], tools: Iterable[Any]) -> Generator[None]:
        """Mark a call of the model with these messages, which is offered these tools."""
        self._tools.meet(each for each in tools if isinstance(each, BaseTool))
        self._checkpoints.here()  # its thread may be interrupted after this
        with self.ending(""):
            self._see(messages)
            with self.session.place(agent=agent_name()):
                yield

    @contextlib.contextmanager
    def ending(self, call: str) -> Generator[None]:
        """Keep errors of a halted session out of checkpoints, which would hold them as answers.

        The graph is interrupted: `invoke` returns the unchanged state, with no further message. A
        hook before the model would do so too, but as a node in the way of each request. A graph
        inside of a tool raises at once, so that the tool's step does not count as finished. If the
        call itself interrupts the graph, to wait for a person, the run is paused.
        """
        self._check_halted()
        try:
            yield
        except HALTED as error:
            if current_step() is not None or self.session.halted is None:
                raise
            raise GraphInterrupt from error
        except GraphInterrupt as interrupt:
            if interrupt.args[0]:
                self._checkpoints.interrupted(call)
            raise
        self._checkpoints.came_back(call)
        self._check_halted()  # this call halted it, and its caller swallowed the error

    def _see(self, messages: Iterable[Any]) -> None:
        """Mark the calls as done that a history without a checkpointer shows as answered."""
        if self._checkpoints.here() is None:
            self.session.seen({agent_name(): answered_in(messages)})

    def _check_halted(self) -> None:
        if current_step() is not None:
            self.session.check()
        elif self.session.halted is not None:
            raise GraphInterrupt from self.session.halted

    @contextlib.contextmanager
    def _placed(self, request: ToolCallRequest) -> Generator[_Call]:
        """Guard the tool of a call, and set the call's turn and slot.

        A call that is refused before it reaches its tool's body is recorded. LangChain answers a
        call of an unknown tool with an error message; so does a middleware that refuses one itself.
        The tool itself reports invalid arguments.
        """
        issued = request.tool_call
        call_id = issued["id"] or ""
        with self.ending(call_id):
            call = _Call()
            try:
                call.request = guarded = self._request(
                    tool_call=issued,
                    tool=request.tool,
                    state=request.state,
                    runtime=request.runtime,  # pyright: ignore[reportUnknownMemberType] - a framework's own data
                )
                self._see(messages_in(request.state, self._messages_key))
                where = issued_in(guarded, self._messages_key)
                place = self.session.place(
                    turn=where.turn,
                    slot=where.slot,
                    calls=where.calls,
                    agent=agent_name(),
                    call_id=call_id,
                )
                with (
                    place,
                    interrupting(interrupts=self._interrupts),
                    asking(issued["args"]) as asked,
                    refusing_bare(self.session),
                ):
                    yield call
                    answer = call.answer
                    is_error = isinstance(answer, ToolMessage) and answer.status == "error"
                    if is_error and not asked.reached:
                        tool = guarded.tool
                        contract = None if tool is None else guarded_contract(tool)
                        refuse(
                            self.session,
                            contract or issued["name"],
                            issued["args"],
                            reason=str(answer.content),
                        )
            except REFUSED as error:
                call.answer = ToolMessage(
                    content=str(error), name=issued["name"], tool_call_id=call_id, status="error"
                )


def _guarding(tools: LateTools) -> type[ToolCallRequest]:
    """Return the class of the requests that a hook passes on: a swapped tool is guarded there.

    A middleware after the hook may swap the tool, by `override` or by setting it.
    """

    class Request(ToolCallRequest):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "tool" and value is not None:
                value = tools.guarded(value)
            super().__setattr__(name, value)

    return Request
