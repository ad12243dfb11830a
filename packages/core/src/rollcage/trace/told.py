"""Describe the events that observers receive about steps and runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import orjson

__all__ = ["Happening", "Instrument", "Observer", "RunEvent", "StepEvent", "Surrounding"]

Happening = Literal["started", "settled", "replayed", "blocked", "asked", "undone"]
"""The kind of an event of a step.

The body is about to run, the outcome is recorded, a recorded step answers, the call was refused, an
approval is requested, or the step was undone (or its undo failed).
"""


@dataclasses.dataclass(frozen=True, slots=True)
class StepEvent:
    """Describe one event in the life of a step.

    Attributes:
        what: see `Happening`.
        run: the run's id; a nested session with a run of its own has another id.
        step: the number in that run; 0 for `asked`: a call gets its number afterwards.
        time: when the event was written, in µs since 1970.
        kind: `tool` or `model`; empty if a step of another run was undone.
        name: the name of the tool or model.
        effect: the declared effect; empty if the trace does not have it here.
        agent: the agent that made the call, if the framework names one.
        branch: the branch of the run; empty for the main branch.
        parent: the step whose body made the call.
        call_id: the framework's id of the call.
        status: of a settled or replayed step, `ok`, `error`, `unknown` or `not_started`; of an
            undone step, the result of the undo (see `UndoneStep`); else empty.
        duration: of a settled or replayed step, in µs, as measured in the run that performed it.
        error: the type of the error of a settled or replayed step; else empty.
        usage: the tokens of a model call, if recorded.
        verdict: the decision, reason, code and rule, if there was a verdict.
        origin: of a replayed or undone step: the run and step that performed it.
        undoes: of a compensating call: the run and step that it undoes.
        approval: the request for approval, of `asked` and of the decided call.
        simulated: in a fork, the effect of the replaced tool, which did not run.
        attempt: the id of the attempt in which the event occurred.
    """

    what: Happening
    run: str
    step: int
    time: int
    kind: str = ""
    name: str = ""
    effect: str = ""
    agent: str = ""
    branch: str = ""
    parent: int | None = None
    call_id: str = ""
    status: str = ""
    duration: int | None = None
    error: str = ""
    usage: Mapping[str, int] | None = None
    verdict: Mapping[str, Any] | None = None
    origin: tuple[str, int] | None = None
    undoes: tuple[str, int] | None = None
    approval: str = ""
    simulated: str = ""
    attempt: str = ""
    _written: Mapping[str, Any] = dataclasses.field(
        default_factory=dict[str, Any], repr=False, compare=False
    )

    def get(self, field: str) -> str | int | bool | None:
        """Return a plain field of the line that this event was made from; None without one.

        `started` has the fields of the step's line, such as `world`; `settled` has them only if the
        outcome stands in that line.
        """
        value = self._written.get(field)
        return value if isinstance(value, (str, int)) else None

    def data(self) -> dict[str, Any]:
        """Return the event as in the trace, with arguments and outcome; secrets are sealed."""
        written: dict[str, Any] = orjson.loads(orjson.dumps(self._written))
        return written


Surrounding = contextlib.AbstractContextManager[object]

Observer = Callable[[StepEvent], object]
"""A function that receives each event. Quick, sync, from any thread; its result is ignored."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunEvent:
    """Describe the opening or closing of a run to an instrument.

    Attributes:
        what: `opened` or `closed`.
        run: the run's id.
        name: the job.
        mode: `record`, `resume`, `offline`, `verify`, `imported` or `fork`; `undo` for the undo of
            a finished run.
        root: the first run of the lineage.
        source: the run that is replayed; None without one.
        time: when, in µs since 1970.
        status: of a closed run, its status; empty if not recorded, or if the run was opened for an
            undo.
        error: the type of the error that ended the run; empty without one.
        attempt: the id of the opened or closed attempt.
    """

    what: Literal["opened", "closed"]
    run: str
    name: str
    mode: Literal["record", "resume", "offline", "verify", "imported", "fork", "undo"]
    root: str
    source: str | None
    time: int
    status: str = ""
    error: str = ""
    attempt: str = ""


class Instrument:
    """Observe steps and runs, and wrap bodies to set context for them.

    Tracing uses it: effects of a body, such as HTTP requests or database statements, then appear as
    parts of the step. As with every observer, an error is logged, and the run goes on. Override the
    methods that you need.
    """

    def __call__(self, event: StepEvent, /) -> object:
        """Receive an event of a step."""

    def wanted(self) -> bool:
        """Tell whether to notify this instrument in a session that is entered now."""
        return True

    def opened(self, run: RunEvent, /) -> object:
        """Receive the opening of a session, in the context of its block."""

    def closed(self, run: RunEvent, /) -> object:
        """Receive the closing of a session; in a forked child, nothing is called."""

    def around(self, run: str, step: int, /) -> Surrounding:
        """Return a context manager to enter around a body, in its own thread or task.

        It receives no error, and is entered with the body: for a stream, once per chunk.

        Args:
            run: the run's id.
            step: the number, as `started` had it; a step that `verify` runs again had no such
                event.
        """
        del run, step
        return contextlib.nullcontext()
