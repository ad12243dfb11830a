"""Spans of runs, steps, waits for approval and undos: an instrument of sessions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)
from rollcage import Instrument, RunEvent, StepEvent

from rollcage_otel import attributes, ids, names
from rollcage_otel.metrics import Metrics, is_sdk

__all__ = ["Spans"]

_OURS: Final = contexts.create_key("rollcage_otel")
_STATES: Final = {"ok": "ran", "error": "failed", "not_started": "not_started"}
_HARMLESS: Final = frozenset({"ran", "hit", "simulated", "not_started", "pending"})
_NOT_UNDONE: Final = frozenset({"conflict", "unknown", "failed"})

Key = tuple[object, ...]  # a run, and its step, approval or undo


@dataclasses.dataclass(slots=True, eq=False)
class _Open:
    """An open span. `theirs` is a framework's; a framework's span inside of it is a `twin`."""

    span: Span
    context: Context
    about: StepEvent | RunEvent
    known: attributes.Attributes = dataclasses.field(default_factory=dict[str, Any])
    theirs: bool = False
    twin: bool = False
    ended: bool = False

    def end(self, time: int) -> None:
        self.ended = True
        if not self.theirs:
            self.span.end(max(time, self.about.time) * 1000)


class Spans(Instrument):
    """Makes spans and metrics of the sessions that have it among their `observers`.

    One instance serves any number of sessions, in any threads. If a framework's own instrumentation
    has a span of the same call, ours is not made, or does not describe the call.

    Args:
        tracer_provider: gets the spans; by default the global one.
        meter_provider: gets the metrics; by default the global one.
        content: whether arguments, results and the messages of errors are in spans, in the trace's
            form: secrets are sealed. By default,
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` decides.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool | None = None,
    ) -> None:
        version = metadata.version("rollcage-otel")
        self._provider = tracer_provider
        self._tracer = get_tracer(names.SCOPE, version, tracer_provider, names.SCHEMA_URL)
        self._metrics = Metrics(meter_provider, version)
        self._content = attributes.captures_content() if content is None else content
        self._open: dict[Key, _Open] = {}
        self._asked: dict[tuple[str, str], int] = {}  # by run and request, the time
        self._before: dict[str, Context] = {}  # by run, the context in which it was opened
        self._watched: TracerProvider | None = None

    # --- runs ------------------------------------------------------------------------------------

    def wanted(self) -> bool:
        """Whether there is an SDK when a session is entered: otherwise nothing is done."""
        return self._traces() is not None or self._metrics.wanted()

    def _traces(self) -> TracerProvider | None:
        provider = self._provider or get_tracer_provider()
        return provider if is_sdk(provider) else None

    def opened(self, run: RunEvent, /) -> None:
        """Begin the span of a run; it is current in the session's block."""
        provider = self._traces()
        if provider is None:
            return
        self._watch(provider)
        before = contexts.get_current()
        links = [ids.link_to(run.source)] if run.source else []
        name, parent = f"invoke_agent {run.name}", self._run_around(run, before)
        opened = self._start((run.run,), name, run, parent, links=links)
        found = {
            names.RUN: run.run, names.ROOT: run.root, names.MODE: run.mode,
            names.ATTEMPT: run.attempt, names.OPERATION: "invoke_agent", names.AGENT_NAME: run.name,
        }  # fmt: skip
        source = {names.SOURCE: run.source} if run.source else {}
        opened.span.set_attributes(found | source)
        self._before[run.run] = before
        contexts.attach(opened.context)

    def _run_around(self, run: RunEvent, here: Context) -> Context:
        """Return the context of the run's span, which is around its attempts.

        Spans need the run's ids for that.

        The attempt that ends the run makes the span; until then, only its id is used.
        """
        names_spans = isinstance(getattr(self._traces(), "id_generator", None), ids.NamesSpans)
        if not names_spans or get_current_span(here).get_span_context().is_valid:
            return here
        return set_span_in_context(NonRecordingSpan(ids.context_of(run.run)), here)

    def run(self, run: RunEvent) -> None:
        """Make the span of a run that has ended, around the spans of its attempts.

        Args:
            run: the event that closed its last attempt.
        """
        with ids.wanting(run.run):
            begin = min(ids.began(run.run), run.time) * 1000
            span = self._tracer.start_span(f"run {run.name}", Context(), start_time=begin)
        span.set_attributes({names.RUN: run.run, names.RUN_STATUS: run.status})
        _fail(span, run.error if run.status in ("error", "halted") else "")
        span.end(run.time * 1000)

    def closed(self, run: RunEvent, /, *, last: bool | None = None) -> None:
        """End the span of an attempt at a run, and all open spans in it.

        Args:
            run: the event that closed it.
            last: whether no attempt follows it; None: if it ended well.
        """
        inside = [key for key in list(self._open) if key[0] == run.run and len(key) > 1]
        for opened in [self._open.pop(key) for key in inside]:
            if not opened.ended:
                state = _without_end(opened.about)
                self._end(opened, run.time, state, error=state)
        for asked in [each for each in list(self._asked) if each[0] == run.run]:
            del self._asked[asked]
        before = self._before.pop(run.run, None)
        if before is None:
            return
        opened = self._open.pop((run.run,))
        if run.status:
            opened.span.set_attribute(names.RUN_STATUS, run.status)
        _fail(opened.span, run.error if run.status in ("error", "halted") else "")
        opened.end(run.time)
        if contexts.get_current() is opened.context:
            contexts.attach(before)
        if (run.status == "ok" if last is None else last) and self._run_around(
            run, before
        ) is not before:
            self.run(run)

    # --- steps -----------------------------------------------------------------------------------

    def __call__(self, event: StepEvent, /) -> None:
        """Note an event of a step."""
        if event.what in ("settled", "replayed", "blocked"):
            self._metrics.step(event, _state(event))
        elif event.what == "undone":
            self._metrics.undone(event)
        elif event.what == "asked":
            self._asked[event.run, event.approval] = event.time
        if event.what != "asked" and (event.run, event.approval) in self._asked:
            asked = self._asked.pop((event.run, event.approval))
            self._metrics.waited(event, (event.time - asked) / 1e6)
        if event.run not in self._before:
            return
        if event.what == "asked":
            key = event.run, "approval", event.approval
            wait = self._start(key, f"approval {event.name}", event, self._parent(event))
            wait.span.set_attributes(attributes.own(event))
            return
        if event.approval:
            self._decided(event)
        if event.what == "started":
            self._started(event)
        elif event.what == "settled":
            self._settled(event)
        elif event.what == "undone":
            self._undone(event)
        else:  # nothing ran
            links = [ids.link_to(*event.origin)] if event.origin else []
            point: Key = (  # a different one for each attempt at the run
                event.run, event.step, event.attempt, event.what, 0 if event.step else event.time,
            )  # fmt: skip
            opened = self._started(event, links, point)
            del self._open[point]
            code = (event.verdict or {}).get("code") or event.what
            waits = code == "approval_required"  # which is no failure
            self._end(opened, event.time, _state(event), error="" if waits else code)

    def around(self, run: str, step: int, /) -> contextlib.AbstractContextManager[object]:
        """Make the span of a step current in its body."""
        found = self._open.get((run, step))
        return contextlib.nullcontext() if found is None else _current(found.context)

    def _started(
        self, event: StepEvent, links: Sequence[Link] = (), key: Key | None = None
    ) -> _Open:
        parent, operation = self._parent(event), attributes.operation(event)
        current, key = get_current_span(parent), key or (event.run, event.step)
        given: Mapping[str, Any] = getattr(current, "attributes", None) or {}
        if contexts.get_value(_OURS, parent) is not current and attributes.same_operation(
            given, operation, event.name
        ):
            opened = _Open(current, _with(current, parent), event, theirs=True)
            self._open[key] = opened
            for link in links:
                current.add_link(link.context)
        else:
            kind = SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL
            name = f"{operation} {event.name}"
            opened = self._start(key, name, event, parent, kind=kind, links=links)
        if opened.span.is_recording():
            opened.span.set_attributes(attributes.own(event))
            opened.known = attributes.gen_ai(event) | attributes.outcome(event)
            if self._content:
                opened.known |= attributes.content(event)
        return opened

    def _settled(self, event: StepEvent) -> None:
        key, state = (event.run, event.step), _state(event)
        opened = self._open.pop(key, None)
        if opened is None:
            return
        if opened.span.is_recording():
            opened.known |= attributes.outcome(event)
            message = ""
            if self._content:
                opened.known |= attributes.content(event)
                message = attributes.error_message(event)
            self._end(opened, event.time, state, error=event.error or state, message=message)

    def _end(self, opened: _Open, time: int, state: str, *, error: str, message: str = "") -> None:
        """End a span, with all known attributes."""
        opened.span.set_attribute(names.STATE, state)
        if opened.twin:
            opened.span.update_name(f"step {getattr(opened.about, 'name', '')}")
        elif not opened.theirs:
            opened.span.set_attributes(opened.known)
        _fail(opened.span, "" if state in _HARMLESS else error, message)
        opened.end(time)

    def _decided(self, event: StepEvent) -> None:
        """Note the decision about a call, in this run or before it."""
        wait = self._open.pop((event.run, "approval", event.approval), None)
        if wait is not None:
            self._metrics.waited(event, (event.time - wait.about.time) / 1e6)
            state = "rejected" if event.what == "blocked" else "approved"
            self._end(wait, event.time, state, error="")

    def _undone(self, event: StepEvent) -> None:
        """End the span of a step's undo, which its first compensating call had begun."""
        opened = self._open.pop((event.run, "undo", event.origin), None)
        if opened is None:
            opened = self._undo(event, event.origin)
            del self._open[event.run, "undo", event.origin]
        opened.span.update_name(f"undo {event.name}".strip())
        opened.span.set_attributes({**attributes.own(event), names.UNDO_STATUS: event.status})
        _fail(opened.span, event.status if event.status in _NOT_UNDONE else "")
        opened.end(event.time)

    def _undo(self, event: StepEvent, of: tuple[str, int] | None) -> _Open:
        links = [ids.link_to(*of)] if of else []
        parent = self._within(event)
        return self._start((event.run, "undo", of), "undo", event, parent, links=links)

    # --- parents of spans ------------------------------------------------------------------------

    def _parent(self, event: StepEvent) -> Context:
        """Return the parent of a span; for a compensating call, the span of its undo."""
        if event.undoes is None:
            return self._within(event)
        undo = self._open.get((event.run, "undo", event.undoes)) or self._undo(event, event.undoes)
        return undo.context

    def _within(self, event: StepEvent) -> Context:
        """Return the current span if it is inside of the run; else the enclosing step, or the run.

        A thread without its caller's context may have none, or an older one.
        """
        here, run = contexts.get_current(), self._open[event.run,]
        current, own = get_current_span(here), run.span.get_span_context()
        outside = (
            own.span_id,
            get_current_span(self._before[event.run]).get_span_context().span_id,
        )
        at = current.get_span_context()
        if at.is_valid and at.trace_id == own.trace_id and at.span_id not in outside:
            return here
        around = self._open.get((event.run, event.parent)) if event.parent else None
        return _with((around or run).span, here)

    def _start(
        self,
        key: Key,
        name: str,
        about: StepEvent | RunEvent,
        parent: Context,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> _Open:
        what = ("attempt", about.attempt) if isinstance(about, RunEvent) else key[1:]
        time = about.time * 1000
        with ids.wanting(about.run, *what):
            span = self._tracer.start_span(name, parent, kind, links=links, start_time=time)
        opened = self._open[key] = _Open(span, _with(span, parent), about)
        return opened

    def _watch(self, provider: TracerProvider) -> None:
        """Find foreign spans of the same call as our span around them."""
        add = getattr(provider, "add_span_processor", None)
        if add is not None and self._watched is not provider:
            from rollcage_otel.twins import Twins

            self._watched = provider
            add(Twins(self._twin))

    def _twin(self, parent: int, given: Mapping[str, Any]) -> None:
        for opened in list(self._open.values()):
            event = opened.about
            if isinstance(event, StepEvent) and opened.span.get_span_context().span_id == parent:
                same = attributes.same_operation(given, attributes.operation(event), event.name)
                opened.twin = opened.twin or same


@contextlib.contextmanager
def _current(context: Context) -> Any:
    """Enter a context; it is restored, not detached, because it may be left in another context."""
    before = contexts.get_current()
    contexts.attach(context)
    try:
        yield
    finally:
        contexts.attach(before)


def _with(span: Span, context: Context) -> Context:
    return contexts.set_value(_OURS, span, set_span_in_context(span, context))


def _fail(span: Span, error: str, message: str = "") -> None:
    if error:
        span.set_attribute(names.ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR, message or None))


def _state(event: StepEvent) -> str:
    """Return the state of a step, in the words of `rollcage_views.State`."""
    if event.what != "settled":
        return "hit" if event.what == "replayed" else event.what
    if event.simulated and event.status == "ok":
        return "simulated"
    return _without_end(event) if event.status == "unknown" else _STATES[event.status]


def _without_end(about: StepEvent | RunEvent) -> str:
    if about.what == "asked":
        return "pending"
    return "unknown" if getattr(about, "effect", "") == "write" else "cut_off"
