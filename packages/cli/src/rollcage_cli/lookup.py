"""The run that a reference names: an id, its beginning or end, `@name`, `latest`, or a file."""

from __future__ import annotations

import contextlib
import difflib
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rollcage import RunInfo, Store, all_runs, list_runs, newest_run, open_store
from rollcage.errors import RunNotFound, StoreInvalid
from rollcage.trace.folder import Folder
from rollcage.trace.recorded import LogTrace, trace_of
from rollcage.trace.store import store_option
from rollcage_views import time_text

from rollcage_cli.errors import RunAmbiguous, UsageError
from rollcage_cli.logfile import LogFile
from rollcage_cli.options import DEFAULT_STORE
from rollcage_cli.output import visible

__all__ = ["Found", "find", "find_kept", "named", "opened"]

_LISTED: Final = 10


class Found(NamedTuple):
    """The chosen run, and its store: for a file, a `LogFile`."""

    store: Store
    run: str

    @property
    def at(self) -> str:
        """The store for a command line; empty for a file."""
        return "" if isinstance(self.store, LogFile) else store_option(self.store)

    def read(self) -> LogTrace:
        """Return its lines."""
        if isinstance(self.store, LogFile):
            return self.store.trace()
        return trace_of(self.store, self.run)

    def blob(self, digest: str) -> bytes:
        """Return a large value.

        Raises:
            StoreError: the value is missing, or does not match its digest.
        """
        from rollcage_stores.blobs import blob  # most commands need none

        return blob(self.store, digest)


def opened(store: str, *, option: str = "--store", needed: bool = False) -> Store:
    """Return the store at a URL; the default store need not exist yet.

    Args:
        store: the URL.
        option: the option that names it.
        needed: whether the default store has to exist, too.

    Raises:
        UsageError: the store does not exist: its name may be wrong.
    """
    own = open_store(store)
    if (needed or store != DEFAULT_STORE) and not _is_there(own):
        raise UsageError(f"there is no store at {named(own, store)}; say where with {option}")
    return own


def named(store: Store, given: str) -> str:
    """Return the display name of a store: a folder as given, a URL without a password."""
    return visible(store.url if "://" in given else given)


def _is_there(store: Store) -> bool:
    """Return whether the folder or file of a store exists; a server reports it itself."""
    if isinstance(store, Folder):
        return Path(store.root).is_dir()
    path = getattr(store, "path", None)
    return not isinstance(path, str) or Path(path).exists()


def find(store: str, reference: str) -> Found:
    """Return the one run that `reference` names.

    Raises:
        RunNotFound: no run matches; the message lists the existing ones.
        RunAmbiguous: more than one run matches.
    """
    if "/" in reference or reference.endswith(".jsonl"):
        return _at_path(Path(reference))
    own = open_store(store)
    if _has(own, reference):
        return Found(own, reference)
    latest = next(all_runs(own), None)
    if latest is None:
        raise RunNotFound(
            f"there are no runs in {named(own, store)}; name their store with --store"
        )
    if reference == "latest":
        return Found(own, latest.run)
    if reference.startswith("@"):
        return Found(own, _of_job(own, reference[1:]).run)
    return Found(own, _by_part(list_runs(own), reference))


def _has(store: Store, run: str) -> bool:
    with contextlib.suppress(RunNotFound, StoreInvalid):  # the text can't be the id of a run
        store.ends(run)
        return True
    return False


def _at_path(path: Path) -> Found:
    """Return the run in a file; a log in a store's folder is the run of that store."""
    if not path.exists():
        raise RunNotFound(f"there is no file {path}")
    root = path.resolve().parent
    if root.name == "logs":
        own = open_store(root.parent)
        if _has(own, path.stem):
            return Found(own, path.stem)
    file = LogFile(path)
    return Found(file, file.run)


def find_kept(store: str, reference: str, to_do: str) -> tuple[Store, str]:
    """Return the store and the id of the one run that `reference` names, for a change.

    Args:
        store: the URL of a store.
        reference: as `find` takes it.
        to_do: the change, in a word.

    Raises:
        UsageError: the reference is a file that is in no store.
    """
    found = find(store, reference)
    if isinstance(found.store, LogFile):
        shown = visible(reference)
        raise UsageError(f"{shown} is a file outside of a store; {to_do} it in its store")
    return found.store, found.run


def _of_job(store: Store, name: str) -> RunInfo:
    """Return the run for the job's next session, or else its newest run, preferably no fork."""
    name = unicodedata.normalize("NFC", name)
    with contextlib.suppress(RunNotFound):
        newest = newest_run(store, name)
        if newest is not None:
            return newest
    so_named = list_runs(store, name=name)
    if so_named:
        return next((info for info in so_named if not info.fork), so_named[0])
    names = sorted({info.name for info in all_runs(store)})
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:_LISTED]
    listed = ", ".join(f"@{visible(each)}" for each in near)
    raise RunNotFound(f"no run is named {visible(name)!r}; there is {listed}")


def _by_part(runs: Sequence[RunInfo], part: str) -> str:
    wanted = part.lower()
    found = [i for i in runs if wanted and (i.run.startswith(wanted) or i.run.endswith(wanted))]
    if not found:
        raise RunNotFound(
            f"no run begins or ends with {visible(part)!r}; `rollcage runs` lists them all "
            f"(a name is written @{visible(part)})"
        )
    if len(found) > 1:
        listed = "".join(
            f"\n  {info.run}  {time_text(info.begun)}  {visible(info.name)}"
            for info in found[:_LISTED][::-1]
        )
        more = f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise RunAmbiguous(f"{visible(part)!r} means {len(found)} runs:{listed}{more}")
    return found[0].run
