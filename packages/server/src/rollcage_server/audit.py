"""Who did what: a chain of values in the store, each put there once and sealed.

The value of a line has its number as its key, so that of all who write one at the same time,
one does, and the others write the next. It holds the hash of the line before and a seal with the
server's key. A line that was changed, or that is gone from between, breaks the chain.
"""

from __future__ import annotations

import dataclasses
import hmac
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import orjson
from rollcage import Store
from rollcage.errors import StoreError
from rollcage.trace.store import every_key

from rollcage_server.errors import AuditCorrupt
from rollcage_server.roles import Principal
from rollcage_server.stores import key_of

__all__ = ["Audit", "AuditLine"]

_KIND: Final = "actions"
_FORMAT: Final = "rollcage/action/1"
_START: Final = "0" * 64
_TRIES: Final = 1000
_LONGEST: Final = 2000  # characters of a text in a line


@dataclasses.dataclass(frozen=True, slots=True)
class AuditLine:
    """One thing that somebody did, or tried to.

    Attributes:
        number: of the line, from 1.
        time: when (Unix, µs).
        who: did it.
        role: by which they might.
        via: how they were recognised, and by which token or subject.
        action: what they did.
        target: to what: a run, a request for approval, an execution.
        outcome: `begun` before it is done; `done`, `refused` or `failed` afterwards.
        detail: what there is to say of it; no value of a call.
        hash: of the line.
    """

    number: int
    time: int
    who: str
    role: str
    via: str
    action: str
    target: str
    outcome: str
    detail: str
    hash: str

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return dataclasses.asdict(self)


class Audit:
    """The log of a store.

    Args:
        store: where it is kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, who: Principal, role: str, action: str, target: str, outcome: str, detail: str = ""
    ) -> None:
        """Add a line; when this returns, the store has it.

        Raises:
            StoreError: it is not; what it tells of must not be done.
            AuditCorrupt: the line before it was changed.
        """
        fields = {
            "time": time.time_ns() // 1000, "who": who.name, "role": role,
            "via": f"{who.via}:{who.key}", "action": action, "target": _text(target),
            "outcome": outcome, "detail": _text(detail),
        }  # fmt: skip
        number = self._last()
        for _ in range(_TRIES):
            before = _START if number == 0 else self._line(number)[1]
            number += 1
            document: dict[str, Any] = {"format": _FORMAT, "number": number, "before": before}
            document |= fields
            document["mac"] = self._mac(document)
            if self._store.swap(_KIND, _key(number), None, orjson.dumps(document)):
                return
        raise StoreError("the audit log can't be written: too many others write it")

    def lines(self, *, newest: int | None = None) -> list[AuditLine]:
        """The lines, oldest first.

        Args:
            newest: only so many, the newest.

        Raises:
            AuditCorrupt: one was changed, or is gone from between.
            StoreError: they can't be read.
        """
        there = [*every_key(self._store, _KIND)] if newest is None else []
        last = self._last()  # afterwards: of what others add meanwhile, nothing is missing
        first = 1 if newest is None else max(last - newest + 1, 1)
        before = _START if first == 1 else self._line(first - 1)[1]
        found: list[AuditLine] = []
        for number in range(first, last + 1):
            line, own = self._line(number)
            if line["before"] != before:
                raise AuditCorrupt(f"line {number} of the audit log does not follow the one before")
            before = own
            names = (field.name for field in dataclasses.fields(AuditLine) if field.name != "hash")
            found.append(AuditLine(**{name: line[name] for name in names}, hash=own))
        if any(key > _key(last) for key in there):
            raise AuditCorrupt(f"lines of the audit log are gone: {last + 1} is missing")
        return found

    def check(self, number: int = 0, head: str = "") -> tuple[int, str]:
        """Check the whole chain: how many lines there are, and the hash of the last one.

        That lines were cut off the end shows only to who has kept an earlier answer elsewhere.

        Args:
            number: of the line that was the last one then; 0 for none.
            head: its hash then.

        Raises:
            AuditCorrupt: as in `lines`; or that line is gone, or another one.
        """
        found = self.lines()
        if number > len(found):
            raise AuditCorrupt(
                f"the audit log was cut: it had {number} lines, {len(found)} are left"
            )
        if number and found[number - 1].hash != head:
            raise AuditCorrupt(f"line {number} of the audit log is not the one that it was")
        return len(found), found[-1].hash if found else _START

    def export(self) -> Iterator[bytes]:
        """All lines as JSON, a line each.

        Raises:
            AuditCorrupt: as in `lines`.
        """
        for line in self.lines():
            yield orjson.dumps(line.as_data()) + b"\n"

    def _last(self) -> int:
        """The number of the last line; what that costs hardly grows with the log."""
        if self._store.get(_KIND, _key(1)) is None:
            return 0
        there, beyond = 1, 2
        while self._store.get(_KIND, _key(beyond)) is not None:
            there, beyond = beyond, beyond * 2
        while beyond - there > 1:
            middle = (there + beyond) // 2
            if self._store.get(_KIND, _key(middle)) is None:
                beyond = middle
            else:
                there = middle
        return there

    def _line(self, number: int) -> tuple[dict[str, Any], str]:
        data = self._store.get(_KIND, _key(number))
        try:
            line: dict[str, Any] = orjson.loads(data or b"")
            mac = line.pop("mac").encode()
            fine = hmac.compare_digest(mac, self._mac(line).encode())
            fine = fine and line["format"] == _FORMAT and line["number"] == number
        except (ValueError, TypeError, LookupError, AttributeError):
            fine, line = False, {}
        if not fine:
            raise AuditCorrupt(f"line {number} of the audit log was changed, or is gone")
        return line, sha256(data or b"").hexdigest()

    def _mac(self, line: dict[str, Any]) -> str:
        data = orjson.dumps(line, option=orjson.OPT_SORT_KEYS)
        return hmac.new(key_of(self._store), b"rollcage action" + data, "sha256").hexdigest()


def _text(text: str) -> str:
    """A text that UTF-8 can hold, and not too much of it."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()


def _key(number: int) -> str:
    return f"{number:012d}"
