"""A tracer whose spans are kept, and a store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures import every_trace_is_valid  # noqa: F401 - pytest finds it here
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rollcage import Store, open_store
from rollcage_otel import Spans
from rollcage_otel.export import RunIds


class Kept:
    """A tracer provider, the spans that it was given, and our instrument on it."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, id_generator=RunIds())
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = Spans(self.provider, **options)
        self.tracer = self.provider.get_tracer("of a test")

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (found,) = [each for each in self.ended if each.name == name]
        return found

    def tree(self) -> Any:
        return tree(self.ended)


def tree(spans: Any) -> Any:
    """The names of spans as a tree, in the order of their beginnings."""
    ids = {each.context.span_id for each in spans}

    def below(parent: int | None) -> list[Any]:
        found = []
        for each in sorted(spans, key=lambda one: one.start_time):
            above = None if each.parent is None else each.parent.span_id
            if above == parent or (parent is None and above not in ids):
                inside = below(each.context.span_id)
                found.append({each.name: inside} if inside else each.name)
        return found

    return below(None)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def keeping() -> Callable[..., Kept]:
    return Kept


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")
