"""The durable approval queue: requested in one process, decided in another, used in a third.

A request, its decision and its use are three documents in the store, each written once and
authenticated with the store's key. A document that was changed, truncated or moved there from
elsewhere fails closed: it denies, with a code that says why.
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import re
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import orjson

from rollcage.errors import ApprovalCorrupt, ApprovalInvalid, StoreError
from rollcage.gate.approval import (
    Approval,
    ApprovalRequest,
    Pending,
    Refusal,
    Reply,
    Response,
    Terms,
    judged,
    untimely,
)
from rollcage.gate.verdict import Verdict
from rollcage.store.jobs import store_option
from rollcage.store.protocol import Store
from rollcage.store.url import open_store

__all__ = ["ApprovalQueue", "QueueApprover", "QueueState", "Queued"]

QueueState = Literal["waiting", "decided", "expired", "used"]
"""`waiting` for a decision; `decided`, but not used yet; `expired` undecided; `used`."""

_FORMAT: Final = "rollcage/approval/1"
_KIND: Final = "approvals"  # of documents
_PARTS: Final = ("request", "decision", "use")
_ID: Final = re.compile(r"[0-9a-f]{16}(-[1-9][0-9]{0,5})?")
_DOCUMENT: Final = re.compile(rf"({_ID.pattern})\.({'|'.join(_PARTS)})")
_SKEW: Final = 300 * 1_000_000  # µs by which the clocks of two machines may differ
_LOOK: Final = 0.2  # seconds between two polls for a decision
_BOUND: Final = ("idempotency_key", "key", "policy", "root")


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """A request in the queue, with its decision and its use.

    Attributes:
        id: its id in the queue: the request's own, with a number if it was asked again.
        request: the call to decide on.
        decision: the decision, if there is one.
        decided_at: when it was decided (Unix, µs).
        use: `used`, or the code with which the decision was refused; empty if neither.
    """

    id: str
    request: ApprovalRequest
    decision: Approval | None = None
    decided_at: int = 0
    use: str = ""

    def state(self, now: int) -> QueueState:
        """Its state at a time (Unix, µs)."""
        if self.use:
            return "used"
        if now >= self.request.expires:
            return "expired"
        return "waiting" if self.decision is None else "decided"


class ApprovalQueue:
    """The requests for approval in a store, for the people who decide on them.

    Args:
        store: a folder, a URL, or a `Store` (see `rollcage.open_store`).
    """

    def __init__(self, store: str | os.PathLike[str] | Store) -> None:
        self.store = open_store(store)

    def ids(self) -> list[str]:
        """The ids of all requests.

        Raises:
            StoreError: the store can't be read.
        """
        matches = [_DOCUMENT.fullmatch(key) for key in self.store.keys(_KIND)]
        return sorted({match[1] for match in matches if match is not None})

    def get(self, approval: str) -> Queued | None:
        """One request, by its id in the queue; None if there is none.

        Raises:
            ApprovalCorrupt: one of its documents was changed or is incomplete.
            StoreError: the store can't be read.
        """
        parts = self._parts(approval)
        if "request" not in parts:
            if parts:
                raise ApprovalCorrupt(approval, "its request is missing")
            return None
        request = _request_from(self._open(approval, "request", parts["request"]), approval)
        decision, decided_at, use = None, 0, ""
        if "decision" in parts:
            document = self._open(approval, "decision", parts["decision"])
            _same_call(document, request)
            if document["of"] != sha256(parts["request"]).hexdigest():
                raise ApprovalCorrupt(approval, "its decision is for another request")
            decision, decided_at = _decision_from(document, approval), document["at"]
        if "use" in parts:
            use = str(self._open(approval, "use", parts["use"])["use"])
        return Queued(approval, request, decision, decided_at, use)

    def ask(self, approval: str, request: ApprovalRequest) -> bool:
        """Put a request into the queue under this id; False if the id is taken."""
        fields = {
            field.name: getattr(request, field.name)
            for field in dataclasses.fields(request)
            if field.name != "verdict"
        }
        fields |= {"args": dict(request.args), "verdict": request.verdict.as_data()}
        return self._put(approval, "request", fields)

    def decide(self, approval: str, answer: Approval, *, now: int | None = None) -> Queued:
        """Record the decision on a request; only the first one counts.

        Args:
            approval: the request's id in the queue.
            answer: approval, rejection, edited arguments in the form of the request, or a response.
            now: Unix time (µs); by default that of the clock.

        Raises:
            ApprovalInvalid: there is no such request, it is decided or expired, or this person may
                not decide on it; the message says which.
            ApprovalCorrupt: the request was changed or is incomplete.
            StoreError: the store can't be written.
        """
        now = time.time_ns() // 1000 if now is None else now
        queued = self.get(approval)
        if queued is None:
            raise ApprovalInvalid(f"there is no request {approval}")
        if queued.use or queued.decision is not None:
            by = queued.decision.by if queued.decision is not None else ""
            who = f" by {by}" if by else ""
            raise ApprovalInvalid(f"request {approval} was already decided{who}")
        request = queued.request
        refusal = untimely(request.at - _SKEW, request.expires, now)
        decision = refusal or judged(answer, request, Terms(request.requested_by, request.policy))
        if isinstance(decision, Refusal):
            raise ApprovalInvalid(f"request {approval}: {decision.reason}")
        assert isinstance(decision, Approval)
        fields = {
            "of": sha256(self._parts(approval)["request"]).hexdigest(),
            **{name: getattr(request, name) for name in _BOUND},
            "decision": decision.decision,
            "by": decision.by,
            "reason": decision.reason,
            "args": None if decision.args is None else dict(decision.args),
            "value": None if decision.response is None else decision.response.value,
            "at": now,
        }
        if not self._put(approval, "decision", fields):
            raise ApprovalInvalid(f"request {approval} was decided just now, by somebody else")
        return dataclasses.replace(queued, decision=decision, decided_at=now)

    def use(self, approval: str, run: str, *, use: str = "used", now: int) -> bool:
        """Mark a request as used, or as refused with a code; True once, for one process."""
        return self._put(approval, "use", {"run": run, "use": use, "at": now})

    # --- documents -------------------------------------------------------------------------------

    def _put(self, approval: str, part: str, fields: Mapping[str, Any]) -> bool:
        document = {"format": _FORMAT, "part": part, "approval": approval, **fields}
        try:
            document["mac"] = self._mac(document)
        except TypeError as error:
            raise ApprovalInvalid(f"request {approval}: JSON can't hold it: {error}") from None
        return self.store.put_once(_KIND, f"{approval}.{part}", orjson.dumps(document) + b"\n")

    def _parts(self, approval: str) -> dict[str, bytes]:
        """The documents of a request, by part; empty if there is no such request."""
        if _ID.fullmatch(approval) is None:
            raise StoreError(f"{approval!r} is not an approval's id")
        found = {part: self.store.get(_KIND, f"{approval}.{part}") for part in _PARTS}
        return {part: data for part, data in found.items() if data is not None}

    def _open(self, approval: str, part: str, data: bytes) -> dict[str, Any]:
        """The content of a document, verified to be what was written under this name."""
        try:
            document = orjson.loads(data)
            mac = bytes.fromhex(document.pop("mac"))
            whole = hmac.compare_digest(mac, bytes.fromhex(self._mac(document)))
        except (ValueError, TypeError, AttributeError, KeyError):
            whole, document = False, {}
        if not whole or document.get("format") != _FORMAT or document.get("part") != part:
            raise ApprovalCorrupt(approval, f"its {part} was changed or is incomplete")
        if document.get("approval") != approval:
            raise _Elsewhere(approval, part, document)
        found: dict[str, Any] = document
        return found

    def _mac(self, document: Mapping[str, Any]) -> str:
        data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        return hmac.new(self.store.secret_key(), b"rollcage approval" + data, "sha256").hexdigest()


class _Elsewhere(ApprovalCorrupt):
    """An authentic document, under the name of another request."""

    def __init__(self, approval: str, part: str, document: dict[str, Any]) -> None:
        super().__init__(approval, f"its {part} is for another request")
        self.document = document


def _same_call(document: Mapping[str, Any], request: ApprovalRequest) -> None:
    """Refuse a decision on another call than the request's; only the store's owner can forge it."""
    if any(document.get(name) != getattr(request, name) for name in _BOUND):
        raise ApprovalCorrupt(request.id, "its decision is for another call")


def _request_from(fields: dict[str, Any], approval: str) -> ApprovalRequest:
    names = {field.name for field in dataclasses.fields(ApprovalRequest)}
    try:
        given: dict[str, Any] = {name: fields[name] for name in names}
        given["verdict"] = Verdict(**fields["verdict"])
        return ApprovalRequest(**given)
    except (KeyError, TypeError) as error:
        raise ApprovalCorrupt(approval, f"its request is malformed: {error}") from None


def _decision_from(document: dict[str, Any], approval: str) -> Approval:
    try:
        by, reason, args = document["by"], document["reason"], document["args"]
        match document["decision"]:
            case "approved":
                return Approval(True, by, reason)
            case "edited":
                return Approval.edit(args, by=by, reason=reason)
            case "responded":
                return Approval(False, by, reason, response=Response(document["value"]))
            case "rejected":
                return Approval.reject(reason, by=by)
            case other:
                raise KeyError(other)
    except KeyError as error:
        raise ApprovalCorrupt(approval, f"its decision is malformed: {error}") from None


# --- asking --------------------------------------------------------------------------------------


class QueueApprover:
    """An approver that puts the request into the queue and looks there for a decision.

    Until there is one, the session halts with `ApprovalRequired`, and the process may end. A later
    resume of the run, in any process, reaches the same call and finds the decision.

    Args:
        store: the session's store: a directory, or a `Store`.
        wait: how long to wait for a decision before the session halts (seconds).
        expires: for how long a request can be approved (seconds); by default the session's setting.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        wait: float = 0.0,
        expires: float | None = None,
    ) -> None:
        self.queue = ApprovalQueue(store)
        self._wait = wait
        self._expires = expires

    def __call__(self, request: ApprovalRequest) -> Reply:
        """The decision on this request; pending if there is none yet."""
        if self._expires is not None:
            limit = request.at + int(self._expires * 1_000_000)
            request = dataclasses.replace(request, expires=min(request.expires, limit))
        began = time.monotonic()
        tick = threading.Event()
        while True:
            waited = time.monotonic() - began
            answer = self._look(request, request.at + int(waited * 1_000_000))
            left = self._wait - waited
            if not isinstance(answer, Pending) or left <= 0:
                return answer
            tick.wait(min(left, _LOOK))

    def _look(self, request: ApprovalRequest, now: int) -> Reply:
        """The queue's answer to a request; a new request is put into the queue."""
        number = 1
        while True:
            name = request.id if number == 1 else f"{request.id}-{number}"
            try:
                queued = self.queue.get(name)
                if queued is None:
                    self.queue.ask(name, request)
                    queued = self.queue.get(name)
                    assert queued is not None
            except _Elsewhere as error:
                return _of_another(error, request)
            except ApprovalCorrupt as error:
                return Refusal("approval_tampered", str(error))
            if not queued.use:
                answer = self._answer(queued, request, now)
                if answer is not None:
                    return answer
            number += 1

    def _answer(self, queued: Queued, request: ApprovalRequest, now: int) -> Reply | None:
        """The answer to a queued request; None if it can't be decided on any more."""
        asked, decision = queued.request, queued.decision
        other = _other({name: getattr(asked, name) for name in _BOUND}, request)
        if other is not None and decision is None and other.code == "approval_other_policy":
            self.queue.use(queued.id, request.run, use=other.code, now=now)
            return None  # not decided under the old policy: ask again under the new one
        if other is not None:
            return self._refused(queued, request, other)
        late = untimely(asked.at - _SKEW, asked.expires, now)
        if late is not None and late.code == "approval_clock":
            return late
        if late is not None:
            return self._refused(queued, request, late)
        if decision is None:
            at = store_option(self.queue.store)
            return Pending(f"waiting for approval as {queued.id}: rollcage approve {queued.id}{at}")
        if not asked.at - _SKEW <= queued.decided_at <= now + _SKEW:
            return Refusal("approval_clock", "the approver's clock and this one differ too much")
        if queued.decided_at >= asked.expires:
            expired = Refusal("approval_expired", "it was approved after it had expired")
            return self._refused(queued, request, expired)
        if not self.queue.use(queued.id, request.run, now=now):
            return Refusal("approval_used", "another session has just used the approval")
        return decision

    def _refused(self, queued: Queued, request: ApprovalRequest, refusal: Refusal) -> Refusal:
        """A refusal that marks the request as used: if it is asked again, that is a new request."""
        self.queue.use(queued.id, request.run, use=refusal.code, now=request.at)
        return refusal


def _other(fields: Mapping[str, Any], request: ApprovalRequest) -> Refusal | None:
    """How a document does not belong to this request; None if it does."""
    if fields.get("root") != request.root:
        return Refusal("approval_other_run", "the approval is for another run")
    if fields.get("idempotency_key") != request.idempotency_key or fields["key"] != request.key:
        return Refusal("approval_other_call", "the approval is for another call")
    if fields.get("policy") != request.policy:
        return Refusal("approval_other_policy", "the call was approved under another policy")
    return None


def _of_another(error: _Elsewhere, request: ApprovalRequest) -> Refusal:
    return _other(error.document, request) or Refusal(
        "approval_used", "the approval was given for an earlier request"
    )
