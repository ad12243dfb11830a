"""Warnings about calls that go on."""

from __future__ import annotations

__all__ = [
    "NotReplayableWarning",
    "UnguardedCallWarning",
]


class NotReplayableWarning(RuntimeWarning):
    """A write was performed and recorded, and what it gave can't be given back by a replay.

    Said when the step is recorded; the step's outcome says why (`lossy`), and `rollcage show` too.
    The caller has the result. A later resume halts at that step until somebody says what it gave,
    with `rollcage resolve RUN STEP --happened --result JSON`.

    Attributes:
        tool: the tool's name.
    """

    def __init__(self, message: str, tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


class UnguardedCallWarning(RuntimeWarning):
    """A tool ran outside every session although sessions are open in this process.

    Mostly a thread that does not know its session: start it with `contextvars.copy_context().run`,
    or call through `session.call` or a function that `session.tool` gave back.
    """
