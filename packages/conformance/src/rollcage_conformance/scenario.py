"""A scenario, the script of its model, and the harness that an adapter has to bring.

All of it is neutral data and plain Python, without any framework.
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from rollcage import Contract, Session
from rollcage_adapter import Trace

__all__ = [
    "Capabilities",
    "Harness",
    "Message",
    "Performance",
    "Result",
    "Scenario",
    "Script",
    "ToolCall",
    "ToolSpec",
]

ToolCall = tuple[str, Mapping[str, Any]]
"""A tool's name, and the raw arguments as a model would write them: JSON, not validated."""

Message = Sequence[ToolCall] | str | Exception
"""A model's message: calls to issue together, the final text, or an error of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a framework and its adapter; missing ones are declared as False.

    Attributes:
        sync: agents run synchronously.
        asynchronous: agents run in asyncio, with async tools and with sync ones.
        streaming: a model's answer can be streamed.
        parallel: calls of one message run at once.
        injection: a parameter can be filled by the framework, unseen by the model.
        halting: the agent ends when its session halts: its model is not asked again.
        models: model calls can be guarded too.
        usage: a model reports the usage of its answers.
        reasoning: a model returns its reasoning.
        replay_models: the decisions of a recorded run can drive an agent.
        memory: the framework has a memory of its own (a checkpointer, a saved state) from which an
            agent continues, and the adapter can read it.
    """

    sync: bool = True
    asynchronous: bool = True
    streaming: bool = True
    parallel: bool = True
    injection: bool = True
    halting: bool = True
    models: bool = True
    usage: bool = True
    reasoning: bool = True
    replay_models: bool = True
    memory: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: a plain function with type hints, and its declaration.

    Attributes:
        function: its body, sync or async, without any Rollcage declaration.
        effect: see `rollcage.Contract`.
        idempotent: see `rollcage.Contract`.
        raises: see `rollcage.Contract`.
        injected: the parameter that the framework fills with `Scenario.injected`; the model does
            not see it. Empty without one.
        secret: see `rollcage.Contract`.
        artifact: whether the body gives content for the model and an artifact that it does not see.
            A
            framework without artifacts has an ordinary tool, which gives a tuple of two.
        more: further fields of its contract.
    """

    function: Callable[..., Any]
    effect: Literal["pure", "read", "write", "scope"] = "write"
    idempotent: bool = False
    raises: tuple[type[Exception], ...] = ()
    injected: str = ""
    secret: tuple[str, ...] = ()
    artifact: bool = False
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any], hash=False)

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.function.__name__

    @property
    def is_async(self) -> bool:
        """Whether the body is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def declared(self) -> dict[str, Any]:
        """Return its declaration: a value of an adapter's `contracts=`."""
        return {
            "effect": self.effect,
            "idempotent": self.idempotent,
            "raises": self.raises,
            "secret": frozenset(self.secret),
            **self.more,
        }

    @property
    def contract(self) -> Contract:
        """Return the contract: the function's signature without the injected parameter."""
        visible = self.function
        if self.injected:
            signature = inspect.signature(self.function)
            kept = [p for p in signature.parameters.values() if p.name != self.injected]
            visible = _like(self.function, signature.replace(parameters=kept))
        return Contract.of(visible, **self.declared)

    def annotated(self, annotation: Any) -> Callable[..., Any]:
        """Return the function with the injected parameter annotated for the framework."""
        signature = inspect.signature(self.function)
        parameters = [
            p.replace(annotation=annotation) if p.name == self.injected else p
            for p in signature.parameters.values()
        ]
        twin = _like(self.function, signature.replace(parameters=parameters))
        hints = typing.get_type_hints(self.function, include_extras=True)
        twin.__annotations__ = {**hints, self.injected: annotation}
        return twin


def _like(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return the same function under another signature."""
    twin: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def atwin(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        twin = atwin
    else:

        @functools.wraps(function)
        def plain_twin(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        twin = plain_twin
    setattr(twin, "__signature__", signature)  # noqa: B010 - no type checker knows this attribute
    return twin


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """An agent and its events.

    Attributes:
        tools: the agent's tools.
        script: its model's messages, in order.
        question: what a user asks it.
        guarded_model: whether the model's calls are recorded and replayed too.
        injected: the value for injected parameters; it differs from run to run.
        thought: its model's reasoning in each message.
    """

    tools: Sequence[ToolSpec]
    script: Sequence[Message]
    guarded_model: bool = False
    injected: str = ""
    thought: str = ""
    question: str = "Go."


class Script:
    """The model of one performance: it answers by the script, and notes its inputs.

    Attributes:
        asked: how many times it was really asked.
        seen: for each request after the first, the texts of the tool results
            since its last message, by slot.
        thought: its reasoning in each message; empty without any.
    """

    USAGE: ClassVar[Mapping[str, int]] = {"input_tokens": 11, "output_tokens": 7}
    """The usage of each of its answers."""

    def __init__(self, messages: Sequence[Message], thought: str = "") -> None:
        self.asked = 0
        self.thought = thought
        self.seen: list[tuple[str, ...]] = []
        self._messages = messages

    def answer(self, turn: int, results: Sequence[str]) -> Sequence[ToolCall] | str:
        """Return the model's message number `turn`.

        Args:
            turn: how many messages of the model are in the conversation already.
            results: the texts of the tool results since its last message, by slot, exactly as the
                framework shows them to a model.

        Raises:
            Exception: an exception in the script at this place.
        """
        self.asked += 1
        if turn:
            self.seen.append(tuple(results))
        if turn >= len(self._messages):
            raise AssertionError(f"the model was asked for message {turn}, the script has no more")
        message = self._messages[turn]
        if isinstance(message, Exception):
            raise message
        return message

    @staticmethod
    def pieces(text: str) -> list[str]:
        """Split a text for a streaming model: word by word."""
        return re.findall(r"\S+\s*", text)


@dataclasses.dataclass(frozen=True, slots=True)
class Performance:
    """The input of a harness for one run.

    Attributes:
        scenario: the scenario.
        script: its model; the framework's own scripted model asks it for each message.
        tools: the result of `Harness.tools` for this scenario, unguarded.
        session: guard the agent with it; it is entered already. None: run the agent plainly.
        stream: use the framework's streaming calls; the text comes in `Script.pieces`.
        replay_model: the result of `Harness.replay_model`: the agent's model instead of the
            scripted
            one. None: the scripted model.
        memory: the result of `Harness.memory`: the agent keeps its history in it, and continues
            from
            it. None: the agent has no memory.
    """

    scenario: Scenario
    script: Script
    tools: Any
    session: Session | None
    stream: bool = False
    replay_model: Any = None
    memory: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The end of an agent.

    Attributes:
        text: its final text; empty without one.
        error: the exception that ended it, if one did. A harness may also let it out.
        chunks: with `stream`, the pieces of the final text as they came.
    """

    text: str = ""
    error: BaseException | None = None
    chunks: tuple[str, ...] = ()


class Harness(Protocol):
    """Plays scenarios with one framework and its adapter."""

    def tools(self, scenario: Scenario) -> Any:
        """Return the framework's own tools for the scenario: plain ones, not guarded.

        One result may be performed several times, guarded and unguarded in turn.
        """
        ...

    def run(self, performance: Performance) -> Result:
        """Build a real agent of the framework and run it, synchronously."""
        ...

    async def arun(self, performance: Performance) -> Result:
        """Do the same as `run`, in asyncio; when it is cancelled, the agent is."""
        ...

    def replay_model(self, trace: Trace) -> Any:
        """Return the framework's own model that gives the answers in `trace`, by position."""
        ...

    def memory(self) -> Any:
        """Return an empty memory of the framework's own; None if it has none.

        The memory outlives an agent.
        """
        ...
