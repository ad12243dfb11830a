"""Everything that can fail inside of the gate, in one table: the call is denied, no body runs."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Contract,
    PolicyInvalid,
    SessionError,
    StepView,
    Verdict,
    tool,
)
from rollcage.errors import DetectorMissing, RegistryCorrupt
from rollcage.gate import Detecting, Labels, QueueApprover, secrets
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store import JsonlStore
from rollcage_governance import FacadeSnapshot, Registry
from rollcage_policy import Policy
from rollcage_policy.meter import Meter

Events = Callable[[str], list[dict[str, Any]]]

MANY: Final = list(range(2_000))
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(effect="write")
def send(text: str, many: list[int]) -> str:
    """Send a text."""
    ran.append(text)
    return text


@tool(effect="write")
async def asend(text: str, many: list[int]) -> str:
    """Send a text."""
    ran.append(text)
    return text


STREAM: Final = Contract(name="pieces", parameters=Contract.of(send).parameters, effect="write")


def pieces(text: str, many: list[int]) -> Iterator[str]:
    """Send a text, piece by piece."""
    ran.append(text)
    yield text


async def apieces(text: str, many: list[int]) -> AsyncIterator[str]:
    """Send a text, piece by piece."""
    ran.append(text)
    yield text


# --- the ways to call ----------------------------------------------------------------------------

ARGUMENTS: Final[dict[str, Any]] = {"text": "a", "many": MANY}


def synchronous(session: Session) -> Any:
    return session.call(send, **ARGUMENTS)


def asynchronous(session: Session) -> Any:
    return asyncio.run(session.acall(asend, **ARGUMENTS))


def in_a_thread(session: Session) -> Any:
    return asyncio.run(session.acall(send, **ARGUMENTS))


def streamed(session: Session) -> Any:
    return list(session.stream(STREAM, ARGUMENTS, pieces))


def streamed_asynchronously(session: Session) -> Any:
    async def read() -> list[str]:
        return [each async for each in session.astream(STREAM, ARGUMENTS, apieces)]

    return asyncio.run(read())


WAYS: Final = [synchronous, asynchronous, in_a_thread, streamed, streamed_asynchronously]


# --- what can fail -------------------------------------------------------------------------------


@dataclasses.dataclass
class Place:
    """Where a session is opened, and what is done to it once it is open."""

    store: JsonlStore
    patch: pytest.MonkeyPatch
    now: list[int] = dataclasses.field(default_factory=lambda: [1_000_000_000_000])
    opened: Callable[[Session], object] = lambda _: None

    def clock(self) -> Clock:
        """A clock whose monotonic time stands still, until somebody moves it."""
        return Clock(monotonic=lambda: self.now[0])

    def wall(self) -> Clock:
        """A clock whose date stands still, until somebody moves it."""
        return Clock(wall=lambda: self.now[0])


Settings = dict[str, Any]
Failure = Callable[[Place], Settings]
FAILURES: Final[dict[str, tuple[str, Failure]]] = {}


def fails_with(code: str) -> Callable[[Failure], Failure]:
    """Enter a failure into the table, with the code of its denial."""

    def enter(failure: Failure) -> Failure:
        FAILURES[failure.__name__] = code, failure
        return failure

    return enter


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("the secret word")


def ruling(text: str) -> Settings:
    """A policy that allows everything but for this."""
    return {"policy": Policy.parse(f'version = 1\ndefault = "allow"\n{text}')}


def condition(when: str, more: str = "") -> Settings:
    """A policy that allows what a condition says."""
    rule = f"[[rules]]\nid = 'it'\nwhen = '''{when}'''\ndecision = 'allow'\n"
    return {"policy": Policy.parse(f"version = 1\n{rule}{more}")}


def asking(approver: Any, **terms: Any) -> Settings:
    return {"rules": [lambda _: Verdict.ask("is it right?")], "approver": approver, **terms}


@fails_with("rule_error")
def a_rule_raises(_: Place) -> Settings:
    return {"rules": [broken, lambda _: Verdict.allow()]}


@fails_with("rule_error")
def a_rule_recurses_for_ever(_: Place) -> Settings:
    def again(step: StepView) -> Verdict:
        return again(step)

    return {"rules": [again]}


@fails_with("rule_invalid")
def a_rule_gives_rubbish(_: Place) -> Settings:
    return {"rules": [lambda _: True]}


@fails_with("rule_invalid")
def a_rule_waits(_: Place) -> Settings:
    async def later(_: StepView) -> Verdict:
        return Verdict.allow()

    return {"rules": [later]}


@fails_with("rule_error")
def a_condition_raises(_: Place) -> Settings:
    return condition("args.nothing == 1")


@fails_with("rule_error")
def a_condition_compares_a_text_with_a_number(_: Place) -> Settings:
    return condition("args.text < 3")


@fails_with("rule_error")
def a_condition_is_no_bool(_: Place) -> Settings:
    return condition("args.text")


@fails_with("rule_error")
def a_condition_loops_too_long(_: Place) -> Settings:
    return condition("args.many.all(a, args.many.all(b, a + b >= 0))")


@fails_with("rule_error")
def a_function_of_a_condition_raises(_: Place) -> Settings:
    return condition("host(args.text) == 'a.example'")


@fails_with("rule_error")
def nobody_told_what_the_user_said(_: Place) -> Settings:
    return condition("named(args.text)")


@fails_with("rule_error")
def the_resolver_is_away(place: Place) -> Settings:
    def away(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    place.patch.setattr(socket, "getaddrinfo", away)
    return condition("public_host('a.example.com')")


@fails_with("rule_error")
def the_detector_of_a_condition_is_missing(place: Place) -> Settings:
    place.patch.setitem(sys.modules, "detect_secrets.plugins.keyword", None)
    secrets._loaded.cache_clear()
    return condition("size(secret(args.text)) == 0")


@fails_with("rule_error")
def the_clock_of_a_condition_raises(place: Place) -> Settings:
    place.opened = lambda _: place.now.clear()
    return condition("run.elapsed < 60.0") | {"clock": place.clock()}


@fails_with("rule_error")
def the_clock_of_a_condition_goes_backwards(place: Place) -> Settings:
    place.opened = lambda _: place.now.__setitem__(0, 5)
    return condition("run.elapsed < 60.0") | {"clock": place.clock()}


@fails_with("policy_error")
def the_policy_raises(place: Place) -> Settings:
    place.patch.setattr(Policy, "decide", broken)
    return ruling("")


@fails_with("policy_invalid")
def the_policy_is_malformed_when_it_is_loaded_anew(place: Place) -> Settings:
    def reload(session: Session) -> None:
        path = place.store.root / "policy.toml"
        path.write_text("version = 1\n[[rules]]\nid = 3\n", encoding="utf-8")
        with pytest.raises(PolicyInvalid):
            session.load_policy(path)

    place.opened = reload
    return ruling("")


@fails_with("policy_invalid")
def the_policy_is_gone_when_it_is_loaded_anew(place: Place) -> Settings:
    def reload(session: Session) -> None:
        with pytest.raises(PolicyInvalid):
            session.load_policy(place.store.root / "gone.toml")

    place.opened = reload
    return ruling("")


@fails_with("policy_invalid")
def the_policy_has_other_limits_when_it_is_loaded_anew(place: Place) -> Settings:
    def reload(session: Session) -> None:
        with pytest.raises(SessionError):
            session.load_policy(ruling("[limits]\nloops = { same = 2 }")["policy"])

    place.opened = reload
    return ruling("")


# --- limits --------------------------------------------------------------------------------------

SECONDS: Final = "[[limits.rules]]\nid = 'time'\nseconds = 60\n"
RATE: Final = "[[limits.rules]]\nid = 'rate'\nrate = '10/min'\n"


@fails_with("clock_error")
def the_clock_raises(place: Place) -> Settings:
    place.opened = lambda _: place.now.clear()
    return ruling(SECONDS) | {"clock": place.clock()}


@fails_with("clock_error")
def the_clock_goes_backwards(place: Place) -> Settings:
    place.opened = lambda _: place.now.__setitem__(0, 5)
    return ruling(SECONDS) | {"clock": place.clock()}


@fails_with("clock_error")
def the_clock_of_a_rate_goes_backwards(place: Place) -> Settings:
    def back(session: Session) -> None:
        session.tool(fine)()
        place.now[0] = 5

    place.opened = back
    return ruling(RATE) | {"clock": place.clock()}


@fails_with("limit_error")
def the_meter_raises(place: Place) -> Settings:
    place.patch.setattr(Meter, "_take", broken)
    return ruling(SECONDS)


@fails_with("limit_error")
def the_meter_raises_when_the_call_begins(place: Place) -> Settings:
    place.patch.setattr(Meter, "_pace", broken)
    return ruling(RATE)


# --- approvals -----------------------------------------------------------------------------------


@fails_with("approver_failed")
def the_approver_raises(_: Place) -> Settings:
    return asking(broken)


@fails_with("approver_failed")
def the_approver_gives_rubbish(_: Place) -> Settings:
    return asking(lambda _: "yes")


@fails_with("approver_failed")
def the_approver_gives_half_an_approval(_: Place) -> Settings:
    return asking(lambda _: Approval(cast("Any", "yes"), by="ann"))


@fails_with("approver_failed")
def the_answer_of_an_async_approver_raises(_: Place) -> Settings:
    async def later(request: ApprovalRequest) -> Approval:
        return broken(request)  # type: ignore[no-any-return]  # it gives nothing

    return asking(later)


@fails_with("approval_unavailable")
def the_store_of_the_approver_is_away(_: Place) -> Settings:
    def away(_: ApprovalRequest) -> Approval:
        raise ConnectionError("away")

    return asking(away)


@fails_with("approval_unavailable")
def something_is_in_the_way_of_the_queue(place: Place) -> Settings:
    def block(_: Session) -> None:
        (place.store.root / "approvals").write_text("in the way", encoding="utf-8")

    place.opened = block
    return asking(QueueApprover(place.store))


@fails_with("approval_unavailable")
def the_queue_is_gone(place: Place) -> Settings:
    def gone(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("approvals")

    place.patch.setattr("rollcage.gate.queue.ApprovalQueue.ask", gone)
    return asking(QueueApprover(place.store))


@fails_with("approval_clock")
def the_clock_goes_backwards_while_somebody_is_asked(place: Place) -> Settings:
    def slow(_: ApprovalRequest) -> Approval:
        place.now[0] = 5
        return Approval(True, by="ann")

    return asking(slow, clock=place.wall())


@fails_with("approval_expired")
def the_clock_goes_on_while_somebody_is_asked(place: Place) -> Settings:
    def slow(_: ApprovalRequest) -> Approval:
        place.now[0] += 2 * 24 * 3600 * 1_000_000_000
        return Approval(True, by="ann")

    return asking(slow, clock=place.wall())


@fails_with("rule_error")
def a_rule_fails_once_somebody_has_edited_the_call(_: Place) -> Settings:
    def ask(step: StepView) -> Verdict:
        return Verdict.ask("is it right?") if step.args["text"] == "a" else broken(step)

    def edit(_: ApprovalRequest) -> Approval:
        return Approval.edit({"text": "b", "many": MANY}, by="ann")

    return {"rules": [ask], "approver": edit}


# --- labels, facades, credentials ----------------------------------------------------------------


@fails_with("gate_error")
def what_the_arguments_carry_can_not_be_told(place: Place) -> Settings:
    place.patch.setattr(Labels, "of", broken)
    return ruling("")


@fails_with("tool_changed")
def the_facade_raises(place: Place) -> Settings:
    place.opened = lambda _: place.patch.setattr(FacadeSnapshot, "_look", broken)
    return given(place)


@fails_with("tool_changed")
def a_tool_can_not_be_described(place: Place) -> Settings:
    place.opened = lambda _: place.patch.setattr("rollcage_governance.facade.described", broken)
    return given(place)


@fails_with("gate_error")
def the_detector_raises_on_what_a_rule_says(place: Place) -> Settings:
    def deny(_: StepView) -> Verdict:
        return Verdict.deny("no")

    place.opened = lambda _: place.patch.setattr(Detecting, "verdict", broken)
    return {"rules": [deny], "secrets": "detected"}


def given(place: Place) -> Settings:
    """A facade that gives the tools."""
    registry = Registry(place.store)
    for each in (Contract.of(send), Contract.of(asend), STREAM):
        registry.propose(each, by="ann")
        registry.approve(each.name, by="bob")
        registry.activate(each.name, "pack", by="bob")
    registry.define_facade("agent", ["pack"], by="bob")
    return {"facade": "agent"}


@tool(effect="read")
def fine() -> str:
    """Do nothing."""
    return "fine"


@pytest.fixture
def place(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield Place(store, monkeypatch)
    monkeypatch.undo()
    secrets._loaded.cache_clear()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_fails_in_the_gate_denies(
    place: Place, events: Events, failure: str, way: Callable[[Session], Any]
) -> None:
    code, fail = FAILURES[failure]
    with Session("job", store=place.store, **fail(place)) as session:
        place.opened(session)
        with pytest.raises(Blocked) as denied:
            way(session)
        place.now[:] = [1_000_000_000_000]
    assert ran == []
    assert denied.value.verdict_code == code
    assert "the secret word" not in str(denied.value)
    told = [event for event in events(session.run_id) if event["event"].startswith("step.")]
    (blocked,) = [each for each in told if each.get("name") not in (None, "fine")]
    assert (blocked["event"], blocked["verdict"]["code"]) == ("step.blocked", code)


# --- what opens no session -----------------------------------------------------------------------


def a_policy_that_is_malformed(store: JsonlStore, _: pytest.MonkeyPatch) -> Settings:
    path = store.root / "policy.toml"
    path.parent.mkdir(parents=True)
    path.write_text("version = 2", encoding="utf-8")
    return {"policy": path}


def a_condition_that_could_take_minutes(store: JsonlStore, _: pytest.MonkeyPatch) -> Settings:
    path = store.root / "policy.toml"
    path.parent.mkdir(parents=True)
    deep = "args.many.all(a, args.many.all(b, args.many.all(c, a + b + c > 0)))"
    rule = f"[[rules]]\nid = 'it'\nwhen = '{deep}'\ndecision = 'allow'\n"
    path.write_text(f"version = 1\n{rule}", encoding="utf-8")
    return {"policy": path}


def a_registry_that_is_corrupt(store: JsonlStore, patch: pytest.MonkeyPatch) -> Settings:
    settings = given(Place(store, patch))
    path: Path = store.root / "registry.jsonl"
    path.write_bytes(path.read_bytes()[:-2])
    return settings


def a_detector_that_is_missing(_: JsonlStore, patch: pytest.MonkeyPatch) -> Settings:
    patch.setitem(sys.modules, "detect_secrets.plugins.keyword", None)
    secrets._loaded.cache_clear()
    return {"secrets": "detected"}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (a_policy_that_is_malformed, PolicyInvalid),
        (a_condition_that_could_take_minutes, PolicyInvalid),
        (a_registry_that_is_corrupt, RegistryCorrupt),
        (a_detector_that_is_missing, DetectorMissing),
    ],
)
def test_where_the_gate_can_not_be_made_no_session_opens(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, failure: Any, error: type[Exception]
) -> None:
    settings = failure(store, monkeypatch)
    try:
        with pytest.raises(error), Session("job", store=store, **settings) as session:
            session.call(send, **ARGUMENTS)
    finally:
        monkeypatch.undo()
        secrets._loaded.cache_clear()
    assert ran == []
    assert list(store.runs()) == []
