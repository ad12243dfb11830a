"""Spans from a finished trace: `rollcage export --otlp`."""

from __future__ import annotations

import contextvars
import dataclasses
import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from rollcage import RunEvent, StepEvent, recorded_events
from rollcage.errors import RollcageError

from rollcage_otel import ids
from rollcage_otel.spans import Spans

__all__ = ["ExportFailed", "RunIds", "export_otlp", "spans_of"]

_BATCH: Final = 512  # spans in one request


class ExportFailed(RollcageError):
    """The collector did not accept the spans."""

    code = "export_failed"


class RunIds(RandomIdGenerator, ids.NamesSpans):
    """Gives the spans of runs the same ids as their export: `TracerProvider(id_generator=…)`.

    The trace of a run that is not inside of another trace then has the run's own id, and exporting
    it afterwards adds only lost spans. Other spans get random ids.
    """

    def generate_span_id(self) -> int:
        """See `IdGenerator`."""
        wanted = ids.wanted.get()
        return super().generate_span_id() if wanted is None else wanted[1]

    def generate_trace_id(self) -> int:
        """See `IdGenerator`."""
        wanted = ids.wanted.get()
        return super().generate_trace_id() if wanted is None else wanted[0]


class _Kept(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def spans_of(lines: Sequence[bytes], *, content: bool | None = None) -> list[ReadableSpan]:
    """Return the spans of a recorded run, the same each time.

    Without an end, the run's spans go up to its last line.

    Args:
        lines: all lines of its log, `Store.read(run)`.
        content: see `Spans`.

    Raises:
        TraceCorrupt: a line breaks the chain or the schema.
    """
    kept, service = _Kept(), os.environ.get("OTEL_SERVICE_NAME", "rollcage")
    provider = TracerProvider(
        ALWAYS_ON, Resource.create({SERVICE_NAME: service}), id_generator=RunIds(),
        shutdown_on_exit=False,
    )  # fmt: skip
    provider.add_span_processor(kept)
    spans = Spans(provider, NoOpMeterProvider(), content=content)

    def follow() -> None:
        ended: RunEvent | None = None
        for event in recorded_events(lines):
            if isinstance(event, StepEvent):
                spans(event)
                if ended is not None and ended.status == "unfinished":
                    ended = dataclasses.replace(ended, time=event.time)
            elif event.what == "opened":  # without an end, it is live or was cut off
                if ended is not None:
                    spans.closed(ended, last=False)
                spans.opened(event)
                ended = dataclasses.replace(event, what="closed", status="unfinished")
            else:
                ended = event
        if ended is not None:
            spans.closed(ended, last=True)

    contextvars.Context().run(follow)  # the current span here is not around the run
    return kept.spans


def export_otlp(lines: Sequence[bytes], url: str, *, content: bool | None = None) -> int:
    """Send the spans of a recorded run to a collector, by OTLP over HTTP; return their number.

    Args:
        lines: see `spans_of`.
        url: the URL of the collector; without a path, `/v1/traces` is added.
        content: see `Spans`.

    Raises:
        ExportFailed: the collector can't be reached, or did not accept them.
        TraceCorrupt: a line breaks the chain or the schema.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ExportFailed(f"{url!r} is not an address of a collector: http://HOST:4318, say")
    endpoint = url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces"
    spans = spans_of(lines, content=content)
    exporter = OTLPSpanExporter(endpoint, timeout=10)
    try:
        for start in range(0, len(spans), _BATCH):
            if exporter.export(spans[start : start + _BATCH]) is not SpanExportResult.SUCCESS:
                raise ExportFailed(
                    f"{endpoint} did not take the spans (the log says why); send them again when "
                    f"it does: no span will be there twice"
                )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK says nothing of it
    return len(spans)
