"""Executions meet people, time and dying workers, and end as if nothing had happened.

`nox -s workers` plays more universes. One alone: `ROLLCAGE_UNIVERSE=17 pytest test_simulation.py`.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage_workflow import interpret, running
from rollcage_workflow.flow import NO_FAILURES, Waits
from rollcage_workflow.kinds import team
from rollcage_workflow.signals import Signals
from universe import Universe

_ONE = os.environ.get("ROLLCAGE_UNIVERSE")
_FEW, _MANY = range(8), range(8, 400)
SEEDS: list[Any] = [*_FEW, *(pytest.param(each, marks=pytest.mark.nightly) for each in _MANY)]
if _ONE:
    SEEDS = [int(_ONE)]


async def played(seed: int, folder: Path) -> Universe:
    """A universe, from its beginning to its end."""
    universe = Universe(seed, folder, jobs=1 + seed % 3)
    try:
        await universe.live(60)
        await universe.end()
    except BaseException as error:
        error.add_note("\n".join([f"universe {seed}:", *universe.story]))
        raise
    return universe


@pytest.mark.parametrize("seed", SEEDS)
async def test_it_ends_right_whatever_people_do(seed: int, tmp_path: Path) -> None:
    await played(seed, tmp_path)


# --- mistakes -------------------------------------------------------------------------------------


def _takes_any_signal(patch: pytest.MonkeyPatch) -> None:
    """A wait takes the next signal, whether it accepts it or not."""
    takes = Signals._take_next
    patch.setattr(
        Signals, "_take_next", lambda self, name, place, _: takes(self, name, place, None)
    )


def _leaves_requests(patch: pytest.MonkeyPatch) -> None:
    """Requests stay in the queue when their execution has ended."""
    patch.setattr(running, "close", lambda *_: None)


def _undoes_who_waits(patch: pytest.MonkeyPatch) -> None:
    """A member of a race that waits is taken for one that has failed."""
    patch.setattr(team, "NO_FAILURES", tuple(e for e in NO_FAILURES if e is not Waits))
    value = team._Race._value

    async def failing(self: Any, *given: Any) -> Any:
        try:
            return await value(self, *given)
        except Waits as waits:
            raise ValueError(str(waits)) from None

    patch.setattr(team._Race, "_value", failing)


def _starts_its_clock_anew(patch: pytest.MonkeyPatch) -> None:
    """A wait for a time counts from the attempt."""

    async def now(self: Any, step: str) -> float:
        del step
        return float(self.now())

    patch.setattr(interpret.Interpreter, "reached", now)


def _keeps_what_failed(patch: pytest.MonkeyPatch) -> None:
    """A plan inside that fails is not undone."""

    @contextlib.asynccontextmanager
    async def nothing(self: Any, name: str, **_: Any) -> Any:
        del self, name
        yield

    patch.setattr(interpret.Interpreter, "undoing", nothing)


MISTAKES = [
    _takes_any_signal, _leaves_requests, _undoes_who_waits, _starts_its_clock_anew,
    _keeps_what_failed,
]  # fmt: skip


@pytest.fixture
def mistaken() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.nightly
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_each_mistake_is_found(
    mistake: Any, mistaken: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mistake(mistaken)
    for seed in range(60):
        try:
            await played(seed, tmp_path / str(seed))
        except Exception:  # noqa: BLE001 - found, as whatever it shows
            return
    raise AssertionError(f"{mistake.__name__} was not found")


@pytest.mark.nightly
async def test_much_happens_in_a_universe(tmp_path: Path) -> None:
    """Workers die, and people are told that they are wrong."""
    found = [await played(seed, tmp_path / str(seed)) for seed in (1, 4)]
    assert sum(each.kills for each in found) >= 5
    assert sum(each.cuts for each in found) >= 1
    assert sum(each.refusals for each in found) >= 10
    assert sum(deed.sign < 0 for each in found for deed in each.world.deeds) >= 1
