"""The metrics of runs."""

from __future__ import annotations

from typing import Final

from opentelemetry import metrics
from rollcage import StepEvent

from rollcage_otel import names

__all__ = ["Metrics", "is_sdk"]

_API: Final = ("opentelemetry.trace", "opentelemetry.metrics")


def is_sdk(provider: object) -> bool:
    """Return whether a provider keeps anything: the API's own placeholders don't."""
    return not type(provider).__module__.startswith(_API)


class Metrics:
    """The instruments. A hit counts as a step and as savings, without usage."""

    def __init__(self, provider: metrics.MeterProvider | None, version: str) -> None:
        self._provider = provider
        meter = metrics.get_meter(names.SCOPE, version, provider, schema_url=names.SCHEMA_URL)
        count, measure = meter.create_counter, meter.create_histogram
        self._steps = count(names.STEPS, "{step}", "Steps, by outcome.")
        self._undone = count(
            names.UNDONE_STEPS, "{step}", "Undone steps, by the outcome of the undo."
        )
        self._tokens = count(names.TOKENS_SAVED, "{token}", "Tokens that replay saved.")
        self._seconds = count(names.SECONDS_SAVED, "s", "Time of bodies that replay saved.")
        self._duration = measure(names.TOOL_DURATION, "s", "Duration of a tool's body.")
        self._wait = measure(names.APPROVAL_WAIT, "s", "Time until an approval was decided.")

    def wanted(self) -> bool:
        """Whether a metrics SDK is set up."""
        return is_sdk(self._provider or metrics.get_meter_provider())

    def step(self, event: StepEvent, state: str) -> None:
        """Count a step in a state."""
        kind, effect = event.kind, event.effect
        self._steps.add(1, {names.STATE: state, names.KIND: kind, names.EFFECT: effect})
        if event.what == "replayed":
            self._tokens.add(sum((event.usage or {}).values()))
            self._seconds.add((event.duration or 0) / 1e6)
        elif kind == "tool" and event.duration is not None and not event.simulated:
            failed = {} if event.status == "ok" else {names.ERROR_TYPE: "_OTHER"}
            self._duration.record(event.duration / 1e6, {names.TOOL_NAME: event.name, **failed})

    def waited(self, event: StepEvent, seconds: float) -> None:
        """Record the time until an approval was decided."""
        state = "rejected" if event.what == "blocked" else "approved"
        self._wait.record(seconds, {names.TOOL_NAME: event.name, names.STATE: state})

    def undone(self, event: StepEvent) -> None:
        """Count the end of a step's undo."""
        self._undone.add(1, {names.UNDO_STATUS: event.status})
