"""What users touch: `Session`, `tool`, `current_step`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hmac
import inspect
import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from pathlib import Path as FilePath
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

from rollcage._drive import Clock, Driver
from rollcage._engine import Usage, run_step
from rollcage.contract import Contract, Effect, OnMiss, Source
from rollcage.errors import (
    ContractError,
    RunNotFound,
    SessionError,
    SourceMissing,
    UnguardedCallWarning,
)
from rollcage.fingerprint import idempotency_key, uuid7
from rollcage.gate import ALLOWED, Rule, StepView, decide, rule_name
from rollcage.ledger import Call, Ledger, Mode, OnDivergence, Stats, Step
from rollcage.replay import Recording, load
from rollcage.store.jsonl import JsonlStore, open_trace
from rollcage.store.protocol import (
    Lock,
    Reader,
    RunInfo,
    RunTrace,
    Store,
    check_attested,
    is_run_id,
)
from rollcage.trace.codec import encode_exception
from rollcage.trace.events import FORMAT
from rollcage.trace.reader import read_events
from rollcage.world import Turn

__all__ = ["Branch", "CurrentStep", "Replay", "Session", "TurnHandle", "current_step", "tool"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Replay = Literal["auto", "off", "resume", "offline", "verify"]
"""How a session treats what is recorded: see `Session`."""

_MODES: Final[dict[str, Mode]] = {
    "off": "record", "resume": "resume", "offline": "offline", "verify": "verify",
}  # fmt: skip
_log = logging.getLogger("rollcage")


class Declared(TypedDict, total=False):
    """What a tool may declare of itself; each field is described at `Contract`."""

    name: str
    version: str
    description: str
    effect: Effect
    idempotent: bool
    risk: str
    permissions: Sequence[str]
    raises: Sequence[type[Exception]]
    secret: Sequence[str]
    on_miss: OnMiss | None
    source: Source


# --- where a call comes from ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Scope:
    """What a call finds around it: its session, branch, turn, and the step whose body it is in."""

    session: Session
    branch: str = ""
    turn: Turn | None = None
    slot: int | None = None
    agent: str = ""
    call_id: str = ""
    step: Step | None = None


_scope: ContextVar[_Scope | None] = ContextVar("rollcage_scope", default=None)
_open_sessions: set[int] = set()


@dataclasses.dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step whose body is running.

    Attributes:
        run: the run's id.
        number: its number in the run's trace.
        name: the tool's name.
        idempotency_key: the same whenever this step is run again in a resume of the run (64 hex
            digits); hand it to the service that the tool calls.
    """

    run: str
    number: int
    name: str
    idempotency_key: str


def current_step() -> CurrentStep | None:
    """The step whose body is running in this context; None outside of one."""
    scope = _scope.get()
    if scope is None or scope.step is None:
        return None
    step = scope.step
    return CurrentStep(
        step.run,
        step.number,
        step.call.contract.name,
        idempotency_key(scope.session.root, step.branch.name, step.fingerprint.hex()),
    )


def _enter_body(step: Step) -> Token[_Scope | None]:
    around = _scope.get()
    assert around is not None
    return _scope.set(
        _Scope(around.session, agent=step.call.agent, branch=step.branch.name, step=step)
    )


@contextlib.contextmanager
def _in_scope(scope: _Scope) -> Iterator[None]:
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


class TurnHandle:
    """A turn that is stated explicitly; its calls were issued together.

    Calls get their slots in order of arrival. Where they arrive in any order (threads), say
    `with turn.slot(i):` around each, in the thread itself.
    """

    def __init__(self, scope: _Scope) -> None:
        self._at = scope

    @contextlib.contextmanager
    def slot(self, index: int) -> Iterator[None]:
        """The next call in this context is the turn's `index`-th (from 0)."""
        with _in_scope(dataclasses.replace(self._at, slot=index)):
            yield


class Branch:
    """A branch of a session: a world of its own, for an agent or a thread with dependent writes."""

    def __init__(self, scope: _Scope) -> None:
        self._at = scope

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """Like `Session.call`, in this branch, from whichever thread."""
        with _in_scope(self._at):
            return self._at.session.call(tool, **arguments)

    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Like `Session.acall`, in this branch, from whichever task."""
        with _in_scope(self._at):
            return await self._at.session.acall(tool, **arguments)


# --- the session ---------------------------------------------------------------------------------


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
        chain: `"effects"`: writes move the world on; `"all"`: every tool step does.
        durability: `"os"`: what is recorded survives the death of the process; `"disk"`: and of
            the machine.
        on_divergence: what a new write does when recorded effects are still ahead: `"halt"`, or
            `"warn"` and go on without them.
        seed: sets this job's worlds apart from those of another seed.
        retry_failed: which recorded failures run again: None, those that nothing came after;
            True, all; False, none.

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
        chain: Literal["effects", "all"] = "effects",
        durability: Literal["os", "disk"] = "os",
        on_divergence: OnDivergence = "halt",
        seed: str = "",
        retry_failed: bool | None = None,
        _clock: Clock = Clock(),  # noqa: B008 - immutable
    ) -> None:
        if not name:
            raise SessionError("a session needs a name: it says which job this is")
        _check("replay", replay, ("auto", *_MODES))
        _check("chain", chain, ("effects", "all"))
        _check("durability", durability, ("os", "disk"))
        _check("on_divergence", on_divergence, ("halt", "warn"))
        if source is not None and replay == "off":
            raise SessionError('replay="off" records afresh: it takes no source')
        self.name = name
        self.store: Store = store if isinstance(store, Store) else JsonlStore(store)
        self.run_id = ""
        self.root = ""
        self._replay: Replay = replay
        self._source = source
        self._rules = tuple(rules)
        self._chain: Literal["effects", "all"] = chain
        self._durable = durability == "disk"
        self._on_divergence: OnDivergence = on_divergence
        self._seed = seed
        self._retry_failed = retry_failed
        self._clock = _clock
        self._driver: Driver | None = None
        self._locks: list[Lock] = []
        self._turns: dict[Any, Turn] = {}
        self._key: bytes | None = None
        self._token: Token[_Scope | None] | None = None

    # --- entering and leaving --------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self.run_id:
            raise SessionError("a session is entered once; make another one")
        try:
            with self.store.opening():
                self._open()
        except BaseException:
            self._release()
            raise
        _open_sessions.add(id(self))
        self._token = _scope.set(_Scope(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        driver = self._active()
        if self._token is not None:
            with contextlib.suppress(ValueError):  # left in another context than it was entered in
                _scope.reset(self._token)
        _open_sessions.discard(id(self))
        halted = driver.ledger.halted
        try:
            if not driver.writer.forked:
                self._finish(driver, error)
        finally:
            driver.closed = True
            driver.writer.close()
            self._release()
        if halted is not None and error is not halted and not _interrupts(error):
            raise halted

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _open(self) -> None:
        mode, reader, found = self._find_source()
        self.run_id = uuid7(self._clock.wall() // 1_000_000, self._clock.random(10))
        recording: Recording | None = None
        self.root = self.run_id
        if found is not None:
            recording = self._load(mode, reader, found)
            self.root = str(recording.run_settings.get("root") or found)
        started = {
            "event": "run.started",
            "time": self._clock.wall() // 1000,
            "format": FORMAT,
            "run": self.run_id,
            "name": self.name,
            "mode": mode,
            "source": found,
            "root": self.root,
            "seed": self._seed,
            "chain": self._chain,
            "on_divergence": self._on_divergence,
            "durability": "disk" if self._durable else "os",
            "rules": [rule_name(rule) for rule in self._rules],
        }
        ledger = Ledger(
            run=self.run_id,
            mode=mode,
            recording=recording,
            chain=self._chain,
            on_divergence=self._on_divergence,
            seed=self._seed,
            root=self.root,
        )
        writer = self.store.create(started)
        self._driver = Driver(
            ledger, writer, self.store, reader, self._clock, _enter_body, _scope.reset
        )

    def _find_source(self) -> tuple[Mode, Reader, str | None]:
        """The mode, where the source is read from, and its run id."""
        if self._replay == "off":
            return "record", self.store, None
        if self._source is not None:
            reader, run = self._named_source(self._source)
            return _MODES.get(self._replay, "resume"), reader, run
        newest = self._newest()
        if self._replay == "auto":
            if newest is None or newest.status == "ok":
                return "record", self.store, None
            return "resume", self.store, newest.run
        if newest is None:
            raise RunNotFound(f"the store has no run of {self.name!r} to replay")
        return _MODES[self._replay], self.store, newest.run

    def _named_source(self, source: str | os.PathLike[str]) -> tuple[Reader, str]:
        if isinstance(source, str) and is_run_id(source):
            return self.store, source
        folder, run = open_trace(FilePath(source))
        same = isinstance(self.store, JsonlStore) and isinstance(folder, JsonlStore)
        if same and cast("JsonlStore", folder).root.resolve() == self.store.root.resolve():
            return self.store, run
        return folder, run

    def _newest(self) -> RunInfo | None:
        """The newest run of this job; looking back (`offline`, `verify`) makes none of it."""
        own = (r for r in self.store.runs() if r.name == self.name and r.mode in ("record", "resume"))
        return max(own, key=lambda info: (info.time, info.run), default=None)

    def _load(self, mode: Mode, reader: Reader, run: str) -> Recording:
        """The recording of a run and of all that it builds on, oldest first."""
        live = mode == "resume"
        lineage: list[tuple[str, bytes]] = []
        wanted: str | None = run
        finished = False
        while wanted is not None:
            if live:
                try:
                    self._locks.append(reader.lock(wanted))
                except RunNotFound:
                    if not lineage:
                        raise
            try:
                trace = reader.read(wanted)
            except RunNotFound:
                if not lineage:
                    raise
                if live and not finished:
                    raise SourceMissing(
                        f"run {run} did not finish, and run {wanted} that it builds on is gone: what "
                        f'that one had done can\'t be known. Bring it back, or use replay="offline"'
                    ) from None
                break
            if trace.torn:
                _log.warning("%s: a torn last line of %d bytes", trace.where, len(trace.torn))
            check_attested(trace)
            lineage.append((trace.where, trace.data))
            finished = finished or _ended_well(trace)
            started = next(read_events(trace.data, trace.where))[1]
            self._check_settings(started, wanted)
            wanted = started.get("source")
        return load(reversed(lineage), offline=not live, retry_failed=self._retry_failed)

    def _check_settings(self, started: Mapping[str, Any], run: str) -> None:
        for field, own in (("chain", self._chain), ("seed", self._seed)):
            if started.get(field) != own:
                raise SessionError(
                    f"run {run} was recorded with {field}={started.get(field)!r}, this session has "
                    f"{own!r}; nothing recorded would hold"
                )

    def _finish(self, driver: Driver, error: BaseException | None) -> None:
        ledger = driver.ledger
        left = ledger.left_behind()
        if left and error is None and ledger.halted is None:
            ledger.stats.orphans += len(left)
            listed = ", ".join(f"step {e.step} ({e.name})" for e in left[:5])
            _log.warning("run %s never asked for %d recorded effects: %s", self.run_id, len(left), listed)
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
        with driver.lock:
            if driver.ledger.halted is None:
                driver.ledger.halted = error

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
        function, contract = _declaration(tool)
        return cast("R", self.run(contract, arguments, function))

    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call an async tool, or a sync one in a thread, through the session. See `call`."""
        function, contract = _declaration(tool)
        is_async = inspect.iscoroutinefunction(function)
        return await self.arun(contract, arguments, function, is_async=is_async)

    def run(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        usage: Usage | None = None,
    ) -> Any:
        """Guard one call: for adapters, which bring the contract and the body.

        `body` gets the validated arguments as keywords. `usage` reads the tokens off a model's
        answer. Raises as `call` does, and whatever the body raises.
        """
        return self._active().run(self._flow(contract, arguments, body, kind, usage))

    async def arun(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        is_async: bool = True,
        kind: Literal["tool", "model"] = "tool",
        usage: Usage | None = None,
    ) -> Any:
        """`run` for an async body, or with `is_async=False` for a sync one in a thread."""
        flow = self._flow(contract, arguments, body, kind, usage)
        return await self._active().arun(flow, is_async=is_async)

    def stream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        usage: Usage | None = None,
    ) -> Iterator[Any]:
        """Guard one call whose body gives an iterator: its chunks as they come, live or recorded.

        The step's value is the list of its chunks. A consumer that stops early cuts the step off.
        """
        flow = self._flow(contract, arguments, body, kind, usage)
        return self._active().stream(flow)

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        usage: Usage | None = None,
    ) -> AsyncIterator[Any]:
        """`stream` for a body that gives an async iterator."""
        flow = self._flow(contract, arguments, body, kind, usage)
        return self._active().astream(flow)

    def _flow(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Literal["tool", "model"],
        usage: Usage | None,
    ) -> Any:
        scope = _scope.get()
        if scope is None or scope.session is not self:
            scope = _Scope(self)
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
        )
        verdict = ALLOWED
        if self._rules:
            calls = self._active().ledger.stats.calls
            view = StepView(kind, contract, bound.values, scope.agent, scope.branch, calls)
            verdict = decide(view, self._rules)
        return run_step(call, verdict, body, self._seal, durable=self._durable, usage=usage)

    # --- where calls stand -----------------------------------------------------------------------

    def _here(self) -> _Scope:
        scope = _scope.get()
        return scope if scope is not None and scope.session is self else _Scope(self)

    @contextlib.contextmanager
    def turn(self) -> Iterator[TurnHandle]:
        """The calls inside were issued together: none depends on another."""
        driver = self._active()
        with driver.lock:
            turn = driver.ledger.new_turn()
        scope = dataclasses.replace(self._here(), turn=turn, slot=None)
        with _in_scope(scope):
            yield TurnHandle(scope)

    @contextlib.contextmanager
    def branch(self, name: str) -> Iterator[Branch]:
        """A world of its own for the calls inside, forked here and joined at the end.

        Raises:
            SessionError: the name is empty or holds one of `/ #`.
        """
        if not name or set(name) & set("/#"):
            raise SessionError(f"{name!r} can't name a branch: it is empty or holds / or #")
        driver = self._active()
        here = self._here()
        with driver.lock:
            parent = driver.ledger.branch_name(here.branch, here.step)
            full = driver.ledger.fork(parent, name, here.turn)
        scope = dataclasses.replace(here, branch=full, turn=None, slot=None, step=None)
        with _in_scope(scope):
            yield Branch(scope)
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
    ) -> Iterator[None]:
        """Say where the next call in this context stands: for adapters, at the framework's hook.

        `turn` is anything hashable that is the same for all the calls of one model message.
        """
        here = self._here()
        placed = here.turn
        if turn is not None:
            driver = self._active()
            with driver.lock:
                key = (here.branch, None if here.step is None else here.step.number, turn)
                placed = self._turns.get(key)
                if placed is None:
                    placed = self._turns[key] = driver.ledger.new_turn()
        with _in_scope(
            dataclasses.replace(here, turn=placed, slot=slot, agent=agent or here.agent, call_id=call_id)
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
        body, contract = _declaration(function)
        return _guarded(body, contract, lambda: self)


def _check(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise SessionError(f"{field}={value!r} is none of {', '.join(map(repr, allowed))}")


def _interrupts(error: BaseException | None) -> bool:
    """Whether this must go on as it is: a cancellation, an interrupt, an exit."""
    return error is not None and not isinstance(error, Exception)


def _ended_well(trace: RunTrace) -> bool:
    last = trace.data[trace.data.rfind(b"\n", 0, -1) + 1 :]
    return last.startswith(b'{"event":"run.finished"') and b'"status":"ok"' in last


# --- declared tools ------------------------------------------------------------------------------

_CONTRACT: Final = "__rollcage_contract__"


def contract_of(function: Callable[..., Any]) -> Contract | None:
    """The contract that `@rollcage.tool` attached to a function; None if there is none."""
    found = getattr(function, _CONTRACT, None)
    return found if isinstance(found, Contract) else None


@functools.lru_cache(maxsize=4096)
def _undeclared(function: Callable[..., Any]) -> Contract:
    return Contract.of(function)


def _declaration(function: Callable[..., Any]) -> tuple[Callable[..., Any], Contract]:
    """A tool's own body and its contract."""
    contract = getattr(function, _CONTRACT, None)
    if contract is not None:
        return getattr(function, "__wrapped__", function), contract
    if not callable(function):
        raise ContractError(f"{function!r} can't be called: it is no tool")
    return function, _undeclared(function)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**declared: Unpack[Declared]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a tool: it stays that function, with a contract attached.

    Inside an open session a call of it is guarded; outside it runs plainly. What can be declared
    is described at `Contract`; an undeclared effect is `write`.

    Raises:
        ContractError: the declaration can't be used; says which parameter or field.
    """
    if function is None:
        return lambda each: _declare(each, declared)
    return _declare(function, declared)


def _declare(function: Callable[..., Any], declared: dict[str, Any]) -> Callable[..., Any]:
    contract = Contract.of(function, **declared)
    return _guarded(function, contract, lambda: _session_here(contract))


def _guarded(
    function: Callable[..., Any], contract: Contract, session_of: Callable[[], Session | None]
) -> Callable[..., Any]:
    """The function with its calls guarded by the session that `session_of` finds, if any."""
    bind = inspect.signature(function).bind
    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awrapper(*args: Any, **kwargs: Any) -> Any:
            session = session_of()
            if session is None:
                return await function(*args, **kwargs)
            named = _named(bind, args, kwargs) if args else kwargs
            return await session.arun(contract, named, function)

        wrapper = awrapper
    else:

        @functools.wraps(function)
        def plain_wrapper(*args: Any, **kwargs: Any) -> Any:
            session = session_of()
            if session is None:
                return function(*args, **kwargs)
            return session.run(contract, _named(bind, args, kwargs) if args else kwargs, function)

        wrapper = plain_wrapper
    setattr(wrapper, _CONTRACT, contract)
    return wrapper


def _named(
    bind: Callable[..., inspect.BoundArguments], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    bound = bind(*args, **kwargs)
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    return named


def _session_here(contract: Contract) -> Session | None:
    scope = _scope.get()
    if scope is not None:
        return scope.session
    if _open_sessions:
        warnings.warn(
            f"{contract.name} was called in a thread or task that knows no session, while sessions "
            f"are open in this process: it runs unguarded. Start the thread with "
            f"contextvars.copy_context().run, or call through the session",
            UnguardedCallWarning,
            stacklevel=3,
        )
    return None
