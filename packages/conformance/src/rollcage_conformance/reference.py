"""A tiny framework in plain Python, guarded by hand, on which the suites are proven.

It uses only `Session`, so faults in the adapters' bases don't affect it.
"""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, Protocol

from pydantic import BaseModel
from rollcage import Contract, Session
from rollcage_adapter import HALTED, Answer, Instead, RecordedAnswers, ToolRequest, Trace

from rollcage_conformance.scenario import (
    Performance,
    Result,
    Scenario,
    ToolCall,
    ToolSpec,
)

__all__ = ["ReferenceHarness"]

MODEL: Final = Contract(
    name="scripted",
    parameters={"properties": {"turn": {"type": "integer"}, "results": {"type": "array"}}},
    effect="read",
    framework="reference",
)


class ReplayModel:
    """The model of this framework that gives recorded answers."""

    def __init__(self, trace: Trace) -> None:
        self.answers = RecordedAnswers(trace)

    def pieces(self, offered: Collection[str]) -> Iterator[Any]:
        """Yield the next answer, in the pieces of this framework's models.

        Raises:
            ReplayMiss: all answers are used, or the answer calls a tool that is not offered.
        """
        answer = self.answers.next(offered)
        if answer is None:
            yield from self.answers.live.pieces(offered)
            return
        if answer.tool_calls:
            yield [[call.name, json.loads(call.arguments)] for call in answer.tool_calls]
        else:
            yield answer.text
        yield {"thought": answer.reasoning, "usage": answer.usage}


class Slots(Protocol):
    """Sets the next call's slot in its turn."""

    def slot(self, index: int, /) -> contextlib.AbstractContextManager[Any]:
        """Set the next call to the turn's `index`-th."""
        ...


class _NoSlots:
    def slot(self, _: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class ReferenceHarness:
    """Runs scenarios directly over `Session`. Each step is a method of its own."""

    def tools(self, scenario: Scenario) -> dict[str, ToolSpec]:
        """Return a function with its declaration for each tool."""
        return {spec.name: spec for spec in scenario.tools}

    def replay_model(self, trace: Trace) -> ReplayModel:
        """Return this framework's model that gives recorded answers."""
        return ReplayModel(trace)

    # --- the loop --------------------------------------------------------------------------------

    def run(self, performance: Performance) -> Result:
        """Ask the model and run its calls, until it returns a text."""
        try:
            first, results = self.remembered(performance)
            for turn in itertools.count(first):
                message, chunks = self.ask(performance, turn, results)
                if isinstance(message, str):
                    return Result(message, chunks=chunks)
                results = self.call_all(performance, message)
                self.remember(performance, results)
        except Exception as error:  # noqa: BLE001 - how the agent ended is the result
            return Result(error=error)
        raise AssertionError("unreachable")

    async def arun(self, performance: Performance) -> Result:
        """Do the same as `run`, in asyncio."""
        try:
            first, results = self.remembered(performance)
            for turn in itertools.count(first):
                message, chunks = await self.aask(performance, turn, results)
                if isinstance(message, str):
                    return Result(message, chunks=chunks)
                results = await self.acall_all(performance, message)
                self.remember(performance, results)
        except Exception as error:  # noqa: BLE001 - how the agent ended is the result
            return Result(error=error)
        raise AssertionError("unreachable")

    # --- its memory ------------------------------------------------------------------------------

    def memory(self) -> list[Sequence[str]]:
        """Return a memory of each turn's results."""
        return []

    def remembered(self, performance: Performance) -> tuple[int, Sequence[str]]:
        """Return the turn to continue with, and the results before it; tell the session.

        The session knows the tools as well: an undo may need one before it is called.
        """
        if performance.session is not None:
            for spec in performance.scenario.tools:
                performance.session.tools.add(spec.contract)
        turns: list[Sequence[str]] = performance.memory or []
        ids = [
            _call_id(turn, slot) for turn, calls in enumerate(turns) for slot in range(len(calls))
        ]
        if performance.session is not None and performance.memory is not None:
            performance.session.seen({"": ids})
        return len(turns), turns[-1] if turns else ()

    def remember(self, performance: Performance, results: Sequence[str]) -> None:
        """Remember a finished turn. A turn that halts the session is never remembered."""
        if performance.memory is not None:
            performance.memory.append(results)

    def identified(
        self, performance: Performance, index: int
    ) -> contextlib.AbstractContextManager[Any]:
        """Set the id of the next call in the memory."""
        if performance.session is None or performance.memory is None:
            return contextlib.nullcontext()
        call_id = _call_id(len(performance.memory), index)
        return performance.session.place(slot=index, call_id=call_id)

    # --- the model -------------------------------------------------------------------------------

    def ask(
        self, performance: Performance, turn: int, results: Sequence[str]
    ) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
        """Return the model's next message, and its pieces."""
        session = self.check(performance)
        body, contract = _model(performance, turn, results)
        if session is None or not performance.scenario.guarded_model:
            return _assembled(list(body()))
        arguments = _asked(performance, turn, results)
        if performance.stream:
            stream = session.stream(contract, arguments, body, kind="model", answer=self.answer)
            return _assembled(list(stream))

        def call(**_: Any) -> list[Any]:
            return list(body())

        pieces = session.run_call(contract, arguments, call, kind="model", answer=self.answer)
        return _assembled(pieces)

    async def aask(
        self, performance: Performance, turn: int, results: Sequence[str]
    ) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
        """Do the same as `ask`, in asyncio."""
        session = self.check(performance)
        body, contract = _model(performance, turn, results)
        if session is None or not performance.scenario.guarded_model:
            return _assembled(list(body()))
        arguments = _asked(performance, turn, results)

        async def astream(**_: Any) -> AsyncIterator[Any]:
            for piece in body():
                yield piece

        async def acall(**_: Any) -> list[Any]:
            return list(body())

        if performance.stream:
            # The function itself is the body: calling it gives the iterator.
            stream = session.astream(contract, arguments, astream, kind="model", answer=self.answer)
            return _assembled([piece async for piece in stream])
        return _assembled(
            await session.arun_call(contract, arguments, acall, kind="model", answer=self.answer)
        )

    def answer(self, pieces: list[Any]) -> Answer:
        """Return the answer in a message's pieces, in the framework-neutral form."""
        message, _ = _assembled(pieces)
        more = {"reasoning": pieces[-1]["thought"], "usage": pieces[-1]["usage"]}
        if isinstance(message, str):
            return Answer(text=message, **more)
        calls = [ToolRequest(name, json.dumps(arguments)) for name, arguments in message]
        return Answer(tool_calls=tuple(calls), **more)

    def check(self, performance: Performance) -> Session | None:
        """End the agent if the session is halted."""
        session = performance.session
        if session is not None and session.halted is not None:
            raise session.halted
        return session

    # --- the calls of one message ----------------------------------------------------------------

    @contextlib.contextmanager
    def turn(self, performance: Performance, calls: Sequence[ToolCall]) -> Generator[Slots]:
        """Make the calls inside one turn."""
        if performance.session is None:
            yield _NoSlots()
        else:
            with performance.session.turn(calls=calls) as turn:
                yield turn

    def call_all(self, performance: Performance, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """Run the calls of one message in threads; return the texts for the model, by slot."""

        def one(slots: Slots, index: int, call: ToolCall) -> str:
            with slots.slot(index), self.identified(performance, index):
                try:
                    return self.shown(self.call(performance, *call))
                except Exception as error:  # noqa: BLE001 - this framework shows the model errors
                    return self.answer_to(error)

        with self.turn(performance, calls) as slots, ThreadPoolExecutor(len(calls)) as pool:
            running = [
                pool.submit(copy_context().run, one, slots, index, call)
                for index, call in enumerate(calls)
            ]
            return tuple(future.result() for future in running)

    async def acall_all(
        self, performance: Performance, calls: Sequence[ToolCall]
    ) -> tuple[str, ...]:
        """Run the calls of one message in tasks; all have ended before an error is raised."""

        async def one(slots: Slots, index: int, call: ToolCall) -> str:
            with slots.slot(index), self.identified(performance, index):
                try:
                    return self.shown(await self.acall(performance, *call))
                except Exception as error:  # noqa: BLE001 - this framework shows the model errors
                    return self.answer_to(error)

        with self.turn(performance, calls) as slots:
            running = [one(slots, index, call) for index, call in enumerate(calls)]
            ended = await asyncio.gather(*running, return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        return tuple(str(each) for each in ended)

    def shown(self, value: Any) -> str:
        """Return the text of a tool's result for the model."""
        return text_of(value)

    def answer_to(self, error: Exception) -> str:
        """Return the text of an error for the model; errors that stop the run end the agent."""
        if isinstance(error, HALTED):
            raise error
        return f"error: {error}"

    # --- one call --------------------------------------------------------------------------------

    def call(self, performance: Performance, name: str, arguments: Any) -> Any:
        """Run a tool, through the session if there is one."""
        spec: ToolSpec = performance.tools[name]
        body = self.body(performance, spec)
        if performance.session is None:
            return body(**_validated(spec, arguments))
        return self.guarded(performance.session, self.contract(spec), arguments, body)

    async def acall(self, performance: Performance, name: str, arguments: Any) -> Any:
        """Do the same as `call`, in asyncio; a sync tool runs in a thread."""
        spec: ToolSpec = performance.tools[name]
        body = self.body(performance, spec)
        if performance.session is not None:
            return await self.aguarded(performance.session, self.contract(spec), arguments, body)
        values = _validated(spec, arguments)
        return await body(**values) if spec.is_async else await asyncio.to_thread(body, **values)

    def contract(self, spec: ToolSpec) -> Contract:
        """Return a tool's contract; values of other frameworks come back as plain data."""
        return dataclasses.replace(spec.contract, framework="reference")

    def body(self, performance: Performance, spec: ToolSpec) -> Callable[..., Any]:
        """Return the tool's own body, with this framework's injected values."""
        if not spec.injected:
            return spec.function
        return functools.partial(spec.function, **{spec.injected: performance.scenario.injected})

    def guarded(
        self, session: Session, contract: Contract, arguments: Any, body: Callable[..., Any]
    ) -> Any:
        """Return the guarded call."""
        return session.run_call(contract, arguments, body, instead=_instead(body))

    async def aguarded(
        self, session: Session, contract: Contract, arguments: Any, body: Callable[..., Any]
    ) -> Any:
        """Return the guarded call, in asyncio; a sync body runs in a thread."""
        return await session.arun_call(contract, arguments, body, instead=_instead(body))


def _call_id(turn: int, slot: int) -> str:
    return f"call-{turn}-{slot}"


def _instead(body: Callable[..., Any]) -> Instead:
    """Return the forms for edits and answers: a body takes any arguments and gives any value."""
    return Instead(body, lambda value: value)


def text_of(value: Any) -> str:
    """Return a tool's result as this framework shows it to a model."""
    if isinstance(value, str):
        return value
    return (
        value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value, default=str)
    )


def _validated(spec: ToolSpec, arguments: Any) -> dict[str, Any]:
    model = spec.contract.parameters
    assert isinstance(model, type)
    return dict(model.model_validate(arguments))


def _asked(performance: Performance, turn: int, results: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a model call."""
    messages = [{"role": "user", "content": performance.scenario.question}]
    return {"messages": messages, "turn": turn, "results": list(results)}


def _model(
    performance: Performance, turn: int, results: Sequence[str]
) -> tuple[Callable[..., Iterator[Any]], Contract]:
    """Return the model: a function that gives the pieces of its message, and its contract.

    The pieces are the pieces of its text, or its calls as one piece; then its usage and reasoning.
    """
    replay: ReplayModel | None = performance.replay_model
    if replay is not None:
        contract = dataclasses.replace(MODEL, source="live")  # it gives recorded answers itself

        def recorded(**_: Any) -> Iterator[Any]:
            return replay.pieces(performance.tools)

        return recorded, contract
    script = performance.script

    def pieces(**_: Any) -> Iterator[Any]:
        message = script.answer(turn, results)
        if isinstance(message, str):
            yield from script.pieces(message)
        else:
            yield [[name, dict(arguments)] for name, arguments in message]
        yield {"thought": script.thought, "usage": dict(script.USAGE)}

    return pieces, MODEL


def _assembled(pieces: list[Any]) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
    *texts, _ = pieces
    if isinstance(texts[0], str):
        return "".join(texts), tuple(texts)
    return [(name, arguments) for name, arguments in texts[0]], ()
