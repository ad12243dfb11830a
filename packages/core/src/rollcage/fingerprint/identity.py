"""Compute identities: canonical bytes, keys, worlds, fingerprints. Pure functions (DESIGN §2)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import orjson
import rfc8785

from rollcage.values.survey import CANONICAL, survey

__all__ = [
    "child_world",
    "fingerprint",
    "idempotency_key",
    "jcs",
    "jcs_of_plain",
    "jcs_of_scalars",
    "key_digest",
    "key_head",
    "next_uuid7",
    "next_world",
    "uuid7",
    "world_zero",
]

_SORT: Final = orjson.OPT_SORT_KEYS
_SORT_STRICTLY: Final = _SORT | orjson.OPT_STRICT_INTEGER  # integers of 53 bits, as JCS has them
_LONG: Final = 1 << 14  # bytes
_SCALARS: Final = frozenset({str, bool, type(None), int})
_OCCURRENCE: Final = struct.Struct(">QQ").pack
_OCCURRENCE_AGAIN: Final = struct.Struct(">QQQ").pack


def jcs(value: Any, level: int | None = None) -> bytes:
    """Return canonical JSON of RFC 8785, in UTF-8.

    orjson writes it where its bytes provably equal JCS, the reference library everywhere else.
    `level` is the result of `survey`, if the caller has it already.

    Raises:
        rfc8785.CanonicalizationError: not JSON, or a number or string that JCS can't hold.
    """
    if (survey(value, None) if level is None else level) == CANONICAL:
        try:
            return orjson.dumps(value, option=_SORT)
        except orjson.JSONEncodeError:  # a lone surrogate, or deeper than 254 levels: not for it
            pass
    try:
        return rfc8785.dumps(value)
    except UnicodeEncodeError:  # a key, while it sorts them
        raise rfc8785.CanonicalizationError("input contains non-UTF-8 codepoints") from None


def jcs_of_scalars(values: dict[str, Any]) -> bytes | None:
    """Return the `jcs` of strings, booleans, nulls and integers by ASCII names; None for others."""
    if not _SCALARS.issuperset(map(type, values.values())):
        return None
    try:
        return orjson.dumps(values, option=_SORT_STRICTLY)
    except orjson.JSONEncodeError:  # a large integer, or a lone surrogate
        return None


def jcs_of_plain(values: dict[str, Any]) -> bytes | None:
    """Return the `jcs` of values that are their own encoding; None where that takes more.

    Each value is looked at once, and written once: a conversation is long.
    """
    try:
        return orjson.dumps(values, option=_SORT) if survey(values) == CANONICAL else None
    except (orjson.JSONEncodeError, RecursionError):  # a lone surrogate, or nested too deep
        return None


def key_digest(kind: str, name: str, version: str, canonical_args: bytes) -> bytes:
    """Return the content identity of a call (32 bytes): the hash of its JCS-encoded description.

    `canonical_args` are the JCS bytes of the canonical arguments.
    """
    head = key_head(kind, name, version)
    if len(canonical_args) < _LONG:
        return sha256(head + canonical_args + b"]").digest()
    digest = sha256(head)  # to copy a conversation takes longer than to hash it
    digest.update(canonical_args)
    digest.update(b"]")
    return digest.digest()


@functools.lru_cache(maxsize=4096)
def key_head(kind: str, name: str, version: str) -> bytes:
    """Return the beginning of the description of each call of a contract; see `key_digest`."""
    head = orjson.dumps(["rollcage/1", kind, name, version])  # strings only: JCS by construction
    return head[:-1] + b","


def world_zero(seed: str) -> bytes:
    """Return the world in which a run starts."""
    return sha256(b"rollcage/1 world" + seed.encode()).digest()


def child_world(parent_fingerprint: bytes) -> bytes:
    """Return the world in which the calls of a tool's own body start."""
    return sha256(parent_fingerprint).digest()


def fingerprint(key: bytes, world: bytes, rank: int, slot: int, again: int = 0) -> bytes:
    """Return the causal identity of a step: its key, in its world, at its occurrence.

    The occurrence is `rank`, the number of earlier turns that requested the key in this world, then
    `slot`, the call's place in its turn. Both are known when a call arrives, in any order of the
    calls of a turn. `again` counts the earlier identical calls of the same slot (retries).
    """
    place = _OCCURRENCE_AGAIN(rank, slot, again) if again else _OCCURRENCE(rank, slot)
    return sha256(key + world + place).digest()


def next_world(world: bytes, links: Iterable[bytes]) -> bytes:
    """Return the world after a batch of writes, which may finish in any order.

    Args:
        world: the world before them.
        links: what each adds to it (32 bytes): see `Step.link`.
    """
    return sha256(world + b"".join(sorted(links))).digest()


def idempotency_key(root_run: str, branch: str, step_fingerprint: str, epoch: int = 0) -> str:
    """Return a key that is stable over all resumes of a run, new for a fresh run (64 hex digits).

    `epoch` counts the undos of the run: a key from before an undo must not count for the same call
    made again.
    """
    parts = [root_run, branch, step_fingerprint, *([epoch] if epoch else [])]
    return sha256(orjson.dumps(parts)).hexdigest()


def uuid7(milliseconds: int, random: bytes) -> str:
    """Return a UUIDv7 (RFC 9562 §5.7) from a Unix time in ms and ten random bytes."""
    value = (milliseconds & (2**48 - 1)) << 80 | int.from_bytes(random, "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def next_uuid7(before: str, random: bytes) -> str:
    """Return a greater UUIDv7: the random part is counted up (RFC 9562 §6.2, method 2).

    Args:
        before: a UUIDv7.
        random: the bytes by which the random part grows; few, so that many follow.

    Raises:
        ValueError: `before` is not an id.
    """
    value = int(before.replace("-", ""), 16)
    milliseconds, low = value >> 80, value & (2**62 - 1)
    counted = (value >> 64 & 0xFFF) << 62 | low
    counted += 1 + int.from_bytes(random, "big")
    milliseconds += counted >> 74  # it overflows once in a long while
    high, low = counted >> 62 & 0xFFF, counted & (2**62 - 1)
    return uuid7(milliseconds, (high << 64 | low).to_bytes(10, "big"))
