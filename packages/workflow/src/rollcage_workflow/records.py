"""The records of an execution besides its steps' calls: calls of their own, in its trace."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from rollcage import Contract

__all__ = [
    "APPROVAL", "ENDED", "GIVEN", "INPUT", "NOW", "OWN", "PLAN", "PREFIX", "SIGNAL", "UNTOLD",
    "container", "nothing",
]  # fmt: skip

INPUT: Final = "workflow"
"""The input of an execution's job: no other session of its name is resumed."""

PREFIX: Final = "workflow."
"""The prefix of the names of all these calls."""

UNTOLD: Final = "~"
"""The prefix of branch names that are not part of a step's path."""

_OPEN: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": True}

PLAN: Final = Contract(
    name="workflow.plan",
    description="The plan and its inputs.",
    parameters=_OPEN,
    effect="pure",
)
ENDED: Final = Contract(
    name="workflow.ended",
    description="How the execution ended.",
    parameters=_OPEN,
    effect="pure",
)
GIVEN: Final = Contract(
    name="workflow.given",
    description="The given result of a step before the one that the execution starts at.",
    parameters=_OPEN,
    effect="pure",
)
NOW: Final = Contract(
    name="workflow.now",
    description="When a step was reached first.",
    parameters=_OPEN,
    effect="read",
)
SIGNAL: Final = Contract(
    name="workflow.signal",
    description="The data of a signal.",
    parameters=_OPEN,
    effect="read",
)
APPROVAL: Final = Contract(
    name="workflow.approval",
    description="What somebody decided.",
    parameters=_OPEN,
    effect="read",
)
_CONTAINERS: Final = {
    kind: Contract(
        name=f"{PREFIX}{kind}", description=description_of, parameters=_OPEN, effect="scope"
    )
    for kind, description_of in {
        "each": "The steps for each element of a list.",
        "repeat": "The steps until something is true.",
        "team": "Steps that are done at once.",
        "workflow": "Another plan.",
    }.items()
}  # fmt: skip


OWN: Final = (PLAN, ENDED, GIVEN, NOW, SIGNAL, APPROVAL, *_CONTAINERS.values())
"""All of these calls."""


def container(kind: str) -> Contract:
    """Return the contract of a step with inner steps: it replays as one hit."""
    return _CONTAINERS[kind]


async def nothing(**_: object) -> None:
    """Do nothing: the body of a call that only records."""


def utc(now: int) -> str:
    """Return a time (Unix, ns) in a plan's form."""
    return dt.datetime.fromtimestamp(now / 1e9, dt.UTC).isoformat(timespec="milliseconds")
