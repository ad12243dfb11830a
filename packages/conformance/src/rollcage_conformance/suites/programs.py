"""A crash, and then another program: nothing recorded is made again, lost, or left unseen."""

import copy
import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import pytest
from rollcage import (
    DidNotHappen,
    Diverged,
    Halt,
    Happened,
    compensate,
    current_step,
    tool,
)

from rollcage_conformance.scenario import Message, Scenario, ToolCall, ToolSpec
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, Crash

__all__ = ["OtherProgramSuite"]

Program = Sequence[Sequence[ToolCall]]
Divergence = Literal["halt", "undo", "warn"]

FEW: Final = 6
"""Random programs for each way to treat what they leave behind."""


class Board:
    """What an agent has pinned up. Each pin can be taken down again."""

    def __init__(self) -> None:
        self.pins: dict[str, str] = {}  # by idempotency key
        self.looks = 0

        @tool(name="board.take_down", effect="write", idempotent=True)
        def take_down(key: str) -> None:
            del self.pins[key]

        def pin(text: str) -> str:
            """Pin a text up, and return the name of the pin."""
            step = current_step()
            assert step is not None
            self.pins[step.idempotency_key] = text
            return step.idempotency_key

        def probe(key: str) -> Happened | DidNotHappen:
            return Happened(key) if key in self.pins else DidNotHappen()

        def undo(result: str) -> list[Any]:
            return [compensate(take_down, key=result)]

        self.tools = [ToolSpec(pin, more={"probe": probe, "undo": undo}), LOOK]

    @property
    def texts(self) -> Counter[str]:
        """Count the pins by their texts."""
        return Counter(self.pins.values())

    def agent(self, program: Program, end: Message = "all done") -> Scenario:
        """Return an agent that makes these calls, message by message."""
        return Scenario(self.tools, [*program, end])


def pins(program: Program) -> Counter[str]:
    """Count the texts that a program pins up."""
    return Counter(args["text"] for turn in program for name, args in turn if name == "pin")


def _call(chance: random.Random) -> ToolCall:
    if chance.random() < 0.3:
        return "look", {"place": chance.choice("xy")}
    return "pin", {"text": chance.choice("abc")}


def _program(chance: random.Random) -> list[list[ToolCall]]:
    return [
        [_call(chance) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 4))
    ]


def _edited(program: Program, chance: random.Random) -> list[list[ToolCall]]:
    """Return the program with one to three edits."""
    turns = [list(turn) for turn in program]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(turns))
        turn = turns[at]
        match chance.choice(["add", "remove", "reword", "turn", "merge", "split", "reverse"]):
            case "add":
                turn.insert(chance.randint(0, len(turn)), _call(chance))
            case "remove":
                turn.pop(chance.randrange(len(turn)))
            case "reword":
                turn[chance.randrange(len(turn))] = _call(chance)
            case "turn":
                turns.insert(at, [_call(chance)])
            case "merge":
                turns[at : at + 2] = [[call for each in turns[at : at + 2] for call in each]]
            case "split":
                turns[at : at + 1] = [turn[:1], turn[1:]]
            case _:
                turn.reverse()
        turns = [each for each in turns if each] or [[_call(chance)]]
    return turns


class OtherProgramSuite(Suite):
    """An agent dies, and the model of the next attempt words its messages anew."""

    @pytest.fixture
    def board(self) -> Board:
        """Return an empty board."""
        return Board()

    @pytest.mark.parametrize(
        "message",
        [
            [("look", {"place": "x"}), ("pin", {"text": "a"})],
            [("look", {"place": "x"}), ("pin", {"text": "b"}), ("pin", {"text": "a"})],
            [("pin", {"text": "b"}), ("look", {"place": "x"}), ("pin", {"text": "a"})],
        ],
        ids=["behind a look", "behind both", "at the end"],
    )
    @pytest.mark.parametrize("divergence", ["halt", "undo", "warn"])
    def test_a_recorded_write_answers_its_equal_in_another_slot(
        self,
        stage: Stage,
        mode: Mode,
        board: Board,
        divergence: Divergence,
        message: list[ToolCall],
    ) -> None:
        first = [call for call in message if call[1].get("text") != "b"][-1:]
        if len(message) == 3:
            first = [("pin", {"text": "a"}), ("pin", {"text": "b"})]
        stage.play(board.agent([first], Crash("power cut")), mode)
        resumed = stage.play(board.agent([message]), mode, on_divergence=divergence)
        assert resumed.error is None
        assert resumed.ran == ("look",)
        assert board.texts == pins([message])

    @pytest.mark.parametrize(
        "message",
        [
            [("pin", {"text": "b"})],
            [("pin", {"text": "b"}), ("look", {"place": "y"})],
            [("look", {"place": "x"}), ("pin", {"text": "b"})],
            [("look", {"place": "x"}), ("look", {"place": "y"}), ("pin", {"text": "b"})],
        ],
        ids=["shorter", "another behind it", "in its slot", "behind its slot"],
    )
    def test_a_message_without_the_recorded_write_halts_before_a_new_one(
        self, stage: Stage, mode: Mode, board: Board, message: list[ToolCall]
    ) -> None:
        first = [("look", {"place": "x"}), ("pin", {"text": "a"})]
        stage.play(board.agent([first], Crash("power cut")), mode)
        halted = stage.play(board.agent([message]), mode)
        assert isinstance(halted.error, Diverged)
        assert (halted.status, board.texts) == ("halted", Counter("a"))
        resumed = stage.play(board.agent([first]), mode)
        assert (resumed.error, resumed.ran, board.texts) == (None, (), Counter("a"))

    def test_what_a_tool_did_is_undone_before_the_tool_is_called_again(
        self, stage: Stage, mode: Mode, board: Board
    ) -> None:
        def other() -> str:
            """Do something else."""
            return "done"

        def observe(args: dict[str, Any]) -> dict[str, Any]:
            return {args["text"]: board.texts[args["text"]]}

        pin = board.tools[0]
        observed = dataclasses.replace(pin, more={**pin.more, "observe": observe})
        board.tools = [observed, ToolSpec(other)]
        stage.play(board.agent([[("pin", {"text": "a"})]], Crash("power cut")), mode)
        resumed = stage.play(board.agent([[("other", {})]]), mode, on_divergence="undo")
        assert resumed.error is None
        assert (resumed.ran, board.texts) == (("other",), Counter())

    @pytest.mark.parametrize("divergence", ["halt", "undo", "warn"])
    @pytest.mark.parametrize("seed", range(FEW))
    def test_a_random_program_after_another_one(
        self, stage: Stage, mode: Mode, board: Board, seed: int, divergence: Divergence
    ) -> None:
        chance = random.Random(seed)  # noqa: S311 - which cases are tried
        first = _program(chance)
        done = first[: chance.randint(1, len(first))]
        second = _edited(first, chance)
        stage.play(board.agent(done, Crash("power cut")), mode)
        assert board.texts == pins(done)
        if chance.random() < 0.5:  # the second one dies as well
            part = second[: chance.randint(0, len(second))]
            again = board.agent(part, Crash("again"))
            ended = stage.play(again, mode, on_divergence=divergence)
            assert isinstance(ended.error, Crash | Diverged)
        resumed = stage.play(board.agent(second), mode, on_divergence=divergence)
        _CHECKS[divergence](resumed.error, board.texts, pins(done), pins(second))

    @needs("memory")
    @pytest.mark.parametrize("divergence", ["halt", "undo", "warn"])
    @pytest.mark.parametrize("seed", range(FEW))
    def test_another_program_on_a_memory_of_any_age(
        self, stage: Stage, mode: Mode, board: Board, seed: int, divergence: Divergence
    ) -> None:
        chance = random.Random(seed)  # noqa: S311 - which cases are tried
        first = [*_program(chance), *_program(chance)]
        saved, done = sorted(chance.choices(range(len(first)), k=2))
        memory = stage.harness.memory()
        stage.play(board.agent(first[:saved], Crash("power cut")), mode, memory=memory)
        old = copy.deepcopy(memory)
        stage.play(board.agent(first[:done], Crash("power cut")), mode, memory=memory)
        assert board.texts == pins(first[:done])
        second = [*first[:saved], *_edited(first[saved:], chance)]
        if chance.random() < 0.7:  # and what it remembers of the second one is kept
            part = second[: chance.randint(saved, len(second))]
            again = board.agent(part, Crash("again"))
            ended = stage.play(again, mode, memory=old, on_divergence=divergence)
            assert isinstance(ended.error, Crash | Halt)
        resumed = stage.play(board.agent(second), mode, memory=old, on_divergence=divergence)
        _CHECKS[divergence](resumed.error, board.texts, pins(first[:done]), pins(second))


def _is_put_off(
    error: BaseException | None, found: Counter[str], first: Counter[str], second: Counter[str]
) -> None:
    """Under `halt`, nothing is made twice, and nothing new comes behind a halt.

    A framework may have kept the halt as an answer: then its memory halts the next attempt.
    """
    assert found <= first | second
    if error is None:
        assert second <= found
    else:
        assert isinstance(error, Halt)


def _is_taken_back(
    error: BaseException | None, found: Counter[str], _: Counter[str], second: Counter[str]
) -> None:
    assert error is None
    assert found == second


def _is_left(
    error: BaseException | None, found: Counter[str], first: Counter[str], second: Counter[str]
) -> None:
    assert error is None
    assert second <= found <= first + second


_CHECKS: Final[dict[Divergence, Callable[..., None]]] = {
    "halt": _is_put_off,
    "undo": _is_taken_back,
    "warn": _is_left,
}
