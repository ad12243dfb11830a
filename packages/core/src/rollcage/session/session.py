"""What users touch: `Session`. Tools are declared in `declare`, a call's place is in `scope`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, Unpack, cast, overload

from rollcage.contract.asked import as_asked, secret_names
from rollcage.contract.contract import Contract
from rollcage.errors import (
    ArgumentsInvalid,
    Blocked,
    ContractError,
    Halt,
    NotReplayableWarning,
    OutputDrift,
    SessionError,
)
from rollcage.gate import ALLOWED, Ask, Instead
from rollcage.replay.ahead import Histories, Memory, Place
from rollcage.replay.path import Entry
from rollcage.session.declare import (
    Declared,
    declaration,
    declared_contracts,
    guarded,
    tool,
)
from rollcage.session.opened import writable
from rollcage.session.scope import Branch, InScope, Scope, TurnHandle, asked, scope_of
from rollcage.session.transaction import Transaction
from rollcage.session.undoable import Undoable
from rollcage.step.call import Call
from rollcage.step.capture import on_record
from rollcage.step.flow import Read, kept, run_step
from rollcage.step.requests import Flow, Returned
from rollcage.step.streams import astream, stream
from rollcage.trace.constructors import call_refused

__all__ = ["Session"]

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_REMEMBERED: Final = 256  # turns whose calls a framework may repeat, however many those are
_NOTHING_ELSE: Final = Instead()  # what a framework's body comes to, where its adapter says nothing
_NAMED: Final = "secret_in_name"
_NOT_MADE: Final = (ArgumentsInvalid, Blocked, Halt, SessionError)


class Session(Undoable):
    """A live, guarded execution; it writes exactly one run.

    Use it as a context manager, sync or async. Every tool that is called through it, or that was
    declared with `@rollcage.tool` and is called inside it, is fingerprinted, gated, traced and, in
    a later session of the same name, replayed.

    Args:
        name: the job. With `replay="auto"`, its newest run is resumed unless it finished cleanly.
            Not given: the name of the script that runs, which is logged.
        store: a directory (made if needed), or a `Store`.
        replay: `"auto"`; `"continue"`: its newest run is resumed even if it finished; `"off"`
            records a new run; `"resume"` reuses what holds and runs the rest, and needs a run;
            `"offline"` gives back what is recorded and runs nothing; `"verify"` also runs pure and
            read tools again, and reports drift.
        source: the run to replay: its id; the path of its trace; or, of a run in another store,
            that store (a folder, a URL, or a `Store`) and its id: `(store, run)`. By default, it is
            the newest of the job.
        input: what the job works on, any value that a tool may take. With another input it is
            another job: neither is resumed in place of the other.
        resume_within: how long ago the run that is resumed may have been written to, as a
            timedelta or in seconds; an older one is refused. By wall clocks: one from the future
            counts as new.
        gate: what decides on each call before it happens, together: deny over ask over allow, the
            first of equals. A `rollcage_policy.Policy`, a `rollcage_governance.Facade`, rules (see
            `rollcage.Rule`) and guards (see `rollcage.Guard`), in any order.
        policy: a policy, or the file (TOML or YAML) that it is in; as the first of `gate`.
        rules: rules, as the last of `gate`.
        observers: each is told what becomes of each step, after it was written: see
            `rollcage.StepEvent`. Those of a session around this one are told as well.
        said: what the user said, for conditions that ask whether they `named` something; it is
            recorded, so that such a decision can be checked again.
        approver: see `rollcage.Approver`; decides where a rule asks. Without one, the session
            halts there.
        actor: who the run acts for, who can't approve its calls; by default the job's name.
        chain: `"effects"`: writes move the world on; `"all"`: every tool step does.
        durability: `"os"`: what is recorded survives the death of the process; `"disk"`: and of
            the machine.
        on_divergence: what a new write does when recorded effects are still ahead: `"halt"`;
            `"undo"` undoes them first; `"warn"` goes on without them.
        seed: sets this job's worlds apart from those of another seed.
        retry_failed: which recorded failures run again: None, those that nothing came after;
            True, all; False, none.
        enforce: what is done where the body of a tool that declares permissions touches what it
            does not declare: `"report"` says so in its step, `"strict"` refuses it with
            `PermissionUndeclared`. It is defence in depth, no sandbox.
        strict: arguments that would have to be coerced are refused, of every tool: `"3"` for an
            int. By default a tool's own schema says what it makes of them. See `Contract`.
        unguarded: what becomes of a tool that is called past every session while this one is open,
            in a thread that knows none, say: `"warn"` (`UnguardedCallWarning`), or `"refuse"`
            (`Blocked`, with the code `unguarded`). Adapters refuse by it what they see unguarded.
        tools: the tools that undo plans name, where they are not those of this process: functions
            declared with `@rollcage.tool`, and contracts of a framework's tools.
        facade: the name of a `rollcage_governance.Facade` in `gate`: what the agent gets of the
            store's registry of tools (see `Registry` there), as it stands when the session opens:
            no other tool runs in it, and none that was changed since it was approved. Inside of a
            session with a facade, what both give.
        secrets: what never reaches the disk: what is `"declared"` a secret, or also each credential
            that is `"detected"` in arguments, results and errors (extra `rollcage[secrets]`). A
            result that held one can't be given back: see the page on audits.
        types: classes of the application whose values, in results and as errors, come back as
            themselves, beside those that a tool's return type names: see `rollcage.register`.
        clock: where time and randomness come from; for tests, whose traces are then the same
            each time.

    Raises:
        PackageMissing: what reads the policy's file, or the facade, is not installed.
        PolicyInvalid: the policy can't be used; the message names each line that is wrong.
        DetectorMissing: credentials are to be detected, and what finds them is not installed.
        FacadeMissing: on entering: the registry knows no such facade.
        RunTooOld: on entering: the run that it would go on with is older than `resume_within`.
        RunAbandoned: on entering: that run was set aside.
        Unencodable: on entering: the input holds a value without an encoding.
        StoreError: on entering: the store, the source or its trace can't be used. One that can't be
            written is no hindrance to `"offline"` and `"verify"`: their own run is then recorded in
            a temporary folder, and the log says where.
    """

    # --- calls -----------------------------------------------------------------------------------

    def call(self, tool: Callable[..., R], /, **arguments: Any) -> R:
        """Call a sync tool through the session; of a generator function, get its chunks.

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
        if contract.streams:
            is_async = inspect.isasyncgenfunction(function)
            stream: Any = self.astream if is_async else self.stream
            return cast("R", stream(contract, arguments, function))
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
        *,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Any:
        """Guard one call: for adapters, which bring the contract and the body.

        `body` gets the validated arguments as keywords. `answer` reads what a model answered off
        its value. `instead` says what else an approver may make of the call: without it, one of a
        framework's own contract can be neither edited nor answered, for nobody knows whether its
        body takes the arguments. Raises as `call` does, and whatever the body raises.
        """
        self.look_back()
        return self._active().run(self._flow(contract, arguments, body, kind, answer, instead))

    async def arun(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        is_async: bool = True,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Any:
        """`run` for an async body, or with `is_async=False` for a sync one in a thread."""
        await self.alook_back()
        flow = self._flow(contract, arguments, body, kind, answer, instead, waits=True)
        return await self._active().arun(flow, is_async=is_async)

    def stream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Iterator[Any]:
        """Guard one call whose body gives an iterator: its chunks as they come, live or recorded.

        The step's value is the list of its chunks. A consumer that stops early cuts the step off.
        """
        instead = instead or _chunks(contract, body)
        self.look_back()
        flow = self._flow(contract, arguments, body, kind, answer, instead, streamed=True)
        return stream(self._active(), flow)

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Literal["tool", "model"] = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> AsyncIterator[Any]:
        """`stream` for a body that gives an async iterator."""
        instead = instead or _chunks(contract, body)
        start = functools.partial(
            self._flow, contract, arguments, body, kind, answer, instead, waits=True, streamed=True
        )
        if self._memory is None:
            return astream(self._active(), start())
        return self._astream(start)

    async def _astream(self, start: Callable[[], Flow]) -> AsyncIterator[Any]:
        """A stream before which a framework's memory has to be looked at."""
        await self.alook_back()
        async with contextlib.aclosing(astream(self._active(), start())) as chunks:
            async for chunk in chunks:
                yield chunk

    def _flow(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        kind: Literal["tool", "model"],
        answer: Read | None,
        instead: Instead | None,
        *,
        waits: bool = False,
        streamed: bool = False,
    ) -> Flow:
        scope = self._here()
        gate, refused = self._deciding(scope), None
        if gate.asks:
            self._active().check_process()  # before a lock that another process may hold
            refused = gate.refuses(contract, body, kind=kind, undo=scope.undoes is not None)
        raw, framework = arguments, asked.get()
        if framework is not None and not framework.reached:
            framework.reached = True
            raw = arguments if framework.raw is None else framework.raw
        if refused is None:
            try:
                bound = contract.takes.bind(arguments, self._seal)
                if (contract.strict or gate.strict) and kind == "tool" and scope.undoes is None:
                    contract.takes.check_strict(raw)
            except ArgumentsInvalid as error:
                self.refused(contract, raw, reason=str(error), code=error.code, kind=kind)
                raise
        else:
            bound = gate.bind_refused(contract, arguments, self._seal, kind=kind)
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
            conversation=scope.conversation,
            standing=None if self._memory is None else self._memory.here(),
            parent=step,
            ask=self._asked(scope),
            undoes=scope.undoes,
            instead=_NOTHING_ELSE if instead is None and contract.framework else instead,
            raw=arguments if contract.framework else None,
        )
        self._check_names(call, raw, kind)
        if scope.inside is not None and (halted := scope.inside.driver.refuses(call)) is not None:
            raise halted
        setting = self._setting
        if setting is None:
            self._active()
            raise AssertionError("an entered session has it")
        if contract.captures and refused is None:
            self._tools.add(contract)
        if gate.asks:
            start = functools.partial(
                run_step, body=body, setting=setting, read=answer, waits=waits
            )
            verdict = refused or self._decide(call)
            flow = gate.flow(call, verdict, start, self.run_id, streamed=streamed)
        else:
            verdict = ALLOWED
            flow = run_step(call, verdict, body, setting, read=answer, waits=waits)
        if scope.once is None or verdict.decision == "deny":
            return flow
        return self._only_once(call, flow, failed=scope.once)

    def _check_names(
        self, call: Call, raw: Mapping[str, Any], kind: Literal["tool", "model"]
    ) -> None:
        """Refuse a call whose agent, id or conversation quotes a declared secret.

        Raises:
            Blocked: one does; nothing happened.
        """
        what = self._names.quoting(call)
        if what:
            reason = (
                f"{call.contract.name} was not called: {what} quotes a declared secret, and names "
                f"are written to the trace as they are. Use one without the secret."
            )
            self.refused(call.contract, raw, reason=reason, code=_NAMED, kind=kind)
            raise Blocked(reason, rule="", code=_NAMED)

    def refused(
        self,
        tool: Contract | str,
        arguments: Mapping[str, Any],
        *,
        reason: str = "",
        code: str = "",
        kind: Literal["tool", "model"] = "tool",
        call_id: str = "",
    ) -> None:
        """Put a call on record that was refused before it came to the session; nothing ran.

        For adapters, and for loops of one's own in which a model asks for a tool that does not
        exist. A call of the session whose arguments do not pass is put on record by itself.

        Args:
            tool: the tool's contract; or the name that was asked for, where there is no such tool.
            arguments: as they were asked for.
            reason: what the model was told; of arguments that do not pass the tool's schema, what
                that says of them.
            code: why, for machines; by default `tool_missing` of a name, `arguments_invalid` where
                they do not pass, else `refused`.
            kind: of the call.
            call_id: the framework's id of the call, where it was not placed.
        """
        driver = self._active()
        driver.check_process()
        if driver.closed or driver.ledger.halted is not None:
            return  # nothing is asked of it any more
        if (framework := asked.get()) is not None:
            framework.reached = True
        contract = None if isinstance(tool, str) else tool
        known = [contract] if contract is not None else [*declared_contracts()]
        hidden = frozenset[str]().union(*map(secret_names, known))
        named = self._seal.hide_in_name(writable(tool)) if isinstance(tool, str) else tool.name
        if contract is not None and not code:
            said = contract.takes.why_not(arguments, self._seal)
            reason, code = said or reason, ArgumentsInvalid.code if said else "refused"
        scope = self._here()
        event = call_refused(
            kind=kind,
            name=named,
            version="" if contract is None else contract.version,
            args=as_asked(arguments, self._seal, hidden),
            code=code or "tool_missing",
            reason=writable(reason) or f"there is no tool called {named!r}",
            branch=scope.branch,
            turn=None if scope.turn is None else scope.turn.number,
            slot=scope.slot,
            agent=self._seal.hide_in_name(scope.agent),
            call_id=self._seal.hide_in_name(writable(call_id) or scope.call_id),
            parent=None if scope.step is None else scope.step.number,
        )
        driver.run(on_record(event))
        with driver.lock:
            driver.ledger.stats.refused += 1

    def _only_once(self, call: Call, flow: Flow, *, failed: bool) -> Flow:
        """Give a call that its turn and slot name its outcome again, where it is made again."""
        assert call.turn is not None
        turns, turn = self._ended, call.turn.number
        place = call.branch, call.slot, call.key
        ended = turns[turn].get(place) if turn in turns else None
        if ended is not None and self._active().ledger.halted is None:
            return ended
        answer = yield from flow
        if isinstance(answer, Returned) or _stays(call, answer.error, failed=failed):
            turns.setdefault(turn, {})[place] = answer
            turns.move_to_end(turn)
            while len(turns) > _REMEMBERED:
                turns.popitem(last=False)
        return answer

    # --- where calls stand -----------------------------------------------------------------------

    def _here(self) -> Scope:
        return scope_of(self)

    def unasked(self) -> tuple[tuple[str, int], ...]:
        """The recorded steps (run, step) that nobody has asked for, in their order.

        For tests that replay: what a recorded agent did, and this one does not. Those that ran in
        the body of a step that was replayed, or was not asked for itself, are not named.
        """
        driver = self._active()
        with driver.lock:
            return tuple((entry.run, entry.step) for entry in driver.ledger.ahead.left())

    @contextlib.contextmanager
    def turn(self) -> Generator[TurnHandle]:
        """The calls inside were issued together: none depends on another."""
        driver = self._active()
        driver.check_process()
        with driver.lock:
            turn = driver.ledger.new_turn()
        scope = dataclasses.replace(self._here(), turn=turn, slot=None)
        with InScope(scope):
            yield TurnHandle(scope)

    @contextlib.contextmanager
    def branch(self, name: str) -> Generator[Branch]:
        """A world of its own for the calls inside, forked here and joined at the end.

        Raises:
            SessionError: the name is empty, holds one of `/ #` or quotes a declared secret.
        """
        if not name or set(name) & set("/#"):
            raise SessionError(f"{name!r} can't name a branch: it is empty or holds / or #")
        if self._seal.is_quoted_by(name):
            raise SessionError(
                "the name of a branch quotes a declared secret, and names are written to the trace "
                "as they are: use one without the secret"
            )
        driver = self._active()
        here = self._here()
        driver.check_process()
        self.look_back()  # branches of this name that were seen come before this one
        standing = None if self._memory is None else self._memory.here()
        with driver.lock:
            parent = driver.ledger.branch_name(here.branch, here.step)
            turn = here.turn or driver.ledger.turn_at(standing, parent)
            now = self._clock.wall() // 1000
            full, forked = driver.ledger.fork(parent, name, turn, now, standing)
            if not driver.closed and driver.ledger.halted is None:
                driver.append(forked)
        scope = dataclasses.replace(here, branch=full, turn=None, slot=None)
        with InScope(scope):
            yield Branch(scope)
        if driver.writer.forked:
            return  # the child of a fork in here: what joins is the parent's
        self.look_back()  # nobody may have asked for anything in it
        with driver.lock:
            event = driver.ledger.join(parent, full, turn, self._clock.wall() // 1000)
            if event is not None:
                driver.append(event)

    def transaction(self, name: str = "transaction") -> Transaction:
        """A block that takes back what was done in it when it raises; `with` or `async with`.

        It is a branch: its calls have a world of their own, which comes back when the block ends
        well. Nested ones are taken back with the one around them. Where not everything can be taken
        back, the error says so in a note, and the session halts with `UndoIncomplete`.
        """
        return Transaction(self, name)

    def place(
        self,
        *,
        turn: object = None,
        slot: int | None = None,
        agent: str = "",
        call_id: str = "",
        conversation: str = "",
        once: bool = False,
        ask: Ask | None = None,
    ) -> contextlib.AbstractContextManager[None]:
        """Say where the next call in this context stands: for adapters, at the framework's hook.

        Turn and slot together name one call of the model. Made again, it is that call, not a new
        one: where it ended well, its outcome is given back, however often a framework repeats it.

        Args:
            turn: anything hashable that is the same for all the calls of one model message.
            slot: the call's place in that message.
            agent: the agent's name.
            call_id: the framework's id of the call.
            conversation: of which of the framework's threads it is, where that has a history of
                its own; see `seen`.
            once: a call that failed is not made again either: it fails as before.
            ask: who is asked to approve the call, in place of the session's approver.
        """
        here = self._here()
        placed = here.turn
        if turn is not None:
            driver = self._active()
            driver.check_process()
            key = (here.branch, None if here.step is None else here.step.number, turn)
            placed = self._turns.get(key)
            if placed is None:
                with driver.lock:
                    placed = self._turns.get(key)
                    if placed is None:
                        placed = self._turns[key] = driver.ledger.new_turn()
        return InScope(
            Scope(
                self,
                here.branch,
                placed,
                slot,
                writable(agent) or here.agent,
                writable(call_id),
                writable(conversation),
                here.step,
                None if turn is None or slot is None else once,
                ask,
            )
        )

    # --- a framework's own memory ----------------------------------------------------------------

    def follow(self, memory: Memory) -> None:
        """Look at a framework's own memory before each call: for adapters.

        A framework with a checkpointer goes on by itself where it was, and never asks for what came
        before. Recorded steps that its memory holds as done are *seen*: they are used up in their
        order, as if they had been asked for, and the world moves on with them. Where the memory
        says at the end that the framework waits for something, the run is `paused`. A session
        follows one memory: the first that it is told of.
        """
        self._memory = self._memory or memory

    def seen(self, histories: Mapping[str, Iterable[str]]) -> None:
        """Say which calls a framework's histories show as answered: for adapters, at its hook.

        For a framework whose memory is a history of messages: recorded calls of these ids are seen,
        as `follow` has it, and the model's answers before them. An id that was given in this
        session as often as the history shows it is left alone. A history that shows a call as
        answered which is recorded without an answer (the session was halted there, or nobody can
        tell whether it happened) halts the session.

        Args:
            histories: by conversation, as `place` was told it, the ids of the calls that have a
                result in its history, in any order, each as often.
        """
        if self._active().ledger.ahead.recorded:
            self._see(histories={name: list(ids) for name, ids in histories.items()})

    def look_back(self) -> None:
        """See what the memory holds that the session follows, as each call does by itself.

        For adapters, at a hook that may come before no guarded call.
        """
        if self._memory is None or not self._active().ledger.ahead.has_places:
            return
        standing = self._memory.here()
        if standing is not None:
            self._see(places=standing.held(self._places()))

    async def alook_back(self) -> None:
        """`look_back`, where the memory has to be awaited."""
        if self._memory is None or not self._active().ledger.ahead.has_places:
            return
        standing = self._memory.here()
        if standing is not None:
            self._see(places=await standing.aheld(self._places()))

    def _places(self) -> Iterator[Place]:
        """Where the recorded steps stand that nobody has asked for, of the body around this."""
        driver, scope = self._active(), self._here()
        driver.check_process()
        with driver.lock:
            return driver.ledger.places((scope.branch, scope.step))

    def _see(
        self,
        *,
        places: frozenset[Place] = frozenset(),
        histories: Histories = MappingProxyType({}),
    ) -> None:
        if not places and not any(histories.values()):
            return
        driver, scope = self._active(), self._here()
        driver.check_process()
        entries: list[tuple[int, Entry]] = []
        with driver.lock:
            if driver.closed:
                return
            for event, entry in driver.ledger.see(
                (scope.branch, scope.step),
                self._clock.wall() // 1000,
                places=places,
                histories=histories,
            ):
                driver.append(event)
                entries.append((event["step"], entry))
                self._names.keep(entry.agent)
        for number, entry in entries:
            driver.run(kept(entry))
            self._gate.remember(number, entry)

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


def _stays(call: Call, error: BaseException, *, failed: bool) -> bool:
    """Whether a call that raised is not made again: its write was performed, or no failure is."""
    contract = call.contract
    if isinstance(error, OutputDrift | NotReplayableWarning) and error.tool == contract.name:
        return failed or contract.effect == "write"
    return failed and _is_failure(call, error)


def _is_failure(call: Call, error: BaseException) -> bool:
    """Whether a call was made and failed: neither refused, nor cut off, nor waiting."""
    pauses = () if call.ask is None else call.ask.pauses
    return isinstance(error, Exception) and not isinstance(error, (*_NOT_MADE, *pauses))


def _chunks(contract: Contract, body: Callable[..., Any]) -> Instead | None:
    """What an approver may make of a stream: its answer is the one chunk."""
    return None if contract.framework else Instead(body, lambda value: [value])
