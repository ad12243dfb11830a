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

__all__ = [
    "CHAIN_START", "FORMAT", "HASH_TAIL", "LOG_FORMAT", "event_adapter", "json_schema", "seal_line",
]  # fmt: skip

FORMAT: Final = "rollcage/1"
LOG_FORMAT: Final = "rollcage/2"
CHAIN_START: Final = b"\0" * 32
HASH_TAIL: Final = len(b',"hash":""}') + 64  # how many bytes of a line its hash takes, at its end


def seal_line(event: dict[str, Any], previous: bytes) -> tuple[bytes, bytes]:
    """An event's line, newline included, and its hash: the `previous` of the next line."""
    body = orjson.dumps(event)
    digest = sha256(previous + body).digest()
    return b'%b,"hash":"%b"}\n' % (body[:-1], hexlify(digest)), digest


def event_adapter(format_: str = FORMAT) -> TypeAdapter[Any]:
    """Validates one event of a format: `rollcage/1`, or `rollcage/2` for the log of a run."""
    if format_ == LOG_FORMAT:
        from rollcage.trace.log_models import adapter  # building models takes 50 ms
    else:
        from rollcage.trace.models import adapter

    return adapter()


def json_schema(format_: str = FORMAT) -> dict[str, Any]:
    """The JSON Schema of one line of a trace (draft 2020-12), as published."""
    schema = event_adapter(format_).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"An event of a trace, format {format_}",
        **schema,
    }
