"""A store, a world, and programs that are run there, as an operator does who tells the truth."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import itertools
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import orjson
from rollcage import (
    Blocked,
    DidNotHappen,
    Halt,
    Happened,
    Options,
    Session,
    SessionError,
    SessionHalted,
    UnknownOutcome,
    compensate,
    current_step,
    open_store,
    resolve_step,
    tool,
)
from rollcage.contract.contract import Contract

from tests.laws.places import clear, place_of
from tests.laws.programs import (
    WRITES,
    Block,
    Branches,
    Inner,
    Node,
    Op,
    Program,
    Turn,
    has_models,
    size,
)
from tests.laws.timeline import Deed, Timeline, Watched, refill

__all__ = ["Attempt", "Lab", "TakenBack", "World", "folder"]

T = TypeVar("T")
ATTEMPTS = 60  # how often a program is resumed before it counts as halted for ever
LOST = 20  # calls that get lost, at most: two blocks could take turns at it for ever
Place = tuple[int, ...]  # where a call stands in its program
Given = tuple[str, Any]  # ok and a value, or error and a message


class TakenBack(Exception):
    """What a transaction raises to be taken back."""


class World:
    """What tools do, and what became of it. One world at a time is the present one."""

    def __init__(self, timeline: Timeline, lost: Iterable[str] = ()) -> None:
        self.timeline = timeline
        self.lost = set(lost)  # the idempotency keys of calls that got lost once
        self.ran: list[str] = []  # bodies, by label
        self.asked: Counter[str] = Counter()  # models
        self.breaks = True  # whether a risky call raises
        self.breaks_after = True  # its effect; or before it
        self.flakes: random.Random | None = None  # chooses how flaky calls fail; None: they work
        self.doubled: list[str] = []  # effects that were performed twice
        self.watch: Callable[[Deed], None] | None = None  # told of each effect before it is done
        self._one_by_one = threading.Lock()

    def do(self, label: str, does: str, inside: Sequence[str] = (), *, dedups: bool = False) -> str:
        """Change the world, as the body of a write does, behind the calls inside of it."""
        with self._one_by_one:  # bodies run in threads, too
            return self._do(label, does, inside, dedups=dedups)

    def _do(self, label: str, does: str, inside: Sequence[str], *, dedups: bool) -> str:
        self.ran.append(label)
        step = current_step()
        key = step.idempotency_key if step is not None else f"plain-{len(self.timeline.moments)}"
        said = " ".join(inside)
        loses = does.startswith("lose") and key not in self.lost and len(self.lost) < LOST
        if loses:
            self.lost.add(key)
        if does == "fail":
            raise ValueError(f"{label} failed: {said}")
        if loses and does == "lose before":
            raise TimeoutError
        before = self.timeline.stands(key)
        if before is not None and dedups:
            return before.gave
        if key in self.timeline.by_key:  # whoever keeps keys would do nothing, undone or not
            self.doubled.append(f"{label} for {key}")
        token = f"{label}.{self.timeline.performed[label]}"
        gave = " ".join([token, *inside])
        run, number = (step.run, step.number) if step is not None else ("", 0)
        deed = Deed(run, number, key, token, 1, gave)
        if self.watch is not None:
            self.watch(deed)
        self.timeline.add(deed)
        if loses:
            raise TimeoutError
        return gave

    def risk(self, label: str) -> str:
        """Change the world, or don't, and raise what does not say which."""
        if not self.breaks:
            return self.do(label, "work")
        if self.breaks_after:
            self.do(label, "work")
        else:
            self.ran.append(label)
        raise RuntimeError("it broke: ")

    def flake(self, label: str) -> str:
        """Change the world, or fail in some way, as a server that keeps keys does on a bad line."""
        ways = ["work", "after", "before", "refused", "not sent"]
        how = "work" if self.flakes is None else self.flakes.choice(ways)
        step = current_step()
        if how == "refused" and step and self.timeline.stands(step.idempotency_key):
            how = "work"  # what was done under a key is not refused
        if how in ("work", "after"):
            gave = self.do(label, "work", dedups=True)
            if how == "work":
                return gave
        else:
            self.ran.append(label)
        if how == "refused":
            raise ValueError(f"{label} was refused: ")
        if how == "not sent":
            raise ConnectionRefusedError(f"{label} was not sent: ")
        raise RuntimeError("it broke: ")

    def look(self, label: str, does: str) -> str:
        """Look at the world, as a read does: what it says depends on what stands."""
        self.ran.append(label)
        if does == "fail":
            raise ValueError(f"{label} failed: ")
        arg = label.partition("-")[2]
        effects = self.timeline.effects
        return f"{label} sees {sum(n for each, n in effects.items() if each.endswith('-' + arg))}"

    def ask(self, label: str) -> str:
        """Answer as a model does, otherwise each time."""
        self.ran.append(label)
        self.asked[label] += 1
        return f"{label} says {self.asked[label]}"

    def states(self, arg: int) -> dict[str, list[str]]:
        """Return the state that effects on this argument leave, as an `observe` sees it."""
        effects = self.timeline.standing
        stand = (token for token in effects if token.partition(".")[0].endswith(f"-{arg}"))
        return {f"state-{arg}": sorted(token for token in stand if effects[token] > 0)}

    def take_back(self, token: str) -> None:
        """Take an effect back, if it stands."""
        if self.timeline.standing[token] > 0:
            step = current_step()
            run, number = (step.run, step.number) if step is not None else ("", 0)
            self.timeline.add(Deed(run, number, "", token, -1))


class Tools:
    """The tools, once for sync and once for async programs, on the world that is present."""

    lab: Lab

    def __init__(self) -> None:
        @tool(effect="write", name="lab.take_back", idempotent=True)
        def take_back(token: str) -> None:
            self.lab.world.take_back(token)

        def undo(result: str | list[str]) -> Any:
            said = result if isinstance(result, str) else " ".join(result)
            # The plan of a call stands for the calls in its body, too.
            return [compensate(take_back, token=token) for token in said.split()]

        def probe(key: str) -> Any:
            deed = self.lab.world.timeline.stands(key)
            return DidNotHappen() if deed is None else Happened(as_recorded(deed))

        async def aprobe(key: str) -> Any:
            await asyncio.sleep(0)
            return probe(key)

        @tool(effect="write", name="lab.restore", idempotent=True)
        def restore(arg: int, state: list[str]) -> None:
            for token in self.lab.world.states(arg)[f"state-{arg}"]:
                if token not in state:
                    self.lab.world.take_back(token)

        def observe(args: dict[str, Any]) -> dict[str, list[str]]:
            return self.lab.world.states(args["arg"])

        async def aobserve(args: dict[str, Any]) -> dict[str, list[str]]:
            await asyncio.sleep(0)
            return observe(args)

        def by_state(args: dict[str, Any], before: dict[str, list[str]]) -> Any:
            arg = args["arg"]
            return [compensate(restore, arg=arg, state=before[f"state-{arg}"])]

        self.compensating = (take_back, restore)
        clean: dict[str, Any] = {"undo": undo, "raises": (ValueError,)}
        seen: dict[str, dict[str, Any]] = {"cell": {**clean, "undo": by_state}, "slot": clean}
        self.sync: dict[str, Any] = self._sync(clean, probe) | {
            name: tool(effect="write", name=name, observe=observe, **how)(self._changes(name))
            for name, how in seen.items()
        }
        self.as_async: dict[str, Any] = {**self.sync, **self._async(clean, aprobe)} | {
            name: tool(effect="write", name=name, observe=aobserve, **how)(self._achanges(name))
            for name, how in seen.items()
        }

    def _sync(self, clean: dict[str, Any], probe: Callable[[str], Any]) -> dict[str, Any]:
        @tool(effect="write", probe=probe, **clean)
        def write(arg: int, does: str) -> str:
            return self.lab.world.do(f"write-{arg}", does)

        @tool(effect="write", **clean)
        def plain(arg: int, does: str) -> str:
            return self.lab.world.do(f"plain-{arg}", does)

        @tool(effect="write", idempotent=True, **clean)
        def idem(arg: int, does: str) -> str:
            return self.lab.world.do(f"idem-{arg}", does, dedups=True)

        @tool(effect="write", probe=probe, **clean)
        def thread(arg: int, does: str) -> str:
            return self.lab.world.do(f"thread-{arg}", does)

        @tool(effect="read")
        def read(arg: int, does: str) -> str:
            return self.lab.world.look(f"read-{arg}", does)

        @tool(effect="pure")
        def pure(arg: int, does: str) -> str:
            self.lab.world.ran.append(f"pure-{arg}")
            return f"pure-{arg}"

        @tool(effect="read")
        def model(arg: int, does: str) -> str:
            return self.lab.world.ask(f"model-{arg}")

        @tool(effect="write", probe=probe, **clean)
        def outer(arg: int, does: str, inner: str) -> str:
            return drive(self._outer(arg, does, inner))

        @tool(effect="scope")
        def scope(arg: int, does: str, inner: str) -> str:
            return drive(self._scope(arg, inner))

        @tool(effect="write", undo=clean["undo"])
        def risky(arg: int, does: str) -> str:
            return self.lab.world.risk(f"risky-{arg}")

        every: list[Any] = [write, plain, idem, thread, risky, read, pure, model, outer, scope]
        every.append(tool(effect="write", name="flaky", idempotent=True, **clean)(self._flaky))
        if "once" in inspect.signature(Contract).parameters:
            keyed: dict[str, Any] = {"once": "once/{arg}", **clean}
            every.append(tool(effect="write", name="once", **keyed)(self._once))
        return {each.__rollcage_contract__.name: each for each in every}

    def _flaky(self, arg: int, does: str) -> str:
        return self.lab.world.flake(f"flaky-{arg}")

    def _once(self, arg: int, does: str) -> str:
        return self.lab.world.do(f"once-{arg}", does)

    def _changes(self, name: str) -> Callable[[int, str], str]:
        def change(arg: int, does: str) -> str:
            return self.lab.world.do(f"{name}-{arg}", does)

        return change

    def _achanges(self, name: str) -> Callable[[int, str], Coroutine[Any, Any, str]]:
        async def change(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return self.lab.world.do(f"{name}-{arg}", does)

        return change

    def _async(self, clean: dict[str, Any], probe: Callable[[str], Any]) -> dict[str, Any]:
        @tool(effect="write", probe=probe, **clean)
        async def write(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return self.lab.world.do(f"write-{arg}", does)

        @tool(effect="write", **clean)
        async def plain(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return self.lab.world.do(f"plain-{arg}", does)

        @tool(effect="write", idempotent=True, **clean)
        async def idem(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return self.lab.world.do(f"idem-{arg}", does, dedups=True)

        @tool(effect="write", probe=probe, **clean)
        async def stream(arg: int, does: str) -> AsyncIterator[str]:
            await asyncio.sleep(0)
            yield ""
            yield self.lab.world.do(f"stream-{arg}", does)

        @tool(effect="read")
        async def read(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return self.lab.world.look(f"read-{arg}", does)

        @tool(effect="read")
        async def model(arg: int, does: str) -> str:
            await asyncio.sleep(0)
            return self.lab.world.ask(f"model-{arg}")

        @tool(effect="write", probe=probe, **clean)
        async def outer(arg: int, does: str, inner: str) -> str:
            return await self._outer(arg, does, inner)

        @tool(effect="scope")
        async def scope(arg: int, does: str, inner: str) -> str:
            return await self._scope(arg, inner)

        every = (write, plain, idem, stream, read, model, outer, scope)
        return {each.__name__: each for each in every}

    async def _outer(self, arg: int, does: str, inner: str) -> str:
        with _inside() as given:
            await self.lab.nodes(self.lab.inner[inner])
        return self.lab.world.do(f"outer-{arg}", does, " ".join(given).split())

    async def _scope(self, arg: int, inner: str) -> str:
        with _inside() as given:
            await self.lab.nodes(self.lab.inner[inner])
        self.lab.world.ran.append(f"scope-{arg}")
        return " ".join(given)


@functools.cache
def _tools() -> Tools:
    return Tools()


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for labs, in memory where there is such a place: a case waits for no disk."""
    memory = Path("/dev/shm")  # noqa: S108 - made by mkdtemp, for this user alone
    root = Path(tempfile.mkdtemp(prefix="rollcage-laws-", dir=memory if memory.is_dir() else None))
    try:
        yield root
    finally:
        shutil.rmtree(root)


@dataclasses.dataclass
class Attempt:
    """What one session did."""

    run: str
    given: dict[Place, Given]  # what calls outside of bodies gave, by their place in the program
    stays: list[str]  # effects that the program was told of, and that no block took back
    ran: list[str]  # bodies
    error: BaseException | None  # what ended it
    stats: Any
    report: Any = None  # of one that wrote nothing


def _arguments(op: Op) -> dict[str, Any]:
    return {"arg": op.arg, "does": op.does}


class Lab:
    """A store and a world; programs run here.

    Args:
        root: an empty folder.
        timeline: what happened before.
        lost: see `World`.
    """

    def __init__(
        self, root: Path, timeline: Timeline | None = None, lost: Iterable[str] = ()
    ) -> None:
        self.root = root
        self.watch_over(timeline or Timeline(), lost)
        if timeline is not None:
            refill(open_store(place_of(root)), timeline)
        self.inner: dict[str, tuple[Node, ...]] = {}
        self.job = "job"
        self.expected: Counter[str] = Counter()  # what messages have yet to ask for, by label
        self.told: set[str] = set()  # effects that calls have told of, in bodies and blocks too
        self.is_sync = False
        self.at_once = True
        self.chance = random.Random(0)  # noqa: S311 - a reproducible order
        self.shuffles = False

    def watch_over(self, timeline: Timeline, lost: Iterable[str] = ()) -> None:
        """Have a timeline be told of what happens here."""
        self.timeline = timeline
        self.world = World(timeline, lost)
        self.store = Watched(open_store(place_of(self.root)), timeline)

    def at(self, root: Path, end: int, lose: random.Random | None = None) -> Lab:
        """Return a lab as it was when its process died at this moment."""
        clear(root)
        lab = Lab(root, self.timeline.until(end, lose), self.world.lost)
        lab.world.asked = Counter(self.world.asked)
        return lab

    # --- running ---------------------------------------------------------------------------------

    def attempt(
        self,
        program: Program,
        *,
        sync: bool = False,
        at_once: bool = True,
        shuffle: int | None = None,
        engine: bool = True,
        runner: asyncio.Runner | None = None,
        retry_failed: bool | None = None,
        **how: Any,
    ) -> Attempt:
        """Run or resume a program in one session.

        Args:
            program: what to do.
            sync: everything in one thread, without a loop.
            at_once: calls of a turn are gathered; else they come one after another.
            shuffle: the seed of the order in which they come; None: as told.
            engine: False: without any session, as the reference.
            runner: has the loop on which it runs; None: a new one.
            retry_failed: see `Options`.
            **how: more for the session.
        """
        self.begin(size(program))
        self.is_sync, self.at_once, self.shuffles = sync, at_once and not sync, shuffle is not None
        self.chance = random.Random(shuffle)  # noqa: S311 - a reproducible order
        ran: list[str] = []
        self.world.ran = ran
        given: dict[Place, Given] = {}
        stays: list[str] = []
        options = Options(tools=self.tools(sync=sync), retry_failed=retry_failed)
        session = Session(self.job, store=self.store, options=options, **how) if engine else None

        async def main() -> None:
            with (
                _setting(_path, ()),
                _setting(_given, given),
                _setting(_stays, stays),
                _setting(_session, session),
            ):
                if session is None:
                    await self.nodes(program)
                else:
                    async with self.opened(session):
                        await self.nodes(program)

        error: BaseException | None = None
        try:
            if sync:
                drive(main())
            else:
                with runner or asyncio.Runner() as running:
                    running.run(main())
        except Exception as raised:  # noqa: BLE001 - told to whoever asked for the attempt
            error = raised
        run, stats = "", None
        if session is not None and session.run_id:  # it was entered
            run, stats = session.run_id, session.stats
            if isinstance(error, SessionHalted) and session.halted is not None:
                error = session.halted
        report = None if session is None else session.report
        return Attempt(run, given, stays, ran, error, stats, report)

    def begin(self, amount: float = 0) -> None:
        """Make this the present lab. What is done next takes a bounded number of moments."""
        _tools().lab = self
        self.expected.clear()
        self.timeline.fuse = 400 + 60 * int(amount) + 10 * len(self.timeline.moments)

    @staticmethod
    def tools(*, sync: bool) -> list[Any]:
        """Return the tools that undo may need, in one colour."""
        tools = _tools()
        named = {**tools.as_async, **tools.sync} if sync else tools.as_async
        return [*named.values(), *tools.compensating]

    def settle(self) -> None:
        """Have an undo that was cut off be finished, by an attempt that asks for nothing."""
        self.begin()
        options, run = Options(tools=self.tools(sync=True)), self.newest()
        with Session(self.job, store=self.store, run=run, replay="continue", options=options):
            pass

    def through(self, program: Program, **how: Any) -> Attempt:
        """Run or resume a program until it is through; say what became of lost steps."""
        for _ in range(ATTEMPTS):
            attempt = self.attempt(program, **how)
            if attempt.error is None:
                return attempt
            if not isinstance(attempt.error, UnknownOutcome):
                raise attempt.error
            self.resolve(attempt.error.run, attempt.error.step)
        raise AssertionError("the program is resumed for ever")

    def resolve(self, run: str, step: int) -> None:
        """Say what became of a step of unknown outcome."""
        deed = self.timeline.deed(run, step)
        if deed is not None and self.timeline.standing[deed.token]:
            resolve_step(self.store, run, step, happened=True, result=as_recorded(deed))
        else:
            resolve_step(self.store, run, step, happened=False)

    def newest(self) -> str:
        """Return the run that was begun last."""
        run = self.timeline.newest()
        assert run is not None
        return run

    def finished(self) -> bool:
        """Return whether the newest run is done: another session of its name begins a new one."""
        run = self.timeline.newest()
        if run is None:
            return False
        last = orjson.loads(self.timeline.lines(run)[-1])
        return (last["event"], last.get("status")) == ("ended", "ok")

    def events(self, run: str) -> list[dict[str, Any]]:
        """Return the log of a run."""
        return [orjson.loads(line) for line in self.store.read(run)]

    # --- programs --------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self, block: Any) -> AsyncIterator[Any]:
        """Enter a block in the colour of the program."""
        if self.is_sync:
            with block as it:
                yield it
        else:
            async with block as it:
                yield it

    async def nodes(self, nodes: Sequence[Node]) -> None:
        for number, node in enumerate(nodes):
            await self.placed(number, node)

    async def placed(self, number: int, node: Node) -> None:
        token = _path.set((*_path.get(), number))
        try:
            await self.node(node)
        finally:
            _path.reset(token)

    async def node(self, node: Node) -> None:
        session = _session.get()
        match node:
            case Op():
                await self.op(node)
            case _ if session is None:
                await self.without(node)
            case Turn(nodes, "overlap"):
                await self.together([self.placed(n, each) for n, each in enumerate(nodes)])
            case Turn(nodes, how):
                calls = None
                if how == "message":
                    issued = [each for each in nodes if isinstance(each, Op)]
                    calls = [(self.tool(each), _arguments(each)) for each in issued]
                    self.expected.update(map(self.label, issued))
                is_watched = how == "message" and self.world.watch is not None
                with session.turn(calls=calls) as turn:
                    in_order = how == "turn" or is_watched  # another order has other steps ahead
                    order = [*enumerate(nodes)] if in_order else self.order(nodes)
                    await self.together([self.slot(turn, how, n, each) for n, each in order])
            case Branches():
                await self.branches(session, node)
            case Block(nodes, raises):
                stays: list[str] = []
                try:
                    async with self.opened(session.transaction()):
                        with _setting(_stays, stays):
                            await self.nodes(nodes)
                        if raises:
                            raise TakenBack
                except TakenBack:
                    return
                _stays.get().extend(stays)
            case Inner(name, nodes):
                inner = Session(name, store=self.store)
                async with self.opened(inner):
                    with _setting(_session, inner):
                        await self.nodes(nodes)

    async def slot(self, turn: Any, how: str, number: int, node: Node) -> None:
        if how in ("slots", "message"):
            with turn.slot(number):
                await self.placed(number, node)
        else:
            await self.placed(number, node)

    async def branches(self, session: Any, node: Branches) -> None:
        numbers = range(len(node.lines))
        opens = {node.names[n]: [node.names[each] for each in node.before(n)] for n in numbers}
        handles: dict[int, Any] = {}
        ended = {n: asyncio.Event() for n in numbers}

        async def line(number: int, turn: Any) -> None:
            try:
                for each in node.before(number):
                    await ended[each].wait()
                after = [handles[each] for each in node.before(number)]
                if len(after) < len(node.before(number)):
                    return  # one of them was halted
                with (
                    self.in_slot(turn, node.how, number),
                    session.branch(node.names[number], after=after) as handle,
                    _setting(_path, (*_path.get(), number)),
                ):
                    await self.nodes(node.lines[number])
                handles[number] = handle
            finally:
                ended[number].set()

        with session.turn(opens=opens) if node.how == "opens" else session.turn() as turn:
            order = [n for n, _ in self.order(node.lines)] if node.how != "turn" else [*numbers]
            if not self.at_once:  # one that comes after others waits for none: it comes later
                waiting, order = order, []
                while waiting:
                    ready = (n for n in waiting if set(node.before(n)) <= {*order})
                    order.append(next(ready))
                    waiting.remove(order[-1])
            await self.together([line(n, turn) for n in order])

    @contextmanager
    def in_slot(self, turn: Any, how: str, number: int) -> Iterator[None]:
        if how == "slots":
            with turn.slot(number):
                yield
        else:
            yield

    async def together(self, calls: list[Coroutine[Any, Any, None]]) -> None:
        """Await calls that were issued together; raise what the first that halted raised."""
        raised: list[BaseException] = []
        if self.at_once:
            ended = await asyncio.gather(*calls, return_exceptions=True)
            raised = [each for each in ended if isinstance(each, BaseException)]
        else:
            for call in calls:
                try:
                    await call
                except Exception as error:  # noqa: BLE001 - the first is raised below
                    raised.append(error)
        if raised:
            raise min(raised, key=lambda e: (isinstance(e, SessionHalted), not isinstance(e, Halt)))

    def order(self, nodes: Sequence[Any]) -> list[tuple[int, Any]]:
        """Return those that are issued together, numbered, in the order in which they come.

        Calls of models stay in theirs: they have no slots.
        """
        placed = [*enumerate(nodes)]
        if not self.shuffles:
            return placed
        asking = iter([each for each in placed if is_model(each[1])])
        mixed = self.chance.sample(placed, len(placed))
        return [next(asking) if is_model(each[1]) else each for each in mixed]

    async def op(self, op: Op) -> None:
        arguments = _arguments(op)
        if op.tool in ("outer", "scope"):
            name = sha256(repr(op.inner).encode()).hexdigest()[:8]
            self.inner[name] = op.inner
            arguments["inner"] = name
        given: Given
        try:
            given = "ok", await self.call(self.tool(op), arguments)
        except (ValueError, RuntimeError, ConnectionRefusedError, Blocked) as error:
            given = "error", str(error)
        if self.expected[self.label(op)] > 0:
            self.expected[self.label(op)] -= 1
        here = _given.get()
        if here is not None:
            here[_path.get()] = given
        if op.tool in (*WRITES, "risky", "flaky", "once", "scope"):
            said = given[1] if given[0] == "ok" else str(given[1]).partition(": ")[2]
            _stays.get().extend(str(said).split())
            self.told.update(str(said).split())

    def tool(self, op: Op) -> str:
        """Return the tool of a call in this colour: only async ones are streams."""
        return "write" if self.is_sync and op.tool == "stream" else op.tool

    def label(self, op: Op) -> str:
        """Return the label of what a call does."""
        return f"{self.tool(op)}-{op.arg}"

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        session = _session.get()
        if session is not None and name in ("undo", "pause"):
            return await self.steer(session, name, arguments["arg"])
        its = _tools().sync if self.is_sync else _tools().as_async
        called = its[name]
        if name == "model" and session is not None:
            contract, body = called.__rollcage_contract__, called.__wrapped__
            if self.is_sync:
                return session.run_call(contract, arguments, body, kind="model")
            return await session.arun_call(contract, arguments, body, kind="model")
        if name == "stream" and not self.is_sync:
            return " ".join([chunk async for chunk in called(**arguments)])
        if session is not None and (name == "thread" or sum(_path.get()) % 2):
            return (
                session.call(called, **arguments)
                if self.is_sync
                else await session.acall(called, **arguments)
            )
        answer = called(**arguments)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def steer(self, session: Session, name: str, arg: int) -> str:
        """Undo the effects of a branch, or pause: what a program asks of its session."""
        if name == "pause":
            session.pause(f"for {arg}")
            return "paused"
        how: dict[str, Any] = {"branch": f"b{arg}", "in_doubt": "restore"}
        try:
            report = session.undo(**how) if self.is_sync else await session.aundo(**how)
        except SessionHalted:
            raise
        except SessionError:
            return "can't be undone"
        return " ".join(f"{each.name} {each.status}" for each in report.steps)

    # --- the reference ---------------------------------------------------------------------------

    async def without(self, node: Node) -> None:
        """Do what a block means where there is no session: the reference of sequential programs."""
        match node:
            case Block(nodes, raises):
                stays: list[str] = []
                with _setting(_stays, stays):
                    await self.nodes(nodes)
                if raises:
                    for token in reversed(stays):
                        self.world.take_back(token)
                else:
                    _stays.get().extend(stays)
            case Turn(nodes) | Inner(_, nodes):
                await self.nodes(nodes)
            case Branches(lines):
                for number, line in enumerate(lines):
                    with _setting(_path, (*_path.get(), number)):
                        await self.nodes(line)
            case Op():
                await self.op(node)


def as_recorded(deed: Deed) -> str | list[str]:
    """Return what a call gave as its step has it: all chunks of a stream."""
    return ["", deed.gave] if deed.label.startswith("stream") else deed.gave


def is_model(node: Any) -> bool:
    """Return whether this asks a model directly."""
    return isinstance(node, Op | Turn | Branches | Block | Inner) and has_models(node)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run to its end what never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    work.close()
    raise AssertionError("a sync program waits")


_path: ContextVar[Place] = ContextVar("path")
_given: ContextVar[dict[Place, Given] | None] = ContextVar("given")
_stays: ContextVar[list[str]] = ContextVar("stays")
_session: ContextVar[Any] = ContextVar("session")
_numbers = itertools.count()


@contextmanager
def _setting(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _inside() -> Iterator[list[str]]:
    """Collect what the calls in a body give: their own paths are not told."""
    given: list[str] = []
    with _setting(_given, None), _setting(_stays, given):
        yield given
