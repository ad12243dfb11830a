"""The stage on which scenarios are played: it opens the session over a store and reads the log."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from rollcage import Session, Stats, Store, open_store
from rollcage.trace.chain import parse

from rollcage_conformance.golden import answers
from rollcage_conformance.scenario import (
    Harness,
    Performance,
    Result,
    Scenario,
    Script,
    ToolSpec,
)
from rollcage_conformance.witness import Witness

__all__ = ["Hold", "Mode", "Played", "Stage"]

Mode = Literal["sync", "async", "sync-in-async"]
"""A sync agent with sync tools, an async one with async tools, an async one with sync tools."""

Replay = Literal["auto", "continue", "off", "resume", "offline", "verify"]

Decisions = tuple[Store, str] | Literal["source"] | None
"""The source of recorded answers: a run of a store, or the run that a session replays."""


class Hold:
    """The body of an async tool that never ends, for cancellation."""

    def __init__(self) -> None:
        self._begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached = asyncio.Event()

    async def reached(self) -> None:
        """Wait until the body runs, in any thread and loop of the framework."""
        self._loop = asyncio.get_running_loop()
        await self._reached.wait()

    async def wait(self) -> str:
        """Report that the body runs, and wait forever; the second time, return at once.

        Raises:
            AssertionError: the body runs again.
        """
        if self._begun:
            raise AssertionError("a body that was cancelled ran again")
        self._begun = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._reached.set)
        await asyncio.Event().wait()
        return "never"


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """The result of one performance.

    Attributes:
        result: the harness's result.
        script: the model, with its inputs.
        ran: the names of the tools whose bodies ran, in the order of their starts.
        error: the exception on leaving the session, or of a plain agent; None if it went well.
        lines: the run's log after the attempt, checked; empty without a session.
        run: the run's id.
        stats: the session's own count; None without a session.
        status: how the attempt ended, as its log says; empty without a log (offline).
        steps: a record of each tool call, by turn and slot: see `Witness.records`.
        asked: the same for the model's calls.
    """

    result: Result
    script: Script
    ran: tuple[str, ...]
    error: BaseException | None
    lines: tuple[dict[str, Any], ...] = ()
    run: str = ""
    stats: Stats | None = None
    status: str = ""
    steps: tuple[dict[str, Any], ...] = ()
    asked: tuple[dict[str, Any], ...] = ()

    @property
    def seen(self) -> list[tuple[str, ...]]:
        """The texts of the tool results that the model saw, by message and slot."""
        return self.script.seen

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return the model's answers, in the framework-neutral form."""
        return answers(self.asked)

    @property
    def how(self) -> list[str]:
        """Return how each tool call went: `ran`, `replayed`, `blocked`, `supplied` or `halted`."""
        return [step["how"] for step in self.steps]

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of one kind."""
        return [line for line in self.lines if line["event"] == event]


class Stage:
    """A store, and a harness that plays scenarios over it.

    The store is a folder, or a SQLite file in that folder with `ROLLCAGE_TEST_STORE=sqlite`, or a
    schema of the server at `ROLLCAGE_TEST_POSTGRES` with `ROLLCAGE_TEST_STORE=postgres`.
    """

    def __init__(self, harness: Harness, root: Path) -> None:
        self.harness = harness
        self.root = root
        self.store = open_store(_place(root))

    def play(
        self,
        scenario: Scenario,
        mode: Mode,
        *,
        name: str = "job",
        replay: Replay = "auto",
        stream: bool = False,
        tools: Any = None,
        hold: Hold | None = None,
        decisions: Decisions = None,
        memory: Any = None,
        opened: Callable[[Session], object] = lambda _: None,
        make: Callable[..., Session] = Session,
        **settings: Any,
    ) -> Played:
        """Play a scenario in a session of its own.

        Args:
            scenario: the scenario.
            mode: its mode.
            name: the session's name.
            replay: the session's replay mode.
            stream: whether the framework's streaming calls are used.
            tools: the framework's tools, to use an earlier `tools()` again.
            hold: cancel the agent once this tool's body runs (async only).
            decisions: a recorded run whose answers drive the agent, instead of the script.
            memory: the harness's memory: the agent continues from it.
            opened: called with the session when it has been entered.
            make: makes the session.
            **settings: further arguments of the session.
        """
        ran: list[str] = []
        rehearsed = _rehearsed(scenario, mode, ran)
        witness = Witness()
        stages = (witness, *settings.pop("stages", ()))
        session = make(name, store=self.store, replay=replay, stages=stages, **settings)
        cast = self.harness.tools(rehearsed) if tools is None else tools
        script = Script(scenario.script, scenario.thought)
        performance = Performance(rehearsed, script, cast, session, stream, memory=memory)
        take = _Take(self.harness, performance, session)

        def entered() -> None:
            opened(session)
            take.follow(decisions)

        with take.ending():
            if mode == "sync":
                with session:
                    entered()
                    take.end(self.harness.run(take.performance))
            else:
                asyncio.run(take.aplay(entered, hold))
        return self._played(take, ran, witness)

    async def aplay(self, scenario: Scenario, *, name: str) -> Played:
        """Play a scenario in the running event loop, in a session of its own."""
        ran: list[str] = []
        rehearsed = _rehearsed(scenario, "async", ran)
        witness = Witness()
        session = Session(name, store=self.store, stages=[witness])
        script = Script(scenario.script, scenario.thought)
        cast = self.harness.tools(rehearsed)
        take = _Take(self.harness, Performance(rehearsed, script, cast, session), session)
        with take.ending():
            await take.aplay()
        return self._played(take, ran, witness)

    def _played(self, take: "_Take", ran: list[str], witness: Witness) -> Played:
        session = take.session
        if not session.run_id:
            raise take.error or AssertionError("the session was not opened")
        lines = self.lines(session.run_id)
        ended = lines[-1] if session.attempt.live else {}
        return Played(
            take.result,
            take.performance.script,
            tuple(ran),
            take.error,
            tuple(lines),
            session.run_id,
            session.stats,
            str(ended.get("status", "")),
            tuple(witness.records()),
            tuple(witness.records("model")),
        )

    def plain(self, scenario: Scenario, mode: Mode, *, tools: Any = None) -> Played:
        """Play a scenario with an unguarded agent."""
        ran: list[str] = []
        script = Script(scenario.script, scenario.thought)
        scenario = _rehearsed(scenario, mode, ran)
        cast = self.harness.tools(scenario) if tools is None else tools
        performance = Performance(scenario, script, cast, None)
        ended = _Ended()
        with ended.ending():
            if mode == "sync":
                ended.end(self.harness.run(performance))
            else:
                ended.end(asyncio.run(_awaited(self.harness.arun(performance))))
        return Played(ended.result, script, tuple(ran), ended.error)

    def tools(self, scenario: Scenario, mode: Mode, ran: list[str]) -> Any:
        """Return the framework's tools for a scenario, reusable; `ran` notes each execution."""
        return self.harness.tools(_rehearsed(scenario, mode, ran))

    def lines(self, run: str) -> list[dict[str, Any]]:
        """Return the lines of a run's log, after they were checked."""
        return parse(self.store.read(run), run)


def _place(root: Path) -> str | Path:
    """Return the store's place, from a test's folder."""
    match os.environ.get("ROLLCAGE_TEST_STORE"):
        case "sqlite":
            return f"sqlite:///{root / 'runs.db'}"
        case "postgres":
            server = os.environ["ROLLCAGE_TEST_POSTGRES"]
            own = sha256(str(root).encode()).hexdigest()[:16]
            return f"{server}{'&' if '?' in server else '?'}schema=stage_{own}"
        case _:
            return root


class _Ended:
    """How an agent ended, or the exception that came between."""

    def __init__(self) -> None:
        self.result = Result()
        self.error: BaseException | None = None

    def end(self, result: Result) -> None:
        self.result = result
        if result.error is not None:
            raise result.error

    @contextlib.contextmanager
    def ending(self) -> Generator[None]:
        """Record the exception of the agent and its session."""
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the tests judge it
            self.error = error


class _Take(_Ended):
    """A performance in a session."""

    def __init__(self, harness: Harness, performance: Performance, session: Session) -> None:
        super().__init__()
        self.harness = harness
        self.performance = performance
        self.session = session

    def follow(self, decisions: Decisions) -> None:
        """Let recorded answers drive the agent."""
        if decisions is not None:
            trace = self.session if decisions == "source" else decisions
            model = self.harness.replay_model(trace)
            self.performance = dataclasses.replace(self.performance, replay_model=model)

    async def aplay(
        self, entered: Callable[[], object] = lambda: None, hold: Hold | None = None
    ) -> None:
        async with self.session:
            entered()
            running = self.harness.arun(self.performance)
            self.end(await (running if hold is None else _cancelled(running, hold)))


async def _awaited(running: Coroutine[Any, Any, Result]) -> Result:
    return await running


async def _cancelled(running: Coroutine[Any, Any, Result], hold: Hold) -> Result:
    """Cancel an agent as soon as the tool's body runs; if it ends first, return its result."""
    reached = asyncio.ensure_future(hold.reached())  # first: it knows which loop to notify
    agent = asyncio.ensure_future(running)
    await asyncio.wait({agent, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    agent.cancel()
    return await agent


# --- the tools of one performance ----------------------------------------------------------------

# How often each body yields first, so that parallel bodies don't run in the order of their slots.
_YIELDS: Final[Sequence[int]] = (3, 0, 2, 1, 4)


def _rehearsed(scenario: Scenario, mode: Mode, ran: list[str]) -> Scenario:
    """Return the scenario with tools that note each execution, async if the mode requires it."""
    yields: Iterator[int] | None = itertools.cycle(_YIELDS) if mode == "async" else None
    tools = [_noted(spec, ran, yields) for spec in scenario.tools]
    return dataclasses.replace(scenario, tools=tools)


def _noted(spec: ToolSpec, ran: list[str], yields: Iterator[int] | None) -> ToolSpec:
    function = spec.function
    if yields is None and not spec.is_async:

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            ran.append(spec.name)
            return function(*args, **kwargs)

        return dataclasses.replace(spec, function=noted)

    @functools.wraps(function)
    async def anoted(*args: Any, **kwargs: Any) -> Any:
        for _ in range(next(yields) if yields is not None else 0):
            await asyncio.sleep(0)
        ran.append(spec.name)
        result = function(*args, **kwargs)
        return await result if spec.is_async else result

    return dataclasses.replace(spec, function=anoted)


def modes(*, sync: bool, asynchronous: bool) -> Sequence[Mode]:
    """Return the modes of a framework."""
    found: list[Mode] = ["sync"] if sync else []
    return [*found, "async", "sync-in-async"] if asynchronous else found
