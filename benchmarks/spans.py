"""Measure what spans add to a recorded write.

    python -m benchmarks.spans [--json] [--quick]

The same write in sessions of one process, in turn, best of several rounds (µs of CPU): without
observers; with an empty list of them, and again without, which is the noise; with spans and metrics
of the OpenTelemetry API alone; with an SDK that drops its spans; and with an SDK that keeps them
for a batch. `ratio` is to the session without observers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rollcage import Observer, Session
from rollcage_otel import Spans

from benchmarks.ours import write_mail
from benchmarks.timing import cpu_per_call

ROUNDS = 7
CALLS = 2_000


def api_alone() -> Iterable[Observer]:
    """Return observers that make spans without an SDK."""
    return [Spans()]


def dropping() -> Iterable[Observer]:
    """Return observers with an SDK without a processor."""
    return [Spans(TracerProvider(shutdown_on_exit=False))]


def batching() -> Iterable[Observer]:
    """Return observers with an SDK with a batch, whose exporter keeps the spans."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return [Spans(provider)]


CASES: dict[str, Callable[[], Iterable[Observer]]] = {
    "no observers": tuple,
    "an empty list": list,
    "no observers, again": tuple,
    "the API alone": api_alone,
    "an SDK that drops": dropping,
    "an SDK with a batch": batching,
}


def measured(observers: Iterable[Observer], calls: int) -> float:
    """Return the CPU of a recorded write (µs)."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Session("bench", store=Path(folder), replay="off", observers=observers),
    ):
        return cpu_per_call(lambda arguments: write_mail(**arguments), calls)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spans", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one short round")
    asked = parser.parse_args()
    rounds, calls = (1, 200) if asked.quick else (ROUNDS, CALLS)
    found: dict[str, float] = {}
    for _ in range(rounds):
        for name, observers in CASES.items():
            took = measured(observers(), calls)
            found[name] = min(took, found.get(name, took))
    least = found["no observers"]
    rows = {name: {"cpu_us": round(took, 1), "ratio": round(took / least, 2)}
            for name, took in found.items()}  # fmt: skip
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        print(f"{name:<22}{row['cpu_us']:>8,.1f} µs{row['ratio']:>8.2f}")


if __name__ == "__main__":
    main()
