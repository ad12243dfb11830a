"""What laws check of any run, and how they choose its order."""

from __future__ import annotations

import os
import random
import re
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from tests.laws.lab import Attempt, Lab, Place
from tests.laws.programs import Block, Program, flat, parts

__all__ = ["LAW", "accounts", "chances", "comparable", "fewer", "offline", "order", "resumed"]

_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)

# The same cases in each run of the tests; `nox -s laws` tries new ones.
LAW = settings(
    derandomize=os.environ.get("HYPOTHESIS_PROFILE", "local") != "laws",
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    report_multiple_bugs=False,
    phases=[each for each in _PHASES if each in settings().phases],
)


def fewer(part: int) -> settings:
    """Return the settings of a law whose cases take longer."""
    return settings(LAW, max_examples=max(1, settings().max_examples // part))


def chances(seed: float) -> random.Random:
    """Return a reproducible source of chances."""
    return random.Random(seed)  # noqa: S311 - no secret


def accounts(lab: Lab, attempt: Attempt) -> None:
    """Check that what the program was told of is what stands, each effect once."""
    assert lab.world.doubled == []
    assert sorted(lab.timeline.standing.elements()) == sorted(attempt.stays)


def comparable(program: Program, attempt: Attempt) -> dict[Place, Any]:
    """Return what calls gave that is the same in each attempt of a sequential program.

    What is lost of a model is answered otherwise. A block that was rolled back at the end of a
    recording is made anew: its effects have other numbers.
    """
    given = {path: said for path, said in attempt.given.items() if "says" not in str(said)}
    if not any(isinstance(node, Block) and node.raises for node in parts(program)):
        return given
    return {path: re.sub(r"\.\d+", "", str(said)) for path, said in given.items()}


def offline(lab: Lab, program: Program, told: Attempt, chance: random.Random) -> None:
    """Check that a run answers offline as it did live, in two other orders, and runs no body."""
    for _ in range(2):
        again = lab.attempt(program, replay="offline", **order(program, chance))
        assert again.error is None, again.error
        assert again.given == told.given
        assert again.ran == []


def order(program: Program, chance: random.Random) -> dict[str, Any]:
    """Choose an order, and a colour."""
    sync = chance.random() < 0.3 and all(op.tool != "stream" for op in flat(program))
    shuffle = chance.choice([None, chance.randrange(1000)])
    return {"sync": sync, "at_once": chance.random() < 0.7, "shuffle": shuffle}


def resumed(lab: Lab, program: Program, chance: random.Random, **how: Any) -> Attempt:
    """Resume a program, in some order, until it is through."""
    replay = "continue" if lab.finished() or chance.random() < 0.5 else "auto"
    return lab.through(program, replay=replay, **how, **order(program, chance))
