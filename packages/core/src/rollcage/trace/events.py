"""The lines of a trace: their format, the hash chain, and what checks them.

One event is one line of JSON. The hot path writes them as plain dicts; every line that is written
passes the models in `trace.models`, which a test shows and `rollcage verify` checks. Those are
imported when they are first asked for: recording needs none of them.
"""

from __future__ import annotations

from binascii import hexlify
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["CHAIN_START", "FORMAT", "HASH_TAIL", "event_adapter", "json_schema", "seal_line"]

FORMAT: Final = "rollcage/1"
CHAIN_START: Final = b"\0" * 32
HASH_TAIL: Final = len(b',"hash":""}') + 64  # how many bytes of a line its hash takes, at its end


def seal_line(event: dict[str, Any], previous: bytes) -> tuple[bytes, bytes]:
    """An event's line, newline included, and its hash: the `previous` of the next line."""
    body = orjson.dumps(event)
    digest = sha256(previous + body).digest()
    return b'%b,"hash":"%b"}\n' % (body[:-1], hexlify(digest)), digest


def event_adapter() -> TypeAdapter[Any]:
    """Validates one event."""
    from rollcage.trace.models import adapter  # building models takes 50 ms

    return adapter()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of one line of a trace (draft 2020-12), as published."""
    schema = event_adapter().json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"An event of a trace, format {FORMAT}",
        **schema,
    }
