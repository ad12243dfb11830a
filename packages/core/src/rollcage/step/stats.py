"""What a session has done so far, in figures."""

from __future__ import annotations

import dataclasses

__all__ = ["Stats"]


@dataclasses.dataclass(slots=True)
class Stats:
    """What a session has done so far.

    Attributes:
        calls: how many calls it placed.
        hits: how many were answered from the recording.
        seen: recorded steps that nobody asked for, because a framework's own memory holds them.
        misses: how many ran.
        blocked: how many a rule refused.
        refused: how many never became a step: their arguments do not pass, or there is no such
            tool.
        errors: how many ended with an exception, live or replayed.
        orphans: recorded effects that were left behind.
        drifted: hits whose fresh execution differed (`verify`).
        seconds_saved: what the hits took when they ran.
        tokens_saved: what the replayed model calls had used.
    """

    calls: int = 0
    hits: int = 0
    seen: int = 0
    misses: int = 0
    blocked: int = 0
    refused: int = 0
    errors: int = 0
    orphans: int = 0
    drifted: int = 0
    seconds_saved: float = 0.0
    tokens_saved: int = 0
