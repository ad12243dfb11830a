"""Provide `Session`: an attempt at a run, from entering to leaving."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
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
    Sequence,
)
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from rollcage.calls.attempt import Attempt, Stats
from rollcage.calls.block import BranchHandle, Transaction, TurnHandle, open_branch, turn
from rollcage.calls.driver import Flow, adrive, drive, finished_in_thread, in_background
from rollcage.calls.flow import (
    collected,
    enter,
    give,
    gives_at_once,
    perform,
    threaded,
)
from rollcage.calls.gate import Entry, Gate
from rollcage.calls.looks import look
from rollcage.calls.memory import forget_rolled
from rollcage.calls.stage import Hooks, Stage, from_environment
from rollcage.calls.streams import astreamed, stream, streamed
from rollcage.contract.arguments import ModelRequest
from rollcage.contract.compensation import KnownTools
from rollcage.contract.contract import Contract
from rollcage.errors import (
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    ContractError,
    ForkEnded,
    Halt,
    RollcageError,
    SessionError,
    SessionHalted,
    StoreError,
    TraceUnwritable,
)
from rollcage.gate.persons import person
from rollcage.replay.answers import answers_of
from rollcage.replay.call import Call, Place, at, check_acts, here, open_sessions
from rollcage.replay.divergence import leaving
from rollcage.session.declare import bound_to, declaration
from rollcage.session.opening import Opened, name_of_script, open_run
from rollcage.session.options import Options
from rollcage.session.seal import SessionSeal
from rollcage.stages.capture import Capture
from rollcage.stages.once import Once
from rollcage.stages.orders import Orders
from rollcage.stages.unknown import Probe, Unknown
from rollcage.trace.chain import Chain, attest, parse
from rollcage.trace.keys import writable
from rollcage.trace.run import CHANGES, Event
from rollcage.trace.store import Store, open_store
from rollcage.trace.threads import in_thread
from rollcage.undo.program import Request, take_back, undo
from rollcage.undo.report import InDoubt, UndoReport
from rollcage.values.answer import Answer
from rollcage.values.codec import encode
from rollcage.values.exceptions import encode_exception
from rollcage.values.hiding import Hiding, hidden
from rollcage.values.registered import REGISTERED, Types

if TYPE_CHECKING:
    from types import TracebackType

    from rollcage.gate.approval import Instead
    from rollcage.replay.outcome import Read
    from rollcage.replay.source import RunSource
    from rollcage.replay.walk import Branch
    from rollcage.session.declare import Declared
    from rollcage.stages.observing import Observing
    from rollcage.stages.offline import Report
    from rollcage.trace.told import Observer
    from rollcage.values.hiding import Seal

__all__ = ["CallOptions", "Replay", "Session"]

_log: Final = logging.getLogger("rollcage")
_marks: Final[ContextVar[None]] = ContextVar("rollcage.session.marks")
"""The session whose tokens show in which context it was entered."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Replay = Literal["auto", "continue", "off", "resume", "offline", "verify"]
OnDivergence = Literal["halt", "undo", "warn"]
Kind = Literal["tool", "model"]
_REPLAYS: Final = get_args(Replay)
_RESPONSES: Final = get_args(OnDivergence)


class CallOptions(TypedDict, total=False):
    """What an adapter may say of a call.

    Attributes:
        kind: `tool` (the default) or `model`.
        raw: the arguments as the model wrote them, if a framework has validated the arguments.
        answer: extracts a model's answer from the value of the body, for the log.
        instead: the other decisions that an approver may take on a framework's call; None: none.
    """

    kind: Kind
    raw: Mapping[str, Any] | None
    answer: Read | None
    instead: Instead | None


def _acted_for(actor: str) -> str:
    """Return the normalized name of the person for whom a run acts; empty without a person.

    Raises:
        SessionError: the text is no name of a person.
    """
    if not actor:
        return ""
    try:
        return person(actor)
    except ValueError as error:
        raise SessionError(f"actor= has to name who the run acts for: {error}") from None


def _check_copies_none(stage: Stage) -> None:
    """Refuse a stage that begins a copy of a run outside of `stages=`.

    Raises:
        SessionError: the stage copies a run.
    """
    if stage.copies is not None:
        raise SessionError(f"{type(stage).__name__} copies a run: give it to Session in stages=")


class Session:
    """Guard the calls of one attempt at a run.

    Use a session as a context manager, sync or async. Every tool that is called through the
    session, or declared with `tool` and called inside the block, is fingerprinted, gated, traced
    and, in a later session of the same name, replayed. Inside another session of the same store, a
    session is a branch of the outer run.

    Args:
        name: the job. Its newest run is resumed, unless that run ended `ok`. By default, the name
            of the running script, which is logged.
        store: a folder (made if needed), a URL or a `Store`.
        replay: `"auto"`; `"continue"` resumes the newest run even after it ended `ok`; `"off"`
            begins a new run; `"resume"` requires a run to resume; `"offline"` replays recorded
            outcomes and runs nothing; `"verify"` also runs pure and read tools again, and compares.
            The last two write nothing, and leave a `report`.
        source: a run to start from: a run id; `(store, run id)` for a run in another store; or the
            path of a log. A copy of the run answers calls; its effects stay its own. With
            `"offline"`, the run to read.
        run: the id of the run, if not the newest of the job.
        input: the input of the job, any value that a tool may take: another input is another job.
        gate: policies, facades, rules (see `rollcage.Rule`) and guards. Each decides on every call:
            deny over ask over allow. A denial overrides recorded outcomes, too.
        approver: decides on calls for which a rule asks; without an approver, the session halts.
        actor: the person for whom the run acts, and who can't approve its calls.
        on_divergence: the response to a new effect while recorded effects lie ahead: `"halt"`;
            `"undo"` takes them back first; `"warn"` goes on without them.
        observers: notified of every step after it was written: see `StepEvent`, and `Instrument`
            for observers of runs. Observers of an outer session are notified as well.
        stages: features that surround calls, in this order.
        options: settings that few sessions need.

    Raises:
        SessionError: the arguments contradict each other.
    """

    finishes_undo = True  # whether entering finishes the undo of an earlier attempt
    hooks: Hooks

    def __init__(
        self,
        name: str | None = None,
        *,
        store: str | os.PathLike[str] | Store = "./.rollcage",
        replay: Replay = "auto",
        source: RunSource | None = None,
        run: str | None = None,
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
        _check("replay", replay, _REPLAYS)
        _check("on_divergence", on_divergence, _RESPONSES)
        self.name = unicodedata.normalize("NFC", name)
        self.store = open_store(store)
        self.replay, self.source, self.run = replay, source, run
        self.input, self.on_divergence, self.options = input, on_divergence, options
        self.actor = _acted_for(actor)
        self.approver = approver
        self._brought = tuple(stages)
        self.copier = self._copier(self._brought)
        self.begins_copy = self.copier is not None and run is None  # else it goes on with one
        self.around: Session | None = None
        self.observers = tuple(observers)
        self._first_seal = SessionSeal(self.store)
        self.seal: Seal = self._first_seal
        self.types = Types(options.types, REGISTERED)
        self.tools = KnownTools(options.tools)
        self.report: Report | None = None  # of what writes nothing
        self.run_id: str = ""
        self.undone_at = -1  # the last step when it was undone
        self._ambient: tuple[Stage, ...] = ()  # what the environment brings
        if self.copier is None and replay not in ("offline", "verify") and here.get() is None:
            self._ambient = from_environment(self)
            self.copier = next((each for each in self._ambient if each.copies is not None), None)
            self.begins_copy = self.copier is not None
        self.gate = self._gated(gate)
        self.calls_before = 0  # calls of the outer run, on entering
        self.is_left = False
        self.gates: tuple[Stage, ...] = ()  # the stages in its gate and in outer gates
        self.described: list[Event] = []
        self._late: tuple[Stage, ...] = ()
        self._began = self._latest = 0
        self.is_strict = options.strict
        self.entered_at: Place | None = None  # if that was inside of another session
        self.guest_of: Session | None = None  # of a copy, for calls from a session inside of it
        self.guest_stages: tuple[Stage, ...] = ()
        self._guests: weakref.WeakKeyDictionary[Session, Session] = weakref.WeakKeyDictionary()
        self._observing: tuple[Observing, ...] = ()
        self._joins: tuple[Stage, ...] = ()
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
                yield lambda: asyncio.shield(in_thread(self._let_go))
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
        self._observe(self.observers)
        brought = (*self._ambient, *self._brought, *self.gates, *self._late)
        self._surround(
            (*self._observing, *looks, Orders(), *brought),
            (*asks, Unknown(), Probe(), Once(), Capture()),
        )
        if theirs:  # they are open, and told of the lines of their own run
            mine = Hooks(each for each in self.stages if each not in theirs)
            self.hooks.folds, self.hooks.conceal = mine.folds, mine.conceal
            self.hooks.opened, self.hooks.closed = mine.opened, mine.closed
        return self.hooks

    def _check_around(self, place: Place) -> None:
        """Refuse a separate run inside a run that must not write.

        Raises:
            SessionError: the separate run could make the writes that the outer run must not make.
        """
        if place.attempt.dry and self.replay not in ("offline", "verify"):
            raise SessionError(
                f"session {self.name!r} has a run of its own, and is entered inside of a fork that "
                f"is not live: nothing of it runs"
            )

    def _observe(self, observers: Iterable[Observer]) -> None:
        """Register the observers that apply."""
        if observers:
            from rollcage.stages.observing import Observing, wanted

            found = wanted(observers)
            self._observing = (Observing(found),) if found else ()

    def _inherit(self, place: Place) -> tuple[Stage, ...]:
        """Apply the gate of an outer session here as well: a gate is never loosened."""
        from rollcage.stages.around import Around  # few sessions need it

        self.around = around = place.session
        self.entered_at = place
        self.is_strict = self.is_strict or around.is_strict
        self.gate.within(around.gate)
        if self.approver is None and around.approver is not None:
            again = getattr(around.approver, "again", None)
            self.approver = around.approver if again is None else again()
        seal = place.attempt.seal
        if isinstance(seal, Hiding) and not seal.idle:
            from rollcage.stages.secrets import concealing  # most sessions have no secret

            self._late = (*concealing(seal, self._brought), *self._late)
        return (Around(around), *around.gates)

    def add(self, stage: Stage) -> None:
        """Add a stage behind the stages of `stages=`, even after the session was entered.

        Its `folds` are told of the lines on record. In a nested session, the stage covers that
        session and all sessions around it.
        """
        _check_copies_none(stage)
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

    def _surround(self, before: tuple[Stage, ...], after: tuple[Stage, ...]) -> None:
        """Have stages surround the calls of this session."""
        self._before, self._after = before, after
        self.stages = (*before, *after)
        self.hooks = Hooks(self.stages)
        self.known_hooks: dict[int, Hooks] = {}

    def _take(self, stage: Stage) -> None:
        """Apply a stage to the calls of this session, and of the sessions around it in the run."""
        was, own = self.hooks, Hooks((stage,))
        self._surround((*self._before, stage), self._after)
        self.hooks.folds, self.hooks.conceal = was.folds, was.conceal + own.conceal
        self.hooks.opened, self.hooks.closed = was.opened + own.opened, was.closed + own.closed
        if self.around is not None and self.around._attempt is self._attempt:  # noqa: SLF001 - its own kind
            self.around._take(stage)  # noqa: SLF001 - its own kind

    @property
    def outermost(self) -> Session:
        """Return the session that opened the run: this session, or the outermost around it."""
        return self if self._attempt is None else self._attempt.session

    def ask(self, approver: Any, *, pauses: tuple[type[BaseException], ...] = ()) -> None:
        """Replace the approver that decides when a guard asks.

        Args:
            approver: see `Session`.
            pauses: exceptions by which a framework asks outside of the process: they are passed on,
                and the call goes on waiting at its place.
        """
        from rollcage.stages.approvals import Approvals

        if self._attempt is None:
            own = self.approver.again() if isinstance(self.approver, Approvals) else Approvals()
            own.approver, own.pauses = approver, (*own.pauses, *pauses)
            self.approver = own
            return
        asks = [each for each in (self.approver, *self.stages) if isinstance(each, Approvals)]
        if asks:
            asks[0].pauses = (*asks[0].pauses, *pauses)
        else:
            self.add(Approvals(approver, pauses=pauses))
        self.approver = approver

    def hooks_of(self, contract: Contract) -> Hooks:
        """Return the methods of the stages that apply to a tool."""
        known = self.known_hooks.get(id(contract))
        if known is None:
            stages = [each for each in self.stages if each.concerns(contract)]
            known = self.known_hooks[id(contract)] = Hooks(stages)
            known.contract = contract  # keep the contract alive: its id is the key
        return known

    def _gated(self, given: Iterable[Entry]) -> Gate:
        """Return the gate, after the stages replaced entries of it."""
        entries = tuple(given)
        for stage in (*self._ambient, *self._brought):
            entries = stage.gating(entries)
        gate = Gate(entries, self)
        for each in gate.stages:
            _check_copies_none(each)
        return gate

    def _copier(self, stages: tuple[Stage, ...]) -> Stage | None:
        """Return the stage that begins a copy of a run, or goes on with it; None without one.

        Raises:
            SessionError: another argument names a run to begin with, too.
        """
        copies = [each for each in stages if each.copies is not None]
        if not copies:
            return None
        name = type(copies[0]).__name__
        if len(copies) > 1:
            raise SessionError(f"one run is copied, not {len(copies)}: give one {name} in stages=")
        if self.replay not in ("auto", "continue"):
            raise SessionError(
                f"{name} begins a run of its own, a copy: not with replay={self.replay!r}"
            )
        if self.source is not None:
            raise SessionError(f"{name} says which run it copies: leave source= out")
        return copies[0]

    def _check_new(self) -> None:
        check_acts(here.get(), f"session {self.name!r} can't be entered")
        if self._attempt is not None:
            raise SessionError("a session can be entered once only; make another one")

    def _join(self) -> bool:
        """Enter as a branch of the session around, if that session has the same store."""
        around = here.get()
        if (
            around is None
            or around.attempt.closed
            or self.replay not in ("auto", "continue")
            or self.run is not None
            or self.source is not None
            or any(each.copies is not None for each in self._brought)
            or around.attempt.store != self.store
            or around.attempt.process != os.getpid()
        ):
            return False
        self._check_new()
        self.copier, self.begins_copy, self._ambient = None, False, ()  # the outer one's count
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
        self._surround((*outer._before, *self._joins), outer._after)  # noqa: SLF001 - its own kind
        self._began = self._latest = self.options.clock.monotonic()
        attempt.tools.join(self.tools)
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
            open_sessions.discard(self)
            self._leave_stages(attempt, error)
            self._leave_block(error)
            raise
        for stage in self._late:
            self.add(stage)
        if self.approver is not None and attempt.session.approver is None:
            self._has_somebody_to_ask()
        return True

    def _has_somebody_to_ask(self) -> None:
        """Let calls wait for decisions, in a run whose outermost session has no approver."""
        from rollcage.stages.approvals import Approvals

        if not any(isinstance(each, Approvals) for each in self.stages):
            self.add(Approvals())

    def is_observed_by(self, observer: Observer) -> bool:
        """Tell whether the session, or a session around it, notifies an observer."""
        if any(each is observer for each in self.observers):
            return True
        return self.around is not None and self.around.is_observed_by(observer)

    @property
    def home_branch(self) -> str:
        """Return the branch of the session's calls; empty unless the session is nested."""
        return "" if self._home is None else self._home.branch

    def _join_stages(self, attempt: Attempt, branch: Branch) -> None:
        """Apply the observers and gate stages of a nested session to the attempt."""
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
        """Begin the attempt at the opened run."""
        self._attempt = attempt = Attempt(
            self,
            opened.run,
            opened.log,
            live=opened.log is not None,
            dry=opened.run.dry,
            recorded_in=opened.recorded_in,
            attested=opened.attested,
        )
        self.run_id = opened.run.id
        self._began = self._latest = self.options.clock.monotonic()
        opened.run.begin_attempt()
        self._home = Place(attempt, self)
        here.set(self._home)
        self._entered_in = _marks.set(None)
        open_sessions.add(self)

    def _opened(self, hooks: Hooks) -> Opened:
        """Open the run in a thread, and preload data that the event loop would need later."""
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
        """Prepare the stages, finish a begun undo, and forget rolled back blocks at the end.

        A rolled back block with no step after it counts as never run.
        """
        attempt = self._entered_attempt()
        run = attempt.run
        if is_async:  # the stages may look into the store
            yield lambda: in_thread(self._prepare_stages, in_context=False)
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
        if run.rolled and forget_rolled(attempt):
            attempt.branches.clear()

    def _give_up(self) -> None:
        """Close the log of an attempt that could not begin."""
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
                if error is None:
                    yield from self._leave(attempt, is_async=is_async)
            except Halt as halt:
                attempt.halt(halt)
            except BaseException as raised:  # noqa: BLE001 - raised again below
                failed = raised
            if failed is None and attempt.halted is None and attempt.live:
                self._check_in_flight(attempt)
            self._end(attempt, failed)
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
        """Restore the place of calls in this context to the place before entering.

        A session entered later keeps its own calls. Another context, such as a thread's, still
        knows this session.
        """
        place = here.get()
        if place is not None and place.session is self:
            here.set(self.entered_at)

    def _leave_block(self, error: BaseException | None) -> None:
        """Join the session's branch of an outer run."""
        assert self._block is not None
        place = here.get()
        kind = None if error is None else type(error)
        self._block.__exit__(kind, error, None if error is None else error.__traceback__)
        here.set(place)
        self._leave_context()

    @property
    def is_over(self) -> bool:
        """Tell whether no further call begins: the session, or a session around it, was left."""
        if self._block is None:
            return self._attempt is not None and self._attempt.closed
        return self.is_left or (self.around is not None and self.around.is_over)

    def was_entered_here(self) -> bool:
        """Tell whether the session was entered in this very context, not in its original."""
        if self._entered_in is None:
            return False
        try:
            _marks.reset(self._entered_in)  # only its own context takes a token back, and once
        except ValueError:
            return False
        self._entered_in = _marks.set(None)
        return True

    @staticmethod
    def _check_in_flight(attempt: Attempt) -> None:
        """Halt if a write is still running: nobody will know whether it happened."""
        with attempt.lock:
            running = [
                step
                for branch in attempt.branches.values() if branch.running
                for step in attempt.run.branches.get(branch.name, ())
                if step.effect == "write" and step.status == "unknown" and not step.gone
                if step.n > attempt.recorded
            ]  # fmt: skip
            if running:
                first = running[0]
                attempt.halt(attempt.unknown(first, ": its session was left while it ran"))

    def _leave(self, attempt: Attempt, *, is_async: bool) -> Flow:
        """Finish open work before the attempt ends without an error.

        With `on_divergence="undo"`, unrequested effects are taken back.
        """
        if attempt.halted is None:
            for work in self.hooks.leaving:
                yield from work(self, is_async=is_async) or ()
        if self.on_divergence != "undo" or attempt.halted is not None or not attempt.live:
            return
        if attempt.dry or attempt.log is None or self.undone_at >= 0:
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

    def _end(self, attempt: Attempt, error: BaseException | None) -> None:
        """Write the last line of the attempt."""
        open_sessions.discard(self)
        self._leave_context()
        with attempt.lock:
            said = None
            for closed in self.hooks.closed:
                said = closed(self, error) or said
            status = said or self._status(attempt, error)
            stats = attempt.stats
            line: Event = {
                "event": "ended", "status": status, "calls": stats.calls, "hits": stats.hits,
                "time": self.options.clock.wall() // 1000,
            }  # fmt: skip
            if attempt.run.attempts > 1:
                line["attempts"] = attempt.run.attempts
            if status == "paused" and (waits := self.paused):
                line["waits"] = waits
            ended_by = attempt.halted or error
            try:
                if ended_by is not None:
                    line["error"] = self._described(ended_by)
                if attempt.log is not None and not isinstance(attempt.halted, TraceUnwritable):
                    attempt.put(line)
            except Halt as halt:
                attempt.halt(halt)
            finally:
                attempt.closed = True

    def _described(self, error: BaseException) -> Event:
        """Return the type and message of the error that ended the attempt, without secrets."""
        attempt = self._entered_attempt()
        try:
            encoded = encode_exception(error, attempt.seal)
        except Exception as failed:  # noqa: BLE001 - its text may hold what was to be concealed
            raise attempt.unconcealed(failed) from None
        return {name: encoded[name] for name in ("type", "message")}

    def _status(self, attempt: Attempt, error: BaseException | None) -> str:
        if attempt.halted is not None:
            if isinstance(attempt.halted, ForkEnded):
                return attempt.halted.status
            return "paused" if isinstance(attempt.halted, ApprovalRequired) else "halted"
        if error is not None:
            return "error"
        if attempt.run.undoing is not None or self.undone_at == attempt.run.last:
            return "undone"  # a resume goes on from the rest
        if self.paused:
            return "paused"
        if any(branch.running for branch in attempt.branches.values()):
            return "halted"  # a body in a thread outlives the session
        run = attempt.run
        left = attempt.live and [
            step
            for step in run.untaken.values()
            if step.effect in CHANGES and step.acts and not run.is_consumed(step)
            if not step.failed_cleanly
        ]
        return "partial" if left else "ok"

    @staticmethod
    def _raise_halt(attempt: Attempt, error: BaseException | None) -> None:
        """Raise the halt of the session, even if the agent has swallowed or replaced the error."""
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
            try:
                self._attest(attempt, attempt.log)
            finally:  # Ctrl-C, too, lets the run go
                attempt.log.close()
        except Halt as halt:
            attempt.halt(halt)
            if error is not None:
                _log.error("the end of run %s is not on record: %s", attempt.run.id, halt)

    def _attest(self, attempt: Attempt, log: Chain) -> None:
        """Attest the end of the log outside of it, once its last line is on record."""
        if not attempt.run.status:  # the attempt has no end on record
            return
        try:
            log.wait()
        except RollcageError:  # `close` raises it
            return
        try:
            attest(self.store, attempt.run.id, log.head, attempt.attested)
        except StoreError as error:
            _log.warning("the end of run %s is not attested: %s", attempt.run.id, error)

    def _entered_attempt(self) -> Attempt:
        if self._attempt is None:
            raise SessionError(f"session {self.name!r} is not entered: use `with Session(...)`")
        return self._attempt

    # --- deciding --------------------------------------------------------------------------------

    @property
    def refuses_unguarded(self) -> bool:
        """Tell whether tools in threads without a session are refused while this session is open.

        Beside a run that must not write, all are refused.
        """
        said = self.options.unguarded
        if self._attempt is not None and self._attempt.dry:
            return True
        return self.gate.enforces if said is None else said == "refuse"

    def elapsed(self) -> int:
        """Return how long the session has been open (ns).

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
        *,
        is_async: bool,
        kind: Kind = "tool",
        raw: Mapping[str, Any] | None = None,
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Call:
        """Make an arriving call: bind its arguments, or refuse the call."""
        if self._attempt is None:
            self._entered_attempt()
        place = here.get()
        if place is None or place.session is not self:
            place = self._place_outside(place)
        session, attempt = place.session, place.attempt
        gate = session.gate
        screens = gate.screens and attempt.live  # if nothing runs, the record counts
        if screens and (refused := gate.screen(contract, body, kind)) is not None:
            self._put_refused(
                contract, arguments, place,
                reason=refused.message, code=refused.code, kind=kind, rule=refused.rule,
            )  # fmt: skip
            raise Blocked(refused.message, rule=refused.rule, code=refused.code)
        try:
            if contract.strict or gate.strict or session.is_strict:
                contract.takes.check_strict(arguments if raw is None else raw)
            if type(arguments) is ModelRequest:
                bound, asked = contract.takes.bind_request(
                    arguments, contract.version, attempt.seal
                )
            else:
                bound, asked = contract.takes.bind(arguments, attempt.seal), None
        except ArgumentsInvalid as error:
            self._put_refused(
                contract, arguments if raw is None else raw, place,
                reason=str(error), code=ArgumentsInvalid.code, kind=kind,
            )  # fmt: skip
            raise
        call = Call(place, contract, bound, body, kind, is_async=is_async, asked=asked)
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

        For adapters, and for loops of your own in which a model asks for a missing tool. A call of
        the session with invalid arguments is recorded automatically.

        Args:
            tool: the contract of the tool; or the requested name, if there is no such tool.
            arguments: the requested arguments.
            reason: the text for the model; for arguments that do not match the tool's schema, the
                validation error replaces it.
            code: the machine-readable reason; by default `tool_missing` for a name,
                `arguments_invalid` for arguments that do not match, else `refused`.
            kind: the kind of the call.
            call_id: the framework's id of the call, if the call was not placed.
        """
        self._put_refused(
            tool, arguments, self.place_here(),
            reason=reason, code=code, kind=kind, call_id=call_id,
        )  # fmt: skip

    def recorded_answers(self, agent: str | None = None) -> list[Answer]:
        """Return the model's answers from before this attempt, in order; for adapters.

        Args:
            agent: the name of the agent; None: all agents except agents inside of tools.

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
        **how: Unpack[CallOptions],
    ) -> Any:
        """Guard one call of a sync body; for adapters.

        Args:
            contract: the declaration of the tool or model.
            arguments: the requested arguments, or the arguments validated by a framework.
            body: the function to run, with the validated arguments as keywords.
            **how: see `CallOptions`.

        Raises:
            ArgumentsInvalid: the arguments do not match the tool's schema.
            Blocked: a guard denies the call.
            Halt: the session can't go on.
        """
        code = getattr(body, "__code__", None)  # most have one, which says it fast
        if code.co_flags & inspect.CO_COROUTINE if code else inspect.iscoroutinefunction(body):
            raise SessionError(f"{contract.name} is async: use acall, in an async session")
        call = self._call(contract, arguments, body, is_async=False, **how)
        if call.place.looks:
            return drive(look(call))
        work = enter(call)
        return give(call) if gives_at_once(call, work) else drive(perform(call, work))

    async def arun_call(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        **how: Unpack[CallOptions],
    ) -> Any:
        """Guard one call of an async body, or of a sync one in a thread; for adapters."""
        call = self._call(contract, arguments, body, is_async=True, **how)
        if call.place.looks:
            return await adrive(look(call))
        work = enter(call)
        return give(call) if gives_at_once(call, work) else await adrive(perform(call, work))

    @staticmethod
    def perform(call: Call) -> Flow:
        """Return the flow of a call, for an undo that makes calls in its own flow."""
        return perform(call, enter(call))

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **declared: Unpack[Declared]) -> Callable[[F], F]: ...
    def tool(self, function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
        """Bind a function to this session: each call of the result is guarded, in any thread.

        Use it as a decorator, with or without the arguments of a declaration, or as a function. A
        function declared with `rollcage.tool` keeps its contract.
        """
        return bound_to(self, function, **declared)

    def call(self, tool: Callable[..., T], /, **arguments: Any) -> T:
        """Call a sync tool with these arguments; a generator function yields its chunks."""
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
        """Call an async tool, or a sync tool in a thread, with these arguments.

        Raises:
            ContractError: the tool is a generator function.
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
        **how: Unpack[CallOptions],
    ) -> Generator[Any]:
        """Guard one call whose body returns an iterator: yield its chunks, live or recorded.

        The step's value is the list of its chunks. A consumer that stops early cuts a write off; of
        any other step, the consumed chunks are recorded, and no more can be replayed. The call
        takes its place at once, and is made when the first chunk is asked for.
        """
        call = self._call(contract, arguments, body, is_async=False, **how)
        call.streams = True
        return drive(look(call)) if call.place.looks else streamed(call)

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        **how: Unpack[CallOptions],
    ) -> AsyncGenerator[Any]:
        """Guard one call whose body returns an async iterator; see `stream`."""
        call = self._call(contract, arguments, body, is_async=True, **how)
        call.streams = True
        return drive(look(call)) if call.place.looks else astreamed(call)

    # --- places ----------------------------------------------------------------------------------

    def place_here(self) -> Place:
        """Return the place of a call of this context in this session."""
        self._entered_attempt()
        place = here.get()
        if place is not None and place.session is self:
            return place
        return self._place_outside(place)

    def _place_outside(self, place: Place | None) -> Place:
        """Return the place of a call that comes from another context.

        A call from a nested session stands where that session was entered, and the gates of both
        sessions decide on the call.
        """
        home = self._home
        assert home is not None
        if place is not None and place.looks:
            seen = self.seen_from(place)
            return Place(home.attempt, seen, home.branch, agent=place.agent, looks=place.looks)
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
        return dataclasses.replace(inner.entered_at, session=self._as_guest(place.session))

    def seen_from(self, place: Place) -> Session:
        """Return this session for calls made from a place, with the gates of both."""
        if place.session is self or place.attempt is self._attempt:
            return place.session
        session: Session | None = place.session
        while session is not None and session is not self:
            session = session.around
        return self if session is None else self._as_guest(place.session)

    def _as_guest(self, inner: Session) -> Session:
        """Return a copy of this session for calls made from a nested session."""
        known = self._guests.get(inner)
        if known is not None and known.guest_stages is self.stages:
            return known
        guest = self._guests[inner] = copy.copy(self)
        own = tuple(each for each in inner.gates if each not in self.gates)
        guest.guest_of, guest.guest_stages, guest.around = self, self.stages, self
        guest.gate, guest.gates, guest.is_strict = inner.gate, inner.gates, inner.is_strict
        guest.approver = inner.approver
        guest._surround((*self._before, *own), self._after)  # noqa: SLF001 - its own kind
        return guest

    def turn(
        self,
        *,
        opens: Mapping[str, Collection[str]] | None = None,
        calls: Sequence[tuple[str, Any]] | None = None,
    ) -> AbstractContextManager[TurnHandle]:
        """Make the calls of the block one turn: no call depends on another.

        Args:
            opens: by name, the branches that the turn opens, with the branches on which each
                depends. A resumed run with recorded branches still to open halts at a new write in
                an unknown branch, because that branch may be a renamed one; it does not halt for
                branches listed here.
            calls: the calls of the model's message by slot, each a tool's name and its arguments.
                If a resumed model words a message anew, a recorded call answers its equal in
                another slot, and a new write halts if the message lacks a recorded one.
        """
        return turn(self.place_here(), opens, calls)

    def branch(
        self, name: str, *, after: Iterable[BranchHandle] = ()
    ) -> AbstractContextManager[BranchHandle]:
        """Give the calls of the block a world of their own, forked here and joined at its end.

        Args:
            name: the name, equal in each attempt.
            after: ended branches of the same parent on whose effects the calls inside depend.

        Raises:
            SessionError: on entering: `after` names another kind of branch.
        """
        if not name:
            raise SessionError("a branch needs a name, the same in each attempt")
        return open_branch(self.place_here(), name, after=after)

    def transaction(self, name: str = "transaction") -> Transaction:
        """Take back the effects of the block if it raises; `with` or `async with`.

        A rolled back block is a failed block: the error is raised, and a resume on the same path
        raises it again. Nested transactions are undone with the outer one.
        """
        return Transaction(self.place_here(), name)

    def place(
        self,
        *,
        turn: object = None,
        slot: int | None = None,
        calls: Sequence[tuple[str, Any]] | None = None,
        agent: str = "",
        call_id: str = "",
    ) -> AbstractContextManager[Place]:
        """Set the place of the next call in this context; for adapters.

        Args:
            turn: a handle of `turn`; or a value that is equal for all calls of a turn and differs
                between turns of a branch, such as the message that issued the calls, or its id.
            slot: the call's place in the model's message.
            calls: the calls of that message; see `turn`.
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
        if stated is not None and calls is not None:
            stated.calls = calls
        return at(dataclasses.replace(here_, turn=stated, slot=slot, agent=agent, call_id=call_id))

    def seen(self, histories: Mapping[str | None, Iterable[str]]) -> None:
        """Mark calls as done that a framework's own history shows as answered; for adapters.

        Nothing asks for these calls again: their steps are used up as if they had been asked for,
        and so are the answers of models before them. A call is left alone if this attempt was asked
        for its id as often as the history shows it.

        Args:
            histories: by agent (see `place`), the ids of the calls with a result in the agent's
                history, in any order, each as often as it occurs; None: of any agent.

        Raises:
            Halt: a history shows a halted call as answered; the session is halted, too.
            UnknownOutcome: a history shows a call as answered whose outcome is unknown.
        """
        from rollcage.calls.memory import see_histories  # only frameworks with a memory need it

        place = self.place_here()
        see_histories(place.attempt, histories, place.branch)

    def unasked(self) -> tuple[int, ...]:
        """Return the numbers of recorded steps that nothing has asked for; for tests that replay.

        These are the recorded agent's steps that this agent did not repeat. Steps in the body of a
        replayed or unrequested call are left out, and so are pure steps, which may answer any
        number of calls.
        """
        attempt = self._entered_attempt()
        with attempt.lock:
            return attempt.run.unasked()

    # --- undo ------------------------------------------------------------------------------------

    def undo(
        self, to: int | None = None, *, branch: str | None = None, in_doubt: InDoubt = "list"
    ) -> UndoReport:
        """Take back the effects of this run, the newest first.

        Everything is examined before anything is touched: if another program has changed a state
        since, nothing is undone.

        Args:
            to: the last step that stays; None: everything is taken back. A nested session takes
                back its own effects only.
            branch: only the effects of blocks with this name (or path: `outer/inner`), and later
                effects.
            in_doubt: the response to a step of unknown outcome: `"list"` it, or `"restore"` the
                state before it.

        Raises:
            SessionError: undo is not possible from here, or a state can't be observed.
            ToolMissing: a required tool is missing; nothing was touched.
        """
        request = Request(to, branch, in_doubt=in_doubt)
        found: UndoReport = drive(self._undo(request, is_async=False))
        return found

    async def aundo(
        self, to: int | None = None, *, branch: str | None = None, in_doubt: InDoubt = "list"
    ) -> UndoReport:
        """Undo as `undo` does, in an async session."""
        request = Request(to, branch, in_doubt=in_doubt)
        found: UndoReport = await adrive(self._undo(request, is_async=True))
        return found

    def _undo(self, request: Request, *, is_async: bool) -> Flow:
        check_acts(here.get(), f"session {self.name!r} can't undo")
        attempt = self._entered_attempt()
        assert self._home is not None
        name = hidden(request.branch, attempt.seal).value
        flow = undo(
            attempt,
            dataclasses.replace(request, branch=name, within=self._home.branch),
            is_async=is_async,
        )
        found: UndoReport = yield from flow
        attempt.session.undone_at = attempt.run.last
        return found

    # --- state -----------------------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt:
        """Return the attempt that the session makes or takes part in; for stages."""
        return self._entered_attempt()

    @property
    def stats(self) -> Stats:
        """Return the counts of the attempt so far."""
        return self._entered_attempt().stats

    @property
    def halted(self) -> Halt | None:
        """Return the error that halted the session; None while it goes on."""
        return self._entered_attempt().halted

    @property
    def paused(self) -> str:
        """Return the reason why the run is paused (see `pause`); empty if it is not.

        A resume of a paused run waits for the same reason until it makes a call.
        """
        attempt = self._entered_attempt()
        return attempt.waits or (attempt.run.waits if not attempt.stats.calls else "")

    def pause(self, reason: str) -> None:
        """Mark the run as waiting for an outside event: an answer, a signal, a time.

        If the session is left while paused, and without an error, the attempt ends `paused`, and
        the next attempt goes on. Calls are still made: parts of an agent may work while others
        wait.

        Args:
            reason: the event, in a few words; the text is recorded as given.
        """
        self._entered_attempt().waits = writable(reason) or "paused"

    def go_on(self) -> None:
        """Mark the run as no longer waiting; without a `pause`, this changes nothing."""
        attempt = self._entered_attempt()
        attempt.waits = attempt.run.waits = ""

    @property
    def held(self) -> float:
        """Return the seconds in which calls waited because of an order to pause.

        A limit on the time of an agent's work should leave them out.
        """
        stages = self._entered_attempt().session.stages
        return next(each.held for each in stages if isinstance(each, Orders))

    def halt(self, error: Halt) -> None:
        """Stop every further call of the session; leaving it raises the error."""
        self._entered_attempt().halt(error)

    def check(self) -> None:
        """Raise if the session has halted; for adapters.

        Raises:
            SessionHalted: the session has halted.
        """
        halted = self.halted
        if halted is not None:
            raise SessionHalted(f"the session was halted: {halted}") from halted


def _check(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word outside the allowed ones."""
    if value not in allowed:
        raise SessionError(f"{field}={value!r} is not one of {', '.join(allowed)}")


BODY_CALLERS: Final = (
    Call.run, threaded, collected, perform, drive, adrive, Capture.around, Probe.around,
    stream, streamed, astreamed,
)  # fmt: skip
"""The functions that call the bodies of tools, for stages that watch bodies."""
