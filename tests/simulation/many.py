"""One universe of many, in a process of its own."""

from __future__ import annotations

import gc
import logging
from typing import NamedTuple

from tests.simulation.universe import replay

__all__ = ["Told", "begin", "one"]


class Told(NamedTuple):
    """What became of one universe."""

    place: str
    arguments: str  # what replays it alone
    points: int
    error: str  # empty where nothing was wrong


def one(which: tuple[str, int, bool]) -> Told:
    """One universe of many."""
    place, seed, flat = which
    universe, error = replay(seed, place, flat=flat)
    said = "" if error is None else f"{type(error).__name__}: {error}"
    arguments = f"--place {place} --seed {seed}{' --flat' if flat else ''}"
    told = Told(place, arguments, universe.scheduler.points, said)
    del universe, error
    gc.collect()
    return told


def begin() -> None:
    """Make a process ready for universes."""
    logging.disable()  # of sessions that halt, there are many
    gc.freeze()
