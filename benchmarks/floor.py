"""Measure the floor: straight-line code that does only what a recorded write can't avoid.

It validates arguments into canonical bytes, makes three hashes (key, fingerprint, next world), and
writes two event lines, each dumped, chained by its hash and handed to the kernel. It has no rule,
lock, matching, context, turn or check: nobody who records as much can be faster, and nobody could
use it.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

import orjson
from pydantic import create_model

from benchmarks.timing import WARM_UP, cpu_per_call
from benchmarks.workload import Mail, send_mail

_SORT = orjson.OPT_SORT_KEYS
_Parameters = create_model(
    "send_mail",
    to=(str, ...),
    subject=(str, ...),
    body=(str, ...),
    priority=(int, 1),
    urgent=(bool, False),
)


class Floor:
    """Write a log as the core writes it, without the core."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._validate = _Parameters.__pydantic_validator__.validate_python
        self._dump = _Parameters.__pydantic_serializer__.to_python
        self._head = bytes(32)
        self._world = bytes(32)
        self._step = 0

    def write(self, arguments: Mail) -> str:
        """Record one write call."""
        model = self._validate(arguments)
        canonical = orjson.dumps(self._dump(model, mode="json"), option=_SORT)
        key = sha256(b'["rollcage/2","tool","send_mail","",' + canonical + b"]").digest()
        fingerprint = sha256(key + self._world + bytes(16)).digest()
        self._step = step = self._step + 1
        body = orjson.dumps(
            {
                "event": "step",
                "step": step,
                "name": "send_mail",
                "effect": "write",
                "key": key.hex(),
                "args": orjson.Fragment(canonical),
                "branch": "",
                "start": step - 1,
                "pos": step - 1,
                "turn": step,
                "slot": 0,
                "fingerprint": fingerprint.hex(),
                "time": time.time_ns() // 1000,
            }
        )
        chained = sha256(self._head + body)
        line = b'%b,"hash":"%b"}\n' % (body[:-1], chained.hexdigest().encode())
        os.write(self._descriptor, line)
        began = time.perf_counter_ns()
        value = send_mail(**model.__dict__)
        ended = time.perf_counter_ns()
        body = orjson.dumps(
            {
                "event": "outcome",
                "step": step,
                "duration": (ended - began) // 1000,
                "outcome": {"status": "ok", "value": value},
            }
        )
        self._world = sha256(self._world + fingerprint).digest()
        chained = sha256(chained.digest() + body)
        self._head = chained.digest()
        line = b'%b,"hash":"%b"}\n' % (body[:-1], chained.hexdigest().encode())
        os.write(self._descriptor, line)
        return value

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._descriptor)


def write(calls: int, folder: Path) -> dict[str, float]:
    """Measure the CPU (µs) and bytes of one write."""
    path = folder / "floor.jsonl"
    cpu = cpu_per_call(Floor(path).write, calls)
    return {"cpu_us": cpu, "bytes": path.stat().st_size / (WARM_UP + calls)}
