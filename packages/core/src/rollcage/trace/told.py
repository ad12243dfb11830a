"""What observers receive of the steps and runs of a session."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import orjson

__all__ = ["Happening", "Instrument", "Observer", "RunEvent", "StepEvent", "Surrounding"]

Happening = Literal["started", "settled", "replayed", "blocked", "asked", "undone"]
"""What became of a step: its body is about to run, its outcome is recorded, a recorded step
answers it, it was refused, somebody has to approve it, it was undone (or that failed)."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepEvent:
    """What an observer receives: one thing that became of one step.

    Attributes:
        what: see `Happening`.
        run: the run's id; that of a session inside of the observed one has its own.
        step: its number in that run; 0 of what is `asked`: a call gets its number afterwards.
        time: when it was written, in µs since 1970.
        kind: `tool` or `model`; empty if a step of another run was undone.
        name: of the tool or model.
        effect: what the tool declares; empty if the trace does not say it here.
        agent: who made the call, if the framework says.
        branch: the branch of the run; empty for the main one.
        parent: the step whose body made the call.
        call_id: the framework's id of the call.
        status: `ok`, `error`, `unknown` or `not_started` of what is settled or replayed; how the
            undo of what is undone ended (see `UndoneStep`); else empty.
        duration: of what is settled or replayed, in µs, as the run had it that performed it.
        error: the type of the error of what is settled or replayed with one; else empty.
        usage: the tokens that a model call used, if it says so.
        verdict: the decision, reason, code and rule, if there was one.
        origin: of what is replayed or undone: the run and step that performed it.
        undoes: of a compensating call: the run and step that it undoes.
        approval: the request for approval, of what is asked and of the call that was decided.
        simulated: in a fork, the effect of the tool that was replaced: it did not run.
        attempt: the id of the attempt at the run in which it became so.
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
        """A plain field of the event as the trace holds it, such as `world`; None without one."""
        value = self._written.get(field)
        return value if isinstance(value, (str, int)) else None

    def data(self) -> dict[str, Any]:
        """The event as the trace holds it: arguments, outcome and all; secrets are sealed."""
        written: dict[str, Any] = orjson.loads(orjson.dumps(self._written))
        return written


Surrounding = contextlib.AbstractContextManager[object]

Observer = Callable[[StepEvent], object]
"""Called with what becomes of each step. Quick, sync, from any thread; its result is ignored."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunEvent:
    """What an instrument receives of a run: that it was opened, and closed.

    Attributes:
        what: `opened` or `closed`.
        run: its id.
        name: the job.
        mode: `record`, `resume`, `offline`, `verify`, `imported` or `fork`; `undo` of a
            finished run that is undone.
        root: the first run of its lineage.
        source: the run that it replays; None if it replays none.
        time: when, in µs since 1970.
        status: of one that is closed, as `run.finished` has it; empty if that is not recorded,
            or the run was opened for an undo.
        error: the type of the error that ended it; empty without one.
        attempt: the id of the attempt that was opened or closed.
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
    """An observer that also receives events of runs, and wraps bodies to set context for them.

    Tracing is built on it: what a body does, such as HTTP requests or database statements, is then
    seen as a part of its step. As with every observer, what it raises is logged, and the run goes
    on. Override what is needed.
    """

    def __call__(self, event: StepEvent, /) -> object:
        """Something became of a step."""

    def wanted(self) -> bool:
        """Whether to be notified of a session that is entered now; else it costs nothing there."""
        return True

    def opened(self, run: RunEvent, /) -> object:
        """The session was entered; called in the context of its block."""

    def closed(self, run: RunEvent, /) -> object:
        """The session was left. A child of a fork, in which nothing is recorded, calls nothing."""

    def around(self, run: str, step: int, /) -> Surrounding:
        """A context manager around a body, in its own thread or task; it gets no error.

        It is called whenever the body is entered: for a stream, once per chunk.

        Args:
            run: the run's id.
            step: its number, as `started` got it; of one that `verify` runs again to
                compare it, there was no event yet.
        """
        del run, step
        return contextlib.nullcontext()
