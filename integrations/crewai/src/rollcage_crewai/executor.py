"""Guarded executors: the loop in which one agent of a crew calls its model and its tools."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, Final

from crewai.agents.parser import AgentAction
from crewai.execution import get_execution_uuid
from crewai.hooks.dispatch import HookAborted
from crewai.tools.tool_failure import ToolExecutionFailedError
from crewai.utilities.agent_utils import is_inside_event_loop
from crewai.utilities.string_utils import sanitize_tool_name
from rollcage import Session
from rollcage.errors import ArgumentsInvalid, ContractError
from rollcage_adapter import (
    GUARD,
    Asked,
    as_object,
    as_written,
    asking,
    guarded_contract,
    refuse,
    subclass,
)

from rollcage_crewai.private import FLOW, NATIVE_CALL, original_of
from rollcage_crewai.tools import awaited, untold
from rollcage_crewai.turns import Awaiting, asked_for, awaiting, issued_in, this_call

__all__ = ["GuardedAgent", "guarded_executor"]

_BASE: Final = "__rollcage_base__"


def guarded_executor(cls: Any) -> Any:
    """Return the class of executors that runs guarded agents in place of their own class.

    An agent that it runs holds its `GuardedAgent`, as the attribute `GUARD`.
    """
    return _subclass(getattr(cls, _BASE, cls))


def _guard(executor: Any) -> GuardedAgent:
    found: Any = getattr(executor.agent, GUARD, None)
    if isinstance(found, GuardedAgent):
        return found
    raise ContractError(
        f"agent {executor.agent.role!r} is a copy of a guarded agent, and its crew is not guarded: "
        f"pass its crew through guard_crew"
    )


@functools.cache  # Pydantic takes tens of milliseconds for a class
def _subclass(base: Any) -> Any:
    def invoke(self: Any, inputs: dict[str, Any]) -> Any:
        if is_inside_event_loop() and hasattr(base, "invoke_async"):
            return base.invoke(self, inputs)  # returns a coroutine of `invoke_async`
        with _guard(self).attempt(self):
            return base.invoke(self, inputs)

    def single(self: Any, *args: Any, **kwargs: Any) -> Any:
        agent, info = _guard(self), asked_for(args)
        raw = None if info is None else as_object(info[2])
        with agent.placed_call(self, *args, **kwargs), asking(raw) as asked:
            try:
                ended = getattr(base, NATIVE_CALL)(self, *args, **kwargs)
            except ToolExecutionFailedError as error:
                agent.note_refused(self, args, asked, str(error))
                raise
            failure = ended.get("tool_failure")
            agent.note_refused(self, args, asked, failure and failure.message)
            return ended

    def assign(self: Any, name: str, value: Any) -> None:
        """Guard assigned tools.

        CrewAI assigns an executor's tools for each task, even while it runs.
        """
        if name == "original_tools":
            value = [_guard(self).guarded(tool) for tool in value]
        elif name == "tools":
            value = [_guard(self).structured(self, tool) for tool in value]
        base.__setattr__(self, name, value)

    async def round_of(self: Any, *args: Any, **kwargs: Any) -> Any:
        _guard(self).begin_round()
        return await base.kickoff_async(self, *args, **kwargs)

    members: dict[str, Any] = {
        _BASE: base,
        "invoke": invoke,
        NATIVE_CALL: single,
        "__setattr__": assign,
        "kickoff_async": round_of,
    }
    if hasattr(base, "flow_definition"):
        members[FLOW] = base.flow_definition()
    for name in ("invoke_async", "ainvoke"):
        if hasattr(base, name):
            members[name] = _ainvoke(getattr(base, name))
    return subclass(base, members)


def _ainvoke(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def ainvoke(self: Any, inputs: dict[str, Any]) -> Any:
        agent = _guard(self)
        with agent.attempt(self):
            try:
                return await method(self, inputs)
            except asyncio.CancelledError:
                await agent.cancel()
                raise

    return ainvoke


class _Attempt:
    """One run of an agent at a task.

    Attributes:
        agent: its agent.
        of: the kickoff and the task; CrewAI starts a task over within the same kickoff.
        rounds: how often its loop began: a person's comment on an answer begins another, whose
            iterations are counted from the start.
        called: whether a tool was called.
        error: the error that ended it, after a tool was called.
        reached: the last message of an agent without native calls whose call reached a tool.
        noted: the last one that was searched for a call that did not.
    """

    def __init__(self, agent: GuardedAgent, of: tuple[Any, ...]) -> None:
        self.agent = agent
        self.of = of
        self.rounds = 0
        self.called = False
        self.error: Exception | None = None
        self.reached: Any = None
        self.noted: Any = None
        self.outcomes: dict[Any, tuple[bool, Any]] = {}
        self.awaiting = Awaiting()


_around: ContextVar[_Attempt | None] = ContextVar("rollcage_crewai_attempt", default=None)
"""The current attempt: concurrent tasks may have the same agent."""


class GuardedAgent:
    """The state of one agent, across its attempts. CrewAI refuses to run two at a time.

    Args:
        session: the session that guards its calls.
        guarded: returns the guarded form of a tool.
    """

    def __init__(self, session: Session, guarded: Callable[[Any], Any]) -> None:
        self.guarded = guarded
        self._session = session
        self._last: _Attempt | None = None

    # --- attempts --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def attempt(self, executor: Any) -> Generator[None]:
        """Mark one run of the agent.

        If its model fails, CrewAI starts a task over from the beginning: the tools would run once
        more. So once a tool was called, the attempt's error is the task's.
        """
        of = (get_execution_uuid(), getattr(executor.task, "id", None))
        around = _around.get()
        if around is not None and around.agent is self and around.of == of:
            yield  # one way to run an agent calls another
            return
        last = self._last
        if last is not None and last.error is not None and last.of == of:
            raise last.error
        self._last = attempt = _Attempt(self, of)
        token, outer = awaiting.set(attempt.awaiting), _around.set(attempt)
        try:
            self._prepare(executor)
            with self._branch(executor):
                yield
        except Exception as error:
            if attempt.called:
                attempt.error = error
            raise
        finally:
            awaiting.reset(token)
            _around.reset(outer)

    @contextlib.contextmanager
    def _branch(self, executor: Any) -> Generator[None]:
        """Give concurrent tasks a world each; together they are one turn of the crew."""
        tasks: list[Any] = getattr(executor.crew, "tasks", None) or []
        index = next((i for i, task in enumerate(tasks) if task is executor.task), None)
        if index is None or not executor.task.async_execution:
            yield
            return
        before = sum(not task.async_execution for task in tasks[:index])
        together = "tasks at once", get_execution_uuid(), id(executor.crew), before
        with (
            self._session.place(turn=together),
            self._session.branch(f"task {index + 1}"),
        ):
            yield

    @property
    def _attempt(self) -> _Attempt:
        around = _around.get()
        if around is not None and around.agent is self:
            return around
        assert self._last is not None  # a thread without the context of the attempt
        return self._last

    def begin_round(self) -> None:
        """Begin the agent's loop, perhaps once more."""
        self._attempt.rounds += 1

    async def cancel(self) -> None:
        """Cancel the running async tools; sync ones run to their end, ignored."""
        await self._attempt.awaiting.cancel()

    def _prepare(self, executor: Any) -> None:
        """Guard all current tools of the agent, including CrewAI's own."""
        executor.original_tools = executor.original_tools
        for tool in executor.original_tools:
            tool.current_usage_count = 0  # as CrewAI does for each task
        executor.tools = [tool.to_structured_tool() for tool in executor.original_tools]
        hooks: list[Any] = executor.before_llm_call_hooks
        if self._before_question not in hooks:
            hooks.insert(0, self._before_question)

    def _before_question(self, context: Any) -> None:
        """End the agent if the session is halted; CrewAI lets this one error through."""
        if getattr(context, "executor", None) is not None:
            self._note_unreached(context.executor)
        halted = self._session.halted
        if halted is not None:
            raise HookAborted(f"the session was halted: {halted}", source="rollcage") from halted

    # --- calls that never reached a tool ---------------------------------------------------------

    def note_refused(
        self, executor: Any, args: tuple[Any, ...], asked: Asked, reason_given: str | None
    ) -> None:
        """Record a native call that CrewAI refused: its only result is an error."""
        if asked.reached or reason_given is None or not args:
            return
        info = asked_for(args)
        if info is None:
            refuse(self._session, "unknown", {"call": str(args[0])}, reason=reason_given)
            return
        self._refused(executor, info[1], info[2], reason_given)

    def _note_unreached(self, executor: Any) -> None:
        """Record such a call in the last message of an agent without native calls."""
        last = getattr(getattr(executor, "state", None), "current_answer", None)
        attempt = _around.get()
        if not isinstance(last, AgentAction) or attempt is None or last is attempt.noted:
            return
        attempt.noted = last
        if attempt.reached is last:
            return
        with self._place(executor, attempt, 0):
            message = str(last.result or "")
            self._refused(executor, last.tool, last.tool_input, message, cached=True)

    def _refused(
        self, executor: Any, name: str, arguments: Any, reason_given: str, *, cached: bool = False
    ) -> None:
        """Record a refused call.

        `cached`: whether its answer may come from CrewAI's own cache, if its arguments are valid.
        """
        given, readable = as_written(arguments), as_object(arguments) is not None
        wanted = sanitize_tool_name(name)
        for tool in executor.original_tools:
            if sanitize_tool_name(tool.name) == wanted:
                code = "" if readable else ArgumentsInvalid.code
                contract = guarded_contract(tool)
                if cached and readable and contract and not contract.takes.why_not(given, str):
                    return
                refuse(self._session, contract or tool.name, given, reason=reason_given, code=code)
                return
        refuse(self._session, name, given, reason=reason_given)

    # --- places of calls -------------------------------------------------------------------------

    @contextlib.contextmanager
    def placed_call(self, executor: Any, *args: Any, **kwargs: Any) -> Generator[None]:
        """Set the place of one of the calls in a model's message."""
        attempt = self._attempt
        attempt.called = True
        info = asked_for(args)
        call_id = kwargs.get("call_id") or ("" if info is None else info[0])
        slot, calls = issued_in(executor.messages, call_id)
        with self._place(executor, attempt, slot, calls, call_id):
            yield

    @contextlib.contextmanager
    def _place(
        self,
        executor: Any,
        attempt: _Attempt,
        slot: int | None,
        calls: list[tuple[str, Any]] | None = None,
        call_id: str = "",
    ) -> Generator[None]:
        turn = (attempt, attempt.rounds, executor.iterations)
        role = getattr(executor.agent, "role", "")
        token = this_call.set(object())
        try:
            with self._session.place(
                turn=turn, slot=slot, calls=calls, agent=role, call_id=call_id
            ):
                yield
        finally:
            this_call.reset(token)

    def structured(self, executor: Any, tool: Any) -> Any:
        """Return the form of a tool for agents without native calls, which make one call a message.

        CrewAI calls a tool that raised again, up to six times for one message: its first error, or
        result, is the answer to each.
        """
        guarded = self.guarded(original_of(tool))
        made = guarded.to_structured_tool()
        body, called = untold(guarded), made.func

        def placed(*args: Any, **kwargs: Any) -> Any:
            attempt = self._attempt
            attempt.called = True
            attempt.reached = getattr(getattr(executor, "state", None), "current_answer", None)
            if _plans(executor):  # several calls to one iteration, in a loop of their own
                return called(*args, **kwargs)
            key = attempt.rounds, executor.iterations, guarded.name
            if key not in attempt.outcomes:
                raw = as_object(getattr(attempt.reached, "tool_input", None))
                with self._place(executor, attempt, 0), asking(raw):
                    try:
                        attempt.outcomes[key] = False, awaited(body(*args, **kwargs))
                    except Exception as error:  # noqa: BLE001 - raised below, each time
                        attempt.outcomes[key] = True, error
            failed, outcome = attempt.outcomes[key]
            if failed:
                raise outcome
            return outcome

        made.func = placed
        return made


def _plans(executor: Any) -> bool:
    todos = getattr(getattr(executor, "state", None), "todos", None)
    return bool(getattr(todos, "items", None))
