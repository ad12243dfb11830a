"""Queue requests for approval: asked in one process, decided in another, used in a third.

A request and its decision are two values in the store, `requests` and `decisions`, under the id of
the request. The first process to decide puts the decision there, whether or not the run is live:
only the run's writer may append to its log. The writer looks for the decision, and puts it on
record. Both are authenticated with the store's key: one that was changed fails closed.
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from rollcage.errors import ApprovalCorrupt, ApprovalInvalid, Unencodable
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
from rollcage.trace.seal import StoreSeal
from rollcage.trace.store import Store, open_store, store_option
from rollcage.values.codec import encode

__all__ = ["ApprovalQueue", "Decision", "QueueApprover"]

SKEW: Final = 300 * 1_000_000  # µs by which the clocks of two machines may differ
_LOOK: Final = 0.2  # seconds between two looks for a decision
_SORT: Final = orjson.OPT_SORT_KEYS


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Hold a decision of the queue, and its time (Unix, µs)."""

    answer: Approval
    at: int


class ApprovalQueue:
    """Hold the requests in a store that wait for a decision from another process.

    Args:
        store: a folder, a URL or a `Store`.
    """

    def __init__(self, store: str | os.PathLike[str] | Store) -> None:
        self.store = open_store(store)

    def waiting(self) -> list[ApprovalRequest]:
        """Return the requests without a decision, expired requests included."""
        found: list[ApprovalRequest] = []
        after = ""
        while keys := self.store.keys("requests", after):
            after = keys[-1]
            for key in keys:
                if self.store.get("decisions", key) is None:
                    request = self.get(key)
                    if request is not None:
                        found.append(request)
        return found

    def get(self, approval: str) -> ApprovalRequest | None:
        """Return a request by its id; None if there is no such request, or it is over.

        Raises:
            ApprovalCorrupt: the request was changed.
        """
        found = self._request(approval)
        return None if found is None else found[0]

    def ask(self, request: ApprovalRequest, terms: Terms | None = None) -> None:
        """Put a request into the queue, unless it is there.

        Args:
            request: the request.
            terms: the terms under which the session accepts approvals, to refuse a person at once.

        Raises:
            ApprovalCorrupt: it is there, and was changed.
        """
        names = (field.name for field in dataclasses.fields(request))
        fields = {name: getattr(request, name) for name in names}
        fields |= {"args": dict(request.args), "verdict": request.verdict.as_data()}
        fields["terms"] = []
        while terms is not None:
            approvers = None if terms.approvers is None else sorted(terms.approvers)
            fields["terms"].append([terms.requested_by, approvers])
            terms = terms.around
        fields["mac"] = self._mac("request", fields)
        if not self.store.swap("requests", request.id, None, orjson.dumps(fields)):
            self.get(request.id)

    def decide(self, approval: str, answer: Approval, *, now: int | None = None) -> None:
        """Decide on a request; only the first decision counts.

        Args:
            approval: the request's id.
            answer: the decision. Edited arguments may be given in the form of the request.
            now: the time (Unix, µs), if not the clock's.

        Raises:
            ApprovalInvalid: there is no such request, it is decided or expired, or this person may
                not decide on it.
            ApprovalCorrupt: the request was changed.
        """
        now = time.time_ns() // 1000 if now is None else now
        found = self._request(approval)
        if found is None:
            raise ApprovalInvalid(f"no request {approval} waits for a decision")
        request, known = found
        terms = Terms(request.requested_by, request.policy)
        for requested_by, approvers in known:
            allowed = None if approvers is None else frozenset(approvers)
            terms = Terms(requested_by, request.policy, approvers=allowed, around=terms)
        reply: Reply | None = untimely(request.at - SKEW, request.expires, now)
        reply = reply or judged(answer, request, terms)
        if isinstance(reply, Refusal):
            raise ApprovalInvalid(f"request {approval}: {reply.reason}")
        assert isinstance(reply, Approval)
        if not self.put(request, reply, now):
            raise ApprovalInvalid(f"request {approval} was decided already, by somebody else")

    def put(self, request: ApprovalRequest, answer: Approval, now: int) -> bool:
        """Put a decision into the queue; tell whether it is the first.

        Raises:
            ApprovalInvalid: the decision holds a value that can't be written.
        """
        try:
            fields = {
                **_bound(request),
                "decision": answer.decision, "by": answer.by, "reason": answer.reason,
                "args": None if answer.args is None else _written(answer.args),
                "value": None if answer.response is None else _written({"": answer.response.value}),
                "at": now,
            }  # fmt: skip
        except Unencodable as error:
            raise ApprovalInvalid(f"request {request.id}: {error}") from None
        fields["nonce"] = os.urandom(8).hex()  # two that are equal are told apart
        fields["mac"] = self._mac("decision", fields)
        data = orjson.dumps(fields)
        return self.store.swap("decisions", request.id, None, data)

    def decision(self, request: ApprovalRequest) -> Decision | None:
        """Return the decision on a request; None without one.

        Raises:
            ApprovalCorrupt: the decision was changed, or is for another call.
        """
        fields = self._sealed("decision", request.id)
        if fields is None:
            return None
        if any(fields[name] != value for name, value in _bound(request).items()):
            raise ApprovalCorrupt(request.id, "its decision is of another call")
        value = fields["value"]
        answer = Approval(
            approved=fields["decision"] in ("approved", "edited"),
            by=fields["by"],
            reason=fields["reason"],
            args=fields["args"],
            response=None if value is None else Response(value[""]),
        )
        return Decision(answer, fields["at"])

    def drop(self, approval: str) -> None:
        """Remove a request whose decision is on record in its run."""
        for kind in ("requests", "decisions"):
            data = self.store.get(kind, approval)
            if data is not None:
                self.store.swap(kind, approval, data, None)

    def _request(self, approval: str) -> tuple[ApprovalRequest, list[Any]] | None:
        """Return a request and its terms, from within; None if there is no such request."""
        fields = self._sealed("request", approval)
        if fields is None:
            return None
        terms = fields.pop("terms")
        fields["verdict"] = Verdict(**fields["verdict"])
        return ApprovalRequest(**fields), terms

    def _sealed(self, what: str, approval: str) -> dict[str, Any] | None:
        """Return the fields of a request or a decision; None if it is not there.

        Raises:
            ApprovalCorrupt: it was changed, or has another id.
        """
        data = self.store.get(what + "s", approval)
        if data is None:
            return None
        try:
            fields: Any = orjson.loads(data)
        except ValueError:
            fields = None
        if isinstance(fields, dict) and fields.get("id") == approval:
            mac = fields.pop("mac", None)
            if isinstance(mac, str) and hmac.compare_digest(mac, self._mac(what, fields)):
                return fields
        raise ApprovalCorrupt(approval, f"its {what} was changed, or is of another call")

    def _mac(self, what: str, fields: Mapping[str, Any]) -> str:
        return StoreSeal(self.store)(f"{what}:" + orjson.dumps(fields, option=_SORT).decode())


def _bound(request: ApprovalRequest) -> dict[str, Any]:
    """Return the facts to which a decision is bound, besides the request's id."""
    digest = sha256(orjson.dumps(dict(request.args), option=_SORT)).hexdigest()
    names = ("id", "idempotency_key", "key", "policy", "run")
    return {**{name: getattr(request, name) for name in names}, "of": digest}


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON; values in the form of a request are JSON already."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            written = orjson.loads(orjson.dumps(value))
        except (TypeError, RecursionError):
            written = None
        found[name] = written if written == value else encode(value, str, path=name)
    return found


class QueueApprover:
    """Put a request into the queue, and look there for a decision.

    Without a decision, the run is paused, and its process may end. A resume of the run, in any
    process, reaches the same call and finds the decision.

    Args:
        store: the session's store.
        wait: how long to wait for a decision before the run is paused (seconds).
    """

    def __init__(self, store: str | os.PathLike[str] | Store, *, wait: float = 0.0) -> None:
        self.queue = ApprovalQueue(store)
        self._wait = wait

    def __call__(self, request: ApprovalRequest) -> Reply:
        """Return the decision on this request; `Pending` without one."""
        self.queue.ask(request)
        until = time.monotonic() + self._wait
        tick = threading.Event()
        while True:
            found = self.queue.decision(request)
            if found is not None:
                return found.answer
            left = until - time.monotonic()
            if left <= 0:
                at = store_option(self.queue.store)
                return Pending(f"decide with rollcage approve {request.id}{at}")
            tick.wait(min(left, _LOOK))
