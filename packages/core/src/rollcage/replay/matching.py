"""The replay rule as one table: what becomes of a call, by what is recorded at its place.

`Path` says which recorded step that is (DESIGN §3); whether it is given back, run again or refused
is decided here and nowhere else. The first row that fits counts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final, Literal, NamedTuple

from rollcage.contract.contract import Effect, OnMiss
from rollcage.replay.path import Status

__all__ = ["TABLE", "MatchCase", "MatchRule", "Probed", "Way", "matched"]

Way = Literal[
    "give back", "run again", "run new", "refuse", "probe", "pass over", "stand in", "edit"
]
"""What becomes of a call.

`give back`: what is recorded, nothing runs; `run again`: it runs in the place of the recorded step,
under that one's fingerprint; `run new`: it runs as a step of its own; `refuse`: it does not run;
`probe`: its tool is asked first what became of the recorded step; `pass over`: the recorded step
holds no longer, the next one is looked at. In a fork: `stand in`: what the fork was given stands
for it, nothing runs; `edit`: its arguments are changed first.
"""

Probed = Literal["never", "can be", "happened", "did not happen", "nobody knows"]
"""The probe result of a recorded step of unknown outcome; or whether it can be asked."""


class MatchCase(NamedTuple):
    """What the rule looks at.

    Attributes:
        status: how the recorded step ended; `nothing` where none is recorded.
        live: whether what is not recorded may run (`record`, `resume`).
        effect: that the tool declares now.
        on_miss: what it declares of what can't be given back, if it does.
        has_effect: whether the recorded step changed the world, or may have.
        writes: whether it was recorded as a write, or as the scope of some.
        frontier: whether nothing came after it.
        flawed: whether its value can't be given back.
        idempotent: whether the tool may run twice.
        probed: the probe result of it.
        asks: whether the gate asks somebody today, and nobody has approved.
    """

    status: Status | Literal["nothing"]
    live: bool = True
    effect: Effect = "write"
    on_miss: OnMiss | Literal["undeclared"] = "undeclared"
    has_effect: bool = False
    writes: bool = False
    frontier: bool = False
    flawed: bool = False
    idempotent: bool = False
    probed: Probed = "never"
    asks: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MatchRule:
    """One rule: where all that it names fits, that is the way; None fits anything.

    Attributes:
        name: of the rule; it says why a call is refused.
        way: see `Way`.
    """

    name: str
    way: Way
    status: Status | Literal["nothing"] | None = None
    live: bool | None = None
    effect: Effect | None = None
    on_miss: OnMiss | Literal["undeclared"] | None = None
    has_effect: bool | None = None
    writes: bool | None = None
    frontier: bool | None = None
    flawed: bool | None = None
    idempotent: bool | None = None
    probed: Probed | None = None
    asks: bool | None = None

    def fits(self, case: MatchCase) -> bool:
        """Whether this row says what becomes of such a call."""
        return all(
            getattr(self, field) in (None, value)
            for field, value in zip(case._fields, case, strict=True)
        )


TABLE: Final = (
    # Nothing is recorded at its place.
    MatchRule(name="new", way="run new", status="nothing", on_miss="live"),
    MatchRule(
        name="new in a live run", way="run new", status="nothing", live=True, on_miss="undeclared"
    ),
    MatchRule(name="missing, as an error", way="refuse", status="nothing", on_miss="error_result"),
    MatchRule(name="missing", way="refuse", status="nothing"),
    # Somebody refused: that is not asked twice. Where nobody is asked any more, it is void.
    MatchRule(name="a no that is void", way="pass over", status="blocked", live=True, asks=False),
    MatchRule(name="blocked", way="refuse", status="blocked"),
    # It never ran, or what runs in it says by itself what became of it.
    MatchRule(name="not started", way="run again", status="not_started", live=True),
    MatchRule(name="a scope", way="run again", status="unknown", live=True, effect="scope"),
    # Whether a write happened is unknown: its tool is asked, and only that clears it.
    MatchRule(name="to be probed", way="probe", status="unknown", live=True, probed="can be"),
    MatchRule(
        name="did not happen",
        way="run again",
        status="unknown",
        live=True,
        probed="did not happen",
    ),
    MatchRule(name="may run twice", way="run again", status="unknown", live=True, idempotent=True),
    MatchRule(name="unknown", way="refuse", status="unknown", live=True),
    # A failure that nothing came after is tried again; any other is given back as it was.
    MatchRule(
        name="a failed write",
        way="run again",
        status="error",
        live=True,
        frontier=True,
        writes=True,
    ),
    MatchRule(name="a failed look", way="pass over", status="error", live=True, frontier=True),
    # It ran, and its value can't come back.
    MatchRule(name="lossy, on its word", way="run again", status="ok", flawed=True, on_miss="live"),
    MatchRule(
        name="lossy, without an effect",
        way="run again",
        status="ok",
        live=True,
        flawed=True,
        has_effect=False,
        on_miss="undeclared",
    ),
    MatchRule(name="lossy", way="refuse", status="ok", flawed=True),
    # All else is given back as it was: a replay offline of an unknown outcome, too.
    MatchRule(name="recorded", way="give back"),
)


@functools.cache
def matched(case: MatchCase) -> MatchRule:
    """The row that says what becomes of a call."""
    return next(row for row in TABLE if row.fits(case))
