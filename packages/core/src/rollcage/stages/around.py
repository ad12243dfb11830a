"""A session that is entered inside of another one, and has a run of its own, is halted with it.

A session that is a branch of the run around it needs none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcage.calls.stage import Stage, Work
from rollcage.errors import SessionHalted

if TYPE_CHECKING:
    from rollcage.replay.call import Call, Match
    from rollcage.session.session import Session

__all__ = ["Around"]


class Around(Stage):
    """Lets nothing run in a session once one around it was halted.

    Args:
        around: the session in which it is entered.
    """

    def __init__(self, around: Session) -> None:
        self._around = around

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Refuse a call whose body would run."""
        session: Session | None = self._around
        while match.kind != "hit" and session is not None:
            halted = session.halted
            if halted is not None and not call.attempt.run.is_undoing(call.place.branch):
                raise SessionHalted(f"the session around this one was halted: {halted}") from halted
            session = session.around
        return None
