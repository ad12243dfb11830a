"""A call that a framework is about to make, and whether it reaches a session."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any, Final

from rollcage import Contract, Session

__all__ = ["Asked", "asking", "reach", "refuse"]


@dataclasses.dataclass(slots=True, eq=False)
class Asked:
    """A call that a framework is about to make.

    Attributes:
        raw: the model's own arguments, before the framework's validation.
        reached: whether the call has reached a session, to be made or to be recorded as refused.
            Otherwise the framework refused the call: `refuse` records it.
    """

    raw: Mapping[str, Any] | None = None
    reached: bool = False


_asked: Final[ContextVar[Asked | None]] = ContextVar("rollcage_adapter.asked", default=None)


@contextlib.contextmanager
def asking(raw: Mapping[str, Any] | None = None) -> Generator[Asked]:
    """Watch whether the framework's call in this block reaches a session.

    Args:
        raw: the model's own arguments, if the framework validates them itself.
    """
    call = Asked(raw)
    token = _asked.set(call)
    try:
        yield call
    finally:
        with contextlib.suppress(ValueError):  # a stream that is closed in another context
            _asked.reset(token)


def reach() -> Mapping[str, Any] | None:
    """Note that the current call reached a session; return its raw arguments, once."""
    call = _asked.get()
    if call is None or call.reached:
        return None
    call.reached = True
    return call.raw


def refuse(
    session: Session,
    tool: Contract | str,
    arguments: Mapping[str, Any],
    *,
    reason: str = "",
    code: str = "",
    call_id: str = "",
) -> None:
    """Record a call that the framework refused, or whose tool it does not have.

    It is `Session.refused`, and the call counts as seen by the session.
    """
    reach()
    session.refused(tool, arguments, reason=reason, code=code, call_id=call_id)
