"""The public facade: `Session`. It guards the calls of one run from entering to leaving."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from types import EllipsisType, MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from rollcage.contract.contract import Contract
from rollcage.contract.permissions import Enforce
from rollcage.errors import SessionError, SessionHalted
from rollcage.gate import (
    Approver,
    Ask,
    Detecting,
    FacadeGuard,
    Given,
    Instead,
    PolicyGuard,
    Rule,
    Sealing,
    Spent,
    all_given,
)
from rollcage.replay.ahead import Memory
from rollcage.replay.fork import Fork
from rollcage.session.calls import Calls, Kind
from rollcage.session.declare import Declared, declaration, declare, guarded
from rollcage.session.interrupted import afinish_undo, finish_undo
from rollcage.session.job import Replay, microseconds
from rollcage.session.leaving import aleave, forgotten, leave
from rollcage.session.lineage import read_answers
from rollcage.session.opening import Opening, enter
from rollcage.session.options import Options, fork_of, person_acted_for
from rollcage.session.places import BranchHandle, Places, TurnHandle
from rollcage.session.run import Key
from rollcage.session.scope import Unguarded
from rollcage.session.transaction import Transaction
from rollcage.session.undoing import aundo, undo
from rollcage.step.clock import Clock
from rollcage.step.gating import Gate
from rollcage.step.ledger import OnDivergence
from rollcage.step.observing import Observer
from rollcage.step.outcomes import Read
from rollcage.step.stats import Stats
from rollcage.step.undo_checks import UndoRequest
from rollcage.store.jobs import job_name
from rollcage.store.protocol import Store
from rollcage.store.url import RunSource, open_store
from rollcage.undo.compensation import KnownTools, ToolSource
from rollcage.undo.report import InDoubt, UndoReport
from rollcage.values.answer import Answer
from rollcage.values.names import name_of_script, writable
from rollcage.values.registered import REGISTERED, Types

__all__ = ["Session"]

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Session:
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
            read tools again and reports drift.
        source: the run to replay: its id; the path of its trace; or, of a run in another store,
            that store (a folder, a URL, or a `Store`) and its id: `(store, run)`. By default, it is
            the newest of the job.
        fork: a recorded run with one thing changed, or the file of one: see `rollcage.Fork`. Calls
            are answered from the recording; no new write is performed unless the fork is `live`. A
            tool that is called without the session is refused, and so is a session inside of this
            one. By default, what the environment variable `ROLLCAGE_FORK` names, as `rollcage
            fork` sets it.
        input: what the job works on, any value that a tool may take. Another input makes it another
            job: neither is resumed in place of the other.
        resume_within: how long ago the run that is resumed may have been written to, as a
            timedelta or in seconds; an older one is refused. By wall clocks: one from the future
            counts as new.
        gate: what decides on each call before it happens, together: deny over ask over allow, the
            first of equals. A `rollcage_policy.Policy`, a `rollcage_governance.Facade`, rules (see
            `rollcage.Rule`) and guards (see `rollcage.Guard`), in any order.
        policy: a policy, or the file (TOML or YAML) that it is in; as the first of `gate`.
        rules: rules, as the last of `gate`.
        observers: each is notified of what becomes of each step, after it was written: see
            `rollcage.StepEvent`. Those of a session around this one are notified as well.
        user_input: one text or several, for conditions with `named(…)`; recorded, so that such a
            decision can be checked again.
        approver: see `rollcage.Approver`; decides if a rule asks. Without one, the session
            halts then.
        actor: the person that the run acts for, who can't approve its calls; by default the job's
            name.
        chain: `"effects"`: writes advance the world; `"all"`: every tool step does.
        durability: `"os"`: what is recorded survives the death of the process; `"disk"`: and of
            the machine.
        on_divergence: what a new write does when recorded effects are still ahead: `"halt"`;
            `"undo"` undoes them first; `"warn"` goes on without them.
        seed: sets this job's worlds apart from those of another seed.
        retry_failed: which recorded failures run again: None, those that nothing came after;
            True, all; False, none.
        before_resume: called with the id of the run that is to be resumed, once nobody else can
            write it and before anything is recorded. What it raises is raised on entering: for a
            program that has looked at the run before that, and has to know that nothing changed
            since. It must not enter a session, and may be called in a thread.
        enforce: what is done if the body of a tool that declares permissions touches what it does
            not declare: `"report"` records it in the step, `"strict"` refuses it with
            `PermissionUndeclared`. It is defence in depth, not a sandbox.
        strict: arguments of any tool that would have to be coerced, such as `"3"` for an int, are
            refused. By default, the tool's own schema decides. See `Contract`.
        unguarded: what is done if a tool is called without any session while this one is open, for
            example in a thread without its context: `"warn"` (`UnguardedCallWarning`), or
            `"refuse"` (`Blocked`, with the code `unguarded`). Adapters apply it to unguarded tools
            that they see. By default, it is refused if anything is in the gate, else warned of; a
            policy in shadow mode blocks nothing, this neither.
        tools: the tools that undo plans name, if they are not those of this process: functions
            declared with `@rollcage.tool`, and contracts of a framework's tools; `...` among them
            adds those of this process.
        facade: the name of a `rollcage_governance.Facade` in `gate`: what the agent gets of the
            store's registry of tools (see `Registry` there), as it is when the session opens: no
            other tool runs in it, and none that was changed since it was approved. Inside of a
            session with a facade, the tools that both give.
        secrets: what never reaches the disk: what is `"declared"` a secret, or also each credential
            that is `"detected"` in arguments, results and errors (extra `rollcage[secrets]`). A
            result that held one can't be given back: see the page on audits.
        types: classes of the application whose values, in results and as errors, come back as
            themselves, in addition to those that a tool's return type names: see
            `rollcage.register`.
        clock: the source of time and randomness; for tests, whose traces are then the same each
            time.

    Raises:
        PackageMissing: what reads the policy's file, or the facade, is not installed.
        PolicyInvalid: the policy can't be used; the message names each line that is wrong.
        DetectorMissing: credentials are to be detected, and what finds them is not installed.
        FacadeMissing: on entering: the registry knows no such facade.
        RunTooOld: on entering: the run that it would resume is older than `resume_within`.
        RunAbandoned: on entering: that run was set aside.
        Unencodable: on entering: the input holds a value without an encoding.
        StoreError: on entering: the store, the source or its trace can't be used. A store that
            can't be written is no error for `"offline"` and `"verify"`: their own run is then
            recorded in a temporary folder, which is logged.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        store: str | os.PathLike[str] | Store = "./.rollcage",
        replay: Replay = "auto",
        source: RunSource | None = None,
        fork: Fork | str | os.PathLike[str] | None = None,
        input: Any = None,  # noqa: A002 - what it is
        resume_within: dt.timedelta | float | None = None,
        gate: Iterable[Given] = (),
        policy: PolicyGuard | str | os.PathLike[str] | None = None,
        rules: Sequence[Rule] = (),
        observers: Iterable[Observer] = (),
        user_input: str | Sequence[str] | None = None,
        approver: Approver | None = None,
        actor: str = "",
        chain: Literal["effects", "all"] = "effects",
        durability: Literal["os", "disk"] = "os",
        on_divergence: OnDivergence = "halt",
        seed: str = "",
        retry_failed: bool | None = None,
        before_resume: Callable[[str], None] = lambda _: None,
        enforce: Enforce = "off",
        strict: bool = False,
        unguarded: Unguarded | None = None,
        tools: Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None = None,
        facade: str | None = None,
        secrets: Literal["declared", "detected"] = "declared",
        types: Iterable[type] = (),
        clock: Clock = Clock(),  # noqa: B008 - immutable
    ) -> None:
        if name is None:
            name = name_of_script()
        if not name:
            raise SessionError("a session needs a name: it identifies the job")
        self.name = job_name(name)
        given, fork = fork, fork_of(fork, self.name, replay)
        self.fork = fork
        if fork is not None and given is None:  # the process decides, not its program
            replay, source = "auto", None
        if fork is not None and fork.policy is not None:
            policy = fork.policy
        if fork is not None and not fork.live:
            unguarded = "refuse"
        options = Options(
            replay=replay,
            source=source,
            fork=fork,
            input=input,
            within=microseconds(resume_within),
            chain=chain,
            durability=durability,
            on_divergence=on_divergence,
            seed=seed,
            retry_failed=retry_failed,
            enforce=enforce,
            unguarded=unguarded,
            secrets=secrets,
            actor=person_acted_for(actor),
            before_resume=before_resume,
        )
        self.store = open_store(store)
        self._unguarded: Unguarded | None = unguarded
        self.run_id = self.root = ""
        self._gate = Gate(
            name,
            all_given(gate, policy=policy, facade=facade, rules=rules),
            user_input=user_input,
            strict=strict,
            clock=clock.monotonic,
        )
        key = Key(self.store)
        self._opening = Opening(
            name=self.name,
            store=self.store,
            key=key,
            seal=(Detecting if secrets == "detected" else Sealing)(key.sign),
            options=options,
            gate=self._gate,
            ask=None if approver is None else Ask(approver),
            tools=KnownTools(tools),
            types=Types(types, REGISTERED),
            observers=tuple(observers),
            clock=clock,
        )
        self._is_entered = False
        self._facade: FacadeGuard | None = None
        self._memory: Memory | None = None  # to be followed once it is entered
        self._calls: Calls | None = None
        self._places: Places | None = None

    # --- entering and leaving --------------------------------------------------------------------

    def __enter__(self) -> Self:
        opening = self._open_here(is_async=False)
        try:
            calls, half_undone = opening.open()
        except BaseException:
            self._is_entered = False
            self._gate.close()
            raise
        self._enter(calls)
        finish_undo(opening, calls, half_undone)
        return self

    async def __aenter__(self) -> Self:
        opening = self._open_here(is_async=True)
        try:
            calls, half_undone = await opening.aopen()
        except Exception:
            self._is_entered = False
            self._gate.close()
            raise
        self._enter(calls)
        calls.forgotten = forgotten
        await afinish_undo(opening, calls, half_undone)
        return self

    def _open_here(self, *, is_async: bool) -> Opening:
        """What its run is opened with, in this context.

        Raises:
            SessionError: it was entered before.
        """
        if self._is_entered:
            raise SessionError("a session can be entered once only; make another one")
        opening = self._opening.entered(self, self.facade, is_async=is_async)
        self._is_entered = True
        return opening

    def _enter(self, calls: Calls) -> None:
        """Have the calls of this context be those of the run that was opened."""
        self._calls, self._places = calls, Places(calls)
        if self._memory is not None:
            calls.following.follow(self._memory)
        self.run_id, self.root = calls.run_id, calls.root
        enter(calls)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._entered(), error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await aleave(self._entered(), error)

    def _entered(self) -> Calls:
        """The calls of the run that this session has, from when it is entered."""
        if self._calls is None:
            raise SessionError(f"session {self.name!r} is not entered: use `with Session(...)`")
        return self._calls

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
        return self._entered().call(tool, **arguments)

    @overload
    async def acall(
        self, tool: Callable[..., Coroutine[Any, Any, R]], /, **arguments: Any
    ) -> R: ...
    @overload
    async def acall(self, tool: Callable[..., R], /, **arguments: Any) -> R: ...
    async def acall(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call an async tool, or a sync one in a thread, through the session. See `call`."""
        return await self._entered().acall(tool, **arguments)

    def run(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
        call_id: str = "",
    ) -> Any:
        """Guard one call: for adapters, which bring the contract and the body.

        `body` gets the validated arguments as keywords. `answer` reads what a model answered off
        its value. `instead` says what else an approver may make of the call: without it, a call
        with a framework's own contract can be neither edited nor answered, since its body might
        not take the arguments. `call_id` is the framework's id of the call, where that is not said
        by `place`. Raises as `call` does, and whatever the body raises.
        """
        return self._entered().run(contract, arguments, body, kind, answer, instead, call_id)

    async def arun(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        is_async: bool = True,
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
        call_id: str = "",
    ) -> Any:
        """`run` for an async body, or with `is_async=False` for a sync one in a thread."""
        return await self._entered().arun(
            contract, arguments, body, kind, answer, instead, call_id, is_async=is_async
        )

    def stream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> Iterator[Any]:
        """Guard one call whose body gives an iterator: its chunks as they come, live or recorded.

        The step's value is the list of its chunks. A consumer that stops early cuts the step off.
        """
        return self._entered().stream(contract, arguments, body, kind, answer, instead)

    def astream(
        self,
        contract: Contract,
        arguments: Mapping[str, Any],
        body: Callable[..., Any],
        *,
        kind: Kind = "tool",
        answer: Read | None = None,
        instead: Instead | None = None,
    ) -> AsyncIterator[Any]:
        """`stream` for a body that gives an async iterator."""
        return self._entered().astream(contract, arguments, body, kind, answer, instead)

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
        self._entered().refused(
            tool, arguments, reason=reason, code=code, kind=kind, call_id=call_id
        )

    # --- the places of calls ---------------------------------------------------------------------

    def unasked(self) -> tuple[tuple[str, int], ...]:
        """The recorded steps (run, step) that nobody has asked for, in their order.

        For tests that replay: what the recorded agent did and this one did not. Steps that ran in
        the body of a step that was replayed, or was not asked for itself, are left out.
        """
        driver = self._entered().driver
        with driver.lock:
            return tuple((entry.run, entry.step) for entry in driver.ledger.ahead.left())

    def turn(
        self, *, opens: Mapping[str, Collection[str]] = MappingProxyType({})
    ) -> AbstractContextManager[TurnHandle]:
        """The calls inside were issued together: none depends on another.

        Args:
            opens: by name, the branches that are opened in it, each with the names of those that it
                comes after. A resumed run whose recorded branches are not all opened yet halts at a
                new write in another one, which may be one of those, renamed. It does not halt if
                they are listed here as still to come, and not after that write.
        """
        return self._placing().turn(opens)

    def branch(
        self, name: str, *, after: Iterable[BranchHandle] = ()
    ) -> AbstractContextManager[BranchHandle]:
        """A branch for the calls inside, with a world of its own: forked here, joined at the end.

        Args:
            name: the same in each run of the job.
            after: branches forked off the same one whose blocks have ended, and whose effects the
                calls inside depend on. What is recorded of this branch holds only if it does in
                those.

        Raises:
            SessionError: the name is empty, holds one of `/ #` or quotes a declared secret; one
                that it comes after is not such a branch, or has not ended.
        """
        return self._placing().branch(name, after)

    def transaction(self, name: str = "transaction") -> Transaction:
        """A block that undoes what was done in it when it raises; `with` or `async with`.

        It is a branch: its calls have a world of their own, which is joined when the block ends
        well. Nested ones are undone with the one around them. If not everything can be undone,
        a note on the error says so, and the session halts with `UndoIncomplete`.
        """
        return Transaction(self, name, self._entered().driver.ledger.branches.was_joined)

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
    ) -> AbstractContextManager[None]:
        """Set the place of the next call in this context: for adapters, at the framework's hook.

        Turn and slot together name one call of the model. Made again, it is that call, not a new
        one: if it ended well, its outcome is given back, however often a framework repeats it.

        Args:
            turn: anything hashable that is the same for all the calls of one model message.
            slot: the call's place in that message.
            agent: the agent's name.
            call_id: the framework's id of the call.
            conversation: the framework's thread that it belongs to, if that has a history of its
                own; see `seen`.
            once: a call that failed is not run again either: it fails as before.
            ask: who is asked to approve the call, in place of the session's approver.
        """
        return self._placing().place(turn, slot, agent, call_id, conversation, once=once, ask=ask)

    def _placing(self) -> Places:
        self._entered()
        assert self._places is not None
        return self._places

    # --- a framework's own memory ----------------------------------------------------------------

    def follow(self, memory: Memory) -> None:
        """Look at a framework's own memory before each call: for adapters.

        A framework with a checkpointer resumes by itself and never asks for what came before.
        Recorded steps that its memory holds as done are *seen*: they are used up in their order, as
        if they had been asked for, and advance the world. If the memory says at the end that the
        framework waits for something, the run is `paused`. A session follows one memory: the first
        that is given.
        """
        if self._calls is None:
            self._memory = self._memory or memory
        else:
            self._calls.following.follow(memory)

    def seen(self, histories: Mapping[str, Iterable[str]]) -> None:
        """Say which calls a framework's histories show as answered: for adapters, at its hook.

        For a framework whose memory is a history of messages: recorded calls of these ids are seen,
        as with `follow`, and the model's answers before them. An id that was given in this session
        as often as the history shows it is left alone. A history that shows a call as answered
        which is recorded without an answer (the session was halted there, or its outcome is
        unknown) halts the session.

        Args:
            histories: by conversation (see `place`), the ids of the calls that have a result in its
                history, in any order, each as often as it is there.
        """
        self._entered().following.seen(histories)

    def look_back(self) -> None:
        """See what the followed memory holds, as each call does by itself.

        For adapters, at a hook after which no guarded call may come.
        """
        self._entered().following.look_back()

    async def alook_back(self) -> None:
        """`look_back` for a memory that has to be awaited."""
        await self._entered().following.alook_back()

    # --- undo ------------------------------------------------------------------------------------

    def undo(self, to: int | None = None, *, in_doubt: InDoubt = "list") -> UndoReport:
        """Undo the effects of this run after step `to`, the newest first.

        Effects of its source are included, whether they have been replayed or not. Everything is
        checked before anything is changed: if somebody else has changed a state since, nothing is.

        Args:
            to: the last step that stays; None undoes everything.
            in_doubt: what is done with a step whose outcome is unknown:
                `"list"` it, or `"restore"` what was before, if its plan had been made.

        Raises:
            ToolMissing: a tool that is needed is not here, or is another version.
            SessionError: it can't be done here; nothing was changed.
        """
        return undo(self._entered(), UndoRequest(run=self.run_id, to=to, in_doubt=in_doubt))

    async def aundo(self, to: int | None = None, *, in_doubt: InDoubt = "list") -> UndoReport:
        """`undo` for async tools, or sync ones in threads."""
        request = UndoRequest(run=self.run_id, to=to, in_doubt=in_doubt, is_async=True)
        return await aundo(self._entered(), request)

    def undo_branch(self, name: str) -> UndoReport:
        """Undo the effects of the branch of this full name, and of those below it. See `undo`."""
        return undo(self._entered(), UndoRequest(run=self.run_id, branch=name))

    async def aundo_branch(self, name: str) -> UndoReport:
        """`undo_branch` for async tools."""
        request = UndoRequest(run=self.run_id, branch=name, is_async=True)
        return await aundo(self._entered(), request)

    # --- its state -------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """What the session has done so far."""
        return self._entered().driver.ledger.stats

    @property
    def halted(self) -> BaseException | None:
        """The error that halted the session; None if it is not halted."""
        return self._entered().driver.ledger.halted

    @property
    def held(self) -> float:
        """The seconds that its calls have waited because its run was paused from outside.

        That is an order of somebody else (see `rollcage.store.pause`), not the `pause` below. A
        limit on the time of an agent's work should leave it out.
        """
        return self._entered().driver.orders.held

    def check(self) -> None:
        """Raise if the session is halted: for adapters, at a hook that may end the agent.

        Raises:
            SessionHalted: it was halted; nothing runs in it any more.
        """
        halted = self.halted
        if halted is not None:
            raise SessionHalted(f"the session was halted: {halted}") from halted

    @property
    def facade(self) -> FacadeGuard | None:
        """What the agent gets of the registry, read once; None if that is not restricted."""
        if self._calls is not None:
            return self._calls.facade
        named = self._gate.guards.facade
        if self._facade is None and named is not None:
            self._facade = named.taken(self.store)
        return self._facade

    @property
    def policy(self) -> PolicyGuard | None:
        """The policy that decides now."""
        return self._gate.policy

    @property
    def spent(self) -> Spent | None:
        """How much of the policy's limits is used, and the cost so far; None without a policy."""
        meter = self._gate.meter
        return None if meter is None else meter.spent

    def load_policy(self, policy: PolicyGuard | str | os.PathLike[str]) -> None:
        """Decide by another policy from now on, with the same limits, labels and prices.

        If it can't be used, every call is denied until one is loaded that can. Approvals that were
        given under the old one no longer count.

        Raises:
            PolicyInvalid: it can't be used.
            SessionError: it has other limits, labels or prices.
        """
        calls = self._entered()
        calls.deciding.load_policy(policy, calls.driver)

    @property
    def unguarded(self) -> Unguarded:
        """What becomes of a tool that is called past every session, while this one is open."""
        return self._unguarded or self._gate.unguarded

    def halt(self, error: Exception) -> None:
        """Halt the session: from now on nothing runs in it, and leaving it raises `error`."""
        self._entered().driver.halt(error)

    @property
    def paused(self) -> str | None:
        """What the run waits for (see `pause`); None if it does not.

        A session that resumes a paused run waits for the same until a call is made.
        """
        return self._entered().driver.ledger.waits

    def pause(self, reason: str) -> None:
        """Mark the run as waiting for something outside: a person's answer, an interrupt, a signal.

        If it is left like that, it ends `paused`, and the next session of the job resumes it. Calls
        are still made: parts of the agent may be at work while others wait. For adapters, if a
        framework returns with its work half done; plain code may use it too.

        Args:
            reason: what it waits for, in a few words; it is recorded as given.
        """
        self._entered().driver.pause(writable(reason))

    def go_on(self) -> None:
        """Mark the run as no longer waiting; without a `pause`, this changes nothing."""
        self._entered().driver.go_on()

    def recorded_answers(self, agent: str | None = None) -> tuple[str, list[Answer]]:
        """The run that this session replays, and the model's answers in it, in order.

        Those to one `agent`, or to all agents except the ones inside of tools.

        Raises:
            SessionError: it replays nothing.
        """
        source = self._entered().opened.source
        if source is None or source.run is None:
            raise SessionError(
                f"session {self.name!r} replays no run, so it has no recorded answers"
            )
        return source.run, read_answers(source.reader, source.run, agent)

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
            return lambda each: self.tool(declare(each, declared))
        body, contract = declaration(function)
        return guarded(body, contract, self._entered)
