"""Read a store of the format `rollcage/1`: a folder with a file for each run, and its blobs.

::

    .rollcage/
    ├── key                 of the HMACs that stand for secrets
    ├── runs/<run>.jsonl    a run: chained lines of JSON; a live writer holds its OS lock
    └── blobs/ab/<sha256>   large values

The files are untrusted. So each line has to follow from the lines before it and to have
the fields that an import uses; names become parts of a path only if they are ids or
digests; and nothing that a file names is imported or run.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson
from rollcage.errors import RunNotFound, StoreError, TraceCorrupt
from rollcage.session.imports import MessagesRead

__all__ = ["MODES", "OldFolder", "OldRun"]

MODES: Final = ("record", "resume")
"""The modes of runs with effects; the others looked at a run, or were imported."""

Event = dict[str, Any]

_FORMAT: Final = "rollcage/1"
_RUN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ROOT: Final = b"\0" * 32  # the hash before the first line
_TAIL: Final = len(b',"hash":""}') + 64  # bytes of a line's hash, at its end
_MOST: Final = 1 << 53  # the limit of any number
_KEY: Final = 32  # bytes of a store's key
_LARGEST: Final = 1 << 30  # bytes of a file

_CALL: Final = {
    "step": int, "kind": str, "name": str, "version": str, "effect": str, "args": dict, "key": str,
    "turn": int, "slot": int,
}  # fmt: skip
_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "run.started": {
        "format": str, "run": str, "name": str, "mode": str, "root": str, "seed": str, "chain": str,
    },
    "step.started": {**_CALL, "fingerprint": str},
    "step.replayed": {**_CALL, "fingerprint": str, "outcome": dict},
    "step.blocked": {**_CALL, "verdict": dict},
    "step.finished": {"step": int, "outcome": dict, "duration": int},
    "step.resolved": {"step": int, "by": str, "outcome": dict},
    "call.refused": {"kind": str, "name": str, "args": dict, "code": str, "reason": str},
    "branch.forked": {"name": str, "turn": int},
    "branch.joined": {"name": str},
    "undo.started": {"of": list},
    "undo.finished": {"of": list, "status": str},
    "run.rewound": {"to": int},
    "run.finished": {"status": str},
    "run.abandoned": {},
    "run.stopped": {},
    "policy.loaded": {},
    "approval.requested": {},
    "approval.decided": {},
}  # fmt: skip
"""By kind of line, the required fields; all have `time`."""

_SOMETIMES: Final[Mapping[str, tuple[type, ...]]] = {
    "source": (str, type(None)), "within": (str,), "actor": (str,), "redacted": (bool,),
    "input": (dict, type(None)), "branch": (str,), "agent": (str,), "call_id": (str,),
    "parent": (int, type(None)), "undoes": (list, type(None)), "verdict": (dict, type(None)),
    "plan": (list, type(None)), "before": (dict, type(None)), "after": (dict, list, type(None)),
    "labels": (list, type(None)), "error": (dict, type(None)), "incomplete": (bool,),
}  # fmt: skip
"""Optional fields of a line, with their types."""

_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": (*MODES, "offline", "verify", "imported", "fork"), "kind": ("tool", "model"),
    "effect": ("pure", "read", "write", "scope"), "chain": ("effects", "all"),
}  # fmt: skip
_OUTCOMES: Final = ("ok", "error", "unknown", "not_started")


class OldRun(NamedTuple):
    """The first line of a run.

    Attributes:
        run: its id.
        name: the job's name.
        mode: see `MODES`.
        source: the run that it continues, if there is one.
        within: the run of the enclosing session; empty if there was none.
    """

    run: str
    name: str
    mode: str
    source: str | None
    within: str


class OldFolder:
    """A folder of runs; it is only read.

    Args:
        root: the folder.

    Raises:
        StoreError: there is no such folder, or there are no runs in it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        if not (self.root / "runs").is_dir():
            raise StoreError(
                f"{self.root} is not a store of {_FORMAT}: it has no folder `runs`. A store in a "
                f"database is copied into a folder first, by the version that wrote it"
            )

    def runs(self) -> list[str]:
        """Return the ids of all runs, the oldest first.

        Raises:
            StoreError: the folder can't be read.
        """
        try:
            names = [path.name for path in (self.root / "runs").iterdir()]
        except OSError as error:
            raise StoreError(f"{self.root} can't be read: {error.strerror}") from None
        ids = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
        return sorted(run for run in ids if _RUN.fullmatch(run))

    def info(self, run: str) -> OldRun:
        """Return the content of a run's first line.

        Raises:
            RunNotFound: there is no such run.
            TraceCorrupt: the first line is not valid.
            StoreError: the run can't be read.
        """
        path = self._path(run)
        with _opened(path) as file:
            line = file.readline(_LARGEST)
        first = next(_events(line[: line.rfind(b"\n") + 1], str(path), run), None)
        if first is None:
            raise TraceCorrupt(str(path), 1, "the run has no line")
        within = first.get("within", "")
        return OldRun(run, first["name"], first["mode"], first.get("source"), within)

    def read(self, run: str) -> list[Event]:
        """Return the events of a run, after checking all of them.

        Bytes after the last newline are an interrupted write, and never counted.

        Raises:
            RunNotFound: there is no such run.
            TraceCorrupt: a line breaks the chain, or lacks a required field; the error names it.
            StoreError: the run can't be read, or is in use.
        """
        path = self._path(run)
        with _opened(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"run {run} is being written by a session: import it once that has ended"
                ) from None
            except OSError as error:
                raise StoreError(
                    f"{path} can't be locked ({error.strerror}), and a session may be writing "
                    f"it: copy the folder to a local disk, and import that"
                ) from None
            data = file.read(_LARGEST)
        return list(_events(data[: data.rfind(b"\n") + 1], str(path), run))

    def blob(self, digest: str) -> bytes:
        """Return a large value by its digest.

        Raises:
            StoreError: the value is missing, or the digest is invalid.
            TraceCorrupt: the value does not match its digest.
        """
        if type(digest) is not str or _DIGEST.fullmatch(digest) is None:
            raise StoreError(f"{digest!r:.99} is not the name of a large value")
        path = self.root / "blobs" / digest[:2] / digest
        try:
            with _opened(path) as file:
                data = file.read(_LARGEST)
        except RunNotFound:
            raise StoreError(f"the large value {digest} is missing in {self.root}") from None
        if sha256(data).hexdigest() != digest:
            raise TraceCorrupt(str(path), 1, "the value does not match its name")
        return data

    def key(self) -> bytes | None:
        """Return the key of the HMACs that stand for secrets; None if the store has no secrets.

        Raises:
            StoreError: the key can't be read, or is invalid.
        """
        path = self.root / "key"
        try:
            with _opened(path) as file:
                key = file.read(_KEY + 1)
        except RunNotFound:
            return None
        if len(key) != _KEY:
            raise StoreError(f"{path} is not a key of {_KEY} bytes: restore it from a backup")
        return key

    def _path(self, run: str) -> Path:
        if not _RUN.fullmatch(run):
            raise RunNotFound(f"there is no run {run!r:.99} in {self.root}")
        return self.root / "runs" / f"{run}.jsonl"


def _opened(path: Path) -> BinaryIO:
    """Open a file of the store for reading, if its size is moderate.

    Raises:
        RunNotFound: the file does not exist.
        StoreError: the file can't be read, or is too large.
    """
    try:
        # for any kind of file, without waiting
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise RunNotFound(f"there is no {path}") from None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size >= _LARGEST:
        os.close(descriptor)
        raise StoreError(f"{path} is no file of less than {_LARGEST:,} bytes")
    return open(descriptor, "rb")  # noqa: PTH123 - its callers close it


def _events(data: bytes, where: str, run: str) -> Iterator[Event]:
    """Yield the events of whole lines, each after a check."""
    head, messages = _ROOT, MessagesRead()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        head = sha256(b"".join((head, line[:-_TAIL], b"}"))).digest()
        if line[-_TAIL:] != b',"hash":"%b"}' % head.hex().encode():
            raise TraceCorrupt(where, number, "its hash does not follow from the lines before it")
        try:
            event = orjson.loads(line)
            _check(event, run if number == 1 else "")
            if event.get("kind") == "model":
                messages.restore(event)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TraceCorrupt(where, number, f"it is no line of a run: {error}") from None
        yield event


def _check(event: Any, begins: str) -> None:
    """Refuse an event that lacks the fields of its kind.

    Args:
        event: the event.
        begins: the run that it has to begin; empty if it is not the first one.

    Raises:
        ValueError: the event lacks a field.
    """
    if type(event) is not dict or type(event.get("event")) is not str:
        raise ValueError("it belongs to no event")
    kind = event["event"]
    fields = _FIELDS.get(kind)
    if fields is None:
        raise ValueError(f"there is no event {kind!r:.99}")
    if (kind == "run.started") is not bool(begins):
        raise ValueError("a run begins with its one event run.started")
    if begins and (event.get("format"), event.get("run")) != (_FORMAT, begins):
        raise ValueError(f"it does not begin run {begins} in the format {_FORMAT}")
    for name, wanted in (*fields.items(), ("time", int)):
        if type(event.get(name)) is not wanted:
            raise ValueError(f"{name} is missing, or no {wanted.__name__}")
        if wanted is int and not 0 <= event[name] < _MOST:
            raise ValueError(f"{name} counts from 0, and not that far")
    _check_values(event, fields)


def _check_values(event: Event, fields: Mapping[str, type]) -> None:
    """Refuse an event with an invalid value in a required or an optional field."""
    for name, may_be in _SOMETIMES.items():
        if name in event and type(event[name]) not in may_be:
            raise ValueError(f"{name} is no {may_be[0].__name__}")
    for name in fields.keys() & _WORDS.keys():
        if event[name] not in _WORDS[name]:
            raise ValueError(f"{name} is none of {', '.join(_WORDS[name])}")
    for name in fields.keys() & {"key", "fingerprint"}:
        if _DIGEST.fullmatch(event[name]) is None:
            raise ValueError(f"{name} is no digest")
    if "outcome" in fields:
        _check_outcome(event["outcome"])
    if "of" in fields and list(map(type, event["of"])) != [str, int]:
        raise ValueError("`of` is not a run and a step")


def _check_outcome(outcome: Event) -> None:
    status = outcome.get("status")
    if status not in _OUTCOMES:
        raise ValueError(f"the status of an outcome is none of {', '.join(_OUTCOMES)}")
    if status == "error" and type(outcome.get("error")) is not dict:
        raise ValueError("an outcome is an error, but has no error")
