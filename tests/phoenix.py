"""Check what a real Phoenix shows of runs, sent live and exported: `nox -s phoenix`.

    python -m tests.phoenix PHOENIX

`PHOENIX` is its command, in an environment of its own. It serves on loopback, from a new folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from rollcage import Blocked, Session, StepView, Verdict, compensate, open_store, tool
from rollcage_adapter import Answer, model_contract
from rollcage_otel import Spans
from rollcage_otel.export import RunIds, export_otlp

PATIENCE = 240  # seconds until it serves; its first start compiles all of it


@tool(effect="read")
def look_up(city: str) -> str:
    if city == "Atlantis":
        raise LookupError(city)
    return f"the news from {city}"


@tool(effect="write")
def unsend(text: str) -> None: ...


@tool(effect="write", undo=lambda args: [compensate("unsend", text=args["text"])])
def send(text: str) -> str:
    return "sent"


@tool(effect="scope")
def delegate(city: str) -> str:
    return look_up(city)


def no_wiping(step: StepView) -> Verdict | None:
    return Verdict.deny("not that", code="no") if step.name == "unsend" else None


def job(session: Session) -> None:
    session.run_call(
        model_contract("gpt", "test"),
        {"messages": [{"role": "user", "content": "Send me the news."}]},
        lambda **_: "I will.",
        kind="model",
        answer=lambda text: Answer(text=text, usage={"input_tokens": 12, "output_tokens": 5}),
    )
    send(delegate("Lima"))
    with contextlib.suppress(LookupError):
        look_up("Atlantis")
    with contextlib.suppress(Blocked):
        unsend("all")


@contextlib.contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """Serve Phoenix until the block ends; yields its address."""
    ports = [free_port(), free_port()]
    env = {
        **os.environ,
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(ports[0]),
        "PHOENIX_GRPC_PORT": str(ports[1]),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url, began = f"http://127.0.0.1:{ports[0]}", time.monotonic()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([command, "serve"], env=env, stdout=log, stderr=log)
    try:
        while not answers(f"{url}/healthz"):
            if process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"Phoenix does not serve:\n{(folder / 'log').read_text()}")
            time.sleep(0.5)
        print(f"Phoenix serves after {time.monotonic() - began:.0f} s")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - of loopback
            return bool(response.status == 200)
    except OSError:
        return False


Shown = dict[str, dict[str, Any]]  # spans by their ids


def shown(url: str, run: str, count: int) -> Shown:
    """Return the spans of a run from Phoenix's API, once it has `count` of them.

    Phoenix takes them in a moment after it has answered.
    """
    until, found = time.monotonic() + 60, list[Any]()
    while len(found) < count and time.monotonic() < until:
        time.sleep(0.5)
        with contextlib.suppress(urllib.error.HTTPError):  # no project before its first span
            page = f"{url}/v1/projects/default/spans?limit=1000"
            with urllib.request.urlopen(page, timeout=10) as response:  # noqa: S310 - of loopback
                every = json.load(response)["data"]
            found = [e for e in every if e["context"]["trace_id"] == run.replace("-", "")]
    by_id = {each["context"]["span_id"]: each for each in found}
    assert len(by_id) == len(found) == count, sorted(each["name"] for each in found)
    return by_id


def check(spans: Shown, *failed: str) -> None:
    """Check that Phoenix recognises runs, agents, tools and models, with their data."""
    tree = sorted(
        (span["name"], span["span_kind"], spans.get(span["parent_id"], {}).get("name"))
        for span in spans.values()
    )
    run = "invoke_agent newsletter"
    assert tree == [
        ("chat gpt", "LLM", run),
        ("execute_tool look_up", "TOOL", "invoke_agent delegate"),
        ("execute_tool look_up", "TOOL", run),
        ("execute_tool send", "TOOL", run),
        ("execute_tool unsend", "TOOL", run),
        ("invoke_agent delegate", "AGENT", run),
        (run, "AGENT", "run newsletter"),
        ("run newsletter", "UNKNOWN", None),
    ], tree
    said = {span["name"]: span["attributes"] for span in spans.values()}
    model = said["chat gpt"]
    assert model["llm.model_name"] == "gpt"
    assert (model["llm.token_count.prompt"], model["llm.token_count.completion"]) == (12, 5)
    assert said["execute_tool send"]["tool.name"] == "send"
    assert said["execute_tool send"]["rollcage.step.state"] == "ran"
    assert said["execute_tool unsend"]["error.type"] == "no"
    errors = sorted(span["name"] for span in spans.values() if span["status_code"] == "ERROR")
    assert errors == ["execute_tool look_up", "execute_tool unsend", *failed]


def main() -> None:
    with tempfile.TemporaryDirectory() as there, serving(sys.argv[1], Path(there)) as url:
        store = open_store(Path(there) / "store")
        provider = TracerProvider(id_generator=RunIds(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        options: Any = {"store": store, "gate": [no_wiping]}
        with Session("newsletter", observers=[Spans(provider)], **options) as live:
            job(live)
        provider.force_flush()
        check(sent := shown(url, live.run_id, 8))
        print("live: Phoenix shows the run")
        with contextlib.suppress(KeyError), Session("newsletter", **options) as crashed:
            job(crashed)
            raise KeyError
        for _ in range(2):
            export_otlp(store.read(crashed.run_id), url)
            export_otlp(store.read(live.run_id), url)
        check(shown(url, crashed.run_id, 8), "invoke_agent newsletter", "run newsletter")
        time.sleep(3)  # a span taken twice would show by then
        assert shown(url, live.run_id, 8) == sent
        print("exported: Phoenix shows the run; sent again, nothing changes")
        provider.shutdown()


if __name__ == "__main__":
    main()
