"""What users touch: `Session`. Tools are declared in `declare`, a call's place is in `scope`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hmac
import inspect
import logging
import os
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack, cast, overload

from rollcage._capture import Setting
from rollcage._drive import Clock, Driver
from rollcage._effects import Effect, Flow, Raised, Returned
from rollcage._engine import Read, run_step
from rollcage._streams import astream, stream
from rollcage._undo import Order, take_back, undo_steps
from rollcage.answer import Answer
from rollcage.compensation import Tool, Tools, ToolSource
from rollcage.contract import Contract
from rollcage.declare import Declared, declaration, guarded, open_sessions, tool
from rollcage.errors import (
    ArgumentsInvalid,
    Blocked,
    Halt,
    RunNotFound,
    SessionError,
    StoreError,
    TraceUnwritable,
    UndoIncomplete,
    UnknownOutcome,
)
from rollcage.fingerprint import uuid7
from rollcage.gate import ALLOWED, Approver, Ask, Rule, StepView, Verdict, decide, rule_name
from rollcage.generation import Origin
from rollcage.ledger import Ledger, Mode, OnDivergence
from rollcage.lineage import (
    MODES,
    Replay,
    Source,
    find_source,
    read_answers,
    read_lineage,
    read_traces,
)
from rollcage.recording import Lineage, Recording, load, read
from rollcage.replay import Entry
from rollcage.scope import Branch, Nesting, Scope, TurnHandle, around, enter_body, in_scope
from rollcage.step import Call, Stats
from rollcage.store.jsonl import JsonlStore
from rollcage.store.protocol import Lock, Store
from rollcage.trace.events import FORMAT
from rollcage.trace.exceptions import encode_exception
from rollcage.transaction import Transaction
from rollcage.undo import InDoubt, UndoReport
from rollcage.world import Turn

__all__ = ["Session"]

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_log: Final = logging.getLogger("rollcage")
_REMEMBERED: Final = 256  # outcomes of placed calls, for a framework that repeats them
_NOT_MADE: Final = (ArgumentsInvalid, Blocked, Halt, SessionError)


class Session:
    """A live, guarded execution; it writes exactly one run.

    Use it as a context manager, sync or async. Every tool that is called through it, or that was
    declared with `@rollcage.tool` and is called inside it, is fingerprinted, gated, traced and, in
    a later session of the same name, replayed.

    Args:
        name: the job. With `replay="auto"`, its newest run is resumed unless it finished cleanly.
        store: a directory (made if needed), or a `Store`.
        replay: `"auto"`; `"off"` records afresh; `"resume"` reuses what holds and runs the rest;
            `"offline"` gives back what is recorded and runs nothing; `"verify"` also runs pure and
            read tools again, and reports drift.
        source: the run to replay, by its id or the path of its trace; the newest by default.
        rules: see `rollcage.Rule`; each call is shown to each of them before it happens.
        approver: see `rollcage.Approver`; decides where a rule asks. Without one, the session
            halts there.
        chain: `"effects"`: writes move the world on; `"all"`: every tool step does.
        durability: `"os"`: what is recorded survives the death of the process; `"disk"`: and of
            the machine.
        on_divergence: what a new write does when recorded effects are still ahead: `"halt"`;
            `"undo"` takes them back first; `"warn"` goes on without them.
        seed: sets this job's worlds apart from those of another seed.
        retry_failed: which recorded failures run again: None, those that nothing came after;
            True, all; False, none.
        tools: the tools that undo plans name, where they are not those of this process: functions
            declared with `@rollcage.tool`, and contracts of a framework's tools.

    Raises:
        StoreError: on entering: the store, the source or its trace can't be used.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str | os.PathLike[str] | Store = "./.rollcage",
        replay: Replay = "auto",
        source: str | os.PathLike[str] | None = None,
        rules: Sequence[Rule] = (),
        approver: Approver | None = None,
        chain: Literal["effects", "all"] = "effects",
        durability: Literal["os", "disk"] = "os",
        on_divergence: OnDivergence = "halt",
        seed: str = "",
        retry_failed: bool | None = None,
        tools: Mapping[str, ToolSource] | Iterable[ToolSource] | None = None,
        _clock: Clock = Clock(),  # noqa: B008 - immutable
    ) -> None:
        if not name:
            raise SessionError("a session needs a name: it says which job this is")
        _check("replay", replay, tuple(MODES))
        _check("chain", chain, ("effects", "all"))
        _check("durability", durability, ("os", "disk"))
        _check("on_divergence", on_divergence, ("halt", "warn", "undo"))
        if source is not None and replay == "off":
            raise SessionError('replay="off" records afresh: it takes no source')
        self.name = name
        self.store: Store = store if isinstance(store, Store) else JsonlStore(store)
        self.run_id = ""
        self.root = ""
        self._replay: Replay = replay
        self._source = source
        self._rules = tuple(rules)
        self._ask = None if approver is None else Ask(approver)
        self._chain: Literal["effects", "all"] = chain
        self._durable = durability == "disk"
        self._on_divergence: OnDivergence = on_divergence
        self._seed = seed
        self._retry_failed = retry_failed
        self._clock = _clock
        self._found: Source | None = None
        self._driver: Driver | None = None
        self._locks: list[Lock] = []
        self._turns: dict[Any, Turn] = {}
        self._ended: OrderedDict[Any, Returned | Raised] = OrderedDict()
        self._key: bytes | None = None
        self._setting: Setting | None = None
        self._tools = Tools(tools)
        self.nesting = Nesting()

    # --- entering and leaving --------------------------------------------------------------------

    def __enter__(self) -> Self:
        half_undone = self._enter()
        if half_undone:
            try:
                self._finished_undo(self._active().run(self._rest_of_undo(half_undone)))
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def _enter(self) -> tuple[Entry, ...]:
        """Open the run; the steps of its source whose undo was cut off, and is to be finished."""
        if self.run_id:
            raise SessionError("a session is entered once; make another one")
        try:
            with self.store.opening():
                half_undone = self._open()
        except BaseException:
            self._release()
            raise
        open_sessions.add(id(self))
        self.nesting.enter(self)
        return half_undone

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        driver = self._active()
        self.nesting.leave()
        open_sessions.discard(id(self))
        halted = driver.ledger.halted
        try:
            if not driver.writer.forked:
                self._finish(driver, error)
        except (StoreError, TraceUnwritable) as unwritable:
            if error is None and halted is None:
                raise
            _log.warning("the end of run %s is not recorded: %s", self.run_id, unwritable)
        finally:
            driver.closed = True
            driver.writer.close()
            self._release()
        halted = driver.ledger.halted
        if halted is not None and error is not halted and not _interrupts(error):
            raise halted

    async def __aenter__(self) -> Self:
        half_undone = self._enter()
        if half_undone:
            try:
                flow = self._rest_of_undo(half_undone, is_async=True)
                self._finished_undo(await self._active().arun(flow, is_async=True))
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _open(self) -> tuple[Entry, ...]:
        self._found = source = find_source(self.store, self.name, self._replay, self._source)
        self.run_id = self.root = uuid7(self._clock.wall() // 1_000_000, self._clock.random(10))
        recording: Recording | None = None
        if source.run is not None:
            recording = read_lineage(
                source.reader,
                source.run,
                live=source.mode == "resume",
                settings={"format": FORMAT, "chain": self._chain, "seed": self._seed},
                retry_failed=self._retry_failed,
                locks=self._locks,
            )
            self.root = str(recording.run_settings.get("root") or source.run)
        started = {
            "event": "run.started",
            "time": self._clock.wall() // 1000,
            "format": FORMAT,
            "run": self.run_id,
            "name": self.name,
            "mode": source.mode,
            "source": source.run,
            "root": self.root,
            "seed": self._seed,
            "chain": self._chain,
            "on_divergence": self._on_divergence,
            "durability": "disk" if self._durable else "os",
            "rules": [rule_name(rule) for rule in self._rules],
        }
        half_undone: tuple[Entry, ...] = ()
        if recording is not None and source.mode == "resume" and self._on_divergence != "warn":
            half_undone = recording.half_undone
        writer = self.store.create(started)
        enter = functools.partial(enter_body, self)
        self._driver = Driver(
            self._ledger(source.mode, None if half_undone else recording),
            writer,
            self.store,
            source.reader,
            self._clock,
            enter,
            around.reset,
            self._recall,
        )
        self._setting = self._share()
        return half_undone

    def _ledger(
        self, mode: Mode, recording: Recording | None, counted: tuple[int, int] = (0, 0)
    ) -> Ledger:
        steps, turns = counted
        return Ledger(
            run=self.run_id,
            mode=mode,
            recording=recording,
            chain=self._chain,
            on_divergence=self._on_divergence,
            seed=self._seed,
            steps=steps,
            turns=turns,
        )

    def _rest_of_undo(self, half_undone: tuple[Entry, ...], *, is_async: bool = False) -> Flow:
        """Go on with an undo of the source that was cut off: it holds neither half nor whole."""
        _log.warning(
            "an undo of run %s was cut off: it is finished first, with %d steps",
            half_undone[0].run,
            len(half_undone),
        )
        order = Order(self.run_id, only=half_undone, is_async=is_async)
        assert self._setting is not None
        return undo_steps(order, self._setting, self)

    def _finished_undo(self, report: UndoReport) -> None:
        """Follow what is recorded as it holds behind that undo."""
        driver, found = self._active(), self._found
        if not report.complete:
            raise UndoIncomplete(
                f"an undo was cut off, and can't be finished: {report}\nLook at it, or resume with "
                f'on_divergence="warn" to take its steps for performed'
            )
        assert found is not None
        recording = load(self._traces(), offline=False, retry_failed=self._retry_failed)
        with driver.lock:
            driver.ledger = self._ledger(found.mode, recording, driver.ledger.counted)

    def _share(self) -> Setting:
        """What the flows of this session share."""
        return Setting(self._seal, self._durable, self.root, self._tools, self._take_back)

    def _finish(self, driver: Driver, error: BaseException | None) -> None:
        ledger = driver.ledger
        cut = [step for step in ledger.in_flight() if step.world_effect]
        if cut and error is None and ledger.halted is None:
            names = ", ".join(f"step {s.number} ({s.call.contract.name})" for s in cut)
            ledger.halted = UnknownOutcome(
                f"the session was left while writes were in flight: {names} of run {self.run_id}. "
                f"Wait for threads and tasks inside of the session",
                self.run_id,
                cut[0].number,
            )
        left = ledger.left_behind()
        if left and error is None and ledger.halted is None:
            ledger.stats.orphans += len(left)
            listed = ", ".join(f"step {e.step} ({e.name})" for e in left[:5])
            _log.warning(
                "run %s never asked for %d recorded effects: %s", self.run_id, len(left), listed
            )
        cause = ledger.halted or error
        event: dict[str, Any] = {
            "event": "run.finished",
            "time": self._clock.wall() // 1000,
            "status": "halted" if ledger.halted else "error" if error else "ok",
            "steps": ledger.stats.calls,
        }
        if cause is not None:
            event["error"] = encode_exception(cause, self._seal)
        with driver.lock:
            driver.closed = True  # first: nothing comes behind this line, from whichever thread
            driver.writer.append(event)
            driver.writer.sync()
            driver.writer.attest(event["status"])

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def _active(self) -> Driver:
        driver = self._driver
        if driver is None:
            raise SessionError(f"session {self.name!r} is not entered: use `with Session(...)`")
        return driver

    @property
    def stats(self) -> Stats:
        """What the session has done so far."""
        return self._active().ledger.stats

    @property
    def halted(self) -> BaseException | None:
        """The error that halted the session; None while it may go on."""
        return self._active().ledger.halted

    def halt(self, error: Exception) -> None:
        """Halt the session: from now on nothing runs in it, and leaving it raises `error`."""
        driver = self._active()
        driver.check_process()
        with driver.lock:
            if driver.ledger.halted is None:
                driver.ledger.halted = error

    def recorded_answers(self, agent: str | None = None) -> tuple[str, list[Answer]]:
        """The run that this session replays, and what the model answered in it, in order.

        Those of one `agent`, or of all agents but the ones inside of tools.

        Raises:
            SessionError: it replays nothing.
        """
        self._active()
        if self._found is None or self._found.run is None:
            raise SessionError(f"session {self.name!r} replays no run: there is no answer in it")
        return self._found.run, read_answers(self._found.reader, self._found.run, agent)

    def _seal(self, secret: str) -> str:
        if self._key is None:
            self._key = self.store.secret_key()
        return hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    # --- calls -----------------------------------------------------------------------------------

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """Call a sync tool through the session.

        Args:
            tool: a function declared with `@rollcage.tool` or `session.tool`, or any other: an
                undeclared one is a `write`.
            **arguments: its arguments, by name.

        Raises:
            ArgumentsInvalid: they do not pass the tool's schema; nothing happened.
            Blocked: a rule denied the call; nothing happened.
            Halt: the session can't go on; nothing happened, unless the error says otherwise.
        """
        function, contract = declaration(tool)
        return cast("R", self.run(contract, arguments, function))

    @overload
    async def acall(
        self, tool: Callable[..., Coroutine[Any, Any, R]], /, **arguments: Any
    ) -> R: ...
    @overload
    async def acall(self, tool: Callable[..., R], /, **arguments: Any) -> R: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call an async tool, or a sync one in a thread, through the session. See `call`."""
        function, contract = declaration(tool)
        is_async = inspect.iscoroutinefunction(function)
        return await self.arun(contract, arguments, function, is_async=is_async)

    def run(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
    ) -> Any:
        """Guard one call: for adapters, which bring the contract and the body.

        `body` gets the validated arguments as keywords. `answer` reads what a model answered off
        its value. Raises as `call` does, and whatever the body raises.
        """
        return self._active().run(self._flow(contract, arguments, body, kind, answer))

    async def arun(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        is_async: bool = True,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
    ) -> Any:
        """`run` for an async body, or with `is_async=False` for a sync one in a thread."""
        flow = self._flow(contract, arguments, body, kind, answer, waits=True)
        return await self._active().arun(flow, is_async=is_async)

    def stream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
    ) -> Iterator[Any]:
        """Guard one call whose body gives an iterator: its chunks as they come, live or recorded.

        The step's value is the list of its chunks. A consumer that stops early cuts the step off.
        """
        flow = self._flow(contract, arguments, body, kind, answer)
        return stream(self._active(), flow)

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
    ) -> AsyncIterator[Any]:
        """`stream` for a body that gives an async iterator."""
        flow = self._flow(contract, arguments, body, kind, answer, waits=True)
        return astream(self._active(), flow)

    def _flow(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Literal["tool", "model"],
        answer: Read | None,
        *,
        waits: bool = False,
    ) -> Flow:
        scope = around.get()
        if scope is None or scope.session is not self:
            scope = Scope(self)
        bound = contract.bind(arguments, self._seal)
        step = scope.step
        call = Call(
            kind,
            contract,
            bound,
            branch=scope.branch,
            turn=scope.turn,
            slot=scope.slot,
            agent=scope.agent,
            call_id=scope.call_id,
            parent=step,
            ask=scope.ask or self._ask,
            undoes=None if step is None else step.call.undoes,
        )
        verdict = self._verdict(call) if self._rules else ALLOWED
        setting = self._setting
        if setting is None:
            self._active()
            raise AssertionError("an entered session has it")
        if contract.captures:
            self._tools.add(contract)
        flow = run_step(call, verdict, body, setting, read=answer, waits=waits)
        if scope.once is None or verdict.decision == "deny":
            return flow
        return self._only_once(call, flow, failed=scope.once)

    def _verdict(self, call: Call) -> Verdict:
        """What the rules say of a call."""
        calls = self._active().ledger.stats.calls
        values = MappingProxyType(call.arguments.values)
        view = StepView(call.kind, call.contract, values, call.agent, call.branch, calls)
        return decide(view, self._rules)

    def _only_once(self, call: Call, flow: Flow, *, failed: bool) -> Flow:
        """Give a call that its turn and slot name its outcome again, where it is made again."""
        assert call.turn is not None
        place = call.branch, call.turn.number, call.slot, call.key
        ended = self._ended.get(place)
        if ended is not None and self._active().ledger.halted is None:
            return ended
        answer = yield from flow
        if isinstance(answer, Returned) or (failed and _is_failure(call, answer.error)):
            self._ended[place] = answer
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        return answer

    # --- undo ------------------------------------------------------------------------------------

    def undo(self, to: int | None = None, *, in_doubt: InDoubt = "list") -> UndoReport:
        """Take back what this run did behind step `to`, the newest effect first.

        Effects of its source are included, whether they were replayed by now or not. Everything is
        looked at before anything is changed: where somebody else changed a state since, nothing is.

        Args:
            to: the last step that stays; None takes everything back.
            in_doubt: what is done with a step of which nobody can tell whether it happened:
                `"list"` it, or `"restore"` what was before, where its plan was made by then.

        Raises:
            ToolMissing: a tool that is needed is not here, or is another version.
            SessionError: it can't be done here; nothing was changed.
        """
        report: UndoReport = self._active().run(
            self._undo(Order(self.run_id, to, in_doubt=in_doubt))
        )
        return report

    async def aundo(self, to: int | None = None, *, in_doubt: InDoubt = "list") -> UndoReport:
        """`undo` for async tools, or sync ones in threads."""
        order = Order(self.run_id, to, in_doubt=in_doubt, is_async=True)
        report: UndoReport = await self._active().arun(self._undo(order), is_async=True)
        return report

    def transaction(self, name: str = "transaction") -> Transaction:
        """A block that takes back what was done in it when it raises; `with` or `async with`.

        It is a branch: its calls have a world of their own, which comes back when the block ends
        well. Nested ones are taken back with the one around them. Where not everything can be taken
        back, the error says so in a note, and the session halts with `UndoIncomplete`.
        """
        return Transaction(self, name)

    def undo_branch(self, name: str) -> UndoReport:
        """Take back what was done in the branch of this full name, and below. See `undo`."""
        report: UndoReport = self._active().run(self._undo(Order(self.run_id, branch=name)))
        return report

    async def aundo_branch(self, name: str) -> UndoReport:
        """`undo_branch` for async tools."""
        order = Order(self.run_id, branch=name, is_async=True)
        report: UndoReport = await self._active().arun(self._undo(order), is_async=True)
        return report

    def _undo(self, order: Order) -> Flow:
        assert self._setting is not None
        if self._found is not None and self._found.mode in ("offline", "verify"):
            if self._active().ledger.is_taken_back(order.branch):
                return _nothing_left(order)
            raise SessionError(f"replay={self._replay!r} changes nothing, so it undoes nothing")
        scope = around.get()
        if not order.branch and scope is not None and scope.session is self and scope.step:
            raise SessionError(f"{scope.step.call.contract.name} can't undo the run that it is in")
        return undo_steps(order, self._setting, self)

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
        bound = tool.contract.bind(arguments, self._seal)
        call = Call("tool", tool.contract, bound, branch=branch, ask=self._ask, undoes=origin)
        return call, self._verdict(call) if self._rules else ALLOWED

    def _recall(self) -> Lineage:
        """What the run and its lineage hold."""
        return read(self._traces())

    def _traces(self) -> list[tuple[str, bytes]]:
        own = self.store.read(self.run_id)
        traces = [(own.where, own.data)]
        if self._found is not None and self._found.run is not None:
            with contextlib.suppress(RunNotFound):  # what was replayed of it is in the own one
                traces = read_traces(self._found.reader, self._found.run, locks=None) + traces
        return traces

    # --- where calls stand -----------------------------------------------------------------------

    def _here(self) -> Scope:
        scope = around.get()
        return scope if scope is not None and scope.session is self else Scope(self)

    @contextlib.contextmanager
    def turn(self) -> Generator[TurnHandle]:
        """The calls inside were issued together: none depends on another."""
        driver = self._active()
        driver.check_process()
        with driver.lock:
            turn = driver.ledger.new_turn()
        scope = dataclasses.replace(self._here(), turn=turn, slot=None)
        with in_scope(scope):
            yield TurnHandle(scope)

    @contextlib.contextmanager
    def branch(self, name: str) -> Generator[Branch]:
        """A world of its own for the calls inside, forked here and joined at the end.

        Raises:
            SessionError: the name is empty or holds one of `/ #`.
        """
        if not name or set(name) & set("/#"):
            raise SessionError(f"{name!r} can't name a branch: it is empty or holds / or #")
        driver = self._active()
        here = self._here()
        driver.check_process()
        with driver.lock:
            parent = driver.ledger.branch_name(here.branch, here.step)
            full = driver.ledger.fork(parent, name, here.turn)
        scope = dataclasses.replace(here, branch=full, turn=None, slot=None)
        with in_scope(scope):
            yield Branch(scope)
        if driver.writer.forked:
            return  # the child of a fork in here: what joins is the parent's
        with driver.lock:
            event = driver.ledger.join(parent, full, here.turn, self._clock.wall() // 1000)
            if event is not None:
                driver.append(event)

    @contextlib.contextmanager
    def place(
        self,
        *,
        turn: object = None,
        slot: int | None = None,
        agent: str = "",
        call_id: str = "",
        once: bool = False,
        ask: Ask | None = None,
    ) -> Generator[None]:
        """Say where the next call in this context stands: for adapters, at the framework's hook.

        Turn and slot together name one call of the model. Made again, it is that call, not a new
        one: where it ended well, its outcome is given back, however often a framework repeats it.

        Args:
            turn: anything hashable that is the same for all the calls of one model message.
            slot: the call's place in that message.
            agent: the agent's name.
            call_id: the framework's id of the call.
            once: a call that failed is not made again either: it fails as before.
            ask: who is asked to approve the call, in place of the session's approver.
        """
        here = self._here()
        placed = here.turn
        if turn is not None:
            driver = self._active()
            driver.check_process()
            with driver.lock:
                key = (here.branch, None if here.step is None else here.step.number, turn)
                placed = self._turns.get(key)
                if placed is None:
                    placed = self._turns[key] = driver.ledger.new_turn()
        with in_scope(
            dataclasses.replace(
                here,
                turn=placed,
                slot=slot,
                agent=_writable(agent) or here.agent,
                call_id=_writable(call_id),
                once=None if turn is None or slot is None else once,
                ask=ask,
            )
        ):
            yield

    # --- tools -----------------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **declared: Unpack[Declared]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **declared: Any) -> Any:
        """Bind a function to this session: each call of what comes back is guarded, in any thread.

        Use it as a decorator, with or without what a tool declares, or as a function. One that was
        declared with `@rollcage.tool` keeps its contract.
        """
        if function is None:
            return lambda each: self.tool(tool(**declared)(each))
        body, contract = declaration(function)
        return guarded(body, contract, lambda: self)


def _nothing_left(order: Order) -> Flow:
    """What is replayed was taken back when it ran."""
    yield from ()
    return Returned(UndoReport(run=order.run, to=order.to, steps=(), left=()))


def _is_failure(call: Call, error: BaseException) -> bool:
    """Whether a call was made and failed: neither refused, nor cut off, nor waiting."""
    pauses = () if call.ask is None else call.ask.pauses
    return isinstance(error, Exception) and not isinstance(error, (*_NOT_MADE, *pauses))


def _writable(text: str) -> str:
    """A name from outside, without what UTF-8 can't hold (lone surrogates)."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _check(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise SessionError(f"{field}={value!r} is none of {', '.join(map(repr, allowed))}")


def _interrupts(error: BaseException | None) -> bool:
    """Whether this must go on as it is: a cancellation, an interrupt, an exit."""
    return error is not None and not isinstance(error, Exception)
