"""Signals: messages of people and programs to an execution, through the store."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
from rollcage import Store

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.expressions import is_finite
from rollcage_workflow.holds import job_name, prefix_of
from rollcage_workflow.orders import Commands
from rollcage_workflow.schemas import Shape, invalid, nearest
from rollcage_workflow.state import Execution, execution

__all__ = ["Signals"]

_KIND: Final = "signals"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES: Final = 1_000_000


class Signals:
    """The signals of an execution: by name a queue, from which each wait takes the next one.

    A wait takes the next signal that it accepts, and leaves the others to other waits. A signal
    belongs to the wait that took it: it is stored with the wait's place in the plan, and a repeated
    attempt gets it again.

    Args:
        store: the store of the execution's runs.
        execution: its id.
        keeps: whether a taken signal is gone for other waits. A fork only looks.
    """

    def __init__(self, store: Store, execution: str, *, keeps: bool = True) -> None:
        self._store = store
        self._keeps = keeps
        self._execution = job_name(execution)
        self._prefix = prefix_of(execution)
        self._lock = threading.Lock()
        # by name: by place, the number of the taken signal
        self._taken: dict[str, dict[str, int]] = {}
        self._left: dict[str, list[int]] = {}  # by name, earlier signals that no wait has taken
        self._next: dict[str, int] = {}  # by name, the first number after these

    def send(self, name: str, data: Any, *, by: str, once: str = "") -> bool:
        """Send a signal, after the earlier ones of its name.

        Workers, if there are any, are ordered to continue the execution.

        Args:
            name: the signal's name.
            data: its data: JSON.
            by: the sender.
            once: names this sending: repeated with the same name, it counts once.

        Returns:
            Whether it was sent; False if it was sent before under the same `once`.

        Raises:
            WorkflowError: the signal has another form, no wait of the plan accepts it, or the
                execution is over and takes no signals.
            StoreError: the signal can't be stored.
        """
        if _NAME.fullmatch(name) is None:
            raise WorkflowError(f"{name!r} can't name a signal: letters, digits, - and _, up to 64")
        if not is_finite(data):
            raise WorkflowError(
                f"the data of signal {name} is not JSON: NaN and infinity are not allowed"
            )
        fields = {"execution": self._execution, "name": name, "data": data, "by": by}
        fields |= {"nonce": secrets.token_hex(8)}  # two concurrent sendings are two signals
        fields |= {"time": time.time_ns() // 1000} | ({"once": once} if once else {})
        try:
            written = orjson.dumps(fields)
        except TypeError as error:
            raise WorkflowError(f"the data of signal {name} is not JSON: {error}") from None
        if len(written) > _MOST_BYTES:
            raise WorkflowError(f"the data of signal {name} is longer than {_MOST_BYTES} bytes")
        self._check_takes(name, data, once)
        is_new = self._put(name, written, once)
        Commands(self._store).wake(self._execution)
        return is_new

    def take(
        self, name: str, place: str, accepts: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return a wait's signal: `data`, `by`, `time` (Unix, µs), `number`; None: nothing yet.

        Args:
            name: the signal's name.
            place: the wait's place in the plan, with its round.
            accepts: the JSON Schema of the data; None: any data.

        Raises:
            WorkflowError: the stored document is not a signal of this execution.
            StoreError: the signals can't be read.
        """
        with self._lock:
            taken = self._taken_by(name)
            number = taken.get(place) or self._take_next(name, place, accepts)
        if number is None:
            return None
        sent = self._read(name, number)
        if sent is None:
            raise self._broken(name, number)
        return {"data": sent["data"], "by": str(sent["by"]), "time": int(sent["time"]),
                "number": number}  # fmt: skip

    def _check_takes(self, name: str, data: Any, once: str) -> None:
        """Refuse a signal that no wait will take, unless it was sent before with that `once`."""
        why = _unwanted(execution(self._store, self._execution), name, data)
        if why is None:
            return
        sent = range(1, self._end(name)) if once else ()
        if not any(self._is_once(name, number, once) for number in sent):
            raise WorkflowError(why)

    def _put(self, name: str, written: bytes, once: str) -> bool:
        number = 1 if once else self._end(name)
        while True:
            if once and self._is_once(name, number, once):
                return False
            if self._store.swap(_KIND, self._key(name, number), None, written):
                return True
            if once and self._is_once(name, number, once):
                return False
            number += 1

    def _is_once(self, name: str, number: int, once: str) -> bool:
        sent = self._read(name, number)
        return sent is not None and sent.get("once") == once

    def _end(self, name: str) -> int:
        """Return the first number that was not sent: the numbers have no gaps."""
        known, free = 0, 1
        while self._store.get(_KIND, self._key(name, free)) is not None:
            known, free = free, free * 2
        while free - known > 1:
            middle = (known + free) // 2
            if self._store.get(_KIND, self._key(name, middle)) is None:
                free = middle
            else:
                known = middle
        return free

    def _taken_by(self, name: str) -> dict[str, int]:
        """Return the taken signals by place. They are read once: one attempt runs at a time."""
        known = self._taken.get(name)
        if known is None:
            known = {}
            self._taken[name], self._left[name], self._next[name] = known, [], 1
            for number in self._new(name):
                held = self._store.get(_KIND, self._claim(name, number))
                if held is None:
                    self._left[name].append(number)
                else:
                    known[self._of_this(name, number, held)["place"]] = number
        return known

    def _new(self, name: str) -> Iterator[int]:
        """Yield the numbers of signals that have come since the last look."""
        while self._store.get(_KIND, self._key(name, self._next[name])) is not None:
            self._next[name] += 1
            yield self._next[name] - 1

    def _take_next(self, name: str, place: str, accepts: Mapping[str, Any] | None) -> int | None:
        """Take the first signal that a wait accepts; return its number."""
        left = self._left[name]
        left += self._new(name)
        for number in left:
            sent = self._read(name, number)
            if sent is None:
                raise self._broken(name, number)
            if accepts is not None and invalid(sent["data"], Shape.of(accepts)) is not None:
                continue
            fields = orjson.dumps({"execution": self._execution, "name": name, "place": place})
            if self._keeps and not self._store.swap(_KIND, self._claim(name, number), None, fields):
                message = f"somebody else takes the signals of {self._execution!r} right now"
                raise WorkflowError(message)
            self._taken[name][place] = number
            left.remove(number)
            return number
        return None

    def _read(self, name: str, number: int) -> dict[str, Any] | None:
        held = self._store.get(_KIND, self._key(name, number))
        return None if held is None else self._of_this(name, number, held)

    def _of_this(self, name: str, number: int, held: bytes) -> dict[str, Any]:
        try:
            fields: dict[str, Any] = orjson.loads(held)
            if fields["execution"] == self._execution and fields["name"] == name:
                return fields
        except (ValueError, TypeError, LookupError):
            pass
        raise self._broken(name, number)

    def _broken(self, name: str, number: int) -> WorkflowError:
        message = f"signal {name}, number {number}, of {self._execution!r} is damaged in the store"
        return WorkflowError(message)

    def _key(self, name: str, number: int) -> str:
        return f"{self._prefix}.{name}.{number:08d}"

    def _claim(self, name: str, number: int) -> str:
        return f"{self._key(name, number)}.taken"


def _unwanted(found: Execution, name: str, data: Any) -> str | None:
    """Return why no wait of an execution will take a signal; None: one may."""
    if found.is_over and not found.error:  # a failed execution may be run once more
        return (
            f"the execution {found.id!r} is over: it is {found.status}, and takes no signal {name}"
        )
    if found.signals is None:  # its plan is not known yet
        return None
    accepted = found.signals.get(name)
    if accepted is None:
        near = nearest(name, found.signals)
        return f"no wait of the plan {found.plan!r} takes a signal {name!r}{near}"
    reasons = [invalid(data, Shape.of(schema)) for schema in accepted]
    if None in reasons:
        return None
    return f"the plan {found.plan!r} does not accept this signal {name}: {reasons[0]}"
