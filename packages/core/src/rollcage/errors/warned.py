"""Warnings about calls that run all the same."""

from __future__ import annotations

__all__ = [
    "NotReplayableWarning",
    "UnguardedCallWarning",
]


class NotReplayableWarning(RuntimeWarning):
    """A write was performed and recorded, but a replay can't return its result.

    Issued when the step is recorded; the step's outcome says why (`lossy`), and so does `rollcage
    show`. The caller has the result. A later resume halts at that step until somebody supplies the
    result with `rollcage resolve RUN STEP --happened --result JSON`.

    Attributes:
        tool: the tool's name.
    """

    def __init__(self, message: str, tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


class UnguardedCallWarning(RuntimeWarning):
    """A tool ran outside every session although sessions are open in this process.

    Usually in a thread that does not know its session: start it with
    `contextvars.copy_context().run`, or call the tool through `session.call` or the function that
    `session.tool` returned.
    """
