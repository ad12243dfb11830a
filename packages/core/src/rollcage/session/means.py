"""What the calls of an open run are made with, in a session or in the undo of a finished run."""

from __future__ import annotations

import dataclasses
from typing import Final

from rollcage.contract.permissions import Enforce
from rollcage.gate import Ask, FacadeGuard, Sealing
from rollcage.session.scope import Lent, Unguarded
from rollcage.step.clock import Clock
from rollcage.step.gating import Gate
from rollcage.step.observing import Instrument, Observer
from rollcage.undo.compensation import KnownTools
from rollcage.values.registered import REGISTERED, Types

__all__ = ["Means"]

_ENFORCED: Final[tuple[Enforce, ...]] = ("off", "report", "strict")  # each stricter than the last


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the calls of a run are made with.

    Attributes:
        gate: decides on each call.
        seal: makes what replaces a secret.
        tools: those that plans can name.
        ask: who is asked if a rule asks; None: nobody.
        actor: who the run acts for; empty: the job's name.
        types: that recorded values come back as.
        facade: what the agent gets of the registry of tools, if that is restricted.
        enforce: what becomes of a body that goes beyond its permissions.
        unguarded: what becomes of a tool that is called past every session; None: the gate says.
        durable: wait for the disk before a write runs, and before its outcome counts.
        observers: are notified of what becomes of each step.
        clock: time and randomness.
        lent: what the session around gives, if there is one.
        session: whose calls they are; None: of the undo of a finished run.
    """

    gate: Gate
    seal: Sealing
    tools: KnownTools
    ask: Ask | None = None
    actor: str = ""
    types: Types = REGISTERED
    facade: FacadeGuard | None = None
    enforce: Enforce = "off"
    unguarded: Unguarded | None = "warn"
    durable: bool = False
    observers: tuple[Observer, ...] = ()
    clock: Clock = Clock()  # noqa: RUF009 - immutable
    lent: Lent | None = None
    session: object = None

    def within(self, lent: Lent | None) -> Means:
        """What they are made with inside of another session: nothing becomes looser by it."""
        if lent is None:
            return self
        return dataclasses.replace(
            self,
            lent=lent,
            types=Types((), self.types, lent.types),
            enforce=max(self.enforce, lent.enforce, key=_ENFORCED.index),
        )

    def notified(self) -> tuple[Observer, ...]:
        """Who is notified of each step: the session's own observers, and those of the one around.

        Instruments that want nothing now are left out.
        """
        around_it = None if self.lent is None else self.lent.driver.observing
        theirs = () if around_it is None else around_it.observers
        both = self.observers + tuple(
            each for each in theirs if not any(each is own for own in self.observers)
        )
        return tuple(each for each in both if not isinstance(each, Instrument) or each.wanted())
