"""Adapters with one mistake each in how they guard models. Not collected, as broken_adapters.py."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from rollcage_adapter import Answer

from rollcage_conformance import Harness, ModelSuite, Performance, Result, ToolCall
from rollcage_conformance.reference import ReferenceHarness


class AsksTheModelAgain(ReferenceHarness):
    """Asks the real model although its answer is recorded."""

    def ask(
        self, performance: Performance, turn: int, results: Sequence[str]
    ) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
        plain = dataclasses.replace(performance, session=None)
        return super().ask(plain, turn, results)

    async def aask(
        self, performance: Performance, turn: int, results: Sequence[str]
    ) -> tuple[Sequence[ToolCall] | str, tuple[str, ...]]:
        plain = dataclasses.replace(performance, session=None)
        return await super().aask(plain, turn, results)


class AnswersOtherwise(ReferenceHarness):
    """Records other answers than the model gave; subclasses say which."""

    def answer(self, pieces: list[Any]) -> Answer:
        return self.bent(super().answer(pieces))

    def bent(self, answer: Answer) -> Answer:
        """The answer with a mistake in it."""
        raise NotImplementedError


class RecordsNoAnswers(AnswersOtherwise):
    """Leaves it to the readers of a trace to make sense of the framework's messages."""

    def bent(self, answer: Answer) -> Answer:
        raise TypeError(answer)


class ForgetsUsage(AnswersOtherwise):
    """Records what the model said, and not what it took."""

    def bent(self, answer: Answer) -> Answer:
        return dataclasses.replace(answer, usage=None)


class MixesThoughtsIn(AnswersOtherwise):
    """Takes what the model thought for what it said."""

    def bent(self, answer: Answer) -> Answer:
        return dataclasses.replace(answer, text=answer.reasoning + answer.text, reasoning="")


class MendsArguments(AnswersOtherwise):
    """Records the calls that a model asked for as the tools would like them."""

    def bent(self, answer: Answer) -> Answer:
        mended = [
            dataclasses.replace(call, arguments=call.arguments.replace('"3"', "3"))
            for call in answer.tool_calls
        ]
        return dataclasses.replace(answer, tool_calls=tuple(mended))


class LosesStreamedAnswers(AnswersOtherwise):
    """Reads the last piece of a streamed answer only."""

    streamed = False

    def run(self, performance: Performance) -> Result:
        self.streamed = performance.stream
        return super().run(performance)

    async def arun(self, performance: Performance) -> Result:
        self.streamed = performance.stream
        return await super().arun(performance)

    def bent(self, answer: Answer) -> Answer:
        last = answer.text.rpartition(" ")[2] if self.streamed else answer.text
        return dataclasses.replace(answer, text=last)


class DecidesItself(ReferenceHarness):
    """Asks its own model where recorded answers are to be given."""

    def run(self, performance: Performance) -> Result:
        return super().run(dataclasses.replace(performance, replay_model=None))

    async def arun(self, performance: Performance) -> Result:
        return await super().arun(dataclasses.replace(performance, replay_model=None))


class Broken(ModelSuite):
    """The suite, over one of the above."""

    adapter: ClassVar[type[ReferenceHarness]] = ReferenceHarness

    @pytest.fixture
    def harness(self) -> Harness:
        return self.adapter()


class TestAsksTheModelAgain(Broken):
    adapter = AsksTheModelAgain


class TestRecordsNoAnswers(Broken):
    adapter = RecordsNoAnswers


class TestForgetsUsage(Broken):
    adapter = ForgetsUsage


class TestMixesThoughtsIn(Broken):
    adapter = MixesThoughtsIn


class TestMendsArguments(Broken):
    adapter = MendsArguments


class TestLosesStreamedAnswers(Broken):
    adapter = LosesStreamedAnswers


class TestDecidesItself(Broken):
    adapter = DecidesItself
