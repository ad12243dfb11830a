"""What an adapter is shown: a scenario, the script of its model, and the harness it has to bring.

All of it is neutral data and plain Python: no word of any framework.
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
"""What the model answers: calls to issue together, the final text, or an error of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What a framework and its adapter can do; what they can't is declared as False.

    Attributes:
        sync: agents run synchronously.
        asynchronous: agents run in asyncio, with async tools and with sync ones.
        streaming: a model's answer can be streamed.
        parallel: calls of one message run at once.
        injection: a parameter can be filled by the framework, unseen by the model.
        halting: the agent ends when its session halts: its model is not asked again.
        models: model calls can be guarded too.
        usage: a model says what its answers took.
        reasoning: a model says what it thought.
        replay_models: the decisions of a recorded run can drive an agent.
        memory: the framework has a memory of its own (a checkpointer, a saved state) from which an
            agent goes on by itself, and the adapter can tell what it holds.
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
    """A tool: a plain function with type hints, and what is declared of it.

    Attributes:
        function: its body, sync or async. Nothing of Rollcage is attached to it.
        effect: see `rollcage.Contract`.
        idempotent: see `rollcage.Contract`.
        raises: see `rollcage.Contract`.
        injected: the parameter that the framework fills with `Scenario.injected`; the model does
            not see it. Empty where there is none.
        secret: see `rollcage.Contract`.
        artifact: the body gives content for the model and an artifact that it does not see. A
            framework that knows no artifacts has an ordinary tool, which gives a tuple of two.
        more: further fields of its contract: what its results carry, what is promised of them.
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
        """What is declared of it: a value of an adapter's `contracts=`."""
        return {
            "effect": self.effect,
            "idempotent": self.idempotent,
            "raises": self.raises,
            "secret": frozenset(self.secret),
            **self.more,
        }

    @property
    def contract(self) -> Contract:
        """The contract: the function's signature without the injected parameter."""
        visible = self.function
        if self.injected:
            signature = inspect.signature(self.function)
            kept = [p for p in signature.parameters.values() if p.name != self.injected]
            visible = _like(self.function, signature.replace(parameters=kept))
        return Contract.of(visible, **self.declared)

    def annotated(self, annotation: Any) -> Callable[..., Any]:
        """The function with the injected parameter annotated as the framework wants it."""
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
    """The same function under another signature."""
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
    """An agent and what happens to it.

    Attributes:
        tools: what the agent has.
        script: what its model answers, message by message.
        guarded_model: whether the model's calls are recorded and replayed too.
        injected: the value for injected parameters; it differs from run to run.
        thought: what its model says that it thought, with each message.
    """

    tools: Sequence[ToolSpec]
    script: Sequence[Message]
    guarded_model: bool = False
    injected: str = ""
    thought: str = ""


class Script:
    """The model of one performance: it answers by the script, and notes what it was shown.

    Attributes:
        asked: how many times it was really asked.
        seen: for each time but the very first message, the texts of the tool results that it saw
            since its last message, by slot.
        thought: what it says that it thought, with each message; empty where it does not say.
    """

    USAGE: ClassVar[Mapping[str, int]] = {"input_tokens": 11, "output_tokens": 7}
    """What each of its answers took."""

    def __init__(self, messages: Sequence[Message], thought: str = "") -> None:
        self.asked = 0
        self.thought = thought
        self.seen: list[tuple[str, ...]] = []
        self._messages = messages

    def answer(self, turn: int, results: Sequence[str]) -> Sequence[ToolCall] | str:
        """The model's message number `turn`.

        Args:
            turn: how many messages of the model are in the conversation already.
            results: the texts of the tool results since its last message, by slot, exactly as the
                framework shows them to a model.

        Raises:
            Exception: one that the script holds at this place.
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
        """A text as a streaming model gives it: word by word."""
        return re.findall(r"\S+\s*", text)


@dataclasses.dataclass(frozen=True, slots=True)
class Performance:
    """What a harness gets for one run.

    Attributes:
        scenario: what is played.
        script: its model; the framework's own scripted model asks it for each message.
        tools: what `Harness.tools` gave for this scenario, unguarded.
        session: guard the agent with it; it is entered already. None: run it plainly.
        stream: use the framework's streaming calls; the text comes in `Script.pieces`.
        replay_model: what `Harness.replay_model` gave: the agent's model instead of the scripted
            one. None: the script is.
        memory: what `Harness.memory` gave: the agent keeps its history in it, and goes on from what
            it holds already. None: it has no memory.
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
    """How an agent ended.

    Attributes:
        text: its final text; empty where it did not get there.
        error: the exception that ended it, if one did. A harness may also let it out.
        chunks: with `stream`, the pieces of the final text as they came.
    """

    text: str = ""
    error: BaseException | None = None
    chunks: tuple[str, ...] = ()


class Harness(Protocol):
    """How a scenario is played with one framework and its adapter."""

    def tools(self, scenario: Scenario) -> Any:
        """The framework's own tools for the scenario: plain ones, not guarded.

        One result may be performed several times, guarded and plainly by turns.
        """
        ...

    def run(self, performance: Performance) -> Result:
        """Build a real agent of the framework and run it, synchronously."""
        ...

    async def arun(self, performance: Performance) -> Result:
        """The same in asyncio; when it is cancelled, the agent is."""
        ...

    def replay_model(self, trace: Trace) -> Any:
        """The framework's own model that gives the answers which `trace` holds, by position."""
        ...

    def memory(self) -> Any:
        """An empty memory of the framework's own, which outlives an agent; None if it has none."""
        ...
