"""A session's life: how it is opened and left, and what everything in it shares."""

from __future__ import annotations

import datetime as dt
import functools
import logging
import os
import tempfile
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, cast

import orjson

from rollcage.contract.permissions import Enforce, grants_of
from rollcage.errors import (
    PolicyInvalid,
    SessionError,
    SessionHalted,
    StoreError,
    StoreReadOnly,
    TraceUnwritable,
)
from rollcage.gate import (
    Approver,
    Ask,
    Detecting,
    FacadeGuard,
    Given,
    PolicyGuard,
    Rule,
    Sealing,
    Spent,
    Terms,
    Verdict,
    all_given,
    person,
    recorded_facade,
)
from rollcage.replay.ahead import Memory
from rollcage.replay.generation import Origin
from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording
from rollcage.replay.world import Turn
from rollcage.session.declare import open_sessions
from rollcage.session.ending import cut_off, ending, partial
from rollcage.session.job import Job, Replay, encode_input, microseconds
from rollcage.session.lineage import MODES, read_answers
from rollcage.session.naming import Names, name_of_script
from rollcage.session.run import Key, Run
from rollcage.session.scope import (
    Guard,
    Lent,
    Nesting,
    Scope,
    Unguarded,
    around,
    enter_body,
    enter_watched,
    here,
    scope_of,
)
from rollcage.step.call import Call, Stats, Step
from rollcage.step.capture import LARGE, Setting
from rollcage.step.driver import Clock, Driver
from rollcage.step.flow import late_end
from rollcage.step.gating import Above, Gate, failed
from rollcage.step.ledger import Ledger, Mode, OnDivergence
from rollcage.step.observing import Instrument, Observer, RunEvent, notify
from rollcage.step.requests import Effect, Flow, Raised, Returned
from rollcage.step.undoing import Order, take_back
from rollcage.store.jobs import job_name, store_option
from rollcage.store.jsonl import JsonlStore
from rollcage.store.protocol import Reader, Store, Writer
from rollcage.store.url import RunSource, open_store
from rollcage.trace import constructors as make
from rollcage.trace.events import FORMAT
from rollcage.undo.compensation import Tool, Tools, ToolSource
from rollcage.values.answer import Answer
from rollcage.values.codec import tagged
from rollcage.values.exceptions import encode_exception
from rollcage.values.registered import REGISTERED, Types

__all__ = ["Opened", "check_approved", "writable"]


_log: Final = logging.getLogger("rollcage")

ENFORCED: Final[tuple[Enforce, ...]] = ("off", "report", "strict")  # each stricter than the last


class Opened:
    """What a session is apart from its calls; see `Session`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        store: str | os.PathLike[str] | Store = "./.rollcage",
        replay: Replay = "auto",
        source: RunSource | None = None,
        input: Any = None,  # noqa: A002 - what it is
        resume_within: dt.timedelta | float | None = None,
        gate: Iterable[Given] = (),
        policy: PolicyGuard | str | os.PathLike[str] | None = None,
        rules: Sequence[Rule] = (),
        observers: Iterable[Observer] = (),
        said: str | Sequence[str] | None = None,
        approver: Approver | None = None,
        actor: str = "",
        chain: Literal["effects", "all"] = "effects",
        durability: Literal["os", "disk"] = "os",
        on_divergence: OnDivergence = "halt",
        seed: str = "",
        retry_failed: bool | None = None,
        enforce: Enforce = "off",
        strict: bool = False,
        unguarded: Unguarded = "warn",
        tools: Mapping[str, ToolSource] | Iterable[ToolSource] | None = None,
        facade: str | None = None,
        secrets: Literal["declared", "detected"] = "declared",
        types: Iterable[type] = (),
        clock: Clock = Clock(),  # noqa: B008 - immutable
        _reopens: str | None = None,  # a run that was there before, for an undo of it
    ) -> None:
        if name is None:
            name = name_of_script()
        if not name:
            raise SessionError("a session needs a name: it identifies the job")
        _check("replay", replay, tuple(MODES))
        _check("chain", chain, ("effects", "all"))
        _check("durability", durability, ("os", "disk"))
        _check("on_divergence", on_divergence, ("halt", "warn", "undo"))
        _check("enforce", enforce, ENFORCED)
        _check("unguarded", unguarded, ("warn", "refuse"))
        _check("secrets", secrets, ("declared", "detected"))
        if source is not None and replay == "off":
            raise SessionError('replay="off" starts a new run: it takes no source=')
        self.name = job_name(name)
        self.store = open_store(store)
        self.run_id = self.root = ""
        self._replay: Replay = replay
        self._source = source
        self._given = input
        self._within = microseconds(resume_within)
        self._gate = Gate(
            name,
            all_given(gate, policy=policy, facade=facade, rules=rules),
            said=said,
            strict=strict,
            clock=clock.monotonic,
        )
        self._ask = None if approver is None else Ask(approver)
        self._actor = _person(actor) if actor else ""
        self._observers = tuple(observers)
        self._chain: Literal["effects", "all"] = chain
        self._durable = durability == "disk"
        self._on_divergence: OnDivergence = on_divergence
        self._seed = seed
        self._retry_failed = retry_failed
        self._enforce: Enforce = enforce
        self.unguarded: Unguarded = unguarded
        self._clock = clock
        self._reopens = _reopens
        self._run: Run | None = None
        self._turns: dict[Any, Turn] = {}
        self._ended: OrderedDict[int, dict[Any, Returned | Raised]] = OrderedDict()  # by turn
        self._key = Key(self.store)
        self._seal = (Detecting if secrets == "detected" else Sealing)(self._key.sign)
        self._names = Names(self._seal)
        self._setting: Setting | None = None
        self._memory: Memory | None = None
        self._tools = Tools(tools)
        self._types = Types(types, REGISTERED)
        self._facade: FacadeGuard | None = None
        self.nesting = Nesting()
        self._lent: Lent | None = None

    # --- entering and leaving --------------------------------------------------------------------

    def _enter(self) -> tuple[Entry, ...]:
        """Open the run; the steps of its source whose undo was cut off, and is to be finished."""
        if self.run_id:
            raise SessionError("a session can be entered once only; make another one")
        self._facade = self._facade_here()
        outer = here()
        lent = self._lent = None if outer is None else outer.session.lend(outer)
        if lent is not None:
            self._take_over(lent)
        try:
            try:
                with self.store.opening():
                    half_undone = self._open(self.store)
            except StoreReadOnly as error:
                self._key.instead = elsewhere = self._elsewhere(error)
                half_undone = self._open(elsewhere)
        except BaseException:
            self._gate.close()
            if self._run is not None:
                self._run.close()
            raise
        open_sessions[id(self)] = self._guard
        self.nesting.enter(self._guard)
        observing = self._active().observing
        if observing is not None:
            notify(observing.observers, self._run_event("opened"))
        return half_undone

    def _run_event(
        self, what: Literal["opened", "closed"], status: str = "", error: str = ""
    ) -> RunEvent:
        """What instruments are told of the run."""
        run = self._opened()
        return RunEvent(
            what,
            run.id,
            self.name,
            "undo" if run.source is None else run.source.mode,
            run.root,
            None if run.source is None else run.source.run,
            self._clock.wall() // 1000,
            status,
            error,
        )

    def _take_over(self, lent: Lent) -> None:
        """Add what the session around says to what this one does: nothing becomes looser by it."""
        if isinstance(lent.seal, Detecting) and not isinstance(self._seal, Detecting):
            self._seal = Detecting(self._key.sign)
        self._seal.share(lent.seal)
        if self._seal.is_quoted_by(self.name):
            raise SessionError(
                "the name of the session quotes a declared secret of the session around it, "
                "and names are written to the trace as they are: use one without the secret"
            )
        self._gate.nest(lent.above)
        self._types = Types((), self._types, lent.types)
        if ENFORCED.index(lent.enforce) > ENFORCED.index(self._enforce):
            self._enforce = lent.enforce

    def _sealed_words(self, words: tuple[str, ...]) -> Any:
        """What the user said, as the trace may hold it; kept as a blob where it is long."""
        said = [writable(str(each)) for each in self._seal.hide(list(words)).value]
        data = orjson.dumps(said)
        if len(data) < LARGE:
            return said
        digest = sha256(data).hexdigest()
        self.store.put_blob(digest, data)
        return {**tagged("blob", None), "sha256": digest, "size": len(data)}

    def lend(self, scope: Scope) -> Lent:
        """What a session takes over that is entered at this place of this one."""
        step = 0 if scope.step is None else scope.step.number
        above = Above(self._gate, scope.ask or self._ask, self._terms, step)
        return Lent(above, self._active(), self._seal, self._types, self._enforce)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if (memory := self._asked_at_end(error)) is not None:
                self._take_pause(memory.waits())
        except BaseException as instead:
            self._leave(instead)
            raise
        self._leave(error)

    def _asked_at_end(self, error: BaseException | None) -> Memory | None:
        """The memory of a framework that may wait for something; None where that is no matter."""
        driver = self._active()
        ends = error is not None or driver.ledger.halted is not None or driver.writer.forked
        return None if ends else self._memory

    def _take_pause(self, waits: str | None) -> None:
        if waits is not None and not self._active().ledger.paused:
            self.pause(waits)

    def _leave(self, error: BaseException | None) -> None:
        driver = self._active()
        self.nesting.leave()
        open_sessions.pop(id(self), None)
        halted = driver.ledger.halted
        status = ""
        try:
            if not driver.writer.forked:
                status = self._finish(driver, error)
        except (StoreError, TraceUnwritable) as unwritable:
            if error is None and halted is None:
                raise
            _log.warning("the end of run %s is not recorded: %s", self.run_id, unwritable)
        finally:
            driver.closed = True
            self._gate.close()
            self._opened().close()
            if driver.observing is not None and not driver.writer.forked:
                cause = driver.ledger.halted or error
                named = "" if cause is None else type(cause).__qualname__
                notify(driver.observing.observers, self._run_event("closed", status, named))
        halted = driver.ledger.halted
        if halted is not None and error is not halted and not _interrupts(error):
            raise halted

    def _elsewhere(self, error: StoreReadOnly) -> Store:
        """Where a run that only looks back is recorded, if its store can't be written."""
        if self._replay not in ("offline", "verify"):
            raise error
        folder = tempfile.mkdtemp(prefix="rollcage-")
        _log.warning("%s. This run only replays: it is recorded in %s", error, folder)
        return JsonlStore(folder)

    def _open(self, kept: Store) -> tuple[Entry, ...]:
        if self._reopens is not None:
            return self._reopen(self._reopens)
        given = self._given
        given = None if given is None else encode_input(given, self._seal, self._key.sign)
        job = Job(
            self.name,
            None if given is None else given["digest"],
            self._replay,
            self._source,
            self._within,
            self._clock.wall,
        )
        run, source, recording = Run.open(
            job,
            self.store,
            kept,
            self._clock,
            settings={"format": FORMAT, "chain": self._chain, "seed": self._seed},
            retry_failed=self._retry_failed,
        )
        self._run, self.run_id, self.root = run, run.id, run.root
        policy, words = self._gate.policy, self._gate.words
        started = make.run_started(
            time=self._clock.wall() // 1000,
            format_=FORMAT,
            run=self.run_id,
            name=self.name,
            mode=source.mode,
            source=source.run,
            root=self.root,
            seed=self._seed,
            chain=self._chain,
            on_divergence=self._on_divergence,
            durability="disk" if self._durable else "os",
            rules=list(self._gate.guards.names),
            input_=given,
            policy=None if policy is None else _policy_data(policy),
            facade=None if self._facade is None else self._facade.as_data(),
            actor=self._actor,
            said=self._sealed_words(words) if words else None,
            within="" if self._lent is None else self._lent.driver.writer.run,
            enforce=self._enforce,
            secrets="detected" if isinstance(self._seal, Detecting) else "declared",
        )
        half_undone: tuple[Entry, ...] = ()
        if recording is not None and source.mode == "resume" and self._on_divergence != "warn":
            half_undone = recording.half_undone
        run.writer = kept.create(started)
        self._drive(
            run,
            run.writer,
            self._ledger(source.mode, None if half_undone else recording),
            source.reader,
        )
        self._gate.open(self.run_id, self._facade)
        self._setting = self._share()
        return half_undone

    def _reopen(self, run: str) -> tuple[Entry, ...]:
        """Go on from where a run stands that was there before: to undo it."""
        self._run, writer, lineage = Run.reopen(self.store, run)
        settings = lineage.settings
        self.run_id, self.root, self.name = run, self._run.root, settings["name"]
        given = settings.get("facade")
        if given is not None:  # what was approved then, or is now, may take back what it has done
            self._facade = recorded_facade(self.store, given)
        if settings.get("secrets") == "detected":
            self._seal = Detecting(self._key.sign)
        self._seed = settings["seed"]
        ledger = self._ledger("record", None, (lineage.last_step, lineage.last_turn))
        self._drive(self._run, writer, ledger, self.store)
        self._setting = self._share()
        return ()

    def _drive(self, run: Run, writer: Writer, ledger: Ledger, reader: Reader) -> None:
        enter = functools.partial(enter_body, self._guard)
        if self._enforce != "off":
            based = functools.partial(grants_of, base=str(Path.cwd()))
            grants = functools.lru_cache(maxsize=1024)(based)
            enter = functools.partial(enter_watched, self._enforce, grants, self._guard)
        run.driver = Driver(
            ledger,
            writer,
            run.store,
            reader,
            self._clock,
            enter,
            around.reset,
            run.recall,
            self._late_end,
            self._told(),
        )

    def _ledger(
        self, mode: Mode, recording: Recording | None, counted: tuple[int, int] = (0, 0)
    ) -> Ledger:
        steps, turns = counted
        ledger = Ledger(
            run=self.run_id,
            mode=mode,
            recording=recording,
            chain=self._chain,
            on_divergence=self._on_divergence,
            seed=self._seed,
            steps=steps,
            turns=turns,
            at=store_option(self.store),
        )
        self._gate.counted_by(ledger.stats)
        return ledger

    def _told(self) -> tuple[Observer, ...]:
        """Who is told of each step: this session's observers, and those of the one around."""
        around_it = None if self._lent is None else self._lent.driver.observing
        theirs = () if around_it is None else around_it.observers
        both = self._observers + tuple(
            each for each in theirs if not any(each is own for own in self._observers)
        )
        return tuple(each for each in both if not isinstance(each, Instrument) or each.wanted())

    @property
    def _guard(self) -> Guard:
        """This session, as whoever calls through it knows it."""
        return cast("Guard", self)

    def _take_back(
        self,
        orphans: tuple[Entry, ...],
        waits: bool,  # noqa: FBT001 - the engine calls it
    ) -> Generator[Effect, Any, str]:
        """Undo what a new write would leave behind."""
        assert self._setting is not None
        order = Order(self.run_id, only=orphans, is_async=waits)
        return take_back(order, self._setting, self)

    def compensating(
        self, tool: Tool, arguments: Mapping[str, Any], branch: str, origin: Origin
    ) -> tuple[Call, Verdict]:
        """A compensating call, and what the rules say of it; for an undo."""
        self._allow(tool)
        bound = tool.contract.bind(arguments, self._seal)
        ask = self._asked(Scope(self._guard, inside=scope_of(self._guard).inside))
        call = Call("tool", tool.contract, bound, branch=branch, ask=ask, undoes=origin)
        return call, self._gate.screens(tool.contract) or self._decide(call)

    def _share(self) -> Setting:
        """What the flows of this session share."""
        driver = self._active()
        if self._lent is not None:
            driver.around = self._lent.driver
        driver.hide = self._seal.event
        return Setting(
            self._seal,
            self._durable or driver.writer.buffered,
            self.root,
            self._tools,
            self._take_back,
            self._decide,
            self._terms_here,
            self._allow,
            self._types,
            store_option(self.store),
            self.run_id,
        )

    def _late_end(self, step: Step, answer: Returned | Raised) -> Flow:
        """Record the end of a body that outlived its cancelled call."""
        assert self._setting is not None
        return late_end(step, answer, self._setting)

    def _terms(self) -> Terms:
        return self._gate.terms(self._actor or self.name)

    def _terms_here(self) -> Terms:
        inside = scope_of(self._guard).inside
        return self._terms() if inside is None else inside.above.terms()

    def _deciding(self, scope: Scope) -> Gate:
        """What decides on a call: that of a session inside of this one asks this one's, too."""
        return self._gate if scope.inside is None else scope.inside.above.gate

    def _asked(self, scope: Scope) -> Ask | None:
        """Who is asked to approve a call, unless it is for a session around to say."""
        inside = None if scope.inside is None else scope.inside.above.ask
        return inside or scope.ask or self._ask

    def _decide(self, call: Call) -> Verdict:
        verdict = self._deciding(scope_of(self._guard)).decide(call)
        try:
            return self._seal.verdict(verdict)
        except Exception as error:  # noqa: BLE001 - what it says may hold a secret
            return failed(error)

    def _finish(self, driver: Driver, error: BaseException | None) -> str:
        """Write the end of the run; its status, if it gets one."""
        run, ledger = self._opened(), driver.ledger
        if run.source is None:
            run.finish(driver, None, run.status_again)
            return ""
        cut = [step for step in ledger.in_flight() if step.world_effect]
        if cut and error is None and ledger.halted is None:
            ledger.halted = cut_off(self.run_id, cut)
        left = ledger.left_behind()
        status = ending(ledger, error, left)
        if status == "partial":
            ledger.stats.orphans += len(left)
            _log.warning(partial(self.run_id, self.name, ledger, left, store_option(self.store)))
        cause = ledger.halted or error
        event = make.run_finished(
            time=self._clock.wall() // 1000,
            status=status,
            steps=ledger.stats.calls,
            error=None if cause is None else encode_exception(cause, self._seal),
            reason=ledger.waits if status == "paused" and cause is None else None,
        )
        run.finish(driver, event, status)
        return status

    def _active(self) -> Driver:
        driver = None if self._run is None else self._run.driver
        if driver is None:
            raise SessionError(f"session {self.name!r} is not entered: use `with Session(...)`")
        return driver

    def _opened(self) -> Run:
        self._active()
        assert self._run is not None
        return self._run

    @property
    def stats(self) -> Stats:
        """What the session has done so far."""
        return self._active().ledger.stats

    @property
    def halted(self) -> BaseException | None:
        """The error that halted the session; None while it may go on."""
        return self._active().ledger.halted

    def check(self) -> None:
        """Say whether the session may go on: for adapters, at a hook that may end the agent.

        Raises:
            SessionHalted: it was halted; nothing runs in it any more.
        """
        halted = self.halted
        if halted is not None:
            raise SessionHalted(f"the session was halted: {halted}") from halted

    @property
    def facade(self) -> FacadeGuard | None:
        """What the agent gets of the registry, read once; None where that is not restricted."""
        named = self._gate.guards.facade
        if self._facade is None and named is not None:
            self._facade = named.taken(self.store)
        return self._facade

    def _facade_here(self) -> FacadeGuard | None:
        """The session's facade where it is entered: inside of another one's, what both give."""
        own, outer = self.facade, here()
        around_it = None if outer is None else outer.session.facade
        if own is None or around_it is None:
            return own or around_it
        return own.within(around_it)

    def _allow(self, tool: Tool) -> None:
        """Refuse a tool that takes something back, and was never approved.

        Raises:
            ToolRefused: the session has a facade, and that gives no such tool.
        """
        check_approved(self._facade, tool)

    @property
    def policy(self) -> PolicyGuard | None:
        """The policy that decides now."""
        return self._gate.policy

    @property
    def spent(self) -> Spent | None:
        """What was used up of the policy's limits, and what it cost; None without a policy."""
        meter = self._gate.meter
        return None if meter is None else meter.spent

    def load_policy(self, policy: PolicyGuard | str | os.PathLike[str]) -> None:
        """Decide by another policy from now on, with the same limits, labels and prices.

        Where it can't be used, every call is denied until one is loaded that can. Approvals that
        were given under the old one count no longer.

        Raises:
            PolicyInvalid: it can't be used.
            SessionError: it has other limits, labels or prices.
        """
        driver = self._active()
        driver.check_process()
        loaded = failure = None
        try:
            loaded = _policy_data(self._gate.reload(policy))
        except (PolicyInvalid, SessionError, OSError) as error:
            failure = encode_exception(error, self._seal)
            raise
        finally:
            now = self._clock.wall() // 1000
            with driver.lock:
                driver.append(make.policy_loaded(time=now, policy=loaded, error=failure))
        self._setting = self._share()

    def halt(self, error: Exception) -> None:
        """Halt the session: from now on nothing runs in it, and leaving it raises `error`."""
        driver = self._active()
        driver.check_process()
        with driver.lock:
            if driver.ledger.halted is None:
                driver.ledger.halted = error

    @property
    def paused(self) -> str | None:
        """What the run waits for, as `pause` was told; None while it does not.

        One that goes on with a paused run waits for the same until a call is made.
        """
        return self._active().ledger.waits

    def pause(self, reason: str) -> None:
        """The run waits for something outside: a person's answer, an interrupt, a signal.

        Left like that, it ends `paused`, and the next session of the job goes on where it stands.
        Calls are still taken: parts of the agent may be at work while others wait. For adapters,
        where a framework comes back with its work half done; plain code may use it too.

        Args:
            reason: what it waits for, in a few words; it is recorded as it stands.
        """
        driver = self._active()
        driver.check_process()
        with driver.lock:
            driver.ledger.paused = writable(reason) or "paused"

    def go_on(self) -> None:
        """What the run waited for is there; without a `pause`, this changes nothing."""
        driver = self._active()
        driver.check_process()
        with driver.lock:
            driver.ledger.go_on()

    def recorded_answers(self, agent: str | None = None) -> tuple[str, list[Answer]]:
        """The run that this session replays, and what the model answered in it, in order.

        Those of one `agent`, or of all agents but the ones inside of tools.

        Raises:
            SessionError: it replays nothing.
        """
        source = self._opened().source
        if source is None or source.run is None:
            raise SessionError(
                f"session {self.name!r} replays no run, so it has no recorded answers"
            )
        return source.run, read_answers(source.reader, source.run, agent)


def check_approved(facade: FacadeGuard | None, tool: Tool) -> None:
    """Refuse a tool that takes something back, and was never approved.

    Raises:
        ToolRefused: there is a facade, and that gives no such tool.
    """
    verdict = None if facade is None else facade.check(tool.contract, tool.body, undo=True)
    if facade is not None and verdict is not None:
        raise facade.refusal(tool.contract, verdict)


def _policy_data(policy: PolicyGuard) -> dict[str, str]:
    """What the trace holds of a policy."""
    return {"name": policy.name, "digest": policy.digest, "mode": policy.mode}


def writable(text: str) -> str:
    """A name from outside, without what UTF-8 can't hold (lone surrogates)."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _person(actor: str) -> str:
    try:
        return person(actor)
    except ValueError as error:
        raise SessionError(f"actor= has to name who the run acts for: {error}") from None


def _check(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise SessionError(f"{field}={value!r} is not one of {', '.join(map(repr, allowed))}")


def _interrupts(error: BaseException | None) -> bool:
    """Whether this must go on as it is: a cancellation, an interrupt, an exit."""
    return error is not None and not isinstance(error, Exception)
