"""Remove values from the lines of a run's log, and keep the log readable and verifiable.

The rest must not reveal the removed values: a key is a hash of the arguments, and a short value
could be guessed from it. So if more is removed than the tags of secrets (HMACs, which can't be
guessed from without the store's key), keys, fingerprints, worlds and the ids of requests are
replaced by HMACs of themselves.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import orjson
from rollcage.errors import StoreError
from rollcage.trace import TAG
from rollcage.trace.chain import chained
from rollcage_views import items_of, mapping_of, pairs_of, tag_of

from rollcage_cli.output import escape_json

__all__ = ["Redaction", "chained_anew"]

_REDACTED: Final = {TAG: "redacted"}
_TEXT: Final = "<redacted>"
_SHORTEST: Final = 4  # minimal length of a text that is searched for quotes

Event = dict[str, Any]


class Redaction:
    """The redaction of one run.

    Args:
        names: arguments to remove, and every field with such a name.
        values: False removes all arguments and results.
        key: the key of the HMACs that replace keys, fingerprints and worlds.
        get_blob: returns a large value; raises StoreError if it can't.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        values: bool,
        key: bytes,
        get_blob: Callable[[str], bytes],
    ) -> None:
        self.redacted = False  # whether anything was removed so far
        self._names = frozenset(names)
        self._all = not values
        self._key = key
        self._get_blob = get_blob
        self._blocks: set[int] = set()  # steps whose outcomes are worlds
        self._quotes: dict[
            str, set[str]
        ] = {}  # values to be found in texts, by their first letters

    def read(self, event: Event) -> None:
        """Learn the removed values, so that quoting texts can be cut: for each line."""
        if self._names and not self._all:
            for part in _parts(event):
                self._learn(part, named=False)

    def __call__(self, event: Event) -> Event:
        """Return the redacted line, with its hash still to be computed."""
        before = {name: value for name, value in event.items() if name != "hash"}
        if before.get("effect") == "branch":
            self._blocks.add(before["step"])
        event = {name: self._field(name, value, before) for name, value in before.items()}
        if self._names or self._all:
            is_block = before.get("step") in self._blocks
            gone = _OF_UNDO - {"after"} if is_block else _OF_UNDO
            event = {name: value for name, value in event.items() if name not in gone}
            event = self._rename(event)
        self.redacted = self.redacted or event != before or bool(self._names or self._all)
        return event

    def _field(self, name: str, value: Any, event: Event) -> Any:
        if name in ("drift", "reason", "waits") and isinstance(value, str):
            return self._text(value)
        if name in ("before", "plan") or (name == "input" and not self._all):
            return self._value(value)
        if name == "input":
            return _REDACTED
        if name == "args":
            return self._arguments(value)
        if name == "user_input" and value:
            return self._user_input(value)
        if name == "gate" and isinstance(value, list):
            said = cast("list[Event]", value)
            return [{of: self._field(of, each[of], event) for of in each} for each in said]
        if name == "verdict" and value:
            return self._verdict(value)
        if name == "error" and isinstance(value, dict):
            return self._error(cast("Event", value))
        if name == "undeclared" and value:  # paths and hosts, which arguments may have named
            return [self._text(each) for each in value]
        if name == "once":
            word, *rest = value
            return [word, *(self._text(each) if isinstance(each, str) else each for each in rest)]
        if name == "outcome" and value is not None:
            return self._outcome(value, is_block=event.get("step") in self._blocks)
        return value

    # --- values ----------------------------------------------------------------------------------

    def _user_input(self, given: Any) -> Any:
        """Redact the user input: texts, or a blob of them."""
        if self._all:
            return [_TEXT]
        kept: Any = self._value(given)
        return [_TEXT] if tag_of(kept) == "redacted" else kept

    def _arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._all:
            return dict.fromkeys(arguments, _REDACTED)
        found: dict[str, Any] = self._value(arguments)
        return found

    def _outcome(self, outcome: Event, *, is_block: bool) -> Event:
        changed = dict(outcome)
        if is_block:  # its value is a world
            if isinstance(outcome.get("value"), str) and (self._names or self._all):
                changed["value"] = self._pseudonym(outcome["value"])
            if outcome.get("error"):
                changed["error"] = self._error(outcome["error"])
            return changed
        if "value" in outcome:
            changed["value"] = _REDACTED if self._all else self._value(outcome["value"])
        if outcome.get("error"):
            changed["error"] = self._error(outcome["error"])
        if outcome.get("lossy"):
            changed["lossy"] = self._text(outcome["lossy"])
        if outcome.get("drift"):  # its path names fields of the value, possibly keys of a dict
            drift = outcome["drift"]
            texts = {field: self._text(drift[field]) for field in ("path", "reason")}
            changed["drift"] = drift | texts
        if changed != outcome and outcome["status"] == "ok":  # never to be taken for the value
            changed["lossy"] = changed.get("lossy") or "redacted by an export"
            changed.pop("typed", None)
        return changed

    def _error(self, error: Event) -> Event:
        if self._all:
            return {"type": error.get("type"), "message": _TEXT}
        found: Event = self._value(error)
        if found != error:
            found.pop("args", None)  # otherwise the exception would restore them
        return found

    def _verdict(self, verdict: Event) -> Event:
        words = {
            name: self._text(verdict[name]) for name in ("reason", "remedy") if name in verdict
        }
        shadow = verdict.get("shadow")
        return verdict | words | ({"shadow": self._verdict(shadow)} if shadow else {})

    def _text(self, text: str) -> str:
        return _TEXT if self._all else self._without_quotes(text)

    def _value(self, encoded: Any) -> Any:
        """Redact a value: secrets and named fields, in plain and in tagged mappings."""
        if isinstance(encoded, str):
            return self._without_quotes(encoded)
        items, mapping = items_of(encoded), mapping_of(encoded)
        if items is not None:
            return [self._value(each) for each in items]
        if mapping is None:
            return encoded
        tag = tag_of(mapping)
        if tag == "secret":
            return _REDACTED
        if tag == "blob":
            held = self._in_blob(mapping)
            return mapping if self._value(held) == held else _REDACTED
        if tag == "dict":
            pairs = [[self._value(k), self._named(k, v)] for k, v in pairs_of(mapping)]
            return mapping | {"value": pairs}
        if tag is not None:
            return {n: v if n in _OF_A_TAG else self._value(v) for n, v in mapping.items()}
        return {name: self._named(name, value) for name, value in mapping.items()}

    def _named(self, name: Any, value: Any) -> Any:
        return _REDACTED if self._is_named(name) else self._value(value)

    def _in_blob(self, encoded: dict[str, Any]) -> Any:
        """Redact a large value; if its content is unknown, as a secret."""
        try:
            return orjson.loads(self._get_blob(str(encoded.get("sha256"))))
        except (StoreError, orjson.JSONDecodeError):
            return {TAG: "secret"}

    # --- quoting texts ---------------------------------------------------------------------------

    def _learn(self, encoded: Any, *, named: bool) -> None:
        if isinstance(encoded, str):
            if named and len(encoded) >= _SHORTEST:
                self._quotes.setdefault(encoded[:_SHORTEST], set()).add(encoded)
            return
        for each in items_of(encoded) or ():
            self._learn(each, named=named)
        mapping = mapping_of(encoded) or {}
        if tag_of(mapping) == "blob":
            self._learn(self._in_blob(mapping), named=named)
        for name, value in pairs_of(mapping):
            self._learn(value, named=named or self._is_named(name))

    def _is_named(self, name: Any) -> bool:
        return isinstance(name, str) and name in self._names

    def _without_quotes(self, text: str) -> str:
        if not self._quotes:
            return text
        kept: list[str] = []
        at = start = 0
        while at <= len(text) - _SHORTEST:
            candidates = self._quotes.get(text[at : at + _SHORTEST], ())
            length = max((len(v) for v in candidates if text.startswith(v, at)), default=0)
            if length:
                kept += text[start:at], _TEXT
                start = at = at + length
            else:
                at += 1
        kept.append(text[start:])
        return "".join(kept)

    # --- names made of hashes --------------------------------------------------------------------

    def _rename(self, event: Event) -> Event:
        """Replace the hashes from which arguments could be guessed; equal ones stay equal."""
        changed = dict(event)
        for name in ("key", "fingerprint"):
            if name in event:
                changed[name] = self._pseudonym(event[name])
        for name in ("id", "approval"):  # the id of an attempt is random
            if event.get(name) and event["event"] != "attempt":
                changed[name] = self._another_id(event[name])
        if event.get("branch", "")[:1] == "#":
            changed["branch"] = f"#{self._pseudonym(event['branch'][1:])}"
        return changed

    def _another_id(self, request: str) -> str:
        """Return another id for a request for approval, of the same length."""
        made = hmac.new(self._key, b"rollcage export" + request.encode(), "sha256").hexdigest()
        return made[: len(request)]

    def _pseudonym(self, digest: str) -> str:
        return hmac.new(self._key, b"rollcage export" + bytes.fromhex(digest), "sha256").hexdigest()


def chained_anew(events: Iterable[Event]) -> list[bytes]:
    """Return lines in a new chain; characters that act on a terminal are escaped."""
    parts: Any = (
        orjson.Fragment(escape_json(orjson.dumps(event).decode()).encode()) for event in events
    )
    return chained(parts)


_OF_A_TAG: Final = frozenset({TAG, "type", "module", "dtype"})  # the names of the value's type
_OF_UNDO: Final = frozenset({"before", "plan", "after", "reversible", "differs"})  # states


def _parts(event: Event) -> Iterator[Any]:
    """Yield the values of a line."""
    yield event.get("args")
    yield event.get("input")
    yield event.get("before")
    for call in event.get("plan") or ():
        yield call.get("args")
    outcome: Event = event.get("outcome") or {}
    yield outcome.get("value")
