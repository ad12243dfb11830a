"""Requests that wait in a store: damaged ones, clocks that jump, and who decides first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import pydantic
import pytest
from rollcage import (
    Approval,
    ApprovalQueue,
    ApprovalRequest,
    ApprovalRequired,
    Blocked,
    Clock,
    Options,
    QueueApprover,
    Session,
    StepView,
    Store,
    Verdict,
    tool,
)
from rollcage.errors import ApprovalCorrupt, ApprovalInvalid
from rollcage.gate import Pending
from rollcage.stages.approvals import Approvals
from rollcage.trace.store import store_option

HOUR: Final = 3600 * 10**9
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(name="queue.send", effect="write")
def send(text: str) -> str:
    ran.append(text)
    return f"sent {text}"


@tool(name="queue.withdraw", effect="write", secret="pin")
def withdraw(pin: str, password: pydantic.SecretStr) -> str:
    return "done"


def asks(_: StepView) -> Verdict:
    return Verdict.ask("is that so?")


class Desk:
    """A store, the sessions that run in it, its queue, and one clock for all."""

    def __init__(self, store: Store) -> None:
        self.store, self.queue = store, ApprovalQueue(store)
        self.now = 1_800_000_000 * 10**9

    def session(self, approver: Any = None, **more: Any) -> Session:
        options = Options(clock=Clock(wall=lambda: self.now))
        approver = approver or QueueApprover(self.store)
        return Session(
            "job", store=self.store, gate=[asks], approver=approver, options=options, **more
        )

    def halted(self, approver: Any = None, **more: Any) -> str:
        """Let a session wait at its call; the id of the request."""
        with pytest.raises(ApprovalRequired), self.session(approver, **more):
            send("a")
        (request,) = self.queue.waiting()
        return request.id

    def refused(self, approver: Any = None, **more: Any) -> str:
        """With which code a session's call is refused, by every attempt at it."""
        codes: set[str] = set()
        for each in (approver, lambda _: Approval(True, by="ann")):
            with self.session(each, replay="continue", **more), pytest.raises(Blocked) as no:
                send("a")
            codes.add(no.value.verdict_code)
        assert ran == []
        (code,) = codes
        return code

    def decide(self, request: str, answer: Approval | None = None) -> None:
        self.queue.decide(request, answer or Approval(True, by="ann"), now=self.now // 1000)

    def change(self, kind: str, request: str, changed: Callable[[bytes], bytes | None]) -> None:
        data = self.store.get(kind, request)
        assert data is not None
        assert self.store.swap(kind, request, data, changed(data))


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


# --- damage --------------------------------------------------------------------------------------


def fields(**changed: Any) -> Callable[[bytes], bytes]:
    return lambda data: orjson.dumps({**orjson.loads(data), **changed})


def without(name: str) -> Callable[[bytes], bytes]:
    return lambda data: orjson.dumps({n: v for n, v in orjson.loads(data).items() if n != name})


DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "cut short": lambda data: data[:40],
    "emptied": lambda _: b"",
    "a list": lambda _: b"[1,2]",
    "a text": lambda _: b'"yes"',
    "null": lambda _: b"null",
    "no JSON": lambda _: b"\xff\x00",
}
DECISIONS: Final = DAMAGES | {
    "another person": lambda data: data.replace(b"ann", b"eve"),
    "forged": fields(mac="00" * 32),
    "unsealed": without("mac"),
    "of another run": fields(run="another"),
    "at another time": fields(at=0),
    "at no time": fields(at="soon"),
    "mac of no text": fields(mac=None),
}
REQUESTS: Final = DAMAGES | {
    "no terms": without("terms"),
    "terms that are none": fields(terms=3),
    "terms of no persons": fields(terms=[[None, None]]),
    "half of the terms": fields(terms=[["carl"]]),
    "approvers that are none": fields(terms=[["carl", 5]]),
    "no verdict": fields(verdict="ask"),
    "no time": fields(at="soon"),
    "no end": fields(expires=None),
    "arguments that are none": fields(args=[1]),
    "more than a request has": fields(more=1),
    "of another id": fields(id="another"),
    "a name that is none": fields(name=7),
    "other arguments": fields(args={"text": "harmless"}),
    "forged": fields(mac="00" * 32),
}


@pytest.mark.parametrize("damage", DECISIONS)
def test_a_damaged_decision_denies_and_says_so(desk: Desk, damage: str) -> None:
    request = desk.halted()
    asked = desk.queue.get(request)
    desk.decide(request)
    desk.change("decisions", request, DECISIONS[damage])
    assert asked is not None
    with pytest.raises(ApprovalCorrupt, match=request):
        desk.queue.decision(asked)
    with pytest.raises(ApprovalInvalid, match="decided already"):
        desk.decide(request)
    assert desk.refused() == "approval_tampered"


@pytest.mark.parametrize("damage", REQUESTS)
def test_a_damaged_request_is_decided_by_nobody(desk: Desk, damage: str) -> None:
    request = desk.halted()
    desk.change("requests", request, REQUESTS[damage])
    for look in (desk.queue.get, desk.decide):
        with pytest.raises(ApprovalCorrupt, match=request):
            look(request)
    with pytest.raises(ApprovalCorrupt, match=request):
        desk.queue.waiting()
    assert desk.store.get("decisions", request) is None
    assert desk.refused() == "approval_tampered"


def test_a_store_with_another_key_denies(desk: Desk) -> None:
    desk.decide(desk.halted())
    desk.change("keys", "seal", lambda data: bytes(len(data)))
    assert desk.refused() == "approval_tampered"


def test_a_request_that_is_lost_is_asked_again(desk: Desk) -> None:
    request = desk.halted()
    desk.change("requests", request, lambda _: None)
    assert desk.queue.waiting() == []
    assert desk.halted() == request
    desk.decide(request)
    with desk.session():
        assert send("a") == "sent a"
    assert ran == ["a"]


# --- who decides ---------------------------------------------------------------------------------


def test_the_first_decision_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    request = desk.halted()
    swap = desk.store.swap

    def too_late(kind: str, *rest: Any) -> bool:
        monkeypatch.undo()
        desk.decide(request, Approval.reject("no", by="bob"))
        return swap(kind, *rest)

    monkeypatch.setattr(desk.store, "swap", too_late)
    with pytest.raises(ApprovalInvalid, match="by somebody else"):
        desk.decide(request)
    assert desk.refused() == "approval_rejected"
    with pytest.raises(ApprovalInvalid, match="no request"):
        desk.decide(request)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Approval(True, by="carl"), "another person has to"),
        (Approval.respond("x", by="Carl "), "another person has to"),
        (Approval.edit({"text": object()}, by="ann"), "text"),
        (Approval(True, by="ann", of="another"), "for another call"),
    ],
    ids=["self", "answers", "no JSON", "other"],
)
def test_what_can_not_count_is_refused_at_once(desk: Desk, answer: Approval, message: str) -> None:
    request = desk.halted(actor="carl")
    with pytest.raises(ApprovalInvalid, match=message):
        desk.decide(request, answer)
    assert [each.id for each in desk.queue.waiting()] == [request]


def test_a_secret_is_not_in_the_queue(desk: Desk) -> None:
    with pytest.raises(ApprovalRequired), desk.session():
        withdraw("4711-4711", pydantic.SecretStr("hunter2"))
    (request,) = desk.queue.waiting()
    data = desk.store.get("requests", request.id)
    assert data is not None
    assert b"4711-4711" not in data
    assert b"hunter2" not in data
    desk.decide(request.id)
    with desk.session():
        assert withdraw("4711-4711", pydantic.SecretStr("hunter2")) == "done"


def test_without_a_decision_it_says_how_to_decide(desk: Desk) -> None:
    request = desk.queue.get(desk.halted())
    assert request is not None
    said = QueueApprover(desk.store)(request)
    assert isinstance(said, Pending)
    assert f"rollcage approve {request.id}{store_option(desk.store)}" in said.message


# --- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "code"),
    [(-1, "approval_clock"), (-24 * 365, "approval_clock"), (25, "approval_expired")],
)
@pytest.mark.parametrize("is_decided", [False, True])
def test_a_clock_that_jumps_before_the_next_attempt(
    desk: Desk, hours: int, code: str, is_decided: bool
) -> None:
    request = desk.halted()
    if is_decided:
        desk.decide(request)
    desk.now += hours * HOUR
    assert desk.refused() == code


@pytest.mark.parametrize(
    ("hours", "code"),
    [(-1, "approval_clock"), (25, "approval_expired"), (10**5, "approval_expired")],
)
def test_a_clock_that_jumps_while_somebody_is_asked(desk: Desk, hours: int, code: str) -> None:
    def jumping(_: ApprovalRequest) -> Approval:
        desk.now += hours * HOUR
        return Approval(True, by="ann")

    assert desk.refused(jumping) == code


@pytest.mark.parametrize("hours", [-1, 25])
def test_a_no_counts_at_any_time(desk: Desk, hours: int) -> None:
    def jumping(_: ApprovalRequest) -> Approval:
        desk.now += hours * HOUR
        return Approval(False, by="ann")

    assert desk.refused(jumping) == "approval_rejected"


@pytest.mark.parametrize(
    ("hours", "code"),
    [(1, "approval_clock"), (25, "approval_expired"), (-1, "approval_expired")],
)
def test_a_decision_from_another_time_denies(desk: Desk, hours: int, code: str) -> None:
    request = desk.queue.get(desk.halted())
    assert request is not None
    desk.queue.put(request, Approval(True, by="ann"), (desk.now + hours * HOUR) // 1000)
    assert desk.refused() == code


@pytest.mark.parametrize("minutes", [-4, 4])
def test_clocks_of_two_machines_may_differ(desk: Desk, minutes: int) -> None:
    request = desk.halted()
    desk.now += minutes * HOUR // 60
    desk.decide(request)
    desk.now -= minutes * HOUR // 60
    with desk.session():
        assert send("a") == "sent a"


def test_an_approver_may_let_requests_expire_sooner(desk: Desk) -> None:
    approvals = Approvals(QueueApprover(desk.store), expires=60)
    desk.decide(desk.halted(approvals))
    desk.now += HOUR
    assert desk.refused(approvals) == "approval_expired"
