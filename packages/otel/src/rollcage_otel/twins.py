"""The watcher of foreign spans, if there is an SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rollcage_otel import names

__all__ = ["Twins"]


class Twins(SpanProcessor):
    """Reports each foreign span that ends: the id of its parent, and the span."""

    def __init__(self, tell: Callable[[int, Mapping[str, Any]], object]) -> None:
        self._tell = tell

    def on_end(self, span: ReadableSpan) -> None:
        """See the class."""
        scope = span.instrumentation_scope
        ours = scope is not None and scope.name == names.SCOPE
        if span.parent is not None and span.attributes and not ours:
            self._tell(span.parent.span_id, span.attributes)
