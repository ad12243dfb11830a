"""The checks of `rollcage verify` on the log of a run, line by line.

They follow the format's definition, and don't use the code that wrote the log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import orjson
import pydantic
import rfc8785
from rollcage import Store
from rollcage.errors import StoreError
from rollcage.trace import event_adapter
from rollcage.trace.chain import HASH
from rollcage_stores.blobs import blob
from rollcage_views import items_of, mapping_of, tag_of
from rollcage_views.runs import LogFolding

from rollcage_cli.logfile import LogFile
from rollcage_cli.output import visible

__all__ = ["Discrepancy", "LogCheck"]

_ENDS: Final = ("ended", "held", "gone", "pruned")  # after these, nothing is missing from a log
_BAD: Final = (LookupError, TypeError, ValueError, AttributeError, AssertionError)


@dataclasses.dataclass(frozen=True, slots=True)
class Discrepancy:
    """A deviation from the written log; `line` counts from 1."""

    line: int
    code: str
    message: str


class LogCheck:
    """Checks one line after the other."""

    def __init__(self, run: str, store: Store) -> None:
        self.findings: list[Discrepancy] = []
        self.notes: list[str] = []
        self.line = 0
        self._run = run
        self._store = store
        self._attested = store.get("heads", run)  # the log's head when an attempt ended
        self._validate = event_adapter().validate_json
        self._folding = LogFolding()
        self._blobs: dict[str, bool] = {}
        self._first: dict[str, Any] = {}
        self._last = ""
        # steps that ran with other arguments than the requested ones
        self._edited: set[int] = set()

    def found(self, code: str, message: str) -> None:
        """Note a problem of the current line."""
        self.findings.append(Discrepancy(self.line, code, message))

    def _went_on(self) -> bool:
        """Return whether the attested line was written after this log was read."""
        return any(line[HASH] == self._attested for line in self._store.read(self._run))

    def event(self, event: dict[str, Any]) -> bool:
        """Check one line; return False if no later line can be checked."""
        try:
            self._validate(orjson.dumps(event))
        except pydantic.ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            if first["type"] != "json_invalid":  # Pydantic reads 200 levels of JSON
                self.found("schema", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
                return False
        if self._attested is not None and event.get("hash", "").encode() == self._attested:
            self._attested = None
        kind = self._last = event["event"]
        try:
            self._folding.take(self.line, event)
        except _BAD as error:
            self.found("order", f"the line does not fit those before it: {visible(str(error))}")
            return False
        if kind == "run":
            self._first = event
        if kind == "changed" and "args" in event:
            self._edited.add(event["step"])
        if kind == "decided" and "args" in event:
            self._edited.add(event["step"])
        if kind == "step" and not self._is_edited(event):
            self._key(event)
        for value in _values_in(event):
            self._blob(value)
        return True

    def end(self) -> None:
        """Check the conditions that only show at the end, and note the limits of the check."""
        torn = self._store.torn if isinstance(self._store, LogFile) else 0
        if torn:
            self.notes.append(f"a torn last line of {torn} bytes: its writing was cut off")
        if not self.line:  # the first line, which names the run, is missing as well
            self.line = 1
            self.found("chain", "the trace is empty")
            return
        run = self._folding.fold.id
        if run != self._run:
            self.found("order", f"it says that it is run {visible(run)}")
        if self._attested is not None and not self._went_on():
            self.found(
                "cut",
                f"the log ends here, and went on when its last attempt ended: the line with the "
                f"hash {visible(self._attested[:12].decode(errors='replace'))}… is missing",
            )
        if self._last not in _ENDS:
            self.notes.append(
                "its last attempt has not ended: lines missing from its end would not show"
            )
        if self._first.get("imported"):
            self.notes.append(
                "it was imported: the chain attests what was written here, nothing of its origin"
            )
        if self._first.get("redacted"):
            self.notes.append("an export with values taken out: keys can't be checked against them")

    def _is_edited(self, event: dict[str, Any]) -> bool:
        """Return whether a step has edited arguments: its key is of the requested ones."""
        if event["step"] in self._edited or event.get("again") in self._edited:
            self._edited.add(event["step"])
            return True
        return False

    def _key(self, event: dict[str, Any]) -> None:
        """Check the key: sha256(JCS([format, kind, name, version, canonical arguments])).

        See DESIGN §2.

        The key of a block is made of its name, and a model's request may refer to earlier messages.
        """
        args = event["args"]
        hidden = self._first.get("redacted") or any(_is_blob(each) for each in args.values())
        if hidden or event["effect"] in ("branch", "model"):
            return
        identity = ["rollcage/1", "tool", event["name"], event.get("version", ""), args]
        if event["key"] not in _digests_of(identity):
            self.found("key", f"step {event['step']}: its key is not its arguments'")

    def _blob(self, value: Any) -> None:
        """Check a large value, which is kept beside the log."""
        named = mapping_of(value)
        if named is None or not _is_blob(value):
            return
        digest = str(named["sha256"])
        if digest in self._blobs:
            return
        try:
            data = blob(self._store, digest)
        except StoreError as error:
            self.found("blob", str(error))
        else:
            if len(data) != named.get("size"):
                self.found("blob", f"the large value {visible(digest)} is another one")
        self._blobs[digest] = True


def _is_blob(value: Any) -> bool:
    return tag_of(value) == "blob" and "sha256" in value


def _values_in(event: dict[str, Any]) -> Iterator[Any]:
    """Yield the parts of a line that may be large values."""
    outcome = mapping_of(event.get("outcome")) or {}
    yield outcome.get("value")
    yield from (mapping_of(event.get("args")) or {}).values()
    yield from items_of((mapping_of(event.get("args")) or {}).get("messages")) or ()
    yield from (mapping_of(event.get("before")) or {}).values()
    for call in items_of(event.get("plan")) or ():
        yield from (mapping_of((mapping_of(call) or {}).get("args")) or {}).values()


def _digests_of(identity: list[Any]) -> Iterator[str]:
    """Yield an identity's digest by orjson, then by JCS.

    The first almost always equals the second, and is fast.
    """
    yield sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()
    try:
        yield sha256(rfc8785.dumps(identity)).hexdigest()
    except rfc8785.CanonicalizationError:
        return
