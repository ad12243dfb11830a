"""Programs for the laws of cut, undone and shuffled runs, the world that they change, and a lab.

A *program* is what an agent does, whatever it is told: calls alone and in turns, calls inside of
calls, branches, transactions that come back or are undone. A `World` is what its writes have
done, outside of any trace. A `Lab` runs a program in a store until it is through, as an operator
does who says truthfully what became of each step that nobody else can tell of; it can go back to
the moment behind any line of a trace, with the world as it was then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from pauses import Pauses
from rollcage import (
    Approval,
    ApprovalRequest,
    ApprovalRequired,
    Blocked,
    DidNotHappen,
    Halt,
    Happened,
    SessionHalted,
    StepView,
    UnknownOutcome,
    Verdict,
    compensate,
    current_step,
    tool,
)
from rollcage.gate import Pending
from rollcage.session.places import BranchHandle, TurnHandle
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store import JsonlStore, Store

ATTEMPTS = 40  # how often a program is resumed before it counts as halted for ever
LOST = 20  # calls of a program that get lost at most: two blocks could take turns at it for ever
ASKED = 10  # calls that an operator is asked of, of those that wait for that: likewise


@dataclasses.dataclass(frozen=True)
class Op:
    """One call.

    `does`: work, fail, or get lost once, before its effect or after it; or wait for an operator,
    who is asked in one session and answers in the next, with a yes (`wait`) or a no (`refuse`); or
    have its run paused while it is at work.
    """

    tool: str  # write, plain (no probe), stream, thread, read, pure, outer, scope
    arg: int = 0
    does: str = "work"
    inner: tuple[Node, ...] = ()  # what the body of an outer or a scope calls


@dataclasses.dataclass(frozen=True)
class Turn:
    """Calls that were issued together."""

    nodes: tuple[Node, ...]


@dataclasses.dataclass(frozen=True)
class Branches:
    """Agents that run at once, each in a branch of its own.

    `after`: by line, the earlier lines that it comes after; none where it is shorter.
    """

    lines: tuple[tuple[Node, ...], ...]
    after: tuple[frozenset[int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Block:
    """A transaction; one that `raises` is undone."""

    nodes: tuple[Node, ...]
    raises: bool = False


WRITES = ("write", "plain", "stream", "thread", "outer")
Node = Op | Turn | Branches | Block
At = tuple[str, int]  # a run and one of its steps
Program = tuple[Node, ...]


class TakenBack(Exception):
    """What a transaction raises to be undone."""


@dataclasses.dataclass(frozen=True)
class Deed:
    """An effect, or what took one back: which step did it, when, and what it was."""

    run: str
    step: int
    line: int  # of its run's trace, behind which it was done
    token: str  # what the call gave; its label before the #
    sign: int  # 1, or -1 where it takes another one back

    @property
    def label(self) -> str:
        return self.token.partition("#")[0]


class World:
    """What was done out there, in order."""

    def __init__(
        self,
        deeds: Iterable[Deed] = (),
        lost: Iterable[str] = (),
        results: Mapping[str, str] | None = None,
        asked: Iterable[str] = (),
    ) -> None:
        self.deeds = list(deeds)
        self.lost = set(lost)  # the idempotency keys of calls that got lost once
        self.results = dict(results or {})  # what each call gave, by its idempotency key
        self.asked = set(asked)  # the ones that the operator has heard of

    def at(self, deeds: Iterable[Deed]) -> World:
        """The same world, at the moment at which only these deeds were done."""
        return World(deeds, self.lost, self.results, self.asked)

    @property
    def effects(self) -> Counter[str]:
        """What stands, by label, and how often."""
        standing = Counter[str]()
        for deed in self.deeds:
            standing[deed.label] += deed.sign
        return +standing

    @property
    def standing(self) -> Counter[str]:
        """What stands, by token: more than once, if something was performed twice."""
        standing = Counter[str]()
        for deed in self.deeds:
            standing[deed.token] += deed.sign
        return +standing

    def result(self, key: str) -> str | list[str] | None:
        """What the call of this idempotency key gave, if it was performed and stands."""
        stands = any(token.endswith(f"#{key}") for token in self.standing)
        return self.gave(key) if stands else None

    def gave(self, key: str) -> str | list[str]:
        """What the call of this idempotency key gave, as its step has it."""
        said = self.results[key]
        return ["", said] if said.startswith("stream-") else said


class Tools:
    """The tools of all labs, on the present world of the lab that `Lab.tools` was last asked for.

    They are declared once in a process: to declare them takes as long as to run a program.
    """

    lab: Lab

    def __init__(self) -> None:
        self.by_name = self._make()

    def _deed(self, token: str, sign: int) -> None:
        step = current_step()
        assert step is not None
        line = self.lab.trace(step.run).count(b"\n")
        self.lab.world.deeds.append(Deed(step.run, step.number, line, token, sign))

    def body(self, label: str, does: str, inside: Iterable[str] = ()) -> str:
        """What the body of a write does, behind the calls `inside` of it."""
        self.lab.ran.append(label)
        step = current_step()
        assert step is not None
        key = step.idempotency_key
        lost = self.lab.world.lost
        lose = does.startswith("lose") and key not in lost and len(lost) < LOST
        if lose:
            lost.add(key)
        if does == "pause":
            self.lab.pauses.give(step.run)
        if does == "fail":
            raise ValueError(f"{label} failed")
        if lose and does == "lose before":
            raise TimeoutError
        token = f"{label}#{key}"
        self.lab.world.results[key] = result = " ".join([token, *inside])
        self._deed(token, 1)
        if lose:
            raise TimeoutError
        return result

    def probe(self, key: str) -> Any:
        """What is known of the call of this idempotency key."""
        result = self.lab.world.result(key)
        return DidNotHappen() if result is None else Happened(result)

    def look(self, label: str, does: str) -> str:
        """What the body of a read, a pure call or a model does."""
        self.lab.ran.append(label)
        if does == "fail":
            raise ValueError(f"{label} failed")
        return label

    def _make(self) -> dict[str, Any]:
        tools = self

        @tool(effect="write", name="lab.take_back", idempotent=True)
        async def take_back(token: str) -> None:
            if tools.lab.world.standing[token]:
                tools._deed(token, -1)

        def undo(result: str | list[str]) -> Any:
            said = result if isinstance(result, str) else " ".join(result)
            return [compensate(take_back, token=token) for token in said.split()]

        def probe(key: str) -> Any:
            return tools.probe(key)

        @tool(effect="write", undo=undo, probe=probe)
        async def write(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return tools.body(f"write-{arg}", does)

        @tool(effect="write", undo=undo)
        async def plain(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return tools.body(f"plain-{arg}", does)

        @tool(effect="read")
        async def read(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return tools.look(f"read-{arg}", does)

        @tool(effect="pure")
        async def pure(arg: int, does: str) -> str:
            return tools.look(f"pure-{arg}", does)

        async def aprobe(key: str) -> Any:
            await asyncio.sleep(0)
            return probe(key)

        @tool(effect="write", undo=undo, probe=aprobe)
        async def outer(arg: int, does: str, inner: str) -> str:
            with _collecting() as given:
                await tools.lab.nodes(tools.lab.inner[inner])
            return tools.body(f"outer-{arg}", does, " ".join(given).split())

        @tool(effect="scope")
        async def scope(arg: int, does: str, inner: str) -> str:
            with _collecting() as given:
                await tools.lab.nodes(tools.lab.inner[inner])
            tools.look(f"scope-{arg}", does)
            return " ".join(given)

        named: list[Any] = [
            write,
            plain,
            *self._otherwise(undo, probe),
            read,
            pure,
            outer,
            scope,
            take_back,
        ]
        return {each.__rollcage_contract__.name: each for each in named}

    def _otherwise(self, undo: Callable[..., Any], probe: Callable[[str], Any]) -> list[Any]:
        """What writes in another way: chunk by chunk, or in a thread beside the loop."""

        @tool(effect="write", undo=undo, probe=probe)
        async def stream(arg: int, does: str) -> AsyncIterator[str]:
            await asyncio.sleep(0)  # branches are at once where they let each other go on
            yield ""
            yield self.body(f"stream-{arg}", does)

        @tool(effect="write", undo=undo, probe=probe)
        def thread(arg: int, does: str) -> str:
            return self.body(f"thread-{arg}", does)

        return [stream, thread]


@functools.cache
def _tools() -> Tools:
    return Tools()


def asks(step: StepView) -> Verdict | None:
    """A rule that has the operator asked."""
    return Verdict.ask("may it?") if step.args.get("does") in ("wait", "refuse") else None


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for labs, in memory where there is such a place: a case waits for no disk."""
    memory = Path("/dev/shm")  # noqa: S108 - made by mkdtemp, for this user alone
    root = Path(tempfile.mkdtemp(prefix="rollcage-lab-", dir=memory if memory.is_dir() else None))
    try:
        yield root
    finally:
        shutil.rmtree(root)


class Lab:
    """A store, a world, and a program that is run there."""

    def __init__(
        self,
        root: Path,
        world: World | None = None,
        shuffle: int | None = None,
    ) -> None:
        self.root = root
        self.job = "job"
        self.shuffle = shuffle  # the seed of the order in which calls of a turn come; None: as told
        self.world = world or World()
        self.ran: list[str] = []  # bodies that ran, by label
        self.inner: dict[str, tuple[Node, ...]] = {}
        self.session: Session | None = None
        self.given: list[str] = []
        self.newest = ""  # the run that was written last
        self.started: list[str] = []  # all runs
        self.clock: Callable[[], Clock] | None = None  # makes that of each session
        self.asks = True  # the operator, of the calls that wait for that
        self.pauses = Pauses(self)

    @property
    def tools(self) -> Tools:
        """The tools, on this lab."""
        tools = _tools()
        tools.lab = self
        return tools

    def path(self, run: str) -> Path:
        return self.root / "runs" / f"{run}.jsonl"

    def trace(self, run: str) -> bytes:
        """What is kept of a run by now."""
        return self.path(run).read_bytes()

    @property
    def store(self) -> Store:
        return JsonlStore(self.root)

    # --- running ---------------------------------------------------------------------------------

    async def program(self, program: Program) -> None:
        """Do all of it, in an open session."""
        await self.nodes(program)

    async def nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            await self.node(node)

    async def node(self, node: Node) -> None:
        session = self.session
        assert session is not None
        match node:
            case Op():
                await self.op(node)
            case Turn(nodes):
                with session.turn() as turn:
                    await at_once(self.placed(turn, *each) for each in self.order(nodes))
            case Branches(lines, ()):
                await at_once(self.line(*each) for each in self.order(lines))
            case Branches(lines, after):
                loop = asyncio.get_running_loop()
                ended = [loop.create_future() for _ in lines]
                before = [*after, *(frozenset[int]() for _ in lines)]
                opens = {f"b{n}": [f"b{each}" for each in before[n]] for n in range(len(lines))}
                with session.turn(opens=opens):
                    await at_once(
                        self.line_after(*each, after[each[0] : each[0] + 1], ended)
                        for each in self.order(lines)
                    )
            case Block(nodes, raises):
                try:
                    async with session.transaction(f"t{_slot.get()}"):
                        await self.nodes(nodes)
                        if raises:
                            raise TakenBack
                except TakenBack:
                    pass

    def order(self, each: Iterable[Any]) -> Iterable[tuple[int, Any]]:
        """In which order those that are issued together come."""
        placed = list(enumerate(each))
        if self.shuffle is not None:
            self.shuffle += 1
            random.Random(self.shuffle).shuffle(placed)  # noqa: S311 - a reproducible order
        return placed

    async def placed(self, turn: TurnHandle, slot: int, node: Node) -> None:
        """One of those that were issued together; in a task of its own."""
        _slot.set(slot)
        with turn.slot(slot):
            await self.node(node)

    async def line(self, number: int, nodes: tuple[Node, ...]) -> None:
        """One of the agents that run at once; in a task of its own."""
        assert self.session is not None
        with self.session.branch(f"b{number}"):
            await self.nodes(nodes)

    async def line_after(
        self,
        number: int,
        nodes: tuple[Node, ...],
        after: tuple[frozenset[int], ...],
        ended: list[asyncio.Future[BranchHandle]],
    ) -> None:
        """One that begins when others have ended."""
        assert self.session is not None
        try:
            numbers = sorted(frozenset[int]().union(*after))
            before = [await asyncio.shield(ended[each]) for each in numbers]
            with self.session.branch(f"b{number}", after=before) as branch:
                await self.nodes(nodes)
        except BaseException as error:
            ended[number].set_exception(error)
            ended[number].exception()  # nobody may wait for it
            raise
        ended[number].set_result(branch)

    async def op(self, op: Op) -> None:
        arguments: dict[str, Any] = {"arg": op.arg, "does": op.does}
        if op.tool in ("outer", "scope"):
            name = sha256(repr(op.inner).encode()).hexdigest()[:8]
            self.inner[name] = op.inner
            arguments["inner"] = name
        session, called = self.session, self.tools.by_name[op.tool]
        assert session is not None
        try:
            if op.tool == "thread":
                given = await session.acall(called, **arguments)
            elif op.tool == "stream":
                given = " ".join([chunk async for chunk in called(**arguments)])
            else:
                given = await called(**arguments)
        except (ValueError, Blocked):
            return
        if op.tool in (*WRITES, "scope"):
            _given.get().append(given)
        if current_step() is None:
            self.given.append(str(given))

    def once(self, program: Program, **how: Any) -> str:
        """Run or resume a program in one session; the run. Raises what ends the session."""

        async def main() -> str:
            tools = self.tools.by_name.values()  # not those of other tests that have these names
            if self.clock is not None:
                how["clock"] = self.clock()
            how.update(rules=[asks] * self.asks, approver=self.decides)
            self.session = session = Session(self.job, store=self.store, tools=tools, **how)
            self.given = []
            try:
                async with session:
                    self.newest = session.run_id
                    with _collecting():
                        await self.program(program)
                    self.given.sort()
            finally:
                self.started += [session.run_id] * bool(session.run_id)
            return session.run_id

        return self.run(main())

    @staticmethod
    def run(work: Coroutine[Any, Any, str]) -> str:
        """Run what is asynchronous, in a loop of its own."""
        return asyncio.run(work)

    def through(self, program: Program, **how: Any) -> str:
        """Run or resume a program until it is through; say what became of lost steps."""
        with self.pauses.lifted():
            for _ in range(ATTEMPTS):
                try:
                    return self.once(program, **how)
                except UnknownOutcome as unknown:
                    self.resolve(unknown.run, unknown.step)
                except ApprovalRequired:
                    continue
        raise AssertionError("the program is resumed for ever")

    def decides(self, request: ApprovalRequest) -> Approval | Pending:
        """The operator, who hears of a call and answers when it is asked for again."""
        key, asked = request.idempotency_key, self.world.asked
        if key not in asked and len(asked) < ASKED:
            asked.add(key)
            return Pending("ann is asked")
        if request.args["does"] == "refuse":
            return Approval.reject(by="ann")
        return Approval(True, by="ann")

    def resolve(self, run: str, step: int) -> None:
        """Say what became of a step of unknown outcome."""
        trace = self.store.read(run)
        done = next((d for d in self.world.deeds if (d.run, d.step) == (run, step)), None)
        status: dict[str, Any] = {"status": "not_started"}
        if done is not None:
            key = done.token.partition("#")[2]
            status = {"status": "ok", "value": self.world.gave(key)}
        writer = self.store.reopen(run)
        try:
            writer.append(
                {
                    "event": "step.resolved", "time": 0, "step": step, "by": "operator",
                    "outcome": status, "digest": sha256(orjson.dumps(status)).hexdigest(),
                }
            )  # fmt: skip
            writer.sync()
            if trace.info is not None and trace.info.status is not None:
                writer.attest(trace.info.status)
        finally:
            writer.close()

    # --- going back ------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """All of them, in the order in which they were begun, whatever the clocks said."""
        return [*self.started]

    def lines(self, run: str) -> int:
        """How many lines of a run there are at whose end the job is not done."""
        lines = self.trace(run).splitlines()
        done = (n for n, line in enumerate(lines) if b'"run.finished"' in line and b'"ok"' in line)
        return next(done, len(lines))

    def worlds(self, run: str, line: int) -> Iterator[World]:
        """The worlds that may have been there when its process died behind a line of a run.

        What was done behind an earlier line is done; of what was done behind this one, any of the
        first may be.
        """
        runs = self.runs()
        before = set(runs[: runs.index(run)])
        done = [
            d for d in self.world.deeds if d.run in before or (d.run, d.line < line) == (run, True)
        ]
        flying = [d for d in self.world.deeds if d.run == run and d.line == line]
        for count in range(len(flying) + 1):
            yield self.world.at([*done, *flying[:count]])

    def kept(self, run: str, to: int) -> Counter[str]:
        """What an undo of the newest run to one of its steps leaves standing: the obvious way.

        What a step up to that one has done, now or in the run that it was replayed from, and what
        the bodies of such steps have called, if they have ended and it is all still there: one of
        which a block has begun to take back is none that has ended.
        """
        above: dict[At, At | None] = {}  # the step in whose body each one was called
        later: dict[At, At] = {}  # what stands in the place of each in a later run
        ended: set[At] = set()

        def upwards(at: At | None) -> Iterator[At]:
            while at is not None:
                while at in later:
                    at = later[at]
                yield at
                at = above[at]

        for each in self.runs():
            for event in self.events(each):
                at = each, event.get("step", 0)
                if event["event"] in ("step.started", "step.replayed"):
                    inside = event.get("parent")
                    above[at] = None if inside is None else (each, inside)
                    before = event.get("origin") or event.get("supersedes")
                    if before is not None and before[0] != each:
                        later[before[0], before[1]] = at
                if event.get("outcome", {}).get("status") in ("ok", "error"):
                    ended.add(at)
                if event["event"] == "undo.finished" and event["status"] != "unknown":
                    ended.difference_update(upwards((event["of"][0], event["of"][1])))

        def stays(deed: At) -> bool:
            steps = enumerate(upwards(deed))
            return any(
                at[0] == run and at[1] <= to and (up == 0 or at in ended) for up, at in steps
            )

        standing = self.world.standing
        deeds = [deed for deed in self.world.deeds if deed.sign > 0 and standing[deed.token]]
        return Counter(deed.label for deed in deeds if stays((deed.run, deed.step)))

    def events(self, run: str) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.trace(run).splitlines()]

    def resolve_all(self) -> None:
        """Say what became of each step of the newest run that nobody has heard of since."""
        run = self.runs()[-1]
        open_: dict[int, str] = {}
        for event in self.events(run):
            if event["event"] == "step.started":
                open_[event["step"]] = event["name"]
            elif event.get("outcome", {}).get("status", "unknown") != "unknown":
                open_.pop(event["step"], None)
        for step, name in open_.items():
            if name in WRITES:
                self.resolve(run, step)

    def back(self, run: str, line: int, root: Path, world: World) -> Lab:
        """A lab in `root` as it was when the process died behind a line of a run.

        Without an index: a store makes it again from the traces.
        """
        shutil.rmtree(root, ignore_errors=True)
        runs = self.runs()
        before = runs[: runs.index(run)]
        lab = type(self)(root, world)
        self.copy(lab, before, run, line)
        lab.clock, lab.asks, lab.started = self.clock, self.asks, [*before, run]
        return lab

    def copy(self, lab: Lab, before: Iterable[str], run: str, line: int) -> None:
        """Copy what is kept to an empty lab: some runs, and of one as much as comes to a line."""
        runs = lab.root / "runs"
        runs.mkdir(parents=True)
        if (self.root / "key").exists():
            shutil.copy(self.root / "key", lab.root / "key")
        if (self.root / "blobs").exists():
            shutil.copytree(self.root / "blobs", lab.root / "blobs")
        for each in dict.fromkeys(before):
            shutil.copy(self.path(each), runs)
        lines = self.trace(run).splitlines(keepends=True)
        (runs / f"{run}.jsonl").write_bytes(b"".join(lines[:line]))


_given: ContextVar[list[str]] = ContextVar("given")
_slot: ContextVar[int] = ContextVar("slot", default=0)


@contextmanager
def _collecting() -> Iterator[list[str]]:
    """What the writes inside of the block give."""
    given: list[str] = []
    token = _given.set(given)
    try:
        yield given
    finally:
        _given.reset(token)


async def at_once(calls: Iterable[Awaitable[None]]) -> None:
    """All of them at once; when all have ended, what the first of them raised."""
    ended = await asyncio.gather(*calls, return_exceptions=True)
    raised = [each for each in ended if isinstance(each, BaseException)]
    raised.sort(key=lambda error: isinstance(error, SessionHalted))
    halts = [each for each in raised if isinstance(each, Halt)]
    for each in halts or raised:
        raise each
