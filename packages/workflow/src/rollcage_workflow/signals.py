"""Signals: what people and programs send to an execution, from wherever the store is reached."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import orjson
from rollcage.store import Store

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.expressions import is_finite
from rollcage_workflow.holds import prefix_of
from rollcage_workflow.orders import Commands

__all__ = ["Signals"]

_KIND: Final = "signals"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES: Final = 1_000_000


class Signals:
    """The signals of an execution. Each name is sent once: what came first stands.

    Args:
        store: where the execution's runs are kept.
        execution: its id.
    """

    def __init__(self, store: Store, execution: str) -> None:
        self._store = store
        self._execution = execution
        self._prefix = prefix_of(execution)

    def send(self, name: str, data: Any, *, by: str) -> bool:
        """Send one; False where one of this name was sent before, which stands.

        Workers, where there are any, are told to go on with the execution, either way: who sends it
        once more, because it is not known whether it was sent, is heard.

        Raises:
            WorkflowError: it has no such form.
            StoreError: it can't be kept.
        """
        if _NAME.fullmatch(name) is None:
            raise WorkflowError(f"{name!r} can't name a signal: letters, digits, - and _, up to 64")
        if not is_finite(data):
            raise WorkflowError(f"the data of signal {name} is no JSON: NaN and infinity are none")
        try:
            said = orjson.dumps(
                {"execution": self._execution, "name": name, "data": data, "by": by,
                 "time": time.time_ns() // 1000}
            )  # fmt: skip
        except TypeError as error:
            raise WorkflowError(f"the data of signal {name} is no JSON: {error}") from None
        if len(said) > _MOST_BYTES:
            raise WorkflowError(f"the data of signal {name} is longer than {_MOST_BYTES} bytes")
        is_new = self._store.put_once(_KIND, self._key(name), said)
        Commands(self._store).wake(self._execution)
        return is_new

    def read(self, name: str) -> dict[str, Any] | None:
        """What was sent: `data`, `by`, `time` (Unix, µs); None where nothing was.

        Raises:
            WorkflowError: what is there is no signal of this execution.
            StoreError: nobody can tell.
        """
        held = self._store.get(_KIND, self._key(name))
        if held is None:
            return None
        try:
            sent = orjson.loads(held)
            fine = sent["execution"] == self._execution and sent["name"] == name
            found = {"data": sent["data"], "by": str(sent["by"]), "time": int(sent["time"])}
        except (ValueError, TypeError, LookupError):
            fine, found = False, {}
        if not fine:
            raise WorkflowError(f"what is kept as signal {name} of {self._execution!r} is none")
        return found

    def _key(self, name: str) -> str:
        return f"{self._prefix}.{name}"
