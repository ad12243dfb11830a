"""Chain the lines of a log: the part that all stores share, and none needs to know.

A line is one JSON object. Its last field is the SHA-256 of the hash before it and of the line
without that field. So a changed, removed, doubled or moved line is found, and the hash of the last
line stands for the whole log: it is the head by which a store refuses a replaced writer.

The chain shows mistakes, accidents and careless edits. It is not a signature: a person who may
write the file can chain a forged log anew.

It shows each change but one: a log that was cut behind a whole line has a chain that is whole, and
a resume would make again what the lost lines tell. So the head of a log is kept in the store, kind
`heads`, each time an attempt has ended: after the line that ends it, so that a process that dies
between the two leaves an older head, or none, which the log has too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import orjson

from rollcage.errors import StoreError, TraceCorrupt
from rollcage.trace.store import Log, Store

__all__ = [
    "FORMAT", "HASH", "HEADS", "ROOT", "Chain", "attest", "attested_head", "chained", "checked",
    "checked_lines", "held_to", "parse", "verify",
]  # fmt: skip

FORMAT: Final = "rollcage/2"
"""The format of the logs written here; the first line of each log has it."""

ROOT: Final = b"0" * 64
"""The head of a log without lines."""

HASH: Final = slice(-67, -3)
"""The place of the hash in a line."""

HEADS: Final = "heads"
"""The kind of values that are the heads of logs, by run."""

_NEWLINE: Final = 10
_TAIL: Final = 76  # bytes of `,"hash":"…"}` and a newline
_OUT: Final = (
    'put the log back from a copy, or begin a new run with replay="off"; until then nothing '
    "resumes this one"
)


class Chain:
    """Chain and append the lines of a log.

    Attributes:
        head: the hash of the last line.
    """

    __slots__ = ("_send", "close", "head", "log", "settled", "wait")

    def __init__(self, log: Log) -> None:
        self.head = ROOT
        self._use(log)

    def _use(self, log: Log) -> None:
        """Append to a log from now on; its methods are bound once, for each line calls them."""
        self.log = log
        self._send = log.append
        self.wait = log.wait
        self.settled = log.settled
        self.close = log.close

    def queue(self) -> None:
        """Let a thread append the lines from now on, so that no event loop waits for a disk."""
        from rollcage.trace.writer import Queued  # only sessions on event loops need it

        self._use(Queued(self.log))

    def append(self, event: dict[str, Any], outcome: bytes | None = None) -> None:
        """Append one event. After an exception, the event counts only if `head` has moved.

        Args:
            event: the line, without its hash.
            outcome: the last field `outcome`, as JSON, if already encoded.

        Raises:
            Fenced, TraceUnwritable, Forked: as `Log.append` does; the line is not on record.
            TypeError: the event has no JSON.
        """
        line = orjson.dumps(event)
        if outcome is not None:
            line = b'%b,"outcome":%b}' % (line[:-1], outcome)
        if _NEWLINE in line:  # in JSON that was made elsewhere
            raise TypeError("a line of a log has no newline in it")
        head = sha256(self.head + line).hexdigest().encode()
        line = b"".join((line[:-1], b',"hash":"', head, b'"}\n'))
        send = self._send
        try:
            send(line)
        except BaseException:
            if self.log.last is line:  # interrupted by a signal, when it was on record already
                self.head = head
            raise
        self.head = head

    def read(self) -> list[dict[str, Any]]:
        """Return all events on record, and become the writer of the next line.

        Raises:
            TraceCorrupt: the log was changed or damaged.
            StoreError: the log has another format, or can't be read.
        """
        return list(self.events())

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of `read` one by one, each checked and none kept."""
        lines = self.log.read()
        self.head = lines[-1][HASH] if lines else ROOT
        return checked(lines, self.log.where)

    def lines(self) -> Iterator[bytes]:
        """Yield all whole lines. After the last, the head is this writer's."""
        self.head = ROOT
        line = b""
        for line in self.log.lines():
            yield line
        if line:
            self.head = line[HASH]


def chained(events: Iterable[dict[str, Any]], head: bytes = ROOT) -> list[bytes]:
    """Return the lines of events, chained behind a head: for `Log.replace`."""
    lines: list[bytes] = []
    for event in events:
        line = orjson.dumps(event)
        head = sha256(head + line).hexdigest().encode()
        lines.append(b'%b,"hash":"%b"}\n' % (line[:-1], head))
    return lines


def parse(lines: list[bytes], where: str) -> list[dict[str, Any]]:
    """Check the lines of a log, and return their events.

    Args:
        lines: all lines, from the first.
        where: the name of the log in errors.

    Raises:
        TraceCorrupt: the lines were changed or damaged.
        StoreError: the log has another format.
    """
    return list(checked(lines, where))


def checked(
    lines: Iterable[bytes], where: str, *, head: bytes = ROOT, before: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, each after checking it and all before it; raises as `parse`.

    Args:
        lines: the lines, or the rest of them.
        where: the name of the log in errors.
        head: the hash of the line before them.
        before: how many lines come before them.
    """
    return (event for event, _ in checked_lines(lines, where, head=head, before=before))


def checked_lines(
    lines: Iterable[bytes], where: str, *, head: bytes = ROOT, before: int = 0
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the events of `checked`, each with its line."""
    loads = orjson.loads
    for number, line in enumerate(lines, before + 1):
        if number == 1:
            _check_format(line, where)
        head = sha256(head + line[:-_TAIL] + b"}").hexdigest().encode()
        if line[-_TAIL:] != b',"hash":"' + head + b'"}\n':
            raise TraceCorrupt(where, number, f"{_damage(line)}; {_OUT}")
        try:
            event: dict[str, Any] = loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceCorrupt(where, number, f"the line is not JSON ({error}); {_OUT}") from None
        yield event, line


def verify(lines: Iterable[bytes], where: str = "the log") -> bytes:
    """Return the head of a log, after checking its chain.

    Raises:
        TraceCorrupt: a line was changed, cut out, added or moved.
    """
    head = ROOT
    for number, line in enumerate(lines, 1):
        head = sha256(b"%b%b}" % (head, line[:-_TAIL])).hexdigest().encode()
        if line[-_TAIL:] != b',"hash":"%b"}\n' % head:
            raise TraceCorrupt(where, number, f"{_damage(line)}; {_OUT}")
    return head


def _damage(line: bytes) -> str:
    if not line.strip():
        return "the line is empty"
    if b"\0" in line:
        return "the line has NUL bytes in it, as files have that lost what a disk had not written"
    if line[-_TAIL : 9 - _TAIL] != b',"hash":"':
        return "the line has no hash at its end"
    return "the line, or one before it, was changed, cut out, added or moved: its hash differs"


def _was_ours(line: bytes, known: str) -> bool:
    """Tell whether the first line of a log of this format says another format since."""
    before = line.replace(f'"format":"{known}"'.encode(), f'"format":"{FORMAT}"'.encode(), 1)
    head = sha256(ROOT + before[:-_TAIL] + b"}").hexdigest().encode()
    return before != line and before.endswith(b',"hash":"' + head + b'"}\n')


def _check_format(line: bytes, where: str) -> None:
    """Refuse a log of another format, which may also have another chain."""
    try:
        event: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceCorrupt(where, 1, f"{_damage(line)}: it is not JSON ({error}); {_OUT}") from None
    known = str(event.get("format")) if isinstance(event, dict) else ""
    if known == FORMAT:
        return
    name, _, version = known.partition("/")
    if _was_ours(line, known):
        raise TraceCorrupt(where, 1, f"its format, {FORMAT}, was changed to {known!r}; {_OUT}")
    if name != "rollcage" or not version:
        raise TraceCorrupt(where, 1, f"the line does not say its format ({FORMAT}); {_OUT}")
    if version == "1":
        raise StoreError(f"{where} has the format rollcage/1: `rollcage import` reads it")
    raise StoreError(
        f"{where} has the format {known[:40]!r}, and this version of rollcage knows {FORMAT}: "
        f"update it (pip install --upgrade rollcage)"
    )


def attested_head(store: Store, run: str) -> bytes | None:
    """Return the head that a run's log had when an attempt ended; None if none has.

    Read it before the log, or while nobody else can write that: else it may be a later one.
    """
    return store.get(HEADS, run)


def attest(store: Store, run: str, head: bytes, seen: bytes | None = None) -> None:
    """Keep the head of a log; all lines up to it have to be on record.

    Args:
        store: where the log is.
        run: the run's id.
        head: the hash of a line of the log.
        seen: the head that is kept so far, as far as the caller knows.

    Raises:
        StoreError: it can't be kept.
    """
    while not store.swap(HEADS, run, seen, head):
        seen = store.get(HEADS, run)


def held_to(lines: Iterable[bytes], head: bytes | None, where: str) -> Iterator[bytes]:
    """Yield the lines of a log, and hold them to the head that is attested.

    Args:
        lines: all of them, from the first.
        head: the attested head; None without one.
        where: what errors call the log.

    Raises:
        TraceCorrupt: the line with that head is not among them.
    """
    every = iter(lines)
    if head is not None:
        number, is_found = 0, False
        for number, line in enumerate(every, 1):  # noqa: B007 - the error names it
            yield line
            if line[HASH] == head:
                is_found = True
                break
        if not is_found:
            raise TraceCorrupt(
                where,
                number,
                f"the log ends here, and went on when its last attempt ended: the line with the "
                f"hash {head[:12].decode(errors='replace')}… is missing, and a resume would make "
                f"again what is lost. Put the log back from a copy, or begin a new run with "
                f'replay="off"; until then nothing resumes this one',
            )
    yield from every
