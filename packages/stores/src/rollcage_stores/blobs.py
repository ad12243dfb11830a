"""Large values: which ones a log names, and how unused ones are removed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import orjson
from rollcage.errors import RunNotFound, StoreError
from rollcage.trace.listing import all_runs
from rollcage.trace.store import Store

__all__ = ["blob", "blobs_in", "blobs_of", "drop_unused", "keys_of", "put_back"]

_NAMED: Final = b'"$rollcage":"blob"'
_DIGEST: Final = re.compile(rb'"([0-9a-f]{64})"')
_TRASH: Final = "trash"  # the kind of removed values, which can still be put back


def blob(store: Store, digest: str) -> bytes:
    """Return a large value, checked against its digest.

    Raises:
        StoreError: the value is missing, or does not match its digest.
    """
    data = store.get("blobs", digest)
    if data is None:
        raise StoreError(f"the large value {digest} is gone from {store.url}")
    if sha256(data).hexdigest() != digest:
        raise StoreError(f"the large value {digest} in {store.url} is damaged")
    return data


def blobs_in(lines: Iterable[bytes]) -> set[str]:
    """Return the digests of the large values that lines of JSON name."""
    found: set[str] = set()
    for line in lines:
        if _NAMED in line:
            with contextlib.suppress(orjson.JSONDecodeError):
                found.update(_named(orjson.loads(line)))
    return found


def blobs_of(store: Store, lines: Iterable[bytes]) -> Iterator[tuple[str, bytes | StoreError]]:
    """Yield the large values that lines name, directly or through other values, by digest.

    A missing or damaged value comes as its error.
    """
    waiting, seen = blobs_in(lines), set[str]()
    while waiting:
        digest = waiting.pop()
        seen.add(digest)
        try:
            data = blob(store, digest)
        except StoreError as error:
            yield digest, error
            continue
        yield digest, data
        waiting |= blobs_in([data]) - seen


def keys_of(store: Store, kind: str) -> Iterator[str]:
    """Yield all keys of a kind that have a value."""
    after = ""
    while keys := store.keys(kind, after):
        yield from keys
        after = keys[-1]


def drop_unused(store: Store) -> int | None:
    """Remove the large values that no log names; return how many were removed.

    A writer may rely on a stored value before its log names the value. So nothing is removed, and
    None returned, while a run has a live writer. A writer may also begin meanwhile: removed values
    are kept aside until all logs were read once more, and put back if a log names them.

    Raises:
        StoreError: a log can't be read, so its values are unknown.
    """
    put_back(store)
    unused = set(keys_of(store, "blobs"))
    if not unused:
        return 0
    if _is_busy(store):
        return None
    unused -= _named_by_all(store, unused)
    for digest in unused:
        data = store.get("blobs", digest)
        if data is not None:
            store.swap(_TRASH, digest, None, data)
            store.swap("blobs", digest, data, None)
    if _is_busy(store):
        return None if put_back(store, everything=True) else 0
    return len(unused) - put_back(store)


def put_back(store: Store, *, everything: bool = False) -> int:
    """Put back removed large values that a log names after all; return how many.

    Args:
        store: the store.
        everything: put back all of them; otherwise the rest is deleted.
    """
    trash = set(keys_of(store, _TRASH))
    named = trash if everything or not trash else _named_by_all(store, trash)
    for digest in trash:
        data = store.get(_TRASH, digest)
        if data is not None:
            if digest in named:
                store.swap("blobs", digest, None, data)
            store.swap(_TRASH, digest, data, None)
    return len(named)


def _is_busy(store: Store) -> bool:
    """Return whether a run has a live writer: then its last line does not end an attempt."""
    return any(info.last != "ended" and store.is_live(info.run) for info in all_runs(store))


def _named_by_all(store: Store, known: set[str]) -> set[str]:
    """Return the digests that stand anywhere in a log, a claim, or a remaining large value."""
    named: set[str] = set()
    for info in all_runs(store):
        with contextlib.suppress(RunNotFound):  # the run was removed meanwhile
            named |= _digests(store.read(info.run), known)
    for key in keys_of(store, "once"):
        named |= _digests([store.get("once", key) or b""], known)
    waiting = set(named)
    while waiting:  # a value may name other values
        values = ((store.get("blobs", each) or store.get(_TRASH, each) or b"") for each in waiting)
        waiting = _digests(values, known) - named
        named |= waiting
    return named


def _digests(parts: Iterable[bytes], known: set[str]) -> set[str]:
    """Return all possible digests: even a damaged line still holds its digests."""
    return {each.decode() for part in parts for each in _DIGEST.findall(part)} & known


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("$rollcage") == "blob":
            yield str(value.get("sha256"))
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _named(each)
