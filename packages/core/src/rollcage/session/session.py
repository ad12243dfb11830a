"""The public face: `Session`, one attempt at a run, from entering to leaving."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import logging
import os
import unicodedata
import weakref
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Self,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from rollcage.calls.attempt import Attempt, Stats
from rollcage.calls.block import BranchHandle, Transaction, TurnHandle, open_branch, turn
from rollcage.calls.driver import Flow, adrive, drive, finished_in_thread, in_background
from rollcage.calls.ending import failed, returned
from rollcage.calls.flow import (
    admit,
    enter,
    give,
    give_back,
    gives_at_once,
    in_thread,
    inside,
    perform,
    stream_ended,
    surrounded,
)
from rollcage.calls.gate import Entry, Gate
from rollcage.calls.memory import forget_rolled
from rollcage.calls.stage import Hooks, Stage
from rollcage.contract.compensation import KnownTools
from rollcage.contract.contract import Contract
from rollcage.errors import (
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    ContractError,
    ForkEnded,
    Halt,
    NotReplayable,
    RollcageError,
    SessionError,
    SessionHalted,
    TraceUnwritable,
)
from rollcage.gate.persons import person
from rollcage.replay.answers import answers_of
from rollcage.replay.call import Call, Place, at, here, open_sessions
from rollcage.replay.divergence import leaving
from rollcage.session.declare import bound_to
from rollcage.session.declared import declaration
from rollcage.session.opening import Opened, open_run
from rollcage.session.options import Options
from rollcage.session.seal import SessionSeal
from rollcage.stages.capture import Capture
from rollcage.stages.fork import Fork, asked_for
from rollcage.stages.once import Once
from rollcage.stages.orders import Orders
from rollcage.stages.unknown import Probe, Unknown
from rollcage.trace.chain import parse
from rollcage.trace.keys import writable
from rollcage.trace.run import CHANGES, Event, Step
from rollcage.trace.store import Store, open_store
from rollcage.undo.program import Request, take_back, undo
from rollcage.undo.report import InDoubt, UndoReport
from rollcage.values.answer import Answer
from rollcage.values.codec import encode
from rollcage.values.exceptions import encode_exception
from rollcage.values.names import name_of_script
from rollcage.values.registered import REGISTERED, Types

if TYPE_CHECKING:
    from types import TracebackType

    from rollcage.gate.approval import Instead
    from rollcage.replay.outcome import Read
    from rollcage.replay.source import RunSource
    from rollcage.replay.walk import Branch
    from rollcage.session.declared import Declared
    from rollcage.stages.observing import Observing
    from rollcage.stages.offline import Report
    from rollcage.trace.told import Observer
    from rollcage.values.hiding import Seal

__all__ = ["Fork", "Replay", "Session"]

_log: Final = logging.getLogger("rollcage")
_END: Final = object()
_marks: Final[ContextVar[None]] = ContextVar("rollcage.session.marks")
"""Whose tokens tell in which context a session was entered."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Replay = Literal["auto", "continue", "off", "resume", "offline", "verify"]
OnDivergence = Literal["halt", "undo", "warn"]
Kind = Literal["tool", "model"]


def _acted_for(actor: str) -> str:
    """Return the name of the person that a run acts for, in its one form; empty for nobody.

    Raises:
        SessionError: it is no name of a person.
    """
    if not actor:
        return ""
    try:
        return person(actor)
    except ValueError as error:
        raise SessionError(f"actor= has to name who the run acts for: {error}") from None


class Session:
    """A guarded execution: one attempt at a run.

    Use it as a context manager, sync or async. Every tool that is called through it, or that was
    declared with `tool` and is called inside of it, is fingerprinted, gated, traced and, in a later
    session of the same name, replayed. Entered inside of another session of the same store, it is
    a branch of that one's run.

    Args:
        name: the job. Its newest run is resumed unless that ended well. Not given: the name of the
            script that runs, which is logged.
        store: a folder (made if needed), a URL or a `Store`.
        replay: `"auto"`; `"continue"`: the newest run is resumed even if it ended well; `"off"`
            records a new run; `"resume"` needs a run; `"offline"` gives back what is recorded and
            runs nothing; `"verify"` also runs pure and read tools again, and compares. Both write
            nothing, and leave a `report`.
        source: a run to start from: its id; of a run in another store, that store and the id,
            `(store, run)`; or the path of a log. A copy of it answers, its effects stay its own.
            Offline, it is the run that is read.
        run: the id of the run, if not the newest of the job.
        fork: see `Fork`.
        input: what the job works on, any value that a tool may take: another input is another job.
        gate: what decides on each call, together: policies, facades, rules (see `rollcage.Rule`)
            and guards; deny over ask over allow. A denial wins over what is recorded, too.
        approver: decides where a rule asks; without one the session halts then.
        actor: the person that the run acts for, who can't approve its calls.
        on_divergence: what a new effect does while recorded effects lie ahead: `"halt"`; `"undo"`
            takes them back first; `"warn"` goes on without them.
        observers: each is notified of what becomes of each step, after it was written: see
            `StepEvent`, and `Instrument` for one that is notified of runs, too. Those of a session
            around this one are notified as well.
        stages: features that surround calls, in this order.
        options: what few sessions set.

    Raises:
        SessionError: it can't be made like this.
    """

    finishes_undo = True  # whether one that an earlier attempt began is finished on entering
    hooks: Hooks

    def __init__(
        self,
        name: str | None = None,
        *,
        store: str | os.PathLike[str] | Store = "./.rollcage",
        replay: Replay = "auto",
        source: RunSource | None = None,
        run: str | None = None,
        fork: Fork | None = None,
        input: Any = None,  # noqa: A002 - what it is
        gate: Iterable[Entry] = (),
        approver: Any = None,
        actor: str = "",
        on_divergence: OnDivergence = "halt",
        observers: Iterable[Observer] = (),
        stages: Iterable[Stage] = (),
        options: Options = Options(),  # noqa: B008 - immutable
    ) -> None:
        if name is None:
            name = name_of_script()
        if not name:
            raise SessionError("a session needs a name: it identifies the job")
        _check("replay", replay, get_args(Replay))
        _check("on_divergence", on_divergence, get_args(OnDivergence))
        if fork is not None and replay not in ("auto", "continue"):
            raise SessionError(f"a fork is an attempt of its own: not with replay={replay!r}")
        self.name = unicodedata.normalize("NFC", name)
        self.store = open_store(store)
        self.replay, self.source, self.run, self.fork = replay, source, run, fork
        self.input, self.on_divergence, self.options = input, on_divergence, options
        self.actor = _acted_for(actor)
        self.approver = approver
        self._brought = tuple(stages)
        self.around: Session | None = None
        self.observers = tuple(observers)
        self._first_seal = SessionSeal(self.store)
        self.seal: Seal = self._first_seal
        self.types = Types(options.types, REGISTERED)
        self.tools = KnownTools(options.tools)
        self.report: Report | None = None  # of what writes nothing
        self.run_id: str = ""
        self.undone_at = -1  # the last step when it was undone
        self._is_asked_for = False  # whether the environment says that it is a fork
        if fork is None and replay not in ("offline", "verify") and here.get() is None:
            self.fork = asked_for(self.name, self.store)
            self._is_asked_for = self.fork is not None
        self.gate = Gate(gate if self.fork is None else self.fork.entries_of(gate), self)
        self.calls_before = 0  # those of the run around it, when it was entered
        self.is_left = False
        self.gates: tuple[Stage, ...] = ()  # the stages in its gate, and in those around it
        self.described: list[Event] = []
        self.known_hooks: dict[int, Hooks] = {}
        self._late: tuple[Stage, ...] = ()
        self._began = self._latest = 0
        self.is_strict = options.strict
        self.entered_at: Place | None = None  # if that was inside of another session
        self.guest_of: Session | None = None  # of a copy, for calls from a session inside of it
        self.guest_stages: tuple[Stage, ...] = ()
        self._guests: weakref.WeakKeyDictionary[Session, Session] = weakref.WeakKeyDictionary()
        self._observing: tuple[Observing, ...] = ()
        self._joins: tuple[Stage, ...] = ()
        self._own: Attempt | None = None
        self._attempt: Attempt | None = None
        self._home: Place | None = None
        self._block: AbstractContextManager[BranchHandle] | None = None
        self._entered_in: Token[None] | None = None

    # --- entering and leaving --------------------------------------------------------------------

    def __enter__(self) -> Self:
        if not self._join():
            drive(self._enter(is_async=False))
        return self

    async def __aenter__(self) -> Self:
        if not self._join():
            await adrive(self._enter(is_async=True))
        return self

    def _enter(self, *, is_async: bool) -> Flow:
        """Open the run, and begin the attempt at it."""
        hooks = self._all_hooks()
        if is_async:
            opening, cut = yield lambda: finished_in_thread(lambda: self._opened(hooks))
            if cut is not None:  # nobody enters it: its run must not stay open
                if opening.exception() is None and (log := opening.result().log) is not None:
                    yield lambda: finished_in_thread(log.close)
                raise cut
            self._entered(opening.result())
        else:
            self._entered(open_run(self, hooks.folds))
        try:
            yield from self._tidy(is_async=is_async)
        except BaseException:
            self._give_up()
            if is_async:
                yield lambda: asyncio.shield(asyncio.to_thread(self._let_go))
            else:
                self._let_go()
            raise

    def _all_hooks(self) -> Hooks:
        self._check_new()
        place = here.get()
        theirs: tuple[Stage, ...] = ()
        if place is not None and not place.attempt.closed:  # its run is another one
            self._check_around(place)
            theirs = self._inherit(place)
        asks: tuple[Stage, ...] = ()
        if isinstance(self.approver, Stage):
            asks = (self.approver,)
        elif self.approver is not None:
            from rollcage.stages.approvals import Approvals

            asks = (Approvals(self.approver),)
        own = tuple(each for each in self.gate.stages if each not in self._brought)
        self.gates = (*theirs, *own)
        looks: tuple[Stage, ...] = ()
        if self.replay in ("offline", "verify"):
            from rollcage.stages.offline import Offline, Verify

            offline = Offline() if self.replay == "offline" else Verify()
            self.report, looks = offline.report, (offline,)
        if self.fork is not None:
            from rollcage.stages.whatif import WhatIf

            looks = (WhatIf(self.fork),)
        self._observe(self.observers)
        brought = (*self._brought, *self.gates, *self._late)
        self._before = (*self._observing, *looks, Orders(), *brought)
        self._after = (*asks, Unknown(), Probe(), Once(), Capture())
        self.stages = (*self._before, *self._after)
        self.hooks = Hooks(self.stages)
        if theirs:  # they are open, and told of the lines of their own run
            mine = Hooks(tuple(each for each in self.stages if each not in theirs))
            self.hooks.folds, self.hooks.conceal = mine.folds, mine.conceal
            self.hooks.opened, self.hooks.closed = mine.opened, mine.closed
        return self.hooks

    def _check_around(self, place: Place) -> None:
        """Refuse a run of its own inside of a fork that must not write.

        Raises:
            SessionError: it could do what that fork must not.
        """
        if place.attempt.dry and self.replay not in ("offline", "verify"):
            raise SessionError(
                f"session {self.name!r} has a run of its own, and is entered inside of a fork that "
                f"is not live: nothing of it runs"
            )

    def _observe(self, observers: Iterable[Observer]) -> None:
        """Have those observers be notified that want to be."""
        if observers:
            from rollcage.stages.observing import Observing, wanted

            found = wanted(observers)
            self._observing = (Observing(found),) if found else ()

    def _inherit(self, place: Place) -> tuple[Stage, ...]:
        """Have the gate of a session around this one hold here as well: it is never loosened."""
        from rollcage.stages.around import Around  # few sessions need it

        self.around = around = place.session
        self.entered_at = place
        self.is_strict = self.is_strict or around.is_strict
        self.gate.within(around.gate)
        if self.approver is None and around.approver is not None:
            again = getattr(around.approver, "again", None)
            self.approver = around.approver if again is None else again()
        return (Around(around), *around.gates)

    def add(self, stage: Stage) -> None:
        """Have one more stage, behind those of `stages=`; also once the session is entered.

        Its `folds` are told of the lines that are on record. In a session inside of another one, it
        is one of all of them.
        """
        attempt = self._attempt
        if attempt is None:
            self._late = (*self._late, stage)
            return
        with attempt.lock:
            self._take(stage)
            attempt.hooks = attempt.session.hooks
            if stage.folds and attempt.run.steps:
                if attempt.log is not None:
                    attempt.log.wait()
                for line in parse(attempt.store.read(attempt.run.id), f"run {attempt.run.id}"):
                    fold = stage.folds.get(line["event"])
                    if fold is not None:
                        fold(line)
            for kind, fold in stage.folds.items():
                attempt.run.folds.setdefault(kind, []).append(fold)
            stage.opened(self)

    def _take(self, stage: Stage) -> None:
        """Have a stage take part in the calls of this session, and of those around in its run."""
        was, own = self.hooks, Hooks((stage,))
        self._before = (*self._before, stage)
        self.stages = (*self._before, *self._after)
        self.hooks = Hooks(self.stages)
        self.hooks.folds, self.hooks.conceal = was.folds, [*was.conceal, *own.conceal]
        self.hooks.opened, self.hooks.closed = (
            [*was.opened, *own.opened],
            [*was.closed, *own.closed],
        )
        self.known_hooks.clear()
        if self.around is not None and self.around._attempt is self._attempt:  # noqa: SLF001 - its own kind
            self.around._take(stage)  # noqa: SLF001 - its own kind

    @property
    def outermost(self) -> Session:
        """The session whose run it takes part in: itself, or the outermost around it."""
        return self if self._attempt is None else self._attempt.session

    def ask(self, approver: Any, *, pauses: tuple[type[BaseException], ...] = ()) -> None:
        """Have an approver decide where a guard asks, in place of the one that was given.

        Args:
            approver: see `Session`.
            pauses: exceptions by which a framework asks outside of the process: they are passed on,
                and the call goes on waiting at its place.
        """
        from rollcage.stages.approvals import Approvals

        if self._attempt is None and not isinstance(self.approver, Approvals):
            self.approver = Approvals(approver, pauses=pauses)
            return
        asks = [each for each in (self.approver, *self.stages) if isinstance(each, Approvals)]
        if asks:
            asks[0].pauses = (*asks[0].pauses, *pauses)
        else:
            self.add(Approvals(approver, pauses=pauses))
        self.approver = approver

    def hooks_of(self, contract: Contract) -> Hooks:
        """Return the methods of the stages that a tool concerns."""
        known = self.known_hooks.get(id(contract))
        if known is None:
            stages = tuple(each for each in self.stages if each.concerns(contract))
            known = self.known_hooks[id(contract)] = Hooks(stages)
            known.contract = contract  # so that its id stays its own
        return known

    def _check_new(self) -> None:
        if self._attempt is not None:
            raise SessionError("a session can be entered once only; make another one")

    def _join(self) -> bool:
        """Enter as a branch of the session around this one, if there is one in the same store."""
        around = here.get()
        if (
            around is None
            or around.attempt.closed
            or self.replay not in ("auto", "continue")
            or self.run is not None
            or self.source is not None
            or (self.fork is not None and not self._is_asked_for)
            or around.attempt.store != self.store
            or around.attempt.process != os.getpid()
        ):
            return False
        self._check_new()
        self.fork = None  # it is a part of one
        if self._brought:
            raise SessionError(
                f"session {self.name!r} is entered inside of session {around.session.name!r}, and "
                f"is a branch of its run: give stages to that one"
            )
        attempt = around.attempt
        self.around, self.entered_at = around.session, around
        self.is_strict = self.is_strict or around.session.is_strict
        self.approver = self.approver or around.session.approver
        self.gate.within(around.session.gate)
        outer = around.session
        self.gates = (*outer.gates, *self.gate.stages)
        self._observe([each for each in self.observers if not outer.is_observed_by(each)])
        self._joins = (*self._observing, *self.gate.stages)
        self._before = (*outer._before, *self._joins)  # noqa: SLF001 - its own kind
        self._after = around.session._after  # noqa: SLF001 - its own kind
        self.stages = (*self._before, *self._after)
        self.hooks = Hooks(self.stages)
        self._began = self._latest = self.options.clock.monotonic()
        self.seal, self.types, self.tools = attempt.seal, attempt.types, attempt.tools
        given = None if self.input is None else encode(self.input, self.seal, path="input")
        self.described = self.gate.describe(self)
        self._block = open_branch(around, self.name, kind="session", given=given, session=self)
        handle = self._block.__enter__()
        self._entered_in = _marks.set(None)
        self._attempt, self._home, self.run_id = attempt, handle.place, attempt.run.id
        self.calls_before = attempt.stats.calls + attempt.stats.seen
        open_sessions.add(self)
        try:
            self._join_stages(attempt, handle.branch)
        except BaseException as error:
            self._leave_stages(attempt, error)
            self._leave_block(error)
            raise
        for stage in self._late:
            self.add(stage)
        if self.approver is not None and attempt.session.approver is None:
            self._has_somebody_to_ask()
        return True

    def _has_somebody_to_ask(self) -> None:
        """Have calls wait for decisions, in a run whose outermost session asks nobody."""
        from rollcage.stages.approvals import Approvals

        if not any(isinstance(each, Approvals) for each in self.stages):
            self.add(Approvals())

    def is_observed_by(self, observer: Observer) -> bool:
        """Whether it, or a session around it, notifies an observer."""
        if any(each is observer for each in self.observers):
            return True
        return self.around is not None and self.around.is_observed_by(observer)

    @property
    def home_branch(self) -> str:
        """The branch in which its calls stand; empty unless it is inside of another session."""
        return "" if self._home is None else self._home.branch

    def _join_stages(self, attempt: Attempt, branch: Branch) -> None:
        """Have the observers and the gate's stages of an inner session take part in the attempt."""
        step = branch.opening
        assert step is not None
        with attempt.lock:
            attempt.inner[branch.name] = self
            for stage in self._joins:
                for kind, fold in stage.folds.items():
                    attempt.run.folds.setdefault(kind, []).append(fold)
            described = self.described  # the block's line has it, unless it was another one's
            if described != (step.marks or {}).get("gate", []) and attempt.halted is None:
                attempt.note({"event": "gate", "step": step.n, "gate": described})
            for opened in Hooks(self._joins).opened:
                opened(self)

    def _leave_stages(self, attempt: Attempt, error: BaseException | None) -> None:
        with attempt.lock:
            attempt.inner = {n: each for n, each in attempt.inner.items() if each is not self}
            for closed in Hooks(self._joins).closed:
                closed(self, error)
            for stage in self._joins:
                for kind, fold in stage.folds.items():
                    known = attempt.run.folds.get(kind, [])
                    if fold in known:
                        known.remove(fold)

    def _entered(self, opened: Opened) -> None:
        """Begin the attempt at the run that was opened."""
        self._own = self._attempt = attempt = Attempt(
            self,
            opened.run,
            opened.log,
            live=opened.log is not None,
            dry=opened.run.dry,
            recorded_in=opened.recorded_in,
        )
        self.run_id = opened.run.id
        self._began = self._latest = self.options.clock.monotonic()
        opened.run.begin_attempt()
        self._home = Place(attempt, self)
        here.set(self._home)
        self._entered_in = _marks.set(None)
        open_sessions.add(self)

    def _opened(self, hooks: Hooks) -> Opened:
        """Open the run in a thread, and read what would be read on the loop later."""
        self._first_seal.look()
        opened = open_run(self, hooks.folds)
        if opened.log is not None:
            opened.log.queue()
        return opened

    def _prepare_stages(self, *, in_context: bool) -> None:
        for prepared in self.hooks.opened:
            if prepared.__self__.opens_in_context is in_context:
                prepared(self)

    def _tidy(self, *, is_async: bool) -> Flow:
        """Prepare the stages, finish an undo that has begun, forget rolled back blocks at the end.

        A block that was rolled back, and that nothing came after, is as if it had never run.
        """
        attempt = self._entered_attempt()
        run = attempt.run
        if is_async:  # they may look into the store
            yield lambda: asyncio.to_thread(self._prepare_stages, in_context=False)
        else:
            self._prepare_stages(in_context=False)
        self._prepare_stages(in_context=True)
        self._first_seal.entered(self)
        if not attempt.live or attempt.dry or attempt.log is None:
            return
        if run.undoing is not None:
            if not self.finishes_undo:
                return
            yield from take_back(attempt, why="", is_async=is_async)
            attempt.branches.clear()
        if forget_rolled(attempt):
            attempt.branches.clear()

    def _give_up(self) -> None:
        """The attempt could not begin: its log says nothing more."""
        for each in self._observing:
            each.gave_up()
        open_sessions.discard(self)
        self._leave_context()
        self._entered_attempt().closed = True

    def _let_go(self) -> None:
        log = self._entered_attempt().log
        if log is not None:
            with contextlib.suppress(RollcageError):
                log.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        drive(self._exit(error, is_async=False))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await adrive(self._exit(error, is_async=True))

    def _exit(self, error: BaseException | None, *, is_async: bool) -> Flow:
        """End the attempt, or the branch that it is of another session's run."""
        attempt, self.is_left = self._entered_attempt(), True
        if self._block is not None:
            open_sessions.discard(self)
            self._leave_stages(attempt, error)
            self._leave_block(error)
        else:
            failed = error
            try:
                yield from self._leave(error, is_async=is_async)
            except Halt as halt:
                attempt.halt(halt)
            except BaseException as raised:  # noqa: BLE001 - raised again below
                failed = raised
            self._end(failed)
            if attempt.log is not None:
                closing = functools.partial(self._closing, attempt, failed)
                if not is_async:
                    closing()
                elif isinstance(failed, GeneratorExit):  # its task was destroyed, and can't wait
                    in_background(closing)
                else:
                    _, cut = yield lambda: finished_in_thread(closing)
                    failed = failed or cut
            if failed is not error and failed is not None:
                raise failed
        self._raise_halt(attempt, error)

    def _leave_context(self) -> None:
        """Have calls of this context be made where they were made before it was entered.

        Those of a session that was entered later stay its own. Another context than that in which
        this one was entered, a thread's say, still knows it.
        """
        place = here.get()
        if place is not None and place.session is self:
            here.set(self.entered_at)

    def _leave_block(self, error: BaseException | None) -> None:
        """Join the branch that it is of another session's run."""
        assert self._block is not None
        place = here.get()
        kind = None if error is None else type(error)
        self._block.__exit__(kind, error, None if error is None else error.__traceback__)
        here.set(place)
        self._leave_context()

    @property
    def is_over(self) -> bool:
        """Whether no call begins in it any more: it was left, or a session of whose run it is."""
        if self._block is None:
            return self._attempt is not None and self._attempt.closed
        return self.is_left or (self.around is not None and self.around.is_over)

    def was_entered_here(self) -> bool:
        """Return whether it was entered in this context, not in one that this was copied from."""
        if self._entered_in is None:
            return False
        try:
            _marks.reset(self._entered_in)  # only its own context takes a token back, and once
        except ValueError:
            return False
        self._entered_in = _marks.set(None)
        return True

    def _leave(self, error: BaseException | None, *, is_async: bool) -> Flow:
        """Do what has to be done before the attempt ends."""
        if error is None and self._entered_attempt().halted is None:
            for leaving in self.hooks.leaving:
                yield from leaving(self, is_async=is_async) or ()
        yield from self._take_back_the_rest(error, is_async=is_async)

    def _take_back_the_rest(self, error: BaseException | None, *, is_async: bool) -> Flow:
        """With `on_divergence="undo"`, take back what the program did not ask for."""
        attempt = self._entered_attempt()
        if error is not None or attempt.halted is not None or not attempt.live or attempt.dry:
            return
        if self.on_divergence != "undo" or attempt.log is None or self.undone_at >= 0:
            return
        with attempt.lock:
            rest = [
                step for step in attempt.run.untaken.values() if not attempt.run.is_consumed(step)
            ]
            refusal = leaving(attempt, rest, "the program has ended")
        if refusal is not None:
            raise refusal
        if any(step.acts for step in rest):
            yield from take_back(attempt, rest, why="divergence", is_async=is_async)

    def _end(self, error: BaseException | None) -> None:
        """Write how the attempt ends."""
        attempt = self._entered_attempt()
        open_sessions.discard(self)
        self._leave_context()
        with attempt.lock:
            said = None
            for closed in self.hooks.closed:
                said = closed(self, error) or said
            status = said or self._status(error)
            stats = attempt.stats
            line: Event = {
                "event": "ended", "status": status, "calls": stats.calls, "hits": stats.hits,
                "time": self.options.clock.wall() // 1000,
            }  # fmt: skip
            if attempt.run.attempts > 1:
                line["attempts"] = attempt.run.attempts
            if status == "paused" and self.paused:
                line["waits"] = self.paused
            ended_by = attempt.halted or error
            if ended_by is not None:
                line["error"] = self._described(ended_by)
            try:
                if attempt.log is not None and not isinstance(attempt.halted, TraceUnwritable):
                    attempt.write(line)
            except Halt as halt:
                attempt.halt(halt)
            finally:
                attempt.closed = True

    def _described(self, error: BaseException) -> Event:
        """The type and the message of what ended the attempt, without the secrets in them."""
        encoded = encode_exception(error, self._entered_attempt().seal)
        return {name: encoded[name] for name in ("type", "message")}

    def _status(self, error: BaseException | None) -> str:
        attempt = self._entered_attempt()
        if attempt.halted is not None:
            if isinstance(attempt.halted, ForkEnded):
                return attempt.halted.status
            return "paused" if isinstance(attempt.halted, ApprovalRequired) else "halted"
        if error is not None:
            return "error"
        if attempt.run.undoing is not None or self.undone_at == attempt.run.last:
            return "undone"  # a resume goes on from what is left
        if self.paused:
            return "paused"
        if any(branch.running for branch in attempt.branches.values()):
            return "halted"  # a body in a thread outlives the session
        run = attempt.run
        left = (
            step
            for step in run.untaken.values()
            if step.effect in CHANGES and step.acts and not run.is_consumed(step)
            if not step.failed_cleanly
        )
        return "partial" if attempt.live and any(left) else "ok"

    @staticmethod
    def _raise_halt(attempt: Attempt, error: BaseException | None) -> None:
        """Raise what halted the session, even if the agent has swallowed or replaced it."""
        halted = attempt.halted
        if halted is None or halted is error:
            return
        if error is None:
            raise halted
        if isinstance(error, Exception):
            raise halted from error

    def _closing(self, attempt: Attempt, error: BaseException | None) -> None:
        assert attempt.log is not None
        try:
            attempt.log.close()
        except Halt as halt:
            attempt.halt(halt)
            if error is not None:
                _log.error("the end of run %s is not on record: %s", attempt.run.id, halt)

    def _entered_attempt(self) -> Attempt:
        if self._attempt is None:
            raise SessionError(f"session {self.name!r} is not entered: use `with Session(...)`")
        return self._attempt

    # --- deciding --------------------------------------------------------------------------------

    @property
    def refuses_unguarded(self) -> bool:
        """Whether no tool runs in a thread that knows no session while this one is open.

        None does beside a fork that must not write.
        """
        said = self.options.unguarded
        if self._attempt is not None and self._attempt.dry:
            return True
        return self.gate.enforces if said is None else said == "refuse"

    def elapsed(self) -> int:
        """Return how long it has been open (ns).

        Raises:
            ValueError: the clock went backwards.
        """
        now = self.options.clock.monotonic()
        if now < self._latest:
            raise ValueError("the clock went backwards")
        self._latest = now
        return now - self._began

    # --- calls -----------------------------------------------------------------------------------

    def _call(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Kind,
        *,
        is_async: bool,
        raw: Mapping[str, Any] | None,
        answer: Read | None,
        instead: Instead | None,
    ) -> Call:
        """Make a call that arrives here: its arguments are bound, or refused."""
        if self._attempt is None:
            self._entered_attempt()
        place = here.get()
        if place is None or place.session is not self:
            place = self._place_outside(place)
        gate = place.session.gate
        screens = gate.screens and place.attempt.live  # what is recorded counts, where nothing runs
        if screens and (refused := gate.screen(contract, body, kind)) is not None:
            self._put_refused(
                contract, arguments, place,
                reason=refused.message, code=refused.code, kind=kind, rule=refused.rule,
            )  # fmt: skip
            raise Blocked(refused.message, rule=refused.rule, code=refused.code)
        try:
            if contract.strict or gate.strict or place.session.is_strict:
                contract.takes.check_strict(arguments if raw is None else raw)
            bound = contract.takes.bind(arguments, place.attempt.seal)
        except ArgumentsInvalid as error:
            self._put_refused(
                contract, arguments if raw is None else raw, place,
                reason=str(error), code=ArgumentsInvalid.code, kind=kind,
            )  # fmt: skip
            raise
        call = Call(place, contract, bound, body, kind, is_async=is_async)
        call.read = answer
        if contract.framework or instead is not None:
            call.adapt(arguments, instead)
        return call

    def _put_refused(
        self,
        tool: Contract | str,
        arguments: Mapping[str, Any],
        place: Place,
        *,
        reason: str,
        code: str,
        kind: Kind,
        call_id: str = "",
        rule: str = "",
    ) -> None:
        from rollcage.session.refusing import put_on_record  # only a mistake needs it

        put_on_record(
            self._entered_attempt(), place, tool, arguments,
            reason=reason, code=code, kind=kind, call_id=call_id, rule=rule,
        )  # fmt: skip

    def refused(
        self,
        tool: Contract | str,
        arguments: Mapping[str, Any],
        *,
        reason: str = "",
        code: str = "",
        kind: Kind = "tool",
        call_id: str = "",
    ) -> None:
        """Record a call that was refused before it reached the session; nothing ran.

        For adapters, and for loops of your own in which a model asks for a tool that does not
        exist. A call of the session whose arguments do not pass is recorded automatically.

        Args:
            tool: the tool's contract; or the name that was asked for, if there is no such tool.
            arguments: as they were asked for.
            reason: what the model gets to read; if the arguments do not pass the tool's schema, it
                is replaced by what is wrong with them.
            code: the machine-readable reason; by default `tool_missing` for a name,
                `arguments_invalid` if they do not pass, else `refused`.
            kind: of the call.
            call_id: the framework's id of the call, if it was not placed.
        """
        self._put_refused(
            tool, arguments, self.place_here(),
            reason=reason, code=code, kind=kind, call_id=call_id,
        )  # fmt: skip

    def recorded_answers(self, agent: str | None = None) -> list[Answer]:
        """Return what the model answered before this attempt, in that order; for adapters.

        Args:
            agent: whose answers; None: those of all agents but the ones inside of tools.

        Raises:
            SessionError: the session is not entered, or nothing was recorded before it.
        """
        attempt = self._entered_attempt()
        if not attempt.recorded:
            raise SessionError(f"session {self.name!r} replays nothing: its run has just begun")
        return answers_of(attempt.run, self.store, agent, up_to=attempt.recorded)

    def run_call(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        raw: Mapping[str, Any] | None = None,
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Any:
        """Guard one call of a sync body; for adapters.

        Args:
            contract: what is declared of the tool or model.
            arguments: as they were asked for, or as a framework has validated them.
            body: what runs, with the validated arguments as keywords.
            kind: `tool` or `model`.
            raw: the arguments as the model wrote them, if a framework has validated these.
            answer: reads what a model answered off the body's value, for the log.
            instead: what else an approver may make of a framework's call; None: nothing.

        Raises:
            ArgumentsInvalid: the arguments do not match the tool's schema.
            Blocked: a guard denies it.
            Halt: nothing goes on.
        """
        if _is_async(body):
            raise SessionError(f"{contract.name} is async: use acall, in an async session")
        call = self._call(
            contract, arguments, body, kind,
            is_async=False, raw=raw, answer=answer, instead=instead,
        )  # fmt: skip
        work = enter(call)
        return give(call) if gives_at_once(call) else drive(perform(call, work))

    async def arun_call(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        raw: Mapping[str, Any] | None = None,
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Any:
        """Guard one call of an async body, or of a sync one in a thread; for adapters."""
        call = self._call(
            contract, arguments, body, kind,
            is_async=True, raw=raw, answer=answer, instead=instead,
        )  # fmt: skip
        work = enter(call)
        return give(call) if gives_at_once(call) else await adrive(perform(call, work))

    @staticmethod
    def perform(call: Call) -> Flow:
        """Return the flow of a call: for an undo, which makes calls in a flow of its own."""
        return perform(call, enter(call))

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **declared: Unpack[Declared]) -> Callable[[F], F]: ...
    def tool(self, function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
        """Bind a function to this session: each call of what comes back is guarded, in any thread.

        Use it as a decorator, with or without what a tool declares, or as a function. One that was
        declared with `rollcage.tool` keeps its contract.
        """
        return bound_to(self, function, **declared)

    def call(self, tool: Callable[..., T], /, **arguments: Any) -> T:
        """Call a sync tool with these arguments; a generator function gives its chunks."""
        body, contract = declaration(tool)
        if contract.streams:
            stream = self.astream if inspect.isasyncgenfunction(body) else self.stream
            chunks: Any = stream(contract, arguments, body)
            return chunks  # type: ignore[no-any-return]  # of the type that the tool declares
        found: T = self.run_call(contract, arguments, body)
        return found

    @overload
    async def acall(self, tool: Callable[..., Awaitable[T]], /, **arguments: Any) -> T: ...
    @overload
    async def acall(self, tool: Callable[..., T], /, **arguments: Any) -> T: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call an async tool, or a sync one in a thread, with these arguments.

        Raises:
            ContractError: it is a generator function.
        """
        body, contract = declaration(tool)
        if contract.streams:
            each = "async for" if inspect.isasyncgenfunction(body) else "for"
            raise ContractError(
                f"{contract.name} gives chunks: {each} chunk in session.call({contract.name}, …)"
            )
        return await self.arun_call(contract, arguments, body)

    def stream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        raw: Mapping[str, Any] | None = None,
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Generator[Any]:
        """Guard one call whose body gives an iterator: its chunks as they come, live or recorded.

        The step's value is the list of its chunks. A consumer that stops early cuts a write off;
        of any other step, the chunks that it took are recorded, and no more can be replayed. The
        call has its place now; it is made when the first chunk is asked for.
        """
        call = self._call(
            contract, arguments, body, kind,
            is_async=False, raw=raw, answer=answer, instead=instead,
        )  # fmt: skip
        call.keep("chunks", True)
        return self._streamed(call)

    @staticmethod
    def _streamed(call: Call) -> Generator[Any]:
        attempt = call.attempt
        drive(admit(call, enter(call)))
        if call.recorded is not None:
            yield from drive(give_back(call))
            _check_cut(attempt, call.recorded)
            return
        chunks: list[Any] = []
        place = inside(attempt, call)
        try:
            with at(place), surrounded(call):
                source = iter(call.body(**call.values))
            while True:
                with at(place), surrounded(call):
                    chunk = next(source, _END)
                if chunk is _END:
                    break
                chunks.append(chunk)
                yield chunk
            with at(place):
                stream_ended(call, chunks)
        except BaseException as error:
            _closed(locals().get("source"), place)
            if isinstance(error, Exception):
                with contextlib.suppress(type(error)), at(place):
                    stream_ended(call, chunks, error)
            if isinstance(error, GeneratorExit) and call.effect not in CHANGES:
                drive(returned(attempt, call, chunks, cut=True))
            else:
                drive(failed(attempt, call, error))
            raise
        drive(returned(attempt, call, chunks))

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        raw: Mapping[str, Any] | None = None,
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> AsyncGenerator[Any]:
        """`stream` for a body that gives an async iterator."""
        call = self._call(
            contract, arguments, body, kind,
            is_async=True, raw=raw, answer=answer, instead=instead,
        )  # fmt: skip
        call.keep("chunks", True)
        return self._astreamed(call)

    @staticmethod
    async def _astreamed(call: Call) -> AsyncGenerator[Any]:
        attempt = call.attempt
        await adrive(admit(call, enter(call)))
        if call.recorded is not None:
            for chunk in await adrive(give_back(call)):
                yield chunk
            _check_cut(attempt, call.recorded)
            return
        chunks: list[Any] = []
        place = inside(attempt, call)
        source: Any = None
        try:
            with at(place), surrounded(call):
                source = aiter(call.body(**call.values))
            while True:
                with at(place), surrounded(call):
                    chunk = await anext(source, _END)
                if chunk is _END:
                    break
                chunks.append(chunk)
                yield chunk
            with at(place):
                if inspect.isawaitable(seen := stream_ended(call, chunks)):
                    await seen
        except BaseException as error:
            if hasattr(source, "aclose"):
                with contextlib.suppress(Exception), at(place):
                    await source.aclose()
            if isinstance(error, Exception):
                with contextlib.suppress(type(error)), at(place):
                    if inspect.isawaitable(seen := stream_ended(call, chunks, error)):
                        await seen
            if isinstance(error, GeneratorExit) and call.effect not in CHANGES:
                await adrive(returned(attempt, call, chunks, cut=True))
            else:
                await adrive(failed(attempt, call, error))
            raise
        await adrive(returned(attempt, call, chunks))

    # --- places ----------------------------------------------------------------------------------

    def place_here(self) -> Place:
        """Return where a call of this context would be made in this session."""
        self._entered_attempt()
        place = here.get()
        if place is not None and place.session is self:
            return place
        return self._place_outside(place)

    def _place_outside(self, place: Place | None) -> Place:
        """Where a call is made in this session that comes from outside of its own context.

        One that comes from a session inside of it stands where that one was entered, and is decided
        by the gates of both.
        """
        home = self._home
        assert home is not None
        if place is None or place.session.around is None:
            return home
        if place.session.guest_of is self:
            return place
        inner = place.session
        while inner.around is not None and inner.around is not self:
            inner = inner.around
        if inner.around is None or inner.entered_at is None:
            return home
        halted = place.session.halted
        if halted is not None and place.attempt is not home.attempt:
            raise SessionHalted(f"a session inside of this one was halted: {halted}") from halted
        return inner.entered_at._replace(session=self._as_guest(place.session))

    def seen_from(self, place: Place) -> Session:
        """Return this session as it is for what is done from a place, with the gates of both."""
        if place.session is self or place.attempt is self._attempt:
            return place.session
        session: Session | None = place.session
        while session is not None and session is not self:
            session = session.around
        return self if session is None else self._as_guest(place.session)

    def _as_guest(self, inner: Session) -> Session:
        """This session, as it is for calls that are made from one inside of it."""
        known = self._guests.get(inner)
        if known is not None and known.guest_stages is self.stages:
            return known
        guest = self._guests[inner] = copy.copy(self)
        own = tuple(each for each in inner.gates if each not in self.gates)
        guest.guest_of, guest.guest_stages, guest.around = self, self.stages, self
        guest.gate, guest.gates, guest.is_strict = inner.gate, inner.gates, inner.is_strict
        guest.approver = inner.approver
        guest._before = (*self._before, *own)  # noqa: SLF001 - its own kind
        guest.stages = (*guest._before, *self._after)  # noqa: SLF001 - its own kind
        guest.known_hooks = {}
        return guest

    def turn(
        self, *, opens: Mapping[str, Collection[str]] | None = None
    ) -> AbstractContextManager[TurnHandle]:
        """Have the calls of the block be one turn: none of them depends on another.

        Args:
            opens: by name, the branches that are opened in it, with the names that each comes
                after. A resumed run of which not all recorded branches are opened yet halts at a
                new write in another one, which may be one of those, renamed; it does not halt if
                they are listed here.
        """
        return turn(self.place_here(), opens)

    def branch(
        self, name: str, *, after: Iterable[BranchHandle] = ()
    ) -> AbstractContextManager[BranchHandle]:
        """Give the calls of the block a world of their own, forked here and joined at its end.

        Args:
            name: the same in each attempt.
            after: branches of the same one whose blocks have ended, and whose effects the calls
                inside depend on.

        Raises:
            SessionError: on entering: one that it comes after is not such a branch.
        """
        if not name:
            raise SessionError("a branch needs a name, the same in each attempt")
        return open_branch(self.place_here(), name, after=after)

    def transaction(self, name: str = "transaction") -> Transaction:
        """Take back what is done in the block if it raises; `with` or `async with`.

        A rolled-back block is a failure of that block: the error is raised, and a resume that goes
        the same way gives it back. Nested ones are undone with the one around them.
        """
        return Transaction(self.place_here(), name)

    def place(
        self,
        *,
        turn: object = None,
        slot: int | None = None,
        agent: str = "",
        call_id: str = "",
    ) -> AbstractContextManager[Place]:
        """Set the place of the next call in this context; for adapters.

        Args:
            turn: a handle of `turn`; or whatever tells the turns of a branch apart, and is the
                same for the calls of one: the message that issued them, say, or its id.
            slot: the call's place in the model's message.
            agent: the agent's name.
            call_id: the framework's id of the call.
        """
        here_ = self.place_here()
        if turn is None:
            stated = here_.turn
        elif isinstance(turn, TurnHandle):
            stated = turn._place.turn  # noqa: SLF001 - its own handle
        else:
            stated = here_.attempt.turn_named(here_.branch, turn)
        return at(here_._replace(turn=stated, slot=slot, agent=agent, call_id=call_id))

    def seen(self, histories: Mapping[str | None, Iterable[str]]) -> None:
        """Take calls as done that a framework's own history shows as answered; for adapters.

        Nobody asks for them again: their steps are used up as if somebody had, and the answers of
        models before them. A call whose id this attempt was asked for as often as the history shows
        it is left alone.

        Args:
            histories: by agent (see `place`), the ids of the calls that have a result in its
                history, in any order, each as often as it is there; None: of whichever agents.

        Raises:
            Halt: a history shows a call as answered that was halted; the session is, too.
            UnknownOutcome: the same of a call of which nobody knows whether it happened.
        """
        from rollcage.calls.memory import see_histories  # only frameworks with a memory need it

        place = self.place_here()
        see_histories(place.attempt, histories, place.branch)

    def unasked(self) -> tuple[int, ...]:
        """Return the recorded steps that nobody has asked for, by number; for tests that replay.

        It is what the recorded agent did and this one did not. Steps in the body of a call that was
        replayed, or was not asked for itself, are left out; pure steps, which may answer any number
        of calls, too.
        """
        attempt = self._entered_attempt()
        with attempt.lock:
            return attempt.run.unasked()

    # --- undo ------------------------------------------------------------------------------------

    def undo(
        self, to: int | None = None, *, branch: str | None = None, in_doubt: InDoubt = "list"
    ) -> UndoReport:
        """Take back the effects of this run, the newest first.

        Everything is looked at before anything is touched: where somebody else has changed a state
        since, nothing is.

        Args:
            to: the last step that stays; None: everything is taken back. A session that was entered
                inside of another one takes back its own effects only.
            branch: only what was done in blocks of this name (or path: `outer/inner`), and what
                came after them.
            in_doubt: what is done with a step of which nobody knows whether it happened: `"list"`
                it, or `"restore"` what was before.

        Raises:
            SessionError: it can't be done from here, or a state can't be observed.
            ToolMissing: a tool that is needed is not here; nothing was touched.
        """
        request = Request(to, branch, in_doubt=in_doubt)
        found: UndoReport = drive(self._undo(request, is_async=False))
        return found

    async def aundo(
        self, to: int | None = None, *, branch: str | None = None, in_doubt: InDoubt = "list"
    ) -> UndoReport:
        """`undo` in an async session."""
        request = Request(to, branch, in_doubt=in_doubt)
        found: UndoReport = await adrive(self._undo(request, is_async=True))
        return found

    def _undo(self, request: Request, *, is_async: bool) -> Flow:
        attempt = self._entered_attempt()
        assert self._home is not None
        flow = undo(attempt, request._replace(within=self._home.branch), is_async=is_async)
        found: UndoReport = yield from flow
        attempt.session.undone_at = attempt.run.last
        return found

    # --- state -----------------------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt:
        """The attempt that it is, or is a part of; for stages."""
        return self._entered_attempt()

    @property
    def stats(self) -> Stats:
        """What the attempt has done so far."""
        return self._entered_attempt().stats

    @property
    def halted(self) -> Halt | None:
        """The error that halted it; None if it goes on."""
        return self._entered_attempt().halted

    @property
    def paused(self) -> str:
        """What the run waits for (see `pause`); empty if for nothing.

        A resume of a paused run waits for the same until it makes a call.
        """
        attempt = self._entered_attempt()
        return attempt.waits or (attempt.run.waits if not attempt.stats.calls else "")

    def pause(self, reason: str) -> None:
        """Mark the run as waiting for something outside: a person's answer, a signal, a time.

        If the session is left like that, and not with an error, the attempt ends `paused`, and the
        next one goes on. Calls are still made: parts of an agent may be at work while others wait.

        Args:
            reason: what it waits for, in a few words; it is recorded as given.
        """
        self._entered_attempt().waits = writable(reason) or "paused"

    def go_on(self) -> None:
        """Mark the run as no longer waiting; without a `pause`, this changes nothing."""
        attempt = self._entered_attempt()
        attempt.waits = attempt.run.waits = ""

    @property
    def held(self) -> float:
        """The seconds in which its calls waited, because somebody ordered the run to pause.

        A limit on the time of an agent's work should leave them out.
        """
        stages = self._entered_attempt().session.stages
        return next(each.held for each in stages if isinstance(each, Orders))

    def halt(self, error: Halt) -> None:
        """Let nothing more run in it; leaving it raises the error."""
        self._entered_attempt().halt(error)

    def check(self) -> None:
        """Raise if nothing runs in it any more; for adapters.

        Raises:
            SessionHalted: it was halted.
        """
        halted = self.halted
        if halted is not None:
            raise SessionHalted(f"the session was halted: {halted}") from halted


def _check(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is none of those that mean something."""
    if value not in allowed:
        raise SessionError(f"{field}={value!r} is not one of {', '.join(allowed)}")


def _is_async(body: Callable[..., Any]) -> bool:
    """Whether a body is a coroutine function, as quickly as most can be told."""
    code = getattr(body, "__code__", None)
    if code is None:
        return inspect.iscoroutinefunction(body)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _closed(source: Any, place: Place) -> None:
    if hasattr(source, "close"):
        with contextlib.suppress(Exception), at(place):
            source.close()


def _check_cut(attempt: Attempt, step: Step) -> None:
    """Halt where a recorded stream ends that was not read to its end.

    Raises:
        NotReplayable: there may have been more of it.
    """
    if b'"cut":true' in (step.outcome or b""):
        raise attempt.halt(NotReplayable("the recorded stream was not read any further than this"))


BODY_CALLERS: Final = (
    Call.run, in_thread, perform, drive, adrive,
    Session._streamed, Session._astreamed,  # noqa: SLF001 - methods of the class above
)  # fmt: skip
"""The functions that call the bodies of tools: whatever watches bodies knows them by these."""
