"""Which of a store's runs is meant: the newest of a job, by what builds on what.

No time is looked at: clocks go back, and two hosts never agree. A run that another one of its job
resumes is older than that one; of those that none resumes, the one that began last is the newest,
and in which order they began is what the store knows.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from types import EllipsisType
from typing import Final

from rollcage.store.protocol import RunInfo

__all__ = ["Wanted", "job_name", "newest_run", "store_option", "without_password"]

_PASSWORD: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^/@:]*):[^/]*@")
_SECRET: Final = ("password", "sslpassword")  # parameters of a URL


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which runs a store is asked for; see `Store.runs`."""

    name: str | None = None
    status: str | None = None
    source: str | None = None
    since: int | None = None
    before: int | None = None

    def begun(self, name: str, source: str | None, time: int) -> bool:
        """Whether a run that began so is one of them, whatever became of it."""
        return (
            (self.name is None or job_name(name) == job_name(self.name))
            and (self.source is None or source == self.source)
            and (self.since is None or time >= self.since)
            and (self.before is None or time < self.before)
        )

    def ended(self, status: str | None) -> bool:
        """Whether a run that ended so, or has not, is one of them."""
        return self.status is None or self.status == (status or "unfinished")


def job_name(name: str) -> str:
    """The name by which a job is known: however its accents were typed, it is one (NFC)."""
    return unicodedata.normalize("NFC", name)


def newest_run(
    runs: Iterable[RunInfo], name: str, of: str | EllipsisType | None = ...
) -> RunInfo | None:
    """The newest run of a job; looking back (`offline`, `verify`) makes none of it.

    Args:
        runs: those of a store, in the order in which they began.
        name: of the job.
        of: the digest of its input, None where it has none; `...`: of whichever input.
    """
    wanted = job_name(name)
    own = [r for r in runs if r.mode in ("record", "resume") and job_name(r.name) == wanted]
    if of is not ...:
        own = [r for r in own if r.input == of]
    resumed = {r.source for r in own}
    leaves = [r for r in own if r.run not in resumed]
    return next(reversed(leaves or own), None)


def store_option(store: object) -> str:
    """What a command line needs to find a store: ` --store URL`, or nothing where it is looked."""
    url = str(getattr(store, "url", ""))  # of what has none, there is nothing to say
    looked = os.environ.get("ROLLCAGE_STORE") or ".rollcage"
    here = not url or _whole(url) == _whole(looked)
    return "" if here else f" --store {shlex.quote(url)}"


def without_password(url: str) -> str:
    """A store's URL as it may be shown; a folder's name as it is."""
    if "://" not in url:
        return url
    place, _, query = url.partition("?")
    shown = _PASSWORD.sub(r"\1@", place)
    kept = [part for part in query.split("&") if part and part.partition("=")[0] not in _SECRET]
    return f"{shown}?{'&'.join(kept)}" if kept else shown


def _whole(url: str) -> str:
    """A URL as it is shown; a folder's name, as an absolute one."""
    return without_password(url) if "://" in url else _absolute(url, os.getcwd())  # noqa: PTH109 - a Path is slow


@functools.lru_cache(maxsize=64)
def _absolute(path: str, folder: str) -> str:
    return str(Path(folder, path))  # each session asks, and making paths takes longer
