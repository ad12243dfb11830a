"""Check ids of runs and keys for every store, make file names of them, and the keys of jobs."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

from rollcage.errors import StoreInvalid
from rollcage.fingerprint.identity import jcs
from rollcage.values.codec import encode
from rollcage.values.hiding import Seal

__all__ = [
    "check_key", "check_run", "file_name", "job_key", "key_of", "own_files", "own_folders",
    "writable",
]  # fmt: skip

own_folders: Final[set[str]] = set()
"""The folders in which this process has opened runs: tools of a workspace leave them alone."""

own_files: Final[set[str]] = set()
"""The files of stores that are single ones. A tool that looks whether a file is one of them does
not open it: to close it would end the locks that SQLite has on it."""

_KIND: Final = re.compile("[a-z][a-z0-9_]{0,39}")
_LONGEST: Final = 1024  # bytes of a key: PostgreSQL's index takes no more than 2,700 of a row
_PLAIN: Final = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,199}")
_ESCAPED: Final = re.compile(rb"[^a-z0-9_.-]|^\.")


def check_run(run: str) -> None:
    """Refuse a text that can't be the id of a run in every store.

    Raises:
        StoreInvalid: it is empty, longer than 200 bytes, or can't be written.
    """
    if not 0 < len(_encoded("the id of a run", run)) <= 200:
        raise StoreInvalid(f"the id of a run has 1 to 200 bytes, not {run[:99]!r}")


def check_key(kind: str, key: str) -> None:
    """Refuse a kind or a key that not every store accepts.

    Raises:
        StoreInvalid: the kind is no short word, or the key is empty, longer than 1,024 bytes, or
            can't be written.
    """
    if _KIND.fullmatch(kind) is None:
        raise StoreInvalid(f"a kind is a short word of lower-case letters, not {kind[:99]!r}")
    if not 0 < len(_encoded("a key", key)) <= _LONGEST:
        raise StoreInvalid(f"a key has 1 to {_LONGEST} bytes, not {key[:99]!r}")


def job_key(name: str, given: Any, seal: Seal) -> str:
    """Return the key of a job's pointer: the name, and a digest of the input, if any.

    Args:
        name: the name of the job.
        given: the input; None without one.
        seal: the seal of the store: an input may hold a secret, whose plain digest could be
            guessed.

    Raises:
        Unencodable: the input holds a value without an encoding.
    """
    if given is None:
        return name
    digest = sha256(jcs(encode(given, seal, path="input"))).hexdigest()
    return f"{name}\n{digest}"


def file_name(key: str) -> str:
    """Return the file name of a key or run: plain, escaped, or a hash if it is long."""
    if _PLAIN.fullmatch(key):
        return key
    data = key.encode()
    name = _ESCAPED.sub(lambda found: b"%%%02x" % ord(found[0]), data).decode()
    return name if len(name) <= 200 else f"~{sha256(data).hexdigest()}"


def key_of(name: str) -> str:
    """Return the key of a file name, unless the name is a hash."""
    return unquote(name)


def writable(text: str) -> str:
    """Replace characters that UTF-8 can't hold by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encoded(what: str, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise StoreInvalid(f"{what} is text, without halves of characters: {text[:99]!r}") from None
    if b"\0" in data:
        raise StoreInvalid(f"{what} has no NUL in it: {text[:99]!r}")
    return data
