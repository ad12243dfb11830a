"""Bodies of tools are held to the permissions that their contracts declare.

Defence in depth, not a sandbox: see `watch`, which listens to Python's audit events.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

from rollcage import Session, Stage
from rollcage.errors import SessionError
from rollcage.replay.call import Call, here
from rollcage.session.session import BODY_CALLERS

from rollcage_policy.grants import grants_of
from rollcage_policy.watch import Watch, calls_body, install

if TYPE_CHECKING:
    from rollcage import Contract
    from rollcage.trace.run import Event, Outcome, Step

    from rollcage_policy.grants import Grants

__all__ = ["Permissions"]

_WATCH = "watch of its permissions"
_NOTHING: Final = nullcontext()
_GrantsOf = Callable[[tuple[str, ...]], "Grants"]


class Permissions(Stage):
    """Confines the bodies of tools that declare permissions to them.

    It stands in `stages=` or in `gate=`; of several that are there, the strictest counts. A tool
    that declares none is not confined.

    Args:
        enforce: what becomes of a body that does what its tool does not declare: `"report"`: its
            step says so (`undeclared`); `"strict"`: it is refused inside of the body, too.

    Raises:
        SessionError: it is neither.
    """

    def __init__(self, enforce: Literal["report", "strict"] = "strict") -> None:
        if enforce not in ("report", "strict"):
            raise SessionError(f"permissions are enforced as 'report' or 'strict', not {enforce!r}")
        self.enforce: Literal["report", "strict"] = enforce
        self._grants: WeakKeyDictionary[Session, _GrantsOf] = WeakKeyDictionary()

    def concerns(self, contract: Contract) -> bool:
        """Whether a tool declares permissions."""
        return bool(contract.permissions)

    def describes(self, session: Session) -> Event:  # noqa: ARG002 - the same in every session
        """Return how strictly bodies are confined, for the record."""
        return {"enforce": self.enforce}

    def opened(self, session: Session) -> None:
        """Listen to what bodies do, from now on; relative paths start where the process is now."""
        grants = functools.lru_cache(maxsize=1024)(
            functools.partial(grants_of, base=str(Path.cwd()))
        )
        self._grants.setdefault(session.outermost, grants)
        for function in BODY_CALLERS:
            calls_body(function)
        install(_watched)

    def inside(self, call: Call) -> AbstractContextManager[object]:
        """Watch a body that runs: a call's, or one that `replay="verify"` runs again."""
        known: Watch | None = (call.kept or {}).get(_WATCH)
        if known is None or (self.enforce == "strict" and not known.is_strict):
            grants = self._grants_of(call.attempt.session)(tuple(call.contract.permissions))
            call.keep(_WATCH, Watch(call.contract.name, grants, self.enforce))
        return _NOTHING

    def _grants_of(self, session: Session) -> _GrantsOf:
        """Return what permissions cover in a session, or in the one whose gate it is held to."""
        while (found := self._grants.get(session)) is None:
            place = session.entered_at
            assert place is not None  # only a session around it can have brought this
            session = place.session.outermost
        return found

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:  # noqa: ARG002 - what a stage is told
        """Return what a body did that its tool does not declare."""
        watch: Watch | None = None if call is None else (call.kept or {}).get(_WATCH)
        return {"undeclared": watch.found} if step is None and watch and watch.found else None


def _watched() -> Watch | None:
    """Return the watch of the innermost body that runs in this context, through all sessions."""
    place = here.get()
    while place is not None and place.around is None:
        place = place.session.entered_at
    if place is None or place.around is None:
        return None
    watch: Watch | None = (place.around.kept or {}).get(_WATCH)
    return watch
