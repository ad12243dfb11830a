"""The I/O loop: it performs what a flow asks for, under the session's lock.

It is written once, as a coroutine. In a thread it is given what performs at once, and never waits.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, assert_never

import orjson

from rollcage.errors import Forked, Halt, SessionError, StoreError, TraceUnwritable
from rollcage.gate import Sealing
from rollcage.replay.recording import Lineage
from rollcage.step.admission import Admission
from rollcage.step.blobs import Blobs
from rollcage.step.bodies import Bodies
from rollcage.step.call import OpenStep, Progress
from rollcage.step.clock import Clock
from rollcage.step.ledger import Ledger
from rollcage.step.observing import Instrument, InstrumentedBodies, Observer, Observing
from rollcage.step.orders import Orders
from rollcage.step.performing import Perform, Performing
from rollcage.step.requests import (
    Admit,
    BeginAsking,
    BeginUndo,
    Consult,
    EndAsking,
    Execute,
    Flow,
    GetBlob,
    KeepBlob,
    LedgerUpdate,
    MarkUndone,
    Note,
    OpenUndo,
    PutBlob,
    Raised,
    Recall,
    Request,
    Resolve,
    Returned,
    Rewind,
    Settle,
    Stop,
    Sync,
    WaitForCall,
)
from rollcage.step.waiting import stepped, unwrap
from rollcage.store.protocol import Reader, Store, Writer
from rollcage.trace import constructors as make
from rollcage.trace.messages import MessagesWritten

__all__ = ["Driver"]

_NOTHING: Final[Mapping[str, Any]] = {}


class Driver:
    """Performs what the flows of one session ask for.

    Args:
        ledger: the state of the run.
        writer: of its trace.
        store: where it is kept.
        source: where the run that it replays is kept.
        clock: time.
        enter: called before a body, in its own context, with its step.
        leave: called after it, with what that gave.
        recall: reads what the run and its lineage hold.
        late_end: makes the flow that records the end of a body which outlived its cancelled call.
        observers: are notified of what is written.
    """

    def __init__(
        self,
        ledger: Ledger,
        writer: Writer,
        store: Store,
        source: Reader,
        clock: Clock,
        enter: Callable[[OpenStep], Any],
        leave: Callable[[Any], None],
        recall: Callable[[], Lineage],
        late_end: Callable[[OpenStep, Returned | Raised], Flow],
        observers: Iterable[Observer] = (),
    ) -> None:
        self.ledger = ledger
        self.writer = writer
        observing = Observing(writer.run, observers)
        self.observing = observing if observing.observers else None
        self.lock = self.observing or threading.Lock()
        # If nothing waits between the look for an order and the body, one look is enough. With a
        # recording, a step that answers a call needs no body.
        alone = not writer.waits and self.observing is None
        self._looks_once = alone and not ledger.has_recording
        self.closed = False
        self.around: Driver | None = None  # that of the session around: its orders hold here
        self.seal: Sealing | None = None  # hides secrets in the trace's own texts
        self.store = store
        self._messages = MessagesWritten()
        self._blobs = Blobs(store, source)
        self._wall, self._monotonic = clock.wall, clock.monotonic
        instruments = [each for each in observing.observers if isinstance(each, Instrument)]
        if instruments:
            surroundings = InstrumentedBodies(writer.run, instruments, enter, leave)
            enter, leave = surroundings.enter, surroundings.leave
        self.orders = Orders(self, self._wall)
        self.bodies = Bodies(enter, leave, self.orders.refusal, self._late, lambda: self.closed)
        self.performing = Performing(
            writer, sync=self.sync, settle=self._settle, stop=self.halt, looked=self._ended
        )
        self._recall = recall
        self._late_end = late_end

    # --- the loops -------------------------------------------------------------------------------

    def run(self, flow: Flow) -> Any:
        """Drive a flow to its end in this thread; the body's value, or its error raised."""
        performing = self.performing
        return unwrap(stepped(self._driven_through(flow, self.bodies.execute, performing.here)))

    async def arun(self, flow: Flow, *, is_async: bool) -> Any:
        """Drive a flow to its end in this task; a sync body and the disk wait in a thread."""
        execute = functools.partial(self.bodies.aexecute, is_async=is_async)
        return unwrap(await self._driven_through(flow, execute, self.performing.there))

    async def _driven_through(
        self,
        flow: Flow,
        execute: Callable[[Execute], Returned | Raised | Awaitable[Returned | Raised]],
        wait: Perform,
    ) -> Returned | Raised:
        """Perform what a flow asks for, up to its end.

        `execute` runs a body, at once or as something to wait for; `wait` performs what else may
        take long.
        """
        answer: Any = None
        progress: Progress | None = None
        try:
            while True:
                try:
                    effect = flow.send(answer)
                except StopIteration as stop:
                    ended: Returned | Raised = stop.value
                    return ended
                if type(effect) is Admit:
                    progress = effect.progress
                    answer = self._admit(effect)
                elif type(effect) is Settle:
                    answer = None
                    self._settle(effect)
                    progress = None
                elif type(effect) is Execute:
                    given = execute(effect)
                    answer = given if isinstance(given, (Returned, Raised)) else await given
                elif isinstance(effect, (Sync, Consult, WaitForCall)):
                    answer = await wait(effect)
                else:
                    answer = self.perform(effect)
        except BaseException:
            self._abandon(progress)
            raise

    # --- drives that are interrupted -------------------------------------------------------------

    def _abandon(self, progress: Progress | None) -> None:
        """A call was admitted and will not be settled: an interrupt came between the two."""
        if progress is None or self.closed or self.writer.forked:
            return
        with self.lock:
            self.ledger.abandon(progress)

    @contextlib.contextmanager
    def driven(self) -> Generator[list[Progress]]:
        """Abandon the calls that are still listed if the block is interrupted."""
        begun: list[Progress] = []
        try:
            yield begun
        except BaseException:
            for each in begun:
                self._abandon(each)
            raise

    def _late(self, step: OpenStep, answer: Returned | Raised) -> None:
        """A body outlived its cancelled call: record its end."""
        self.run(self._late_end(step, answer))

    # --- everything else -------------------------------------------------------------------------

    def perform(  # noqa: C901, PLR0912 - one case an effect
        self, effect: Request
    ) -> Any:
        """Do what a flow asks for, all but the waiting."""
        self.check_process()
        match effect:
            case Admit():
                return self._admit(effect)
            case Settle():
                return self._settle(effect)
            case Resolve():
                return self._resolve(effect)
            case Stop(error=error):
                return self.halt(error)
            case Note(event=event, name=name):
                event.setdefault("time", self._wall() // 1000)
                with self.lock:
                    if self.closed:
                        raise SessionError("the session was left already; open another one")
                    self.ledger.stats.drifted += "drift" in event
                    return self.append(event, event.get("outcome", _NOTHING), name)
            case PutBlob(digest=digest, data=data):
                return self._halting(self.store.put_blob, digest, data)
            case GetBlob(digest=digest):
                return self._blobs.get(digest)
            case KeepBlob(digest=digest):
                return self._blobs.keep(digest)
            case Recall():
                return self._recalled()
            case BeginAsking() | EndAsking() | BeginUndo() | OpenUndo() | MarkUndone() | Rewind():
                with self.lock:
                    return self._report(effect)
            case Execute() | Sync() | Consult() | WaitForCall():
                raise AssertionError("performed by the loops")
            case _:
                assert_never(effect)

    def _report(self, effect: LedgerUpdate) -> Any:
        ledger = self.ledger
        match effect:
            case BeginAsking(request=request):
                return ledger.begin_asking(request)
            case EndAsking(request=request):
                return ledger.end_asking(request)
            case BeginUndo(paths=paths):
                return ledger.branches.begin_undo(paths)
            case OpenUndo(fingerprint=fingerprint, attempt=attempt):
                return ledger.branches.undo_branch(fingerprint, attempt)
            case MarkUndone(run=run, step=step):
                return ledger.branches.mark_undone(run, step)
            case Rewind():
                return ledger.branches.rewind()
            case _:
                assert_never(effect)

    def _admit(self, effect: Admit) -> Admission:
        if self.writer.forked:
            self.check_process()
        with self.lock:
            if self.closed:
                raise SessionError("the session was left already; open another one")
            call = effect.progress.call
            order = self.orders.look(call, closely=self._looks_once)
            if order is not None and (pause := self.orders.waits_for(call)) is not None:
                return Admission(None, first=pause)
            admission = self.ledger.admit(
                effect.progress, effect.verdict, self._wall() // 1000, effect.arrival
            )
            event, step = admission.event, admission.step
            if event is not None and (step is None or admission.entry is None):
                self.append(event, event.get("outcome", _NOTHING))
        if step is not None:
            step.cleared = self._looks_once
            step.began = self._monotonic()
        return admission

    def _ended(self, effect: Consult) -> None:
        """After a body has ended, observing what it changed is not part of its duration."""
        if effect.after is not None:
            effect.after.ended = self._monotonic()

    def _recalled(self) -> Lineage | Raised:
        try:
            return self._recall()
        except StoreError as error:
            return Raised(error)

    def _settle(self, effect: Settle) -> None:
        step = effect.step
        if step.withdrawn:
            return
        ended = step.ended or self._monotonic()
        if self.writer.forked:
            self.check_process()
        with self.lock:
            duration, now = (ended - step.began) // 1000, self._wall() // 1000
            event = self.ledger.settle(step, effect.outcome, effect.encoded, duration, now)
            if effect.marks:
                event |= effect.marks
            if effect.halt is not None and self.ledger.halted is None:
                self.ledger.halted = effect.halt
            if self.closed and effect.outcome["status"] == "not_started":
                return
            if self.closed:
                raise TraceUnwritable(
                    f"step {step.number} ended after its session was left; its outcome is not "
                    f"recorded"
                )
            self.append(event, effect.outcome)
            self.ledger.written(step)

    # --- halting and pausing ---------------------------------------------------------------------

    def halt(self, error: Exception) -> None:
        """Halt the session with this error, unless it was halted before."""
        self.check_process()
        with self.lock:
            if self.ledger.halted is None:
                self.ledger.halted = error

    def pause(self, reason: str) -> None:
        """The run waits for something outside of it."""
        self.check_process()
        with self.lock:
            self.ledger.paused = reason or "paused"

    def go_on(self) -> None:
        """The run no longer waits."""
        self.check_process()
        with self.lock:
            self.ledger.go_on()

    def _resolve(self, effect: Resolve) -> None:
        event = make.step_resolved(
            time=self._wall() // 1000,
            step=effect.step.number,
            by="body",
            outcome=orjson.Fragment(effect.encoded),
            digest=sha256(effect.encoded).hexdigest(),
            marks=effect.marks,
        )
        with self.lock:
            if not self.closed:
                self.append(event, effect.outcome)

    def append(
        self, event: dict[str, Any], outcome: Mapping[str, Any] = _NOTHING, name: str = ""
    ) -> None:
        """Write an event; a failure halts the session. The caller has the lock.

        Args:
            event: what is written.
            outcome: the step's, if the event has one, for observers.
            name: the step's, if the event has none, for observers.
        """
        seal = self.seal
        if seal is not None and not seal.idle:
            event = seal.event(event)
        try:
            if event.get("kind") == "model":
                self.writer.append(self._messages.shortened(event))
                self._messages.written()
            else:
                self.writer.append(event)
        except Halt as error:
            if self.ledger.halted is None:
                self.ledger.halted = error
            raise
        if self.observing is not None:
            self.observing.note(event, outcome, name)

    def _halting(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Halt as error:
            if self.ledger.halted is None:
                self.ledger.halted = error
            raise

    def check_process(self) -> None:
        """Refuse a forked child. Before the lock: a thread of the parent may hold it for ever.

        Raises:
            Forked: this process is not the one that entered the session.
        """
        if self.writer.forked:
            raise Forked(
                f"run {self.writer.run} belongs to the parent process; open a session of its own "
                f"here"
            )

    def sync(self) -> Returned | Raised:
        """Wait until the trace is on the disk."""
        try:
            self._halting(self.writer.sync)
        except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
            return Raised(error)
        return Returned(None)
