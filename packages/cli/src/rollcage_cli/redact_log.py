"""Takes values out of the lines of a run's log, and keeps it one that can be folded and verified.

See `redact`: keys, fingerprints, worlds and the ids of requests are hashes of arguments, so they
are replaced by HMACs of themselves wherever more goes than secrets.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import orjson
from rollcage.heart.log import chained

from rollcage_cli.output import escape_json
from rollcage_cli.redact import Redaction

__all__ = ["LogRedaction", "chained_anew"]

Event = dict[str, Any]


class LogRedaction(Redaction):
    """What is taken out of one log; see `Redaction`."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        values: bool,
        key: bytes,
        get_blob: Callable[[str], bytes],
    ) -> None:
        super().__init__(names, values=values, key=key, get_blob=get_blob)
        self._blocks: set[int] = set()  # their outcomes are worlds

    def read(self, event: Event) -> None:
        """Learn the values that go: an input stands in its line as it is."""
        super().read({**event, "input": {"value": event["input"]}} if "input" in event else event)

    def __call__(self, event: Event) -> Event:
        """Return the line without them, its hash still to be made."""
        given = {name: value for name, value in event.items() if name != "hash"}
        if given.get("effect") == "branch":
            self._blocks.add(given["step"])
        apart = {*_OF_A_LOG}
        if given.get("step") in self._blocks:
            apart |= {"after", "outcome"}
        elif given.get("outcome", ...) is None:
            apart.add("outcome")
        own = {name: given.pop(name) for name in apart if name in given}
        made = super().__call__(given)
        made.pop("digest", None)  # no line of a log has one
        kept = {name: self._own(name, value) for name, value in own.items()}
        self.redacted = self.redacted or kept != own or bool(self._names or self._all)
        return made | kept

    def _own(self, name: str, value: Any) -> Any:
        """A field that lines of logs have, and events of a trace have not, or in another form."""
        if name == "input":
            return self._input({"value": value})["value"]
        if name == "waits":
            return self._text(value) if isinstance(value, str) else value
        if name == "once":
            word, *rest = value
            return [word, *(self._text(each) if isinstance(each, str) else each for each in rest)]
        if name == "error" and isinstance(value, dict):
            return self._error(cast("dict[str, Any]", value))
        if name == "outcome" and value is not None and (self._names or self._all):
            return self._of_block(value)
        return value

    def _of_block(self, outcome: Event) -> Event:
        """How a block ended: its value is a world."""
        changed = dict(outcome)
        if isinstance(outcome.get("value"), str):
            changed["value"] = self._pseudonym(outcome["value"])
        if outcome.get("error"):
            changed["error"] = self._error(outcome["error"])
        return changed

    def _rename(self, event: Event) -> Event:
        """Replace the hashes from which arguments could be guessed; equal ones stay equal."""
        changed = dict(event)
        if "key" in event:
            changed["key"] = self._pseudonym(event["key"])
        for name in ("id", "approval"):  # the id of an attempt is random
            if event.get(name) and event["event"] != "attempt":
                changed[name] = self._another_id(event[name])
        if "fingerprint" in event:
            changed["fingerprint"] = self._pseudonym(event["fingerprint"])
        if event.get("branch", "")[:1] == "#":
            changed["branch"] = f"#{self._pseudonym(event['branch'][1:])}"
        return changed

    def _another_id(self, request: str) -> str:
        """The id of a request for approval, as long as it was."""
        made = hmac.new(self._key, b"rollcage export" + request.encode(), "sha256").hexdigest()
        return made[: len(request)]


_OF_A_LOG: Final = ("error", "input", "once", "waits")


def chained_anew(events: Iterable[Event]) -> list[bytes]:
    """Return lines in a new chain; what a terminal might act on is escaped in them."""
    parts: Any = (
        orjson.Fragment(escape_json(orjson.dumps(event).decode()).encode()) for event in events
    )
    return chained(parts)
