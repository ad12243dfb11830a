"""The calls of an open run: each is bound, decided, matched, made and recorded by one flow.

A session has one of these while it is open, and so has the undo of a finished run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar, cast, overload

from rollcage.contract.contract import Contract
from rollcage.errors import ArgumentsInvalid, ContractError
from rollcage.fingerprint.identity import key_digest
from rollcage.gate import ALLOWED, FacadeGuard, Instead, Verdict
from rollcage.replay.path import Entry
from rollcage.replay.steps import Origin
from rollcage.session.attempts import Attempts
from rollcage.session.current import entering
from rollcage.session.deciding import Decisions
from rollcage.session.declare import declaration
from rollcage.session.following import MemoryFollower
from rollcage.session.means import Means
from rollcage.session.naming import Names
from rollcage.session.once import Once
from rollcage.session.refusing import bind_refused, put_on_record
from rollcage.session.run import OpenRun
from rollcage.session.scope import Lent, Nesting, Scope, Unguarded, around, asked, scope_of
from rollcage.step.call import Call, OpenStep, Progress, key_of
from rollcage.step.capture import Setting
from rollcage.step.driver import Driver
from rollcage.step.flow import run_step
from rollcage.step.gating import Above
from rollcage.step.ledger import Ledger
from rollcage.step.outcomes import Read, late_end
from rollcage.step.pausing import held_back
from rollcage.step.requests import Flow, Raised, Request, Returned
from rollcage.step.streams import astream, stream
from rollcage.step.undo_checks import UndoRequest
from rollcage.step.undoing import undo_orphans
from rollcage.store.jobs import store_option
from rollcage.store.protocol import Reader, Writer
from rollcage.undo.compensation import Tool
from rollcage.values.names import writable

__all__ = ["Calls", "Kind"]

R = TypeVar("R")
Kind = Literal["tool", "model"]

_NOTHING_ELSE: Final = Instead()  # of a framework's body, if its adapter says nothing


class Calls:
    """Guards and makes the calls of a run that is open.

    Attributes:
        name: the job's.
        run_id: the run's.
        root: the first run of its lineage.
        opened: the run.
        driver: performs what the flows of the calls ask for; it has the ledger.
        means: what the calls are made with.
        deciding: who decides on them, and what they say.
        following: the memory of a framework, if one is followed.
        once: the outcomes of calls that a framework may repeat.
        attempts: the outcomes of calls of work that it may start over.
        nesting: the context in which this was entered.
        forgotten: called with this when nobody is left who could make a call.
    """

    forgotten: Callable[[Calls], None] | None = None

    def __init__(
        self, name: str, run: OpenRun, writer: Writer, ledger: Ledger, reader: Reader, means: Means
    ) -> None:
        self.name = name
        self.run_id = run.id
        self.root = run.root
        self.opened = run
        self.means = means
        self.nesting = Nesting()
        self._gate = means.gate
        self._seal = means.seal
        self.names = Names(means.seal)
        self._gate.counted_by(ledger.stats)
        lent = means.lent
        self.driver = Driver(
            ledger,
            writer,
            run.store,
            reader,
            means.clock,
            entering(self, means.enforce),
            around.reset,
            run.recall,
            self._late_end,
            means.notified(),
        )
        self.once = Once(self.driver)
        at = store_option(run.store)
        self.attempts = Attempts(self.driver, run.id, at, halts=ledger.on_divergence != "warn")
        self.driver.around = None if lent is None else lent.driver
        self.driver.seal = means.seal
        deciding = self.deciding = Decisions(name, self, means)
        self.setting = Setting(
            means.seal,
            means.durable or writer.buffered,
            run.root,
            means.tools,
            self._undo_orphans,
            deciding.decide,
            deciding.terms_here,
            deciding.allow,
            means.types,
            at,
            run.id,
            run.epoch,
        )
        self.following = MemoryFollower(self.driver, self._gate, self.names, means.clock, self.here)

    def __del__(self) -> None:
        if self.forgotten is not None:
            self.forgotten(self)

    @property
    def session(self) -> object:
        """The session whose calls they are; None: of the undo of a finished run."""
        return self.means.session

    @property
    def unguarded(self) -> Unguarded:
        """See `Session.unguarded`."""
        return self.means.unguarded or self._gate.unguarded

    @property
    def facade(self) -> FacadeGuard | None:
        """What the agent gets of the registry of tools; None if that is not restricted."""
        return self.means.facade

    def replays_undone(self, branch: str) -> bool:
        """See `BranchHandle.was_undone`."""
        return self.driver.ledger.branches.replays_undone(branch)

    def here(self) -> Scope:
        """The place of a call of this run in this context."""
        return scope_of(self)

    # --- calls -----------------------------------------------------------------------------------

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """See `Session.call`."""
        function, contract = declaration(tool)
        if contract.streams:
            is_async = inspect.isasyncgenfunction(function)
            chunks: Any = self.astream if is_async else self.stream
            return cast("R", chunks(contract, arguments, function))
        return cast("R", self.run(contract, arguments, function))

    @overload
    async def acall(
        self, tool: Callable[..., Coroutine[Any, Any, R]], /, **arguments: Any
    ) -> R: ...
    @overload
    async def acall(self, tool: Callable[..., R], /, **arguments: Any) -> R: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """See `Session.acall`."""
        function, contract = declaration(tool)
        if contract.streams:
            word = "async for" if inspect.isasyncgenfunction(function) else "for"
            raise ContractError(
                f"{contract.name} is a stream, and can't be awaited: "
                f"{word} chunk in session.call({contract.name}, ...)"
            )
        is_async = inspect.iscoroutinefunction(function)
        return await self.arun(contract, arguments, function, is_async=is_async)

    def run(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
        call_id: str = "",
    ) -> Any:
        """See `Session.run`."""
        if self.following.memory is not None:
            self.following.look_back()
        flow = self._flow(contract, arguments, body, kind, answer, instead, call_id)
        return self.driver.run(flow)

    async def arun(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
        call_id: str = "",
        *,
        is_async: bool = True,
    ) -> Any:
        """See `Session.arun`."""
        if self.following.memory is not None:
            await self.following.alook_back()
        flow = self._flow(contract, arguments, body, kind, answer, instead, call_id, waits=True)
        return await self.driver.arun(flow, is_async=is_async)

    def stream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Iterator[Any]:
        """See `Session.stream`."""
        self.following.look_back()
        instead = instead or _chunks(contract, body)
        flow = self._flow(contract, arguments, body, kind, answer, instead, streamed=True)
        return stream(self.driver, flow)

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> AsyncIterator[Any]:
        """See `Session.astream`."""
        instead = instead or _chunks(contract, body)
        start = functools.partial(
            self._flow, contract, arguments, body, kind, answer, instead, waits=True, streamed=True
        )
        chunks = functools.partial(astream, self.driver)
        return self.following.before(start, chunks)

    def _flow(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Kind,
        answer: Read | None,
        instead: Instead | None,
        call_id: str = "",
        *,
        waits: bool = False,
        streamed: bool = False,
    ) -> Flow:
        _check_once(contract)
        scope = scope_of(self)
        gate = self._gate if scope.inside is None else self.deciding.gate_of(scope)
        inside_of = scope.step
        undoes = None if inside_of is None else inside_of.call.undoes
        refused = None
        asks = gate.asks
        if asks:
            self.driver.check_process()  # before a lock that another process may hold
            refused = gate.refuses(contract, body, kind=kind, undo=undoes is not None)
        raw, framework = arguments, asked.get()
        if framework is not None and not framework.reached:
            framework.reached = True
            raw = arguments if framework.raw is None else framework.raw
        if refused is None:
            try:
                bound = contract.takes.bind(arguments, self._seal)
                if kind == "tool" and undoes is None and (contract.strict or gate.strict):
                    contract.takes.check_strict(raw)
            except ArgumentsInvalid as error:
                why, code = str(error), error.code
                self.refused(contract, raw, reason=why, code=code, kind=kind, call_id=call_id)
                raise
        else:
            bound = bind_refused(gate.facade, contract, arguments, self._seal, kind=kind)
        memory = self.following.memory
        standing = None if memory is None else memory.here()
        call = Call(
            kind,
            contract,
            bound,
            key_digest(kind, contract.name, contract.version, bound.digest_input),
            scope.branch,
            scope.turn,
            scope.slot,
            scope.agent,
            writable(call_id) if call_id else scope.call_id,
            scope.conversation if standing is None else standing.conversation,
            standing,
            inside_of,
            undoes,
            _NOTHING_ELSE if instead is None and contract.framework else instead,
            arguments if contract.framework else None,
        )
        if call.agent or call.conversation or (call.call_id and not self._seal.idle):
            self._check_names(call, raw, kind)
        progress = Progress(call, self.deciding.ask_of(scope))
        setting = self.setting
        if contract.captures and refused is None:
            self.means.tools.add(contract)
        if asks:
            start = functools.partial(run_step, body, setting, answer, waits)
            verdict = refused or self.deciding.verdict(gate, progress)
            flow = gate.flow(progress, verdict, start, self.run_id, streamed=streamed)
        else:
            verdict = ALLOWED
            flow = run_step(body, setting, answer, waits, progress, verdict)
        if scope.inside is not None:
            flow = held_back(functools.partial(scope.inside.driver.orders.holds_back, call), flow)
        if (scope.once is None and memory is None) or verdict.decision == "deny":
            return flow
        return self._repeated(progress, flow, scope)

    def _repeated(self, progress: Progress, flow: Flow, scope: Scope) -> Flow:
        """The flow of a call that a framework may make again: then its outcome is given again."""
        if scope.once is not None:
            return self.once.flow(progress, flow, failed=scope.once)
        memory = self.following.memory
        attempts = () if memory is None or scope.undoes is not None else memory.attempts()
        return self.attempts.flow(progress, flow, attempts) if attempts else flow

    def _check_names(self, call: Call, raw: Mapping[str, Any], kind: Kind) -> None:
        """Refuse a call whose agent, id or conversation quotes a declared secret.

        Raises:
            Blocked: one does; nothing happened.
        """
        refusal = self.names.refusal(call)
        if refusal is not None:
            reason, code = refusal.reason, refusal.verdict_code
            call_id = call.call_id
            self.refused(call.contract, raw, reason=reason, code=code, kind=kind, call_id=call_id)
            raise refusal

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
        """See `Session.refused`."""
        put_on_record(
            self.driver,
            self._seal,
            self.here(),
            tool,
            arguments,
            reason=reason,
            code=code,
            kind=kind,
            call_id=call_id,
        )

    # --- undo -------------------------------------------------------------------------------------

    def compensating(
        self, tool: Tool, arguments: Mapping[str, Any], branch: str, origin: Origin
    ) -> tuple[Progress, Verdict]:
        """A compensating call, and the verdict on it; for an undo."""
        deciding = self.deciding
        deciding.allow(tool)
        bound = tool.contract.bind(arguments, self._seal)
        ask = deciding.ask_of(Scope(self, inside=scope_of(self).inside))
        key = key_of("tool", tool.contract, bound)
        call = Call("tool", tool.contract, bound, key, branch, undoes=origin)
        progress = Progress(call, ask)
        return progress, self._gate.screens(tool.contract) or deciding.decide(progress)

    def _undo_orphans(
        self,
        orphans: tuple[Entry, ...],
        waits: bool,  # noqa: FBT001 - the engine calls it
    ) -> Generator[Request, Any, str]:
        """Undo the effects that a new write would leave behind."""
        request = UndoRequest(run=self.run_id, only=orphans, is_async=waits)
        return undo_orphans(request, self.setting, self)

    def _late_end(self, step: OpenStep, answer: Returned | Raised) -> Flow:
        """Record the end of a body that outlived its cancelled call."""
        return late_end(step, answer, self.setting)

    # --- sessions inside -------------------------------------------------------------------------

    def lend(self, scope: Scope) -> Lent:
        """What a session that is entered at this place of this one takes over."""
        step = 0 if scope.step is None else scope.step.number
        above = Above(self._gate, scope.ask or self.means.ask, self.deciding.terms, step)
        return Lent(above, self.driver, self._seal, self.means.types, self.means.enforce)


def _chunks(contract: Contract, body: Callable[..., Any]) -> Instead | None:
    """How an approver may answer in place of a stream: with one chunk."""
    return None if contract.framework else Instead(body, lambda value: [value])


def _check_once(contract: Contract) -> None:
    """Refuse a tool that needs what these sessions do not have.

    Raises:
        ContractError: it declares `once=`.
    """
    if contract.once:
        raise ContractError(
            f"{contract.name}: once={contract.once!r} is for sessions of rollcage.heart: this one "
            f"would not heed it"
        )
