"""Concurrent parts of an execution: their place, their end, and their interruption."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from rollcage import Halt, SessionHalted, Stage

if TYPE_CHECKING:
    from rollcage.replay.call import Call

__all__ = [
    "NO_FAILURES",
    "BlockPlace",
    "Branches",
    "CutOff",
    "CutOffs",
    "Done",
    "Flow",
    "Lost",
    "NotReached",
    "Variables",
    "Waits",
    "breakable",
    "cancelling",
    "cut_off",
    "ending",
    "raise_first",
    "raise_halts",
    "values_of",
]  # fmt: skip

Variables = Mapping[str, Any]
Branches = tuple[Any, ...]
"""The branches before a step, in the form of `Session.branch`."""


class Waits(Halt):
    """A step waits: the attempt ends, and another continues later.

    Attributes:
        reasons: the reasons of the waits.
        until: the time at which the first wait ends by itself (Unix, seconds); None: never.
        approvals: the requests for people to decide about.
    """

    code = "waits"

    def __init__(
        self,
        reasons: Iterable[str],
        until: float | None = None,
        approvals: Iterable[str] = (),
    ) -> None:
        self.reasons = tuple(reasons)
        self.until = until
        self.approvals = tuple(approvals)
        super().__init__("; ".join(self.reasons))

    @classmethod
    def both(cls, some: Iterable[Waits]) -> Waits:
        """Combine the waits of several steps."""
        each = list(some)
        times = [one.until for one in each if one.until is not None]
        return cls(
            dict.fromkeys(reason for one in each for reason in one.reasons),
            min(times, default=None),
            dict.fromkeys(asked for one in each for asked in one.approvals),
        )


class NotReached(Halt):
    """A step before this one failed: that is no outcome of this step, and not recorded."""

    code = "not_reached"


class CutOff(Halt):
    """The attempt was cancelled from outside: no step has failed, and the next one continues."""

    code = "cut_off"


class Lost(Exception):
    """Another member of the team was first."""


NO_FAILURES = (Waits, NotReached, Lost, Halt, SessionHalted)
"""The ends of a step without its failure."""


@dataclasses.dataclass(slots=True)
class Flow:
    """Concurrent steps: if one of them fails, no other begins.

    Attributes:
        around: the enclosing flow.
        over: no other step begins.
        calls: running calls that change nothing, and may be interrupted.
        sleeps: running waits for a time.
        is_race: whether steps in this flow, or in an enclosing one, may be interrupted.
        timeout: the time limit of its steps.
        is_cancelling: it is over, and its running calls were interrupted.
    """

    around: Flow | None = None
    over: bool = False
    is_race: bool = False
    calls: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set["asyncio.Task[Any]"])
    sleeps: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set["asyncio.Task[Any]"])
    timeout: asyncio.Timeout | None = None
    is_cancelling: bool = False

    def __post_init__(self) -> None:
        self.is_race = self.is_race or (self.around is not None and self.around.is_race)

    def end(self, *, calls: bool = False) -> None:
        """Begin no other step; interrupt sleeps, and optionally calls that change nothing."""
        self.over = True
        self.is_cancelling = self.is_cancelling or calls
        for task in [*self.sleeps, *(self.calls if calls else ())]:
            task.cancel()

    def check(self) -> None:
        """Refuse a new step if the flow, or an enclosing one, is over."""
        if any(each.over for each in _around(self)):
            raise NotReached

    @property
    def is_ending(self) -> bool:
        """Whether the plan itself ends what runs here: others were first, or the time is up."""
        return any(
            each.is_cancelling or (each.timeout is not None and each.timeout.expired())
            for each in _around(self)
        )


class Done(NamedTuple):
    """A step that ended: its result, its branches, its error if that is kept, whether it jumps."""

    value: Any
    after: Branches
    error: Exception | None = None
    jumps: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class BlockPlace:
    """The place of steps.

    Attributes:
        variables: the variables of their expressions.
        suffix: after their names, so that each round of a loop has branches of its own.
        after: the branches before all of them.
        flow: the flow of the steps.
        path: for messages: `mails[3].`.
        in_row: whether they run one after the other, in the open branch.
        round: for a repeated row, the prefix of their names: `3/`.
        jumped: the steps before that have jumped ahead.
    """

    variables: Variables
    flow: Flow
    suffix: str = ""
    after: Branches = ()
    path: str = ""
    in_row: bool = False
    round: str = ""
    jumped: frozenset[str] = frozenset()

    def call_id(self, name: str) -> str:
        """Return the id of a step's call; empty if its branch is named after the step."""
        return f"{self.round}{name}{self.suffix}" if self.in_row else ""

    def with_(self, variables: Variables, **changed: Any) -> BlockPlace:
        """Return the place with more variables."""
        return dataclasses.replace(self, variables={**self.variables, **variables}, **changed)


def values_of(done: Mapping[str, Done]) -> dict[str, Any]:
    """Return the results of steps, by name."""
    return {name: each.value for name, each in done.items()}


async def _of(future: asyncio.Future[Done]) -> Done:
    return await asyncio.shield(future)


def _around(flow: Flow | None) -> Iterable[Flow]:
    while flow is not None:
        yield flow
        flow = flow.around


async def breakable(
    what: Coroutine[Any, Any, Any], flow: Flow, kind: Literal["calls", "sleeps"] = "calls"
) -> Any:
    """Wait for an awaitable that changes nothing, and may be interrupted when the flow is over."""
    if kind == "calls" and not flow.is_race:
        return await what
    task = asyncio.ensure_future(what)
    flows = list(_around(flow))
    held: list[set[asyncio.Task[Any]]] = [getattr(each, kind) for each in flows]
    for each in held:
        each.add(task)
    try:
        return await task
    except asyncio.CancelledError:
        if any(each.over for each in flows) and not _is_cancelled():
            raise NotReached from None
        task.cancel()
        raise
    finally:
        for each in held:
            each.discard(task)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_ENDING: Final[ContextVar[Flow | None]] = ContextVar("rollcage_workflow_ending", default=None)


@contextlib.contextmanager
def ending(flow: Flow) -> Generator[Flow]:
    """Run steps that the plan itself may cancel, as a race or a time limit does."""
    token = _ENDING.set(flow)
    try:
        yield flow
    finally:
        _ENDING.reset(token)


@contextlib.contextmanager
def cut_off() -> Generator[None]:
    """Raise a cancellation that does not come from the plan as `CutOff`.

    It is no failure: nothing is undone for it, and it is no outcome of a call.
    """
    try:
        yield
    except asyncio.CancelledError:
        flow = _ENDING.get()
        if flow is not None and flow.is_ending:
            raise
        raise CutOff("the attempt was cancelled; the next one continues") from None


class CutOffs(Stage):
    """Leaves calls without an outcome if their attempt is cancelled, as if it had been killed.

    A write that is cut off has an unknown outcome, as ever.
    """

    def around(self, call: Call, body: Callable[[], Any]) -> Callable[[], Any]:
        """See `Stage.around`."""
        if not call.is_async or call.effect == "write":
            return body

        async def inside() -> Any:
            with cut_off():
                value = body()
                return await value if hasattr(value, "__await__") else value

        return inside


@contextlib.contextmanager
def cancelling(tasks: Iterable[asyncio.Task[Any]]) -> Generator[None]:
    """Cancel the tasks when the waiting task is cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise


def raise_halts(ended: Iterable[object]) -> None:
    """Raise an error that ends the whole attempt: a halt, a cancellation."""
    for kind in (CutOff, SessionHalted, Halt, asyncio.CancelledError):
        for each in ended:
            if isinstance(each, kind) and not isinstance(each, Waits | NotReached):
                raise each


def raise_first(ended: Iterable[object]) -> None:
    """Raise the error that ends a block: a halt before a failure, a failure before a wait."""
    failed = [each for each in ended if isinstance(each, BaseException)]
    raise_halts(sorted(failed, key=lambda each: isinstance(each, SessionHalted)))
    for each in failed:
        if not isinstance(each, (NotReached, Waits, Lost)):
            raise each
    waits = [each for each in failed if isinstance(each, Waits)]
    if waits:
        raise Waits.both(waits)
    if failed:
        raise failed[0]
