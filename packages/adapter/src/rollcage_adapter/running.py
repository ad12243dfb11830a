"""The surroundings of a place in a framework: a session, and an object's running bodies.

Running bodies tell that an object's call of itself is no new step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NoReturn

from rollcage import Session
from rollcage.errors import Blocked
from rollcage.session.adapters import Call, here, open_sessions

from rollcage_adapter.asking import refuse

__all__ = [
    "Running", "call_id_here", "refuse_bare", "refuses_unguarded", "session_here", "step_here",
]  # fmt: skip

_NOT_RUNNING: Final = object()


def session_here() -> Session | None:
    """Return the session that is open around this context; None outside of one."""
    place = here.get()
    return None if place is None or place.attempt.closed else place.session


def step_here() -> tuple[str, int] | None:
    """Return run and number of the step whose body runs in this context; None outside of one."""
    place = here.get()
    if place is None or place.around is None or place.looks:
        return None
    return place.attempt.run.id, place.around.event["step"]


def _call_around() -> Call | None:
    """Return the call whose body runs in this context; None outside of one."""
    place = here.get()
    return None if place is None else place.around


def call_id_here() -> str:
    """Return the framework's id of the call that is placed here (see `Session.place`), or ""."""
    place = here.get()
    return "" if place is None else place.call_id


def refuses_unguarded() -> Session | None:
    """Return the session that refuses unguarded tools in this context, or None.

    The session stands around this context, or, in a thread or task without a session, is any open
    one. Calls in the body of a guarded tool are the tool's own, unless it acts only through guarded
    calls (`effect="scope"`: an agent as a tool).
    """
    place = here.get()
    sessions: list[Session] = []
    if place is None or place.attempt.closed:
        sessions = list(open_sessions)
    elif place.around is None or place.around.contract.effect == "scope":
        session: Session | None = place.session
        while session is not None:
            sessions.append(session)
            session = session.around
    return next((each for each in sessions if each.refuses_unguarded), None)


def refuse_bare(session: Session, tool: str, arguments: Mapping[str, Any], reason: str) -> NoReturn:
    """Record the call of an unguarded tool, and refuse it.

    Raises:
        Blocked: the call does not run.
    """
    refuse(session, tool, arguments, reason=reason, code="unguarded")
    raise Blocked(reason, rule="", code="unguarded")


class Running:
    """The bodies of one guarded tool or model that are running now.

    A body that calls another of its own (such as an async one its sync twin) is one step, not two.

    Args:
        around: returns an object that the framework sets anew for each call, so that a body which
            calls its tool again through the framework (such as an agent as a tool) makes a new
            call;
            without it, every call of a body to its own tool belongs to its step.
    """

    def __init__(self, around: Callable[[], Any] = lambda: None) -> None:
        self._around = around
        self._bodies: dict[Call, Any] = {}

    @property
    def here(self) -> bool:
        """Return whether the caller is such a body."""
        call = _call_around()
        if call is None:
            return False
        return self._bodies.get(call, _NOT_RUNNING) is self._around()

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        """Mark a body as running, inside of its call."""
        call = _call_around()
        assert call is not None
        self._bodies[call] = self._around()
        try:
            yield
        finally:
            self._bodies.pop(call, None)
