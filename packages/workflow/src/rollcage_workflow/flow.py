"""What goes on together in an execution: its place, how it ends, what breaks it off."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine, Generator, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from rollcage import Halt, SessionHalted

__all__ = [
    "NO_FAILURES",
    "BlockPlace",
    "Branches",
    "Done",
    "Flow",
    "Lost",
    "NotReached",
    "Variables",
    "Waits",
    "breakable",
    "cancelling",
    "raise_first",
    "raise_halts",
    "values_of",
]  # fmt: skip

Variables = Mapping[str, Any]
Branches = tuple[Any, ...]
"""The branches that a step comes after, as `Session.branch` gives them."""


class Waits(Halt):
    """A step waits for something that is not there yet: the attempt ends, and another goes on.

    Attributes:
        reasons: for what.
        until: the time at which the first of it ends by itself (Unix, seconds); None: never.
        approvals: the requests that people are asked to decide on.
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
        """All of what several wait for."""
        each = list(some)
        times = [one.until for one in each if one.until is not None]
        return cls(
            dict.fromkeys(reason for one in each for reason in one.reasons),
            min(times, default=None),
            dict.fromkeys(asked for one in each for asked in one.approvals),
        )


class NotReached(Halt):
    """A step that this one comes after did not end well: that is no outcome, and not recorded."""

    code = "not_reached"


class Lost(Exception):
    """Another member of the team was first."""


NO_FAILURES = (Waits, NotReached, Lost, Halt, SessionHalted)
"""What ends a step without being its failure."""


@dataclasses.dataclass(slots=True)
class Flow:
    """What is going on together: where one part of it fails, no other begins.

    Attributes:
        around: what this is a part of.
        over: no other step begins.
        calls: what is in flight, changes nothing, and may be broken off.
        sleeps: the same, where it is nothing but a time that passes.
        is_race: what is in flight here, or in what this is a part of, may be broken off.
    """

    around: Flow | None = None
    over: bool = False
    is_race: bool = False
    calls: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set["asyncio.Task[Any]"])
    sleeps: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set["asyncio.Task[Any]"])

    def __post_init__(self) -> None:
        self.is_race = self.is_race or (self.around is not None and self.around.is_race)

    def end(self, *, calls: bool = False) -> None:
        """Begin no other step; nobody sleeps on, and calls that change nothing may end, too."""
        self.over = True
        for task in [*self.sleeps, *(self.calls if calls else ())]:
            task.cancel()

    def check(self) -> None:
        """End what would begin here, where what is around it is over."""
        flow: Flow | None = self
        while flow is not None:
            if flow.over:
                raise NotReached
            flow = flow.around


class Done(NamedTuple):
    """A step that ended: its result, the branches that stand for it, its error if it is kept."""

    value: Any
    after: Branches
    error: Exception | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where steps are done.

    Attributes:
        variables: what their expressions see.
        suffix: after their names, so that each round of a loop has branches of its own.
        after: the branches that all of them come after.
        flow: what they are a part of.
        path: for messages: `mails[3].`.
        in_row: one after the other, in the branch that is open.
        round: in a row that is done again and again, before their names: `3/`.
    """

    variables: Variables
    flow: Flow
    suffix: str = ""
    after: Branches = ()
    path: str = ""
    in_row: bool = False
    round: str = ""

    def call_id(self, name: str) -> str:
        """The id of the call of a step; empty where its branch is named after it."""
        return f"{self.round}{name}{self.suffix}" if self.in_row else ""

    def with_(self, variables: Variables, **changed: Any) -> BlockPlace:
        """The same, with more variables."""
        return dataclasses.replace(self, variables={**self.variables, **variables}, **changed)


def values_of(done: Mapping[str, Done]) -> dict[str, Any]:
    """The results of steps, by name."""
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
    """Wait for what changes nothing, and may be broken off where what is around it is over."""
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


@contextlib.contextmanager
def cancelling(tasks: Iterable[asyncio.Task[Any]]) -> Generator[None]:
    """Where the one who waits is cancelled, so are those."""
    try:
        yield
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise


def raise_halts(ended: Iterable[object]) -> None:
    """Raise what ends all of an attempt: a halt, a cancellation."""
    for kind in (SessionHalted, Halt, asyncio.CancelledError):
        for each in ended:
            if isinstance(each, kind) and not isinstance(each, Waits | NotReached):
                raise each


def raise_first(ended: Iterable[object]) -> None:
    """Raise what ends a block: a halt before a failure, that before a wait."""
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
