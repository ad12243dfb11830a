"""Spans of a finished run, sent to a collector: one of the tests' own, on loopback."""

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rollcage import Session, Store, tool
from rollcage_cli.app import main
from rollcage_otel.export import ExportFailed, export_otlp, spans_of


@tool(name="sent.look", effect="read")
def look(thing: str) -> str:
    return thing


class Collector:
    """Keeps what it is sent, by path."""

    def __init__(self) -> None:
        self.got: list[tuple[str, ExportTraceServiceRequest]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[Any]:
        return [
            span
            for _, request in self.got
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_a_run_is_sent_and_sending_it_again_changes_nothing(
    collector: Collector, store: Store
) -> None:
    with Session("job", store=store) as session:
        look("a")
        look("b")
    lines = store.read(session.run_id)
    assert export_otlp(lines, collector.url) == 4
    once = collector.spans()
    assert {path for path, _ in collector.got} == {"/v1/traces"}
    assert {span.trace_id.hex() for span in once} == {session.run_id.replace("-", "")}
    assert export_otlp(lines, f"{collector.url}/v1/traces") == 4
    assert collector.spans() == once + once
    (resource,) = collector.got[0][1].resource_spans
    assert resource.schema_url == ""
    assert resource.scope_spans[0].schema_url.startswith("https://opentelemetry.io/schemas/gen-ai")


def test_values_are_sent_only_where_that_is_switched_on_and_as_redacted(
    collector: Collector, store: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with Session("job", store=store) as session:
        look("a secret thing")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    command = ["export", session.run_id, "--store", store.url, "--otlp", collector.url]
    assert main(command) == 0
    assert capsys.readouterr().out == f"3 spans sent to {collector.url}\n"
    assert "a secret thing" in str(collector.spans())
    collector.got.clear()
    assert main([*command, "--redact", "thing", "--no-values"]) == 0
    assert "a secret thing" not in str(collector.spans())
    assert "rollcage.step.state" in str(collector.spans())
    collector.got.clear()
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")
    assert main(command) == 0
    assert "a secret thing" not in str(collector.spans())


def test_a_collector_that_refuses_is_named(
    collector: Collector, store: Any, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Session("job", store=store) as session:
        look("a")
    collector.status = 400
    where = ["--store", store.url]
    assert main(["export", session.run_id, *where, "--otlp", collector.url]) == 5
    assert f"{collector.url}/v1/traces did not take the spans" in capsys.readouterr().err
    with pytest.raises(ExportFailed, match="not an address of a collector"):
        export_otlp(store.read(session.run_id), "localhost:4318")


def test_without_the_package_the_command_says_what_to_install(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with Session("job", store=store) as session:
        look("a")
    monkeypatch.setitem(sys.modules, "rollcage_otel.export", None)
    where = ["--store", store.url]
    assert main(["export", session.run_id, *where, "--otlp", "http://127.0.0.1:1"]) == 2
    assert "pip install 'rollcage-otel[export]'" in capsys.readouterr().err


def test_whatever_is_current_is_not_around_the_exported_run(store: Store) -> None:
    with Session("job", store=store) as session:
        look("a")
        inside: list[Any] = spans_of(store.read(session.run_id))
    again: list[Any] = spans_of(store.read(session.run_id))
    assert [each.context.span_id for each in inside] == [each.context.span_id for each in again]
    assert again[-1].parent is None
