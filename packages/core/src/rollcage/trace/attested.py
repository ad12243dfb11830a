"""The end of a log is attested outside of the log, so that a cut behind a whole line shows.

A chain shows each change but one: a log that was cut behind a whole line has a chain that is
whole, and a resume would make again what the lost lines tell. So the head of a log is kept in the
store, kind `heads`, each time an attempt has ended: after the line that ends it, so that a process
that dies between the two leaves an older head, or none, which the log has too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollcage.errors import TraceCorrupt
from rollcage.trace.chain import HASH

if TYPE_CHECKING:
    from rollcage.trace.store import Store

__all__ = ["HEADS", "attest", "attested_head", "held_to"]

HEADS = "heads"
"""The kind of values that are the heads of logs, by run."""


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
