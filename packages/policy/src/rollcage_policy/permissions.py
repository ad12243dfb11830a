"""Hold the bodies of tools to the permissions in their contracts.

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
    """Confine the bodies of tools that declare permissions.

    It stands in `stages=` or in `gate=`; of several, the strictest counts. A tool
    without declared permissions is not confined.

    Args:
        enforce: the treatment of undeclared uses: `"report"`: the
            step lists them (`undeclared`); `"strict"`: they are refused inside of the body, too.

    Raises:
        SessionError: `enforce` is another value.
    """

    def __init__(self, enforce: Literal["report", "strict"] = "strict") -> None:
        if enforce not in ("report", "strict"):
            raise SessionError(f"permissions are enforced as 'report' or 'strict', not {enforce!r}")
        self.enforce: Literal["report", "strict"] = enforce
        self._grants: WeakKeyDictionary[Session, _GrantsOf] = WeakKeyDictionary()

    def concerns(self, contract: Contract) -> bool:
        """Return whether a tool declares permissions."""
        return bool(contract.permissions)

    def describes(self, session: Session) -> Event:  # noqa: ARG002 - the same in every session
        """Return how strictly bodies are confined, for the record."""
        return {"enforce": self.enforce}

    def opened(self, session: Session) -> None:
        """Start listening to bodies; relative paths start at the current directory."""
        grants = functools.lru_cache(maxsize=1024)(
            functools.partial(grants_of, base=str(Path.cwd()))
        )
        self._grants.setdefault(session.outermost, grants)
        for function in BODY_CALLERS:
            calls_body(function)
        install(_watched)

    def inside(self, call: Call) -> AbstractContextManager[object]:
        """Watch a running body: a call's, or one that `replay="verify"` runs again."""
        known: Watch | None = (call.kept or {}).get(_WATCH)
        if known is None or (self.enforce == "strict" and not known.is_strict):
            grants = self._grants_of(call.attempt.session)(tuple(call.contract.permissions))
            call.keep(_WATCH, Watch(call.contract.name, grants, self.enforce))
        return _NOTHING

    def _grants_of(self, session: Session) -> _GrantsOf:
        """Return the grants of a session, or of the outer session whose gate holds for it."""
        while (found := self._grants.get(session)) is None:
            place = session.entered_at
            assert place is not None  # only an enclosing session can have brought this stage
            session = place.session.outermost
        return found

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:  # noqa: ARG002 - what a stage is told
        """Return the undeclared permissions that a body used."""
        watch: Watch | None = None if call is None else (call.kept or {}).get(_WATCH)
        return {"undeclared": watch.found} if step is None and watch and watch.found else None


def _watched() -> Watch | None:
    """Return the watch of the innermost running body in this context, through all sessions."""
    place = here.get()
    while place is not None and place.around is None:
        place = place.session.entered_at
    if place is None or place.around is None:
        return None
    watch: Watch | None = (place.around.kept or {}).get(_WATCH)
    return watch
