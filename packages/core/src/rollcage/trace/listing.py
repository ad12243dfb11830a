"""List runs from the first and last line of each log.

There is no index, so a list can't be out of date, damaged or lost, and beginning or ending a
session writes nothing for it. No session reads a list.
"""

from __future__ import annotations

import dataclasses
import os
import unicodedata
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import orjson

from rollcage.errors import RunNotFound
from rollcage.fingerprint.identity import jcs
from rollcage.trace.chain import FORMAT
from rollcage.trace.keys import job_key
from rollcage.trace.run import ENDS
from rollcage.trace.seal import StoreSeal
from rollcage.trace.store import Ends, Store, open_store

__all__ = ["RunInfo", "all_runs", "list_runs", "newest_run", "run_info"]

Where = str | os.PathLike[str] | Store

_PAGES: Final = (50, 500, 5000)  # runs that are asked for at once: a list may be cut short early
_SOME: Final = 64  # last lines in which the end of the last attempt is looked for at first
_ATTEMPT: Final = b'{"event":"attempt",'
_FORKED: Final = b'{"event":"forked",'
_ENDS: Final = tuple(b'{"event":"%b",' % kind.encode() for kind in ENDS)


@dataclasses.dataclass(frozen=True, slots=True)
class RunInfo:
    """Describe a run in a list.

    Attributes:
        run: the id.
        name: the job.
        begun: when the run began (Unix, µs); of a copy, when the original began.
        status: how the last attempt ended: `ok`, `error`, `halted`, `paused`, `partial`, `undone`
            or `abandoned`; None: not ended, because it is live or was killed; `damaged`: the first
            or last line can't be read.
        ended: when the last attempt ended (Unix, µs); None if unknown.
        attempts: how many attempts there were.
        waits: the outside event for which a paused run waits, if stated.
        origin: the run from which this run was forked, or goes on; empty without one.
        fork: `dry` or `live`, for a fork.
        actor: the person for whom the run acts, if stated.
        given: the recorded input; None without one, or after pruning.
        digest: the digest of the input, after pruning.
        imported: the original format of an imported run; empty for a run recorded here.
        last: the kind of the last line; `held`: a copy; `gone`: the run goes on in another store;
            `pruned`: the other lines were removed.
    """

    run: str
    name: str
    begun: int
    status: str | None = None
    ended: int | None = None
    attempts: int = 0
    waits: str = ""
    origin: str = ""
    fork: str = ""
    actor: str = ""
    given: Any = None
    last: str = ""
    digest: str = ""
    imported: str = ""

    @property
    def input(self) -> str:
        """Return the digest of the input; empty without one. All runs of a job share the digest."""
        return self.digest if self.given is None else sha256(jcs(self.given)).hexdigest()

    @property
    def job(self) -> str:
        """Return the key of the job's pointer in the store, kind `names`."""
        return f"{self.name}\n{self.input}" if self.input else self.name


def list_runs(
    store: Where,
    *,
    name: str | None = None,
    status: str | None = None,
    since: int | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> list[RunInfo]:
    """Return runs, the newest first: runs of a job in the order in which they began.

    Args:
        store: a folder, a URL or a `Store`.
        name: only runs of this job.
        status: only runs with this status; `unfinished`: only runs without one.
        since: only runs begun at this time or later (Unix, µs).
        before: only runs begun before this time (Unix, µs).
        limit: the greatest number of runs.

    Raises:
        StoreError: the store can't be read.
    """
    found: list[RunInfo] = []
    if limit is not None and limit <= 0:
        return found
    for info in all_runs(store):
        if (
            (name is None or info.name == name)
            and (status is None or (info.status or "unfinished") == status)
            and (since is None or info.begun >= since)
            and (before is None or info.begun < before)
        ):
            found.append(info)
            if len(found) == limit:
                break
    return found


def all_runs(store: Where, behind: str = "") -> Iterator[RunInfo]:
    """Yield all runs of a store, in the order of `list_runs`.

    Args:
        store: a folder, a URL or a `Store`.
        behind: the id of a run: only runs behind it.
    """
    opened = open_store(store)
    pages = iter(_PAGES)
    page, last = next(pages), behind
    while ends := opened.runs(last, page):
        for each in ends:
            yield _info(opened, each)
        last, page = ends[-1].run, next(pages, _PAGES[-1])


def run_info(store: Where, run: str) -> RunInfo:
    """Return the description of one run.

    Raises:
        RunNotFound: there is no such run.
        StoreError: the run can't be read.
    """
    opened = open_store(store)
    return _info(opened, opened.ends(run))


def newest_run(store: Where, name: str, input: Any = None) -> RunInfo | None:  # noqa: A002 - as in `Session`
    """Return the newest run of a job; None without one.

    Args:
        store: a folder, a URL or a `Store`.
        name: the name of the job.
        input: the input, as given to `Session`.
    """
    opened = open_store(store)
    name = unicodedata.normalize("NFC", name)  # one name, in any Unicode form
    seen = opened.get("names", job_key(name, input, StoreSeal(opened)))
    return None if seen is None else run_info(opened, seen.decode())


def _info(store: Store, ends: Ends) -> RunInfo:
    try:
        first, last = orjson.loads(ends.first), orjson.loads(ends.last)
        if first["format"] != FORMAT:
            raise ValueError(first["format"])
        info = RunInfo(
            ends.run,
            first.get("name", ""),
            first.get("time", 0),
            origin=first.get("copied", ""),
            fork=first.get("fork", ""),
            actor=first.get("actor", ""),
            given=first.get("input"),
            digest=first.get("digest", ""),
            imported=first.get("imported", {}).get("format", ""),
            last=last["event"],
        )
        if last["event"] in ENDS:
            attempts = last.get("attempts", 1)
        else:
            last, attempts = _last_of(store, ends)
        return dataclasses.replace(
            info,
            status=last.get("status") or None,
            ended=last.get("ended", last.get("time")),
            attempts=attempts,
            waits=last.get("waits", ""),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return RunInfo(ends.run, "", 0, status="damaged")


def _last_of(store: Store, ends: Ends) -> tuple[dict[str, Any], int]:
    """Return the end of the last attempt, from earlier lines, and the number of attempts."""
    try:
        lines = store.read(ends.run, -_SOME)
        if not any(line.startswith(_ATTEMPT) for line in lines):
            lines = store.read(ends.run)
    except RunNotFound:  # it was removed meanwhile
        return {}, 0
    ended: dict[str, Any] = {}
    for line in reversed(lines):
        if line.startswith(_ATTEMPT):
            return ended, orjson.loads(line).get("number", 1)
        if line.startswith(_FORKED):
            return {}, 0
        if not ended and line.startswith(_ENDS):
            ended = orjson.loads(line)
            if "attempts" in ended:
                return ended, ended["attempts"]
    return ended, 0
