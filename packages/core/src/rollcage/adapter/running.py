"""What is around a place in a framework: a session, and which bodies of one guarded object.

By the latter, what an object does to itself is no new step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NoReturn

from rollcage.errors import Blocked
from rollcage.session.current import step_here
from rollcage.session.declare import open_sessions
from rollcage.session.scope import Enclosing, here
from rollcage.session.session import Session

__all__ = ["Running", "refuse_bare", "refuses_unguarded", "session_here"]

_NOT_RUNNING: Final = object()


def session_here() -> Session | None:
    """The session that is open around this context; None outside of one."""
    scope = here()
    return None if scope is None else _session_of(scope.calls)


def refuses_unguarded() -> Session | None:
    """The session that lets no tool run unguarded in this context; None where one may.

    It is one around this context, or, in a thread or task that knows no session, any that is open.
    What the body of a guarded tool does is its own doing, unless that acts through guarded calls
    only (`effect="scope"`: an agent as a tool).
    """
    scope = here()
    sessions: list[Enclosing] = []
    if scope is None:
        sessions = list(open_sessions.values())
    elif scope.step is not None and scope.step.call.contract.effect != "scope":
        return None
    while scope is not None:
        sessions.append(scope.calls)
        scope = scope.calls.nesting.outer
    found = next((each for each in sessions if each.unguarded == "refuse"), None)
    return None if found is None else _session_of(found)


def _session_of(calls: Enclosing) -> Session | None:
    return calls.session if isinstance(calls.session, Session) else None


def refuse_bare(session: Session, tool: str, arguments: Mapping[str, Any], reason: str) -> NoReturn:
    """Put the call of a tool that nobody guards on record, and refuse it.

    Raises:
        Blocked: it does not run.
    """
    session.refused(tool, arguments, reason=reason, code="unguarded")
    raise Blocked(reason, rule="", code="unguarded")


class Running:
    """The bodies of one guarded tool or model that are running now.

    A body that calls another of its own (an async one its sync twin, say) is one step, not two.

    Args:
        around: gives an object that the framework sets anew for each call, so that a body which
            calls its tool anew through the framework (an agent as a tool, say) is not taken for one
            that goes on; without it, whatever a body does to its own tool belongs to its step.
    """

    def __init__(self, around: Callable[[], Any] = lambda: None) -> None:
        self._around = around
        self._bodies: dict[tuple[str, int], Any] = {}

    @property
    def here(self) -> bool:
        """Whether the caller is such a body."""
        step = step_here()
        if step is None:
            return False
        return self._bodies.get(step, _NOT_RUNNING) is self._around()

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        """Around a body, inside of its step."""
        step = step_here()
        assert step is not None
        self._bodies[step] = self._around()
        try:
            yield
        finally:
            self._bodies.pop(step, None)
