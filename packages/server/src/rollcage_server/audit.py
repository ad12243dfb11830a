"""The audit log: a chain of values in the store, each stored once and sealed.

The key of a line's value is its number, so of several concurrent writers one stores it, and the
others store the next. It holds the hash of the line before and a seal with the server's key. A
changed or missing line breaks the chain.
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
    """One action, or an attempt at one.

    Attributes:
        number: the number of the line, from 1.
        time: when (Unix, µs).
        who: the name of the principal.
        role: the role that allowed it.
        via: how they were authenticated, with the token or subject.
        action: the action.
        target: its target: a run, a request for approval, an execution.
        outcome: `begun` before it; `done`, `refused` or `failed` afterwards.
        detail: an explanation; no value of a call.
        hash: the hash of the line.
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
        """Return the line for machines."""
        return dataclasses.asdict(self)


class Audit:
    """The audit log of a store.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, who: Principal, role: str, action: str, target: str, outcome: str, detail: str = ""
    ) -> None:
        """Add a line; when this returns, the store has it.

        Raises:
            StoreError: the line was not stored; its action must not be carried out.
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
        """Return the lines, oldest first.

        Args:
            newest: only so many, the newest.

        Raises:
            AuditCorrupt: a line was changed, or is missing.
            StoreError: the lines can't be read.
        """
        there = [*every_key(self._store, _KIND)] if newest is None else []
        last = self._last()  # afterwards, so that lines added meanwhile are included
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
        """Check the whole chain; return the number of lines, and the hash of the last one.

        Only a comparison with an earlier answer, kept elsewhere, shows that lines were cut off the
        end.

        Args:
            number: the number of the last line at that time; 0 for none.
            head: its hash at that time.

        Raises:
            AuditCorrupt: as in `lines`; or that line is missing, or another one.
        """
        found = self.lines()
        if number > len(found):
            raise AuditCorrupt(
                f"the audit log was cut: it had {number} lines, {len(found)} are left"
            )
        if number and found[number - 1].hash != head:
            raise AuditCorrupt(f"line {number} of the audit log was replaced")
        return len(found), found[-1].hash if found else _START

    def export(self) -> Iterator[bytes]:
        """Yield all lines as JSON, a line each.

        Raises:
            AuditCorrupt: as in `lines`.
        """
        for line in self.lines():
            yield orjson.dumps(line.as_data()) + b"\n"

    def _last(self) -> int:
        """Return the number of the last line; the cost hardly grows with the log."""
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
    """Return a text that UTF-8 can hold, cut to a moderate length."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()


def _key(number: int) -> str:
    return f"{number:012d}"
