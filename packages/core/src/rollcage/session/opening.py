"""How the run of a session is opened: what it builds on, and what its first line says."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from rollcage.errors import SessionError, StoreReadOnly
from rollcage.gate import Ask, Detecting, FacadeGuard, Sealing
from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording
from rollcage.session.awaiting import in_thread
from rollcage.session.calls import Calls
from rollcage.session.deciding import policy_data
from rollcage.session.declare import open_sessions
from rollcage.session.job import JobRequest, encode_input
from rollcage.session.leaving import give_up, run_event
from rollcage.session.lineage import SourceRun
from rollcage.session.means import Means
from rollcage.session.options import Options
from rollcage.session.run import Key, OpenRun
from rollcage.session.scope import Lent, here
from rollcage.step.capture import LARGE
from rollcage.step.clock import Clock
from rollcage.step.driver import Driver
from rollcage.step.gating import Gate
from rollcage.step.ledger import Ledger, Mode
from rollcage.step.observing import Observer, notify
from rollcage.store.at_once import WouldWait, at_once
from rollcage.store.jobs import store_option
from rollcage.store.jsonl import JsonlStore
from rollcage.store.protocol import Store
from rollcage.trace import constructors as make
from rollcage.trace.events import FORMAT
from rollcage.undo.compensation import KnownTools
from rollcage.values.codec import tagged
from rollcage.values.names import writable
from rollcage.values.registered import Types

__all__ = ["Opening", "enter", "sealed_within"]

_log: Final = logging.getLogger("rollcage")


class _Found(NamedTuple):
    """A run that is about to begin: its store, seal, input and source."""

    kept: Store
    seal: Sealing
    given: dict[str, Any] | None
    run: OpenRun
    source: SourceRun
    recording: Recording | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """All that the run of a session is opened with.

    Attributes:
        name: the job's.
        store: where its runs are.
        key: of the store.
        seal: of the session by itself; a session around it may demand more.
        options: what the session was given.
        gate: decides on its calls.
        ask: who is asked to approve one.
        tools: those that plans can name.
        types: that recorded values come back as.
        observers: are notified of what becomes of each step.
        clock: time and randomness.
        facade: what the agent gets of the registry, here.
        lent: what the session around gives, if there is one.
        session: whose calls they will be.
        is_async: whether tasks make them.
    """

    name: str
    store: Store
    key: Key
    seal: Sealing
    options: Options
    gate: Gate
    ask: Ask | None
    tools: KnownTools
    types: Types
    observers: tuple[Observer, ...]
    clock: Clock
    facade: FacadeGuard | None = None
    lent: Lent | None = None
    session: object = None
    is_async: bool = False

    def entered(self, session: object, facade: FacadeGuard | None, *, is_async: bool) -> Opening:
        """What the run is opened with in this context: if another session is around, inside of it.

        Args:
            session: whose run it is.
            facade: of that session by itself; inside of another one, the agent gets what both give.
            is_async: whether tasks make its calls.

        Raises:
            SessionError: the session around is a fork that performs no writes, and this one would.
        """
        outer = here()
        if outer is None:
            return dataclasses.replace(self, session=session, facade=facade, is_async=is_async)
        theirs, lent = outer.calls.facade, outer.calls.lend(outer)
        if theirs is not None:
            facade = theirs if facade is None else facade.within(theirs)
        self._check_inside(lent)
        self.gate.nest(lent.above)
        return dataclasses.replace(
            self, session=session, facade=facade, lent=lent, is_async=is_async
        )

    def _check_inside(self, lent: Lent) -> None:
        """Refuse a session that may write inside of a fork that performs no writes."""
        fork = self.options.fork
        if self.options.replay in ("offline", "verify") or (fork is not None and not fork.live):
            return
        driver: Driver | None = lent.driver
        while driver is not None:
            if driver.ledger.is_dry:
                raise SessionError(
                    f"session {self.name!r} is inside of a fork, which performs no writes: make it "
                    f"a fork as well (fork=), or the one around it live"
                )
            driver = driver.around

    def open(
        self, check: Callable[[], None] = lambda: None, *, waits: bool = True
    ) -> tuple[Calls, tuple[Entry, ...]]:
        """The calls of a new run, and the steps of its source whose undo was interrupted.

        Args:
            check: called before anything is locked or written; it raises if it is not wanted now.
            waits: whether to wait for whoever opens another run, and for a source to be read.

        Raises:
            WouldWait: it would have waited; nothing was locked or written.
            StoreError: the store, the source or its trace can't be used.
            SessionError: the source was recorded with other settings, or is of another input.
        """
        try:
            with contextlib.ExitStack() as opening:
                with contextlib.nullcontext() if waits else at_once():
                    opening.enter_context(self.store.opening())
                    check()
                    found = self._find(self.store)
                return self._begin(found)
        except StoreReadOnly as error:
            self.key.instead = elsewhere = self._elsewhere(error)
            return self._begin(self._find(elsewhere))

    async def aopen(self) -> tuple[Calls, tuple[Entry, ...]]:
        """`open`, in a thread if it would keep the event loop waiting."""
        if not self.store.waits and self.options.durability != "disk":
            with contextlib.suppress(WouldWait):
                return self.open(waits=False)
        return await in_thread(f"opens {self.store.url}", self.open, give_up)

    def _elsewhere(self, error: StoreReadOnly) -> Store:
        """The store of a run that only replays, if its own can't be written."""
        if self.options.replay not in ("offline", "verify"):
            raise error
        folder = tempfile.mkdtemp(prefix="rollcage-")
        _log.warning("%s. This run only replays: it is recorded in %s", error, folder)
        return JsonlStore(folder)

    def _find(self, kept: Store) -> _Found:
        """The run with its source and what that holds; nothing of it is recorded yet."""
        options, seal = self.options, sealed_within(self.seal, self.key, self.lent)
        if seal.is_quoted_by(self.name):
            raise SessionError(
                "the name of the session quotes a declared secret of the session around it, "
                "and names are written to the trace as they are: use one without the secret"
            )
        given = None if options.input is None else encode_input(options.input, seal, self.key.sign)
        job = JobRequest(
            self.name,
            None if given is None else given["digest"],
            options.replay,
            options.source,
            options.within,
            self.clock.wall,
            options.fork,
            options.before_resume,
        )
        run, source, recording = OpenRun.open(
            job,
            self.store,
            kept,
            self.clock,
            settings={"format": FORMAT, "chain": options.chain, "seed": options.seed},
            retry_failed=options.retry_failed,
        )
        return _Found(kept, seal, given, run, source, recording)

    def _begin(self, found: _Found) -> tuple[Calls, tuple[Entry, ...]]:
        """Record the run; its calls, and the steps of its source as `open` gives them."""
        kept, seal, given, run, source, recording = found
        options = self.options
        try:
            half_undone: tuple[Entry, ...] = ()
            if recording is not None and source.mode == "resume":
                half_undone = () if options.on_divergence == "warn" else recording.half_undone
            means = self._means(seal)
            ledger = self.ledger(run.id, source.mode, None if half_undone else recording)
            started = self._started(run, source.mode, given, means)
            writer = run.writer = kept.create(started, run.pause)
            if self.is_async:
                writer.queue()
            calls = Calls(self.name, run, writer, ledger, source.reader, means)
            self.gate.open(run.id, self.facade)
        except BaseException:
            run.close()
            raise
        return calls, half_undone

    def _means(self, seal: Sealing) -> Means:
        options = self.options
        means = Means(
            gate=self.gate,
            seal=seal,
            tools=self.tools,
            ask=self.ask,
            actor=options.actor,
            types=self.types,
            facade=self.facade,
            enforce=options.enforce,
            unguarded=options.unguarded,
            durable=options.durability == "disk",
            observers=self.observers,
            clock=self.clock,
            session=self.session,
        )
        return means.within(self.lent)

    def _started(self, run: OpenRun, mode: Mode, given: Any, means: Means) -> dict[str, Any]:
        options, seal = self.options, means.seal
        assert run.source is not None
        policy, texts = self.gate.policy, self.gate.user_input
        return make.run_started(
            time=self.clock.wall() // 1000,
            format_=FORMAT,
            run=run.id,
            name=self.name,
            mode=mode if options.imported is None else "imported",
            source=run.source.run,
            root=run.root,
            seed=options.seed,
            chain=options.chain,
            on_divergence=options.on_divergence,
            durability=options.durability,
            rules=list(self.gate.guards.names),
            input_=given,
            policy=None if policy is None else policy_data(policy),
            facade=None if self.facade is None else self.facade.as_data(),
            actor=options.actor,
            user_input=self._sealed_input(texts, seal) if texts else None,
            within="" if self.lent is None else self.lent.driver.writer.run,
            enforce=means.enforce,
            secrets="detected" if isinstance(seal, Detecting) else "declared",
            imported=options.imported,
            fork=self._forked(run.source.run),
        )

    def _forked(self, run: str | None) -> dict[str, Any] | None:
        fork, policy = self.options.fork, self.gate.policy
        if fork is None or run is None:
            return None
        return fork.as_data(run, "" if policy is None else policy.name)

    def _sealed_input(self, texts: tuple[str, ...], seal: Sealing) -> Any:
        """The user input as the trace may hold it; a blob if it is long."""
        sealed = [writable(str(each)) for each in seal.hide(list(texts)).value]
        data = orjson.dumps(sealed)
        if len(data) < LARGE:
            return sealed
        digest = sha256(data).hexdigest()
        self.store.put_blob(digest, data)
        return {**tagged("blob", None), "sha256": digest, "size": len(data)}

    def ledger(
        self,
        run: str,
        mode: Mode,
        recording: Recording | None,
        counted: tuple[int, int] = (0, 0),
    ) -> Ledger:
        """The state of the run, as it begins, or goes on after an undo."""
        steps, turns = counted
        return Ledger(
            run=run,
            mode=mode,
            recording=recording,
            chain=self.options.chain,
            on_divergence=self.options.on_divergence,
            seed=self.options.seed,
            steps=steps,
            turns=turns,
            at=store_option(self.store),
            fork=self.options.fork,
        )


def sealed_within(seal: Sealing, key: Key, lent: Lent | None) -> Sealing:
    """The seal inside of another session: what is a secret there is hidden here, too."""
    if lent is None:
        return seal
    if isinstance(lent.seal, Detecting) and not isinstance(seal, Detecting):
        seal = Detecting(key.sign)
    seal.share(lent.seal)
    return seal


def enter(calls: Calls) -> None:
    """Let the calls of this context be those of this run."""
    open_sessions[id(calls)] = calls
    calls.nesting.enter(calls)
    observing = calls.driver.observing
    if observing is not None:
        notify(observing.observers, run_event(calls, "opened"))
