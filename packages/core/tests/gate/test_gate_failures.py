"""Everything that can fail inside of the gate, in one table: the call is denied, no body runs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, cast

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Contract,
    Guard,
    Options,
    QueueApprover,
    Session,
    Stage,
    StepView,
    Store,
    Verdict,
    tool,
)
from rollcage.errors import (
    NotReplayable,
    SessionHalted,
    StoreError,
    TraceUnwritable,
    UnknownOutcome,
)
from rollcage.session.options import Clock

SECRET: Final = "the secret word"
WHOLE: Final = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(name="fails.send", effect="write")
def send(text: str) -> str:
    ran.append(text)
    return text


@tool(name="fails.asend", effect="write")
async def asend(text: str) -> str:
    ran.append(text)
    return text


STREAM: Final = Contract(name="fails.pieces", parameters=WHOLE, effect="write")


def pieces(text: str) -> Iterator[str]:
    ran.append(text)
    yield text


async def apieces(text: str) -> AsyncIterator[str]:
    ran.append(text)
    yield text


# --- the ways to call ----------------------------------------------------------------------------


def synchronous(session: Session) -> Any:
    return session.call(send, text="a")


def asynchronous(session: Session) -> Any:
    return asyncio.run(session.acall(asend, text="a"))


def in_a_thread(session: Session) -> Any:
    return asyncio.run(session.acall(send, text="a"))


def streamed(session: Session) -> Any:
    return list(session.stream(STREAM, {"text": "a"}, pieces))


def streamed_asynchronously(session: Session) -> Any:
    async def read() -> list[str]:
        return [each async for each in session.astream(STREAM, {"text": "a"}, apieces)]

    return asyncio.run(read())


WAYS: Final = [synchronous, asynchronous, in_a_thread, streamed, streamed_asynchronously]


# --- what can fail -------------------------------------------------------------------------------


@dataclasses.dataclass
class Place:
    """Where a session is opened, and what is done to it once it is open."""

    store: Store
    patch: pytest.MonkeyPatch
    now: int = 1_000_000_000_000_000_000
    opened: Callable[[], object] = lambda: None


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
    raise ZeroDivisionError(SECRET)


def allow(_: StepView) -> Verdict:
    return Verdict.allow()


def asking(approver: Any, **more: Any) -> Settings:
    return {"gate": [lambda _: Verdict.ask("is it right?")], "approver": approver, **more}


def gives(verdict: Any) -> Settings:
    return {"gate": [lambda _: verdict, allow]}


def guard(**methods: Any) -> Settings:
    """A guard with these methods, beside a rule that allows everything."""
    return {"gate": [allow, type("Odd", (Guard,), methods)()]}


@fails_with("rule_error")
def a_rule_raises(_: Place) -> Settings:
    return {"gate": [broken, allow]}


@fails_with("rule_error")
def a_rule_recurses_for_ever(_: Place) -> Settings:
    def again(step: StepView) -> Verdict:
        return again(step)

    return {"gate": [again]}


@fails_with("rule_invalid")
def a_rule_gives_rubbish(_: Place) -> Settings:
    return gives(True)


@fails_with("rule_invalid")
def a_rule_waits(_: Place) -> Settings:
    async def later(_: StepView) -> Verdict:
        return Verdict.allow()

    return {"gate": [later]}


@fails_with("rule_invalid")
def a_reason_is_no_text(_: Place) -> Settings:
    return gives(Verdict("allow", cast("Any", [SECRET])))


@fails_with("rule_invalid")
def a_reason_can_not_be_written(_: Place) -> Settings:
    return gives(Verdict.deny("\ud800"))


@fails_with("rule_invalid")
def a_reason_to_ask_can_not_be_written(_: Place) -> Settings:
    return asking(broken) | {"gate": [lambda _: Verdict.ask("\ud800")]}


@fails_with("rule_invalid")
def a_shadow_is_no_verdict(_: Place) -> Settings:
    return gives(Verdict("deny", "no", shadow=cast("Any", SECRET)))


@fails_with("rule_error")
def a_guard_raises(_: Place) -> Settings:
    return guard(decide=broken)


@fails_with("rule_invalid")
def a_guard_gives_rubbish(_: Place) -> Settings:
    return guard(decide=lambda *_: "allow")


@fails_with("rule_error")
def a_screen_raises(_: Place) -> Settings:
    return guard(screen=broken)


@fails_with("rule_invalid")
def a_screen_gives_rubbish(_: Place) -> Settings:
    return guard(screen=lambda *_: False)


@fails_with("rule_invalid")
def a_screen_asks(_: Place) -> Settings:
    """It is asked before there is a call that somebody could approve."""
    return guard(screen=lambda *_: Verdict.ask("may it?")) | {"approver": yes}


@fails_with("rule_error")
def a_stage_decides_and_raises(_: Place) -> Settings:
    return {"gate": [allow, type("Odd", (Stage,), {"decide": broken})()]}


@fails_with("rule_error")
def what_a_rule_would_see_can_not_be_told(_: Place) -> Settings:
    return {"gate": [allow], "stages": [type("Shows", (Stage,), {"shows": broken})()]}


@fails_with("rule_error")
def the_clock_of_a_rule_goes_backwards(place: Place) -> Settings:
    def early(view: StepView) -> Verdict | None:
        assert view.run is not None
        return None if view.run.elapsed < 60 else Verdict.deny("too late")

    place.opened = lambda: setattr(place, "now", 5)
    return {"gate": [early], "options": Options(clock=Clock(monotonic=lambda: place.now))}


# --- approvals -----------------------------------------------------------------------------------


def yes(_: ApprovalRequest) -> Approval:
    return Approval(True, by="ann")


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
        return cast("Approval", broken(request))

    return asking(later)


@fails_with("approval_unavailable")
def the_store_of_the_approver_is_away(_: Place) -> Settings:
    def away(_: ApprovalRequest) -> Approval:
        raise ConnectionError("away")

    return asking(away)


@fails_with("approval_unavailable")
def the_queue_gives_no_decisions(place: Place) -> Settings:
    get = place.store.get

    def failing(kind: str, key: str) -> bytes | None:
        if kind == "decisions":
            raise StoreError(SECRET)
        return get(kind, key)

    place.opened = lambda: place.patch.setattr(place.store, "get", failing)
    return asking(QueueApprover(place.store))


@fails_with("approval_unavailable")
def the_queue_takes_no_request(place: Place) -> Settings:
    swap = place.store.swap

    def failing(kind: str, *rest: Any) -> bool:
        if kind == "requests":
            raise StoreError(SECRET)
        return swap(kind, *rest)

    place.opened = lambda: place.patch.setattr(place.store, "swap", failing)
    return asking(yes)


@fails_with("approval_clock")
def the_clock_goes_backwards_while_somebody_is_asked(place: Place) -> Settings:
    def slow(_: ApprovalRequest) -> Approval:
        place.now -= 3600 * 10**9
        return Approval(True, by="ann")

    return asking(slow, options=Options(clock=Clock(wall=lambda: place.now)))


@fails_with("approval_expired")
def the_clock_goes_on_while_somebody_is_asked(place: Place) -> Settings:
    def slow(_: ApprovalRequest) -> Approval:
        place.now += 2 * 24 * 3600 * 10**9
        return Approval(True, by="ann")

    return asking(slow, options=Options(clock=Clock(wall=lambda: place.now)))


@fails_with("rule_error")
def a_rule_fails_once_somebody_has_edited_the_call(_: Place) -> Settings:
    def ask(step: StepView) -> Verdict:
        return Verdict.ask("is it right?") if step.args["text"] == "a" else broken(step)

    def edit(_: ApprovalRequest) -> Approval:
        return Approval.edit({"text": "b"}, by="ann")

    return {"gate": [ask], "approver": edit}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_fails_in_the_gate_denies(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    events: Any,
    failure: str,
    way: Callable[[Session], Any],
) -> None:
    code, fail = FAILURES[failure]
    place = Place(store, monkeypatch)
    with Session("job", store=store, **fail(place)) as session:
        place.opened()
        with pytest.raises(Blocked) as denied:
            way(session)
        monkeypatch.undo()
    assert ran == []
    assert denied.value.verdict_code == code
    assert SECRET not in str(denied.value)
    lines = events(session.run_id)
    (refused,) = [each for each in lines if each["event"] == "refused"]
    assert refused["verdict"]["code"] == code
    assert not [each for each in lines if each["event"] == "outcome"]


# --- stages that fail ----------------------------------------------------------------------------


def failing(*seams: str, when: Callable[..., bool] = lambda *_: True) -> Stage:
    """A stage that raises at these seams."""

    def method(_: Stage, *given: Any, **more: Any) -> Any:
        return broken() if when(*given) else given[0]

    return cast("Stage", type("Failing", (Stage,), dict.fromkeys(seams, method))())


def writes(line: Any) -> Any:
    return line["event"] == "step"


def ends(line: Any) -> Any:
    return line["event"] == "outcome"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seam", ["arriving", "where", "prepare", "ready", "begun", "marks"])
def test_a_stage_that_fails_before_a_body(
    store: Store, seam: str, way: Callable[[Session], Any]
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Session("job", store=store, stages=[failing(seam)]) as session,
    ):
        way(session)
    assert ran == []
    with Session("job", store=store) as session:
        way(session)
    assert ran == ["a"]


@pytest.mark.parametrize("way", WAYS)
def test_an_intent_that_can_not_be_concealed(store: Store, way: Callable[[Session], Any]) -> None:
    stage = failing("conceal", when=writes)
    with pytest.raises(TraceUnwritable) as halt, Session("job", store=store, stages=[stage]) as s:
        with pytest.raises(TraceUnwritable):
            way(s)
        with pytest.raises(SessionHalted):
            way(s)
    assert SECRET not in str(halt.value)
    assert ran == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "stage", [failing("settled"), failing("conceal", when=ends)], ids=["settled", "conceal"]
)
def test_an_end_that_can_not_be_told_is_unknown(
    store: Store, stage: Stage, way: Callable[[Session], Any]
) -> None:
    with (
        pytest.raises((TraceUnwritable, UnknownOutcome)),
        Session("job", store=store, stages=[stage]) as session,
    ):
        with pytest.raises((ZeroDivisionError, TraceUnwritable)):
            way(session)
        with pytest.raises(SessionHalted):
            way(session)
    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        way(session)
    assert ran == ["a"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seam", ["settled", "hit"])
def test_a_hit_that_a_stage_fails_on_is_not_made_again(
    store: Store, seam: str, way: Callable[[Session], Any]
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        way(session)
        raise KeyError
    with (
        pytest.raises(NotReplayable),
        Session("job", store=store, stages=[failing(seam)]) as session,
    ):
        with pytest.raises(ZeroDivisionError):
            way(session)
        with pytest.raises(SessionHalted):
            way(session)
    with Session("job", store=store) as session:
        way(session)
    assert ran == ["a"]


@pytest.mark.parametrize(
    ("where", "seam"),
    [("gate", "opened"), ("gate", "describes"), ("stages", "opened"), ("stages", "opening")],
)
def test_where_a_stage_can_not_begin_no_session_opens(store: Store, where: str, seam: str) -> None:
    given: Any = {where: [failing(seam)]}
    with pytest.raises(ZeroDivisionError), Session("job", store=store, **given):
        send("a")
    assert ran == []
    with Session("job", store=store):  # nobody holds the run
        send("a")
    assert ran == ["a"]


@pytest.mark.parametrize("way", WAYS)
def test_who_stops_the_program_in_a_rule_stops_it(
    store: Store, way: Callable[[Session], Any]
) -> None:
    def stop(_: StepView) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Session("job", store=store, gate=[stop]) as session:
        way(session)
    assert ran == []
