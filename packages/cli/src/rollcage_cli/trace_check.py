"""The checks of `rollcage verify`, on one event of a trace after the other.

They are made from the format's definition, not with the code that wrote the trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import orjson
import pydantic
import rfc8785
from rollcage.errors import StoreError, TraceCorrupt
from rollcage.store import Reader, RunInfo, RunTrace, check_attested
from rollcage.trace import Worlds, event_adapter
from rollcage_views import items_of, mapping_of, tag_of

from rollcage_cli.output import visible

__all__ = ["Discrepancy", "TraceCheck", "digests_of"]

_NO_STEPS: Final = frozenset(
    {
        "branch.forked",
        "call.refused",
        "run.stopped",
        "run.abandoned",
        "policy.loaded",
        "approval.requested",
        "approval.decided",
    }
)
_UNDO: Final = ("undo.started", "undo.finished", "run.rewound")
_BEHIND: Final = ("step.resolved", "run.abandoned")  # what may come after the end of a run
_WORDS: Final = tuple(f'{{"event":"{kind}"'.encode() for kind in _BEHIND)
_MAX_64: Final = 2**64 - 1  # a hostile count must not raise


@dataclasses.dataclass(frozen=True, slots=True)
class Discrepancy:
    """Something that is not as it was written; `line` counts from 1."""

    line: int
    code: str
    message: str


class TraceCheck:
    """Looks at one event after the other."""

    def __init__(self, run: str, reader: Reader) -> None:
        self.findings: list[Discrepancy] = []
        self.notes: list[str] = []
        self.line = 0
        self._run = run
        self._reader = reader
        self._validate = event_adapter().validate_json
        self._open: set[int] = set()  # steps that began and have not ended
        self._begun: set[int] = set()  # of them, all that ran
        self._steps: set[int] = set()
        self._worlds = Worlds()
        self._blobs: dict[str, bytes | None] = {}
        self._started: dict[str, Any] = {}
        self._finished: dict[str, Any] | None = None
        self._undoing = False  # the run was undone after its end

    def found(self, code: str, message: str) -> None:
        """Note what is wrong with the present line."""
        self.findings.append(Discrepancy(self.line, code, message))

    def event(self, event: dict[str, Any]) -> bool:
        """Check one event; False where nothing after it can be."""
        try:
            self._validate(orjson.dumps(event))
        except pydantic.ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            self.found("schema", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            return False
        kind = event["event"]
        self._undoing = self._undoing or (self._finished is not None and kind in _UNDO)
        if self._finished is not None and kind not in _BEHIND and not self._undoing:
            self.found("order", f"{kind} after the run finished")
        if kind == "run.started":
            self._run_started(event)
        elif kind == "run.finished":
            self._finished = event
        elif kind in ("step.finished", "step.resolved"):
            self._end(event)
        elif kind not in _UNDO and kind not in _NO_STEPS:
            self._begin(event)
        wrong = self._worlds.follow(event)
        if wrong is not None:
            self.found("world", visible(wrong))
        return True

    def end(self, trace: RunTrace) -> None:
        """Check what only shows at the end, and say what can't be known."""
        info = trace.info
        torn = trace.torn[: len(_WORDS[0])]  # both are as long
        word = any(each.startswith(torn) for each in _WORDS) or self._undoing
        if trace.torn and self._finished is not None and not word:
            self.found("torn", f"{len(trace.torn)} bytes follow the last line")
        elif trace.torn:
            self.notes.append(
                f"a torn last line of {len(trace.torn)} bytes: its writing was cut off; the next "
                f"session sets it aside"
            )
        self._say_what_attests(info)
        try:
            check_attested(trace)
        except TraceCorrupt as error:
            self.found("attestation", error.reason)
        else:
            behind = 0 if info is None or info.count is None else self.line - info.count
            if behind:
                what = (
                    "line(s) of an undo"
                    if self._undoing
                    else "word(s) on unknown steps or on the run"
                )
                self.notes.append(
                    f"{behind} {what} stand after the end that the index attests: whoever wrote "
                    f"them was cut off"
                )
        if info is not None:
            for field in ("name", "mode", "source", "time"):
                if getattr(info, field) != self._started.get(field):
                    self.found("index", f"the index knows another {field} of this run")
        if self._started.get("redacted"):
            self.notes.append("an export with values taken out: keys can't be checked against them")

    def _say_what_attests(self, info: RunInfo | None) -> None:
        """Note where nothing but the trace says that lines are missing from its end."""
        if self._finished is not None and (info is None or info.count is None):
            self.notes.append(
                "its end is attested by nothing but its own run.finished line: the index of its "
                "store has no count of its lines"
            )
        elif info is None:
            self.notes.append("its end is in no index: lines missing from its end would not show")
        elif info.count is None:
            self.notes.append(
                "the run is unfinished: its tail can't be attested, lines missing from its end "
                "would not show"
            )

    # --- single events ---------------------------------------------------------------------------

    def _run_started(self, event: dict[str, Any]) -> None:
        if self.line != 1:
            self.found("order", "a second run.started")
            return
        self._started = event
        if event["mode"] == "imported":
            self.notes.append(
                "it was imported: the chain attests what was written here, nothing of its origin"
            )
        if event["run"] != self._run:
            self.found("order", f"it says that it is run {visible(event['run'])}")

    def _begin(self, event: dict[str, Any]) -> None:
        step, kind = event["step"], event["event"]
        if step in self._steps:
            self.found("order", f"a second step {step}")
        self._steps.add(step)
        if kind == "step.started":
            self._open.add(step)
            self._begun.add(step)
        if "outcome" in event:
            self._outcome(event)
        if kind == "branch.joined":
            return  # its key is its name's, its place the branches'
        self._key(event)
        if kind == "step.started":
            self._undo_values(event)
        if kind == "step.started" and "supersedes" not in event:  # else its origin's fingerprint
            self._fingerprint(event)

    def _end(self, event: dict[str, Any]) -> None:
        step, kind = event["step"], event["event"]
        if step not in self._begun:
            self.found("order", f"{kind} of step {step}, which never began")
        elif kind == "step.finished" and step not in self._open:
            self.found("order", f"a second end of step {step}")
        self._open.discard(step)
        self._outcome(event)

    def _outcome(self, event: dict[str, Any]) -> None:
        outcome = event["outcome"]
        if sha256(orjson.dumps(outcome)).hexdigest() != event["digest"]:
            self.found("digest", f"step {event['step']}: its digest is not its outcome's")
        self._blob(outcome.get("value"))
        self._undo_values(event)

    def _undo_values(self, event: dict[str, Any]) -> None:
        """Large values of what an undo needs."""
        calls: list[dict[str, Any]] = event.get("plan") or []
        before: dict[str, Any] = event.get("before") or {}
        for values in (before, *(call["args"] for call in calls)):
            for value in values.values():
                self._blob(value)

    def _key(self, event: dict[str, Any]) -> None:
        """DESIGN §2: key = sha256(JCS([format, kind, name, version, canonical arguments]))."""
        arguments = {name: self._blob(value) for name, value in event["args"].items()}
        messages = items_of(arguments.get("messages"))
        if event["kind"] == "model" and messages is not None:  # each large one in a blob of its own
            arguments["messages"] = whole = [self._blob(each) for each in messages]
            if any(each is _MISSING for each in whole):
                return
        if self._started.get("redacted") or any(each is _MISSING for each in arguments.values()):
            return
        identity = ["rollcage/1", event["kind"], event["name"], event["version"], arguments]
        if event["key"] not in digests_of(identity):
            self.found("key", f"step {event['step']}: its key is not its arguments'")

    def _fingerprint(self, event: dict[str, Any]) -> None:
        hashed = sha256(bytes.fromhex(event["key"]) + bytes.fromhex(event["world"]))
        for count in event["occurrence"]:
            hashed.update((count & _MAX_64).to_bytes(8, "big"))
        if hashed.hexdigest() != event["fingerprint"]:
            self.found("fingerprint", f"step {event['step']}: it does not follow from its place")

    def _blob(self, value: Any) -> Any:
        """The value itself, or what its blob holds; `_MISSING` where that can't be had."""
        blob = mapping_of(value)
        if blob is None or tag_of(blob) != "blob":
            return value
        digest = str(blob.get("sha256"))
        if digest not in self._blobs:
            self._blobs[digest] = self._read_blob(digest)
        data = self._blobs[digest]
        if data is None:
            return _MISSING
        if len(data) != blob.get("size"):
            self.found(
                "blob", f"blob {visible(digest)} has {len(data)} bytes, not what the line says"
            )
        return orjson.loads(data)

    def _read_blob(self, digest: str) -> bytes | None:
        try:
            data = self._reader.get_blob(digest)
            orjson.loads(data)
        except (StoreError, orjson.JSONDecodeError) as error:
            self.found("blob", visible(str(error)))
            return None
        return data


_MISSING: Final = object()


def digests_of(identity: list[Any]) -> Iterator[str]:
    """Yield an identity's digest by orjson, which almost always equals JCS and is fast; by JCS."""
    yield sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()
    try:
        yield sha256(rfc8785.dumps(identity)).hexdigest()
    except rfc8785.CanonicalizationError:
        return
