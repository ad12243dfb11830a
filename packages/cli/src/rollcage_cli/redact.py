"""Takes values out of a trace's events, and keeps the trace one that verifies.

What is left must not tell what was taken out: a key is a hash of the arguments, and a short value
could be guessed from it. So where more goes than the tags of secrets (HMACs, which nobody without
the store's key can guess from), keys, fingerprints and worlds are replaced by HMACs of themselves.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import orjson
from rollcage.errors import StoreError
from rollcage.trace import CHAIN_START, TAG, seal_line
from rollcage_views import items_of, mapping_of, pairs_of, tag_of

from rollcage_cli.output import escape_json

__all__ = ["Redaction", "sealed"]

_REDACTED: Final = {TAG: "redacted"}
_TEXT: Final = "<redacted>"
_NESTED: Final = re.compile("#([0-9a-f]{64})")  # a step's fingerprint, in the name of a branch
_MAX_64: Final = 2**64 - 1
_SHORTEST: Final = 4  # characters from which on a text that quotes a value is found

Event = dict[str, Any]


class Redaction:
    """What is taken out of one run.

    Args:
        names: arguments to take out, wherever something has that name.
        values: False takes out all arguments and results.
        key: of the HMACs that replace keys, fingerprints and worlds.
        get_blob: gives a large value; it raises StoreError where it can't.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        values: bool,
        key: bytes,
        get_blob: Callable[[str], bytes],
    ) -> None:
        self.redacted = False  # whether anything was taken out so far
        self._names = frozenset(names)
        self._all = not values
        self._key = key
        self._get_blob = get_blob
        self._fingerprints: dict[str, str] = {}  # as they were: as they are written
        self._approvals: dict[str, str] = {}  # ids of requests: the same
        self._quotes: dict[
            str, set[str]
        ] = {}  # values to be found in texts, by their first letters

    def read(self, event: Event) -> None:
        """Learn the values that go, so that texts which quote them can be cut: for each event."""
        if self._names and not self._all:
            for part in _parts(event):
                self._learn(part, named=False)

    def __call__(self, event: Event) -> Event:
        """The event without them, its hash still to be made."""
        event = {name: value for name, value in event.items() if name != "hash"}
        before = event
        if "args" in event:
            event = event | {"args": self._arguments(event["args"])}
        if event.get("input"):
            event = event | {"input": self._input(event["input"])}
        if event.get("user_input"):
            event = event | {"user_input": self._user_input(event["user_input"])}
        if "outcome" in event:
            event = event | {"outcome": self._outcome(event["outcome"])}
        if event.get("verdict"):
            event = event | {"verdict": self._verdict(event["verdict"])}
        if event.get("drift"):
            event = event | {"drift": self._text(event["drift"])}
        if event.get("error"):
            event = event | {"error": self._error(event["error"])}
        if event.get("undeclared"):  # paths and hosts, which arguments may have named
            event = event | {"undeclared": [self._text(each) for each in event["undeclared"]]}
        event = self._undo(event)
        if event != before:
            self.redacted = True
        if "outcome" in event and event["outcome"] != before["outcome"]:
            event["digest"] = sha256(orjson.dumps(event["outcome"])).hexdigest()
            if "linked" in event:
                event["linked"] = event["digest"]
        return self._rename(event) if self._names or self._all else event

    # --- values ----------------------------------------------------------------------------------

    def _undo(self, event: Event) -> Event:
        """What is kept of an undo: states are values, and so are their digests."""
        if event.get("reason"):
            event = event | {"reason": self._text(event["reason"])}
        if self._names or self._all:
            return {name: value for name, value in event.items() if name not in _OF_UNDO}
        if event.get("before"):
            event = event | {"before": self._value(event["before"])}
        if event.get("plan"):
            event = event | {"plan": self._value(event["plan"])}
        return event

    def _input(self, given: Event) -> Event:
        """What the job worked on: its digest is made with the store's key, and tells nothing."""
        if "value" not in given:
            return given
        return given | {"value": _REDACTED if self._all else self._value(given["value"])}

    def _user_input(self, given: Any) -> Any:
        """The user input: texts, or a blob of them."""
        if self._all:
            return [_TEXT]
        kept: Any = self._value(given)
        return [_TEXT] if tag_of(kept) == "redacted" else kept

    def _arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._all:
            return dict.fromkeys(arguments, _REDACTED)
        found: dict[str, Any] = self._value(arguments)
        return found

    def _outcome(self, outcome: Event) -> Event:
        changed = dict(outcome)
        if "value" in outcome:
            changed["value"] = _REDACTED if self._all else self._value(outcome["value"])
        if outcome.get("error"):
            changed["error"] = self._error(outcome["error"])
        if outcome.get("lossy"):
            changed["lossy"] = self._text(outcome["lossy"])
        if outcome.get("drift"):  # its path names fields of the value, which may be keys of a dict
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
            found.pop("args", None)  # else the exception would come back with them
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
        """A value without secrets and what is named, in plain and in tagged mappings."""
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
        """What a large value holds; a secret where that can't be known."""
        try:
            return orjson.loads(self._get_blob(str(encoded.get("sha256"))))
        except (StoreError, orjson.JSONDecodeError):
            return {TAG: "secret"}

    # --- texts that quote them -------------------------------------------------------------------

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
        joined = event["event"] == "branch.joined"
        named = joined or event["event"] == "branch.forked"
        changed = dict(event)
        for name in ("key", "asked", "idempotency_key", "world", *(["digest"] if joined else [])):
            if name in event:
                changed[name] = self._pseudonym(event[name])
        if "idempotency_key" in event:
            changed["id"] = changed["idempotency_key"][: len(event["id"])]
            self._approvals[event["id"]] = changed["id"]
        if "approval" in event:
            changed["approval"] = self._approvals.get(event["approval"], "")
        for name in ("branch", *(["name"] if named else [])):
            if name in event:
                changed[name] = _NESTED.sub(self._nested, event[name])
        if "fingerprint" in event:
            changed["fingerprint"] = self._fingerprint(event, changed)
        return changed

    def _fingerprint(self, event: Event, changed: Event) -> str:
        """One that follows from the new key and world where it followed from the old ones."""
        old: str = event["fingerprint"]
        if old not in self._fingerprints:
            own = "occurrence" in event and _fingerprint_of(event) == old
            self._fingerprints[old] = _fingerprint_of(changed) if own else self._pseudonym(old)
        return self._fingerprints[old]

    def _nested(self, found: re.Match[str]) -> str:
        return f"#{self._fingerprints.get(found[1]) or self._pseudonym(found[1])}"

    def _pseudonym(self, digest: str) -> str:
        return hmac.new(self._key, b"rollcage export" + bytes.fromhex(digest), "sha256").hexdigest()


def sealed(events: list[dict[str, Any]]) -> Iterator[bytes]:
    """Lines in a new chain; what a terminal might act on is escaped in them."""
    head = CHAIN_START
    for event in events:
        body: Any = orjson.Fragment(escape_json(orjson.dumps(event).decode()).encode())
        line, head = seal_line(body, head)
        yield line


_OF_A_TAG: Final = frozenset({TAG, "type", "module", "dtype"})  # they name what it is
_OF_UNDO: Final = frozenset({"before", "plan", "after", "reversible", "differs"})


def _fingerprint_of(event: Event) -> str:
    """DESIGN §2: sha256(key | world | occurrence)."""
    hashed = sha256(bytes.fromhex(event["key"]) + bytes.fromhex(event["world"]))
    for count in event["occurrence"]:
        hashed.update((count & _MAX_64).to_bytes(8, "big"))
    return hashed.hexdigest()


def _parts(event: Event) -> Iterable[Any]:
    """Where an event holds values."""
    yield event.get("args")
    yield (event.get("input") or {}).get("value")  # pyright: ignore[reportUnknownMemberType] - a framework's own data
    yield event.get("before")
    for call in event.get("plan") or ():
        yield call.get("args")
    outcome: Event = event.get("outcome") or {}
    yield outcome.get("value")
