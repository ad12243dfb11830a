"""All that happened, in one order: lines, pointers and effects. Any beginning of it is a crash.

`Timeline` keeps what a process did to its store (through the public protocol) and to the world
outside. A process that dies leaves a prefix of that: `Timeline.until` gives it, and `refill` makes
a fresh store of it. So a kill at any moment needs no signal, and loses nothing but the process.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rollcage.trace import event_adapter

if TYPE_CHECKING:
    from rollcage.trace.store import Ends, Log, Store

__all__ = [
    "INVALID", "Deed", "Endless", "Line", "Moment", "Swap", "Timeline", "Watched", "Written",
    "refill",
]  # fmt: skip


class Endless(AssertionError):
    """A session went on and on."""


INVALID: list[str] = []
"""What was written that is not a line by the published schema; a fixture looks after each test."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line that was sent to a log."""

    run: str
    line: bytes


@dataclasses.dataclass(frozen=True)
class Written:
    """The first lines of a log, so many, are on record."""

    run: str
    lines: int


@dataclasses.dataclass(frozen=True)
class Swap:
    """A document that took the place of another one; None: there is none any more."""

    kind: str
    key: str
    new: bytes | None


@dataclasses.dataclass(frozen=True)
class Deed:
    """An effect, or what took one back."""

    run: str
    step: int
    key: str  # its idempotency key
    token: str  # names this very effect: its label, a dot, a number
    sign: int = 1  # -1: it takes another one back
    gave: str = ""  # what its call returned

    @property
    def label(self) -> str:
        """Return what was done, without saying which time."""
        return self.token.partition(".")[0]


Moment = Line | Written | Swap | Deed


class Timeline:
    """Everything that one store, and the world beside it, saw."""

    def __init__(self, moments: Sequence[Moment] = ()) -> None:
        self.moments: list[Moment] = []
        self.standing: Counter[str] = Counter()  # effects by token
        self.performed: Counter[str] = Counter()  # effects by label, the ones taken back too
        self.by_key: dict[str, Deed] = {}
        self.sent: Counter[str] = Counter()  # lines, by run
        self.fuse = 1_000_000  # how much more may happen
        for moment in moments:
            self.add(moment)

    def burn(self) -> None:
        """Count one more thing that happens."""
        self.fuse -= 1
        if self.fuse < 0:
            raise Endless("there is no end to it")

    def add(self, moment: Moment) -> None:
        """Add what has just happened."""
        self.burn()
        self.moments.append(moment)
        if isinstance(moment, Line):
            self.sent[moment.run] += 1
        if isinstance(moment, Deed):
            self.standing[moment.token] += moment.sign
            if moment.sign > 0:
                self.performed[moment.label] += 1
                self.by_key[moment.key] = moment

    @property
    def effects(self) -> Counter[str]:
        """Count what stands, by label."""
        counted: Counter[str] = Counter()
        for token, count in self.standing.items():
            counted[token.partition(".")[0]] += count
        return +counted

    def stands(self, key: str) -> Deed | None:
        """Return the effect of this idempotency key, if it was performed and stands."""
        deed = self.by_key.get(key)
        return deed if deed is not None and self.standing[deed.token] > 0 else None

    def deed(self, run: str, step: int) -> Deed | None:
        """Return what a step did."""
        deeds = (m for m in self.moments if isinstance(m, Deed) and m.sign > 0)
        return next((deed for deed in deeds if (deed.run, deed.step) == (run, step)), None)

    def until(self, end: int, lose: random.Random | None = None) -> Timeline:
        """Return what a process that dies at this moment leaves behind.

        Args:
            end: how many moments there were.
            lose: chooses how many lines are lost of the ones that were sent and not waited for;
                None: all arrive.
        """
        kept = self.moments[:end]
        if lose is not None:
            sent = Counter(moment.run for moment in kept if isinstance(moment, Line))
            sure: Counter[str] = Counter()
            for moment in kept:
                if isinstance(moment, Written):
                    sure[moment.run] = max(sure[moment.run], moment.lines)
            arrive = {run: lose.randint(sure[run], count) for run, count in sent.items()}
            seen: Counter[str] = Counter()
            rest: list[Moment] = []
            for moment in kept:
                if isinstance(moment, Line):
                    seen[moment.run] += 1
                    if seen[moment.run] > arrive[moment.run]:
                        continue
                rest.append(moment)
            kept = rest
        return Timeline(kept)

    def lines(self, run: str) -> list[bytes]:
        """Return all lines of a run."""
        return [m.line for m in self.moments if isinstance(m, Line) and m.run == run]

    def newest(self) -> str | None:
        """Return the run that a job's pointer named last."""
        named = (m.new for m in reversed(self.moments) if isinstance(m, Swap) and m.kind == "names")
        run = next(named, None)
        return None if run is None else run.decode()


def refill(store: Store, timeline: Timeline) -> None:
    """Write to a fresh store what a timeline says was written."""
    lines: dict[str, list[bytes]] = defaultdict(list)
    documents: dict[tuple[str, str], bytes | None] = {}
    for moment in timeline.moments:
        match moment:
            case Line(run, line):
                lines[run].append(line)
            case Swap(kind, key, new):
                assert store.swap(kind, key, documents.get((kind, key)), new)
                documents[kind, key] = new
            case _:
                pass
    for run, its in lines.items():
        log = store.open(run)
        try:
            log.read()
            for line in its:
                log.append(line)
            log.wait()
        finally:
            log.close()


class Watched:
    """A store that tells a timeline of all that is written."""

    def __init__(self, store: Store, timeline: Timeline) -> None:
        self._store = store
        self._timeline = timeline
        self.url = store.url

    def open(self, run: str, *, take: bool = False) -> Log:
        self._timeline.burn()
        return WatchedLog(self._store.open(run, take=take), run, self._timeline)

    def read(self, run: str, after: int = 0) -> list[bytes]:
        self._timeline.burn()
        return self._store.read(run, after)

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        self._timeline.burn()
        return self._store.runs(before, limit)

    def ends(self, run: str) -> Ends:
        self._timeline.burn()
        return self._store.ends(run)

    def is_live(self, run: str) -> bool:
        self._timeline.burn()
        return self._store.is_live(run)

    def get(self, kind: str, key: str) -> bytes | None:
        self._timeline.burn()
        return self._store.get(kind, key)

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        swapped = self._store.swap(kind, key, was, new)
        if swapped:
            self._timeline.add(Swap(kind, key, new))
        return swapped

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        self._timeline.burn()
        return self._store.keys(kind, after, limit)

    def bell(self) -> int:
        return self._store.bell()


class WatchedLog:
    """A log of a watched store."""

    def __init__(self, log: Log, run: str, timeline: Timeline) -> None:
        self._log = log
        self._run = run
        self._timeline = timeline
        self.where = log.where
        self.is_at_once = False  # what was not waited for may be lost
        self.last = log.last

    @property
    def bell(self) -> int:
        return self._log.bell

    def hear(self) -> Callable[[], int] | None:
        return self._log.hear()

    def read(self) -> list[bytes]:
        lines = self._log.read()
        self.last = self._log.last
        return lines

    def lines(self) -> Iterator[bytes]:
        yield from self.read()

    def append(self, line: bytes) -> None:
        try:
            self._log.append(line)
        finally:
            self.last = self._log.last
        self._timeline.add(Line(self._run, line))
        try:
            event_adapter().validate_json(line)
        except ValidationError as error:
            INVALID.append(f"{error}\n{line.decode()}")

    def wait(self) -> None:
        sent = self._timeline.sent[self._run]
        self._log.wait()
        self._timeline.add(Written(self._run, sent))

    async def settled(self) -> None:
        sent = self._timeline.sent[self._run]
        await self._log.settled()
        self._timeline.add(Written(self._run, sent))

    def replace(self, lines: Sequence[bytes]) -> None:
        raise NotImplementedError("no session does")

    def close(self) -> None:
        sent = self._timeline.sent[self._run]
        self._log.close()
        self._timeline.add(Written(self._run, sent))
