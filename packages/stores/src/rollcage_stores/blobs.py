"""Large values: which ones a log names, and removing those that none does."""

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
_TRASH: Final = "trash"  # the kind of values that are about to go, in case somebody needs them yet


def blob(store: Store, digest: str) -> bytes:
    """Return a large value, found to be what its digest says.

    Raises:
        StoreError: it is not there, or is another.
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
    """Yield the large values that lines name, and those that these name, by digest.

    One that is not there, or is damaged, comes as the error that says so.
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
    """Remove the large values that no log names; return how many went.

    A writer counts on a value that it found there before it has noted so. So nothing is removed,
    and None returned, while a run has a live writer. Of the others one may begin meanwhile: what
    goes is kept aside until all logs were read once more, and comes back where it is named by then.

    Raises:
        StoreError: a log can't be read, so that nobody knows what it names.
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
        store: where they are.
        everything: all of them; otherwise the rest is gone for good.
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
    """Whether a run has a live writer: each has a last line that ends no attempt."""
    return any(info.last != "ended" and store.is_live(info.run) for info in all_runs(store))


def _named_by_all(store: Store, known: set[str]) -> set[str]:
    """Which of these digests stand anywhere in a log, a claim, or a large value that stays."""
    named: set[str] = set()
    for info in all_runs(store):
        with contextlib.suppress(RunNotFound):  # it was removed meanwhile
            named |= _digests(store.read(info.run), known)
    for key in keys_of(store, "once"):
        named |= _digests([store.get("once", key) or b""], known)
    waiting = set(named)
    while waiting:  # what is in one may name others
        values = ((store.get("blobs", each) or store.get(_TRASH, each) or b"") for each in waiting)
        waiting = _digests(values, known) - named
        named |= waiting
    return named


def _digests(parts: Iterable[bytes], known: set[str]) -> set[str]:
    """Whatever may be a digest: a line that is damaged still holds what it names."""
    return {each.decode() for part in parts for each in _DIGEST.findall(part)} & known


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("$rollcage") == "blob":
            yield str(value.get("sha256"))
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _named(each)
