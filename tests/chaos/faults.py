"""What goes wrong: errors that come before, in the middle of or behind an effect; and a ledger of
the bodies that ran, which knows nothing of the trace.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal

import sqlalchemy as sa
import sqlalchemy.event
from rollcage import current_step
from rollcage.contract.contract import attach_body

from tests.chaos import service
from tests.chaos.place import Place

When = Literal["agent", "before", "middle", "behind"]

_FILES: Final = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "open")
_BEGIN, _END = "begin", "end"


class Injected(Exception):
    """An error that was planned."""


@dataclasses.dataclass
class Fault:
    """An error that is to come at one call.

    Attributes:
        at: the number of the call, from 0; `agent`: right before it, out of the agent's own code.
        when: `middle`: at the `depth`-th thing that its body does to files or rows, or on the wire.
        error: `TimeoutError` and `ConnectionResetError` leave the outcome open.
    """

    at: int
    when: When
    error: type[Exception]
    depth: int
    wire: str  # how the service fails, in the middle of a post
    came: bool = False

    def leaves_unknown(self, *, posts: bool) -> bool | None:
        """Whether nobody can tell behind it what was done; None: as the tool, or the wire, has it.

        Args:
            posts: the call goes to the service.
        """
        if self.when == "agent":
            return False
        unknown = self.error in (TimeoutError, ConnectionResetError)
        return None if self.when == "middle" and (posts or unknown) else unknown

    def come(self) -> None:
        """Be raised."""
        self.came = True
        raise self.error("planned")


now: ContextVar[int] = ContextVar("now", default=-1)
"""The number of the planned call that is being made; compensating calls have none."""

_middle: ContextVar[list[Any] | None] = ContextVar("_middle", default=None)  # fault, steps to go


def _step(*_: object) -> None:
    """Something is about to be done to files or rows: inside of a body it may fail here."""
    armed = _middle.get()
    if armed is None:
        return
    fault, left = armed
    armed[1] = left - 1
    if left == 0:
        _middle.set(None)
        fault.come()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _middle.get() is not None and event in _FILES:
        flags = arguments[2] if event == "open" and len(arguments) > 2 else os.O_WRONLY
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            _step()


@functools.cache
def watch() -> None:
    """Let faults come in the middle of effects; once in a process."""
    sys.addaudithook(_watch)
    sqlalchemy.event.listen(sa.Engine, "before_cursor_execute", _step)
    sqlalchemy.event.listen(sa.Engine, "commit", _step)


class Ledger:
    """A file that gets a line before and behind each body: run, step, key, tool, what.

    Each line is one `write` to a file that is open for appending: it stands whatever is killed.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)

    def instrument(self, tool: Any, place: Place, fault: Fault | None) -> None:
        """Put lines, and a fault, around the body of a tool."""
        body: Callable[..., Any] = tool.__wrapped__
        name: str = tool.__rollcage_contract__.name

        @functools.wraps(body)
        def noted(**arguments: Any) -> Any:
            step = current_step()
            assert step is not None
            line = f"{step.run} {step.number} {step.idempotency_key} {name}"
            os.write(self._fd, f"{line} {_BEGIN}\n".encode())

            def made() -> Any:
                result = body(**arguments)
                os.write(self._fd, f"{line} {_END}\n".encode())
                return result

            if fault is None or fault.at != now.get():
                return made()
            return _failing(fault, place, made, posts="url" in arguments)

        tool.__dict__["__wrapped__"] = noted
        attach_body(tool, noted)


def _failing(fault: Fault, place: Place, made: Callable[[], Any], *, posts: bool) -> Any:
    if fault.when == "before":
        fault.come()
    if fault.when == "middle" and posts:
        service.arm(place.port, place.namespace, fault.wire)
        fault.came = True
        return made()
    if fault.when == "middle":
        token = _middle.set([fault, fault.depth])
        try:
            made()
        finally:
            _middle.reset(token)
    else:
        made()
    return fault.come()


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the ledger."""

    run: str
    step: int
    key: str
    tool: str
    began: bool


def lines_of(ledger: Path) -> list[Line]:
    """What a ledger tells, in order."""
    if not ledger.exists():
        return []
    found: list[Line] = []
    for line in ledger.read_text().splitlines():
        run, step, key, tool, what = line.split()
        found.append(Line(run, int(step), key, tool, what == _BEGIN))
    return found
