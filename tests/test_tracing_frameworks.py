"""Frameworks that make spans of their own calls: each call has one span, with our attributes."""

from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rollcage import Session
from rollcage_autogen import guard_tools
from rollcage_otel import Spans


def weather(city: str) -> str:
    return f"sunny in {city}"


async def test_autogen_tools_have_one_span_when_replayed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: provider.get_tracer(name))
    store = tmp_path / "store"
    for replay in ("off", "offline"):
        options: Any = {"store": store, "replay": replay, "observers": [Spans(provider)]}
        async with Session("job", **options) as session:
            (tool,) = guard_tools([FunctionTool(weather, description="The weather.")], session)
            given = await tool.run_json({"city": "Lima"}, CancellationToken(), call_id="c1")
            assert given == "sunny in Lima"
    spans = exporter.get_finished_spans()
    assert [each.name for each in spans] == ["execute_tool weather", "invoke_agent job"] * 2
    scopes = [each.instrumentation_scope.name for each in spans if each.instrumentation_scope]
    assert scopes == ["autogen-core", "rollcage_otel"] * 2
    said: list[dict[str, Any]] = [
        {**(each.attributes or {})} for each in spans if each.name == "execute_tool weather"
    ]
    assert [each["rollcage.step.state"] for each in said] == ["ran", "hit"]
    assert {each["gen_ai.tool.call.id"] for each in said} == {"c1"}
