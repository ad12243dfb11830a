"""The framework's hook around a tool call: the call's place, and what a refusal looks like."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
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
from rollcage_langchain.turns import agent_name, answered_in, messages_in, turn_and_slot

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
    """What a plain `ToolNode` needs of Rollcage: `ToolNode(tools, **tool_node_wrappers(session))`.

    As with `RollcageMiddleware`, the graph is interrupted when the session halts.

    Args:
        session: guards the calls.
        effects: see `guard_tools`; for tools that are not guarded yet.
        contracts: the same.
        messages_key: the node's own `messages_key`.
        interrupt: see `RollcageMiddleware`.
    """
    hook = Hook(session, effects, contracts, messages_key, interrupt=interrupt)

    return {"wrap_tool_call": hook.call, "awrap_tool_call": hook.acall}


class _Call:
    """A tool call on its way: the request that is handed on, and what answered it."""

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
        self._request = _guarding(LateTools(session, guard_tools, effects, contracts))

    def call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Place a tool call; answer it where it is refused, end the graph where that halts."""
        with self._placed(request) as call:
            call.answer = handler(call.request)
        return call.answer

    async def acall(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """The same in asyncio."""
        with self._placed(request) as call:
            call.answer = await handler(call.request)
        return call.answer

    @contextlib.contextmanager
    def asked(self, messages: Iterable[Any]) -> Generator[None]:
        """Around a call of the model, which is shown these messages."""
        self._checkpoints.here()  # its thread may come to be interrupted after this
        with self.ending(""):
            self._see(messages)
            with self.session.place(agent=agent_name()):
                yield

    @contextlib.contextmanager
    def ending(self, call: str) -> Generator[None]:
        """Let nothing out of a halted session, lest a checkpoint keeps it for an answer.

        The graph is interrupted: `invoke` gives back the state as it is, with no further message. A
        hook before the model would do so too, as a node that each question has to go through. A
        graph inside of a tool raises at once, so that the tool's step is not taken for finished.
        Where the call itself interrupts the graph, to wait for somebody, the run is paused.
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
        self._check_halted()  # by this call, and whoever called it has swallowed that

    def _see(self, messages: Iterable[Any]) -> None:
        """Take as done what a history shows as answered that no checkpointer has kept."""
        if self._checkpoints.here() is None:
            self.session.seen({agent_name(): answered_in(messages)})

    def _check_halted(self) -> None:
        if current_step() is not None:
            self.session.check()
        elif self.session.halted is not None:
            raise GraphInterrupt from self.session.halted

    @contextlib.contextmanager
    def _placed(self, request: ToolCallRequest) -> Generator[_Call]:
        """Around a tool call: its tool is guarded, and it stands in its turn and slot.

        One that is refused before it comes to its tool's body is put on record. LangChain answers a
        call whose tool does not exist with an error message; so does a middleware that refuses one
        itself. Of arguments that do not pass, the tool itself says so.
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
                turn, slot = turn_and_slot(guarded, self._messages_key)
                place = self.session.place(
                    turn=turn,
                    slot=slot,
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
    """The requests that a hook hands on: whatever tool somebody puts in, it is guarded there.

    A middleware after the hook may swap the tool, by `override` or by setting it.
    """

    class Request(ToolCallRequest):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "tool" and value is not None:
                value = tools.guarded(value)
            super().__setattr__(name, value)

    return Request
