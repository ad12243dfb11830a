"""Calls that a framework makes again: their turn and slot say that they are one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from rollcage.errors import (
    ArgumentsInvalid,
    Blocked,
    Halt,
    NotReplayableWarning,
    OutputDrift,
    SessionError,
)
from rollcage.step.call import Progress
from rollcage.step.driver import Driver
from rollcage.step.requests import Flow, Raised, Returned

__all__ = ["Once", "is_failure"]

_REMEMBERED: Final = 256  # turns whose calls a framework may repeat, however many those are
_NOT_MADE: Final = (ArgumentsInvalid, Blocked, Halt, SessionError)


class Once:
    """Gives a call that is repeated, by its turn and slot, the outcome that it had."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._ended: OrderedDict[int, dict[Any, Returned | Raised]] = OrderedDict()  # by turn

    @property
    def turns(self) -> int:
        """Of how many turns the calls are remembered."""
        return len(self._ended)

    def flow(self, progress: Progress, flow: Flow, *, failed: bool) -> Flow:
        """The flow of such a call; `failed`: one that failed is not run again either."""
        call = progress.call
        assert call.turn is not None
        turns, turn = self._ended, call.turn.number
        place = call.branch, call.slot, call.key
        ended = turns[turn].get(place) if turn in turns else None
        if ended is not None and self._driver.ledger.halted is None:
            return ended
        answer = yield from flow
        if isinstance(answer, Returned) or _stays(progress, answer.error, failed=failed):
            turns.setdefault(turn, {})[place] = answer
            turns.move_to_end(turn)
            while len(turns) > _REMEMBERED:
                turns.popitem(last=False)
        return answer


def _stays(progress: Progress, error: BaseException, *, failed: bool) -> bool:
    """Whether a call that raised is not made again: its write was performed, or no failure is."""
    contract = progress.call.contract
    if isinstance(error, OutputDrift | NotReplayableWarning) and error.tool == contract.name:
        return failed or contract.effect == "write"
    return failed and is_failure(progress, error)


def is_failure(progress: Progress, error: BaseException) -> bool:
    """Whether a call was made and failed: neither refused, nor cut off, nor waiting."""
    pauses = () if progress.ask is None else progress.ask.pauses
    return isinstance(error, Exception) and not isinstance(error, (*_NOT_MADE, *pauses))
