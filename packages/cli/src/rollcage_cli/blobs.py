"""Which large values a trace holds: those that its lines name, and those named in these in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from rollcage.errors import StoreError
from rollcage.store import Reader
from rollcage.trace import TAG
from rollcage_views import items_of, mapping_of, tag_of

__all__ = ["blobs_in", "blobs_of"]

_NAMED: Final = f'"{TAG}":"blob"'.encode()


def blobs_in(data: bytes) -> set[str]:
    """The digests that are named in lines of JSON; nothing of one that is none."""
    found: set[str] = set()
    for line in data.splitlines():
        if _NAMED in line:
            try:
                found.update(_named(orjson.loads(line)))
            except orjson.JSONDecodeError:
                continue  # `verify` reports it
    return found


def blobs_of(reader: Reader, data: bytes) -> Iterator[tuple[str, bytes | StoreError]]:
    """The large values of a trace with these lines, by digest; an error if it is not there."""
    waiting, seen = blobs_in(data), set[str]()
    while waiting:
        digest = waiting.pop()
        seen.add(digest)
        try:
            held = reader.get_blob(digest)
        except StoreError as error:
            yield digest, error
            continue
        yield digest, held
        waiting |= blobs_in(held) - seen


def _named(value: Any) -> Iterator[str]:
    mapping = mapping_of(value)
    if mapping is not None and tag_of(mapping) == "blob":
        yield str(mapping.get("sha256"))
    for each in items_of(value) or (mapping or {}).values():
        yield from _named(each)
