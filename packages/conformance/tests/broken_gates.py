"""Adapters with one mistake each around the gate. Not collected, as broken_adapters.py."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from rollcage import Blocked, Contract

from rollcage_conformance import (
    FacadeSuite,
    FlowSuite,
    Harness,
    LimitSuite,
    OutputSuite,
    Performance,
    PolicySuite,
    Suite,
    ToolCall,
    ToolSpec,
)
from rollcage_conformance.reference import ReferenceHarness

Body = Callable[..., Any]


class HidesReasons(ReferenceHarness):
    """Tells the model that a call was refused, and nothing that helps it go on."""

    def answer_to(self, error: Exception) -> str:
        return "error: refused" if isinstance(error, Blocked) else super().answer_to(error)


class StreamsUnguarded(ReferenceHarness):
    """Guards a model that answers at once, and none that streams."""

    def ask(
        self, performance: Performance, turn: int, results: Sequence[str]
    ) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
        return super().ask(_unless_streamed(performance), turn, results)

    async def aask(
        self, performance: Performance, turn: int, results: Sequence[str]
    ) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
        return await super().aask(_unless_streamed(performance), turn, results)


def _unless_streamed(performance: Performance) -> Performance:
    return dataclasses.replace(performance, session=None) if performance.stream else performance


class ForgetsDeclarations(ReferenceHarness):
    """Hands on effect and schema, and not what results carry or what is promised of them."""

    def contract(self, spec: ToolSpec) -> Contract:
        return super().contract(dataclasses.replace(spec, more={}))


class ShowsRawArguments(ReferenceHarness):
    """Hands the model's arguments to the gate as they were written, and validates them later."""

    def contract(self, spec: ToolSpec) -> Contract:
        names = spec.contract.parameter_names
        plain: Mapping[str, Any] = {"properties": {name: {} for name in names}}
        return dataclasses.replace(super().contract(spec), parameters=plain)

    def body(self, performance: Performance, spec: ToolSpec) -> Body:
        body = super().body(performance, spec)
        model: Any = spec.contract.parameters
        return lambda **arguments: body(**dict(model.model_validate(arguments)))


class NamesItself(ReferenceHarness):
    """Gives every tool the code of one function of its own."""

    def contract(self, spec: ToolSpec) -> Contract:
        return dataclasses.replace(super().contract(spec), function=_unless_streamed)


class Broken(Suite):
    """The suites, over one of the above."""

    adapter: ClassVar[type[ReferenceHarness]] = ReferenceHarness

    @pytest.fixture
    def harness(self) -> Harness:
        return self.adapter()


class TestHidesReasons(Broken, PolicySuite, LimitSuite, FlowSuite):
    adapter = HidesReasons


class TestStreamsUnguarded(Broken, PolicySuite):
    adapter = StreamsUnguarded


class TestForgetsDeclarations(Broken, FlowSuite, OutputSuite):
    adapter = ForgetsDeclarations


class TestShowsRawArguments(Broken, PolicySuite):
    adapter = ShowsRawArguments


class TestNamesItself(Broken, FacadeSuite):
    adapter = NamesItself
