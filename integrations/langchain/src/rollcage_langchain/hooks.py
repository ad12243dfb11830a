"""The framework's hook around a tool call: the call's place, and what a refusal looks like."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from rollcage import Session, current_step
from rollcage.adapter import (
    HALTED,
    REFUSED,
    Declarations,
    Effect,
    LateTools,
    asking,
    guarded_contract,
)

from rollcage_langchain.approvals import INTERRUPT
from rollcage_langchain.bare import refusing_bare
from rollcage_langchain.memory import follow_checkpoints, followed
from rollcage_langchain.tools import guard_tools
from rollcage_langchain.turns import agent_name, answered_in, messages_in, turn_and_slot

__all__ = ["Answer", "Hook", "tool_node_wrappers"]

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


def _refusal(request: ToolCallRequest, error: Exception) -> ToolMessage:
    """The error message that answers a call that did not run."""
    call = request.tool_call
    return ToolMessage(
        content=str(error), name=call["name"], tool_call_id=call["id"], status="error"
    )


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
        self._ask = INTERRUPT if interrupt else None
        self._messages_key = messages_key
        self._request = _guarding(LateTools(session, guard_tools, effects, contracts))

    def call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Place a tool call; answer it where it is refused, end the graph where that halts."""
        with self.ending(request.tool_call["id"] or ""):
            try:
                guarded, placed = self._placed(request)
                with placed, self._recorded(guarded) as answered:  # pyright: ignore[reportUnknownVariableType] - a framework's own data
                    return answered(handler(guarded))  # pyright: ignore[reportUnknownVariableType] - a framework's own data
            except REFUSED as error:
                return _refusal(request, error)

    async def acall(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """The same in asyncio."""
        with self.ending(request.tool_call["id"] or ""):
            try:
                guarded, placed = self._placed(request)
                with placed, self._recorded(guarded) as answered:  # pyright: ignore[reportUnknownVariableType] - a framework's own data
                    return answered(await handler(guarded))  # pyright: ignore[reportUnknownVariableType] - a framework's own data
            except REFUSED as error:
                return _refusal(request, error)

    @contextlib.contextmanager
    def asked(self, messages: Iterable[Any]) -> Generator[None]:
        """Around a call of the model, which is shown these messages."""
        self._checkpoints.here()  # its thread may come to be interrupted after this
        with self.ending(""):
            self.session.seen({"": answered_in(messages)})
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

    def _check_halted(self) -> None:
        if current_step() is not None:
            self.session.check()
        elif self.session.halted is not None:
            raise GraphInterrupt from self.session.halted

    def _placed(
        self, request: ToolCallRequest
    ) -> tuple[ToolCallRequest, contextlib.AbstractContextManager[None]]:
        """The request with a guarded tool, and what lets the call stand in its turn and slot."""
        request = self._request(
            tool_call=request.tool_call,
            tool=request.tool,
            state=request.state,
            runtime=request.runtime,  # pyright: ignore[reportUnknownMemberType] - a framework's own data
        )
        self.session.seen({"": answered_in(messages_in(request.state, self._messages_key))})
        turn, slot = turn_and_slot(request, self._messages_key)
        call_id = request.tool_call["id"] or ""
        return request, self.session.place(
            turn=turn, slot=slot, agent=agent_name(), call_id=call_id, ask=self._ask
        )

    @contextlib.contextmanager
    def _recorded(self, request: ToolCallRequest) -> Generator[Callable[[T], T]]:
        """Put the call on record where it is refused before it comes to its tool's body.

        LangChain answers a call whose tool does not exist with an error message; so does a
        middleware that refuses one itself. Of arguments that do not pass, the tool itself says so.
        """
        call, tool = request.tool_call, request.tool
        with asking(call["args"]) as asked, refusing_bare(self.session):

            def answered(answer: T) -> T:
                is_error = isinstance(answer, ToolMessage) and answer.status == "error"
                if is_error and not asked.reached:
                    contract = None if tool is None else guarded_contract(tool)
                    message: Any = answer
                    self.session.refused(
                        contract or call["name"], call["args"], reason=str(message.content)
                    )
                return answer

            yield answered


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
