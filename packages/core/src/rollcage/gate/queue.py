"""The durable queue of approvals: asked in one process, decided in another, used in a third.

A request, its decision and its use are three documents in the store, each written once and sealed
with the store's key. Nothing of them is believed without that: a document that was changed, cut
short or moved there from elsewhere denies, with a code that says which.
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
"""`waiting` for a decision; `decided`, and not used yet; `expired` before it was; `used` up."""

_FORMAT: Final = "rollcage/approval/1"
_KIND: Final = "approvals"  # of documents
_PARTS: Final = ("request", "decision", "use")
_ID: Final = re.compile(r"[0-9a-f]{16}(-[1-9][0-9]{0,5})?")
_DOCUMENT: Final = re.compile(rf"({_ID.pattern})\.({'|'.join(_PARTS)})")
_SKEW: Final = 300 * 1_000_000  # µs by which the clocks of two machines may differ
_LOOK: Final = 0.2  # seconds between two looks for a decision
_BOUND: Final = ("idempotency_key", "key", "policy", "root")


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """A request in the queue, with what became of it.

    Attributes:
        id: its name in the queue: the request's own, with a number where it was asked again.
        request: what is asked.
        decision: what somebody said, if anybody did.
        decided_at: when (Unix, µs).
        use: what became of the decision: `used`, or the code with which it was refused.
    """

    id: str
    request: ApprovalRequest
    decision: Approval | None = None
    decided_at: int = 0
    use: str = ""

    def state(self, now: int) -> QueueState:
        """How it stands at a time (Unix, µs)."""
        if self.use:
            return "used"
        if now >= self.request.expires:
            return "expired"
        return "waiting" if self.decision is None else "decided"


class ApprovalQueue:
    """The requests for approval in a store, for whoever decides on them.

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
        """One request, by its id in the queue; None where there is none.

        Raises:
            ApprovalCorrupt: something of it was changed or is incomplete.
            StoreError: the store can't be read.
        """
        parts = self._parts(approval)
        if "request" not in parts:
            if parts:
                raise ApprovalCorrupt(approval, "its request is gone")
            return None
        request = _request_from(self._open(approval, "request", parts["request"]), approval)
        decision, decided_at, use = None, 0, ""
        if "decision" in parts:
            said = self._open(approval, "decision", parts["decision"])
            _same_call(said, request)
            if said["of"] != sha256(parts["request"]).hexdigest():
                raise ApprovalCorrupt(approval, "its decision is for another request")
            decision, decided_at = _decision_from(said, approval), said["at"]
        if "use" in parts:
            use = str(self._open(approval, "use", parts["use"])["use"])
        return Queued(approval, request, decision, decided_at, use)

    def ask(self, approval: str, request: ApprovalRequest) -> bool:
        """Put a request into the queue under this id; False where there is one already."""
        fields = {
            field.name: getattr(request, field.name)
            for field in dataclasses.fields(request)
            if field.name != "verdict"
        }
        fields |= {"args": dict(request.args), "verdict": request.verdict.as_data()}
        return self._put(approval, "request", fields)

    def decide(self, approval: str, said: Approval, *, now: int | None = None) -> Queued:
        """Write down what somebody says of a request; only the first word counts.

        Args:
            approval: the request's id in the queue.
            said: approval, rejection, edited arguments in the form of the request, or a response.
            now: Unix time (µs); by default that of the clock.

        Raises:
            ApprovalInvalid: there is no such request, it was decided or is expired, or who says so
                must not; the message says which.
            ApprovalCorrupt: the request was changed or is incomplete.
            StoreError: the store can't be written.
        """
        now = time.time_ns() // 1000 if now is None else now
        queued = self.get(approval)
        if queued is None:
            raise ApprovalInvalid(f"there is no request {approval}")
        if queued.use or queued.decision is not None:
            by = queued.decision.by if queued.decision is not None else ""
            raise ApprovalInvalid(f"request {approval} is decided{f' by {by}' if by else ''}")
        request = queued.request
        refusal = untimely(request.at - _SKEW, request.expires, now)
        answer = refusal or judged(said, request, Terms(request.requested_by, request.policy))
        if isinstance(answer, Refusal):
            raise ApprovalInvalid(f"request {approval}: {answer.reason}")
        assert isinstance(answer, Approval)
        said = answer
        fields = {
            "of": sha256(self._parts(approval)["request"]).hexdigest(),
            **{name: getattr(request, name) for name in _BOUND},
            "decision": said.decision,
            "by": said.by,
            "reason": said.reason,
            "args": None if said.args is None else dict(said.args),
            "value": None if said.response is None else said.response.value,
            "at": now,
        }
        if not self._put(approval, "decision", fields):
            raise ApprovalInvalid(f"request {approval} was decided just now, by somebody else")
        return dataclasses.replace(queued, decision=said, decided_at=now)

    def use(self, approval: str, run: str, *, use: str = "used", now: int) -> bool:
        """Use a request up, or say why not; True once, for one process."""
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
        """The documents of a request, by their parts; none where there is none."""
        if _ID.fullmatch(approval) is None:
            raise StoreError(f"{approval!r} is not an approval's id")
        found = {part: self.store.get(_KIND, f"{approval}.{part}") for part in _PARTS}
        return {part: data for part, data in found.items() if data is not None}

    def _open(self, approval: str, part: str, data: bytes) -> dict[str, Any]:
        """A document, found to be what was written under this name."""
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
    """A whole document, under the name of another request."""

    def __init__(self, approval: str, part: str, document: dict[str, Any]) -> None:
        super().__init__(approval, f"its {part} is for another request")
        self.document = document


def _same_call(said: Mapping[str, Any], request: ApprovalRequest) -> None:
    """Refuse a decision on another call than the request's; the store's owner alone can make it."""
    if any(said.get(name) != getattr(request, name) for name in _BOUND):
        raise ApprovalCorrupt(request.id, "its decision is for another call")


def _request_from(fields: dict[str, Any], approval: str) -> ApprovalRequest:
    names = {field.name for field in dataclasses.fields(ApprovalRequest)}
    try:
        given: dict[str, Any] = {name: fields[name] for name in names}
        given["verdict"] = Verdict(**fields["verdict"])
        return ApprovalRequest(**given)
    except (KeyError, TypeError) as error:
        raise ApprovalCorrupt(approval, f"its request is of another form: {error}") from None


def _decision_from(said: dict[str, Any], approval: str) -> Approval:
    try:
        by, reason, args = said["by"], said["reason"], said["args"]
        match said["decision"]:
            case "approved":
                return Approval(True, by, reason)
            case "edited":
                return Approval.edit(args, by=by, reason=reason)
            case "responded":
                return Approval(False, by, reason, response=Response(said["value"]))
            case "rejected":
                return Approval.reject(reason, by=by)
            case other:
                raise KeyError(other)
    except KeyError as error:
        raise ApprovalCorrupt(approval, f"its decision is of another form: {error}") from None


# --- asking --------------------------------------------------------------------------------------


class QueueApprover:
    """An approver that puts the request into the queue and looks for a decision there.

    Without one, the session halts with `ApprovalRequired`, and the process may end. Whoever resumes
    the run, whenever and wherever, comes to the same call, and finds the decision by then.

    Args:
        store: a directory, or a `Store`: that of the session.
        wait: how long to wait for a decision before the session halts (seconds).
        expires: for how long a request can be approved (seconds); by default as long as the session
            says.
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
        """The decision on this request, once there is one; else it is pending."""
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
        """What the queue says of a request; one that it does not know is put into it."""
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
        """What a queued request comes to; None where it can't be decided on any more."""
        asked, said = queued.request, queued.decision
        other = _other({name: getattr(asked, name) for name in _BOUND}, request)
        if other is not None and said is None and other.code == "approval_other_policy":
            self.queue.use(queued.id, request.run, use=other.code, now=now)
            return None  # nobody has decided by the old policy: ask by the new one
        if other is not None:
            return self._refused(queued, request, other)
        late = untimely(asked.at - _SKEW, asked.expires, now)
        if late is not None and late.code == "approval_clock":
            return late
        if late is not None:
            return self._refused(queued, request, late)
        if said is None:
            at = store_option(self.queue.store)
            return Pending(f"waiting for approval as {queued.id}: rollcage approve {queued.id}{at}")
        if not asked.at - _SKEW <= queued.decided_at <= now + _SKEW:
            return Refusal("approval_clock", "the clock of who approved it is wrong, or ours")
        if queued.decided_at >= asked.expires:
            expired = Refusal("approval_expired", "it was approved after it had expired")
            return self._refused(queued, request, expired)
        if not self.queue.use(queued.id, request.run, now=now):
            return Refusal("approval_used", "another session has just used the approval")
        return said

    def _refused(self, queued: Queued, request: ApprovalRequest, refusal: Refusal) -> Refusal:
        """A refusal that uses the request up: asked again, it is a new one."""
        self.queue.use(queued.id, request.run, use=refusal.code, now=request.at)
        return refusal


def _other(fields: Mapping[str, Any], request: ApprovalRequest) -> Refusal | None:
    """In what a document is not one of this request, if in anything."""
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
