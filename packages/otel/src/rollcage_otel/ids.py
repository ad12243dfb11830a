"""The ids of spans that follow from the run: in an export, and in links.

A trace is a run, and the span of a step is named by the run and the step's number: so a hit, which
names the step that ran, links to that step's span without reading the other trace.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final
from uuid import UUID

from opentelemetry.trace import Link, SpanContext, TraceFlags

__all__ = [
    "NamesSpans",
    "began",
    "context_of",
    "link_to",
    "span_id",
    "trace_id",
    "wanted",
    "wanting",
]


class NamesSpans:
    """Marks a generator of ids that gives the spans of runs the `wanted` ids."""


wanted: Final[contextvars.ContextVar[tuple[int, int] | None]] = contextvars.ContextVar(
    "rollcage_otel_ids", default=None
)
"""The ids of the span that is being started, for `RunIds`."""


def trace_id(run: str) -> int:
    """Return the trace id of a run: its own id."""
    return UUID(run).int


def span_id(run: str, *what: object) -> int:
    """Return the span id of a run, or of one of its steps, approvals or undos."""
    named = "|".join(map(str, ("rollcage span", run, *what)))
    return int.from_bytes(sha256(named.encode()).digest()[:8], "big") or 1


@contextmanager
def wanting(run: str, *what: object) -> Iterator[None]:
    """Give the span that is started in the block the ids of a run, or of something in it."""
    token = wanted.set((trace_id(run), span_id(run, *what)))
    try:
        yield
    finally:
        wanted.reset(token)


def began(run: str) -> int:
    """Return when a run began, from its id (Unix, µs)."""
    return (UUID(run).int >> 80) * 1000


def context_of(run: str, step: int | None = None) -> SpanContext:
    """Return the span context of a run, or of one of its steps."""
    span = span_id(run) if step is None else span_id(run, step)
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id(run), span, is_remote=True, trace_flags=sampled)


def link_to(run: str, step: int | None = None) -> Link:
    """Return a link to a step of a run, or to the run."""
    return Link(context_of(run, step))
