"""An approver may edit a call, or answer it instead; a resume meets that again and asks nobody."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Contract,
    Session,
    StepView,
    Verdict,
    tool,
)
from rollcage.gate.approval import Instead
from rollcage.trace import check_events
from rollcage.trace.recorded import trace_of

ran: list[Any] = []


@tool
def pay(to: str, amount: int = 1) -> str:
    """Pay somebody."""
    ran.append((to, amount))
    return f"paid {amount} to {to}"


@tool
def send(text: str) -> str:
    """Send a text."""
    ran.append(text)
    return f"sent {text}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def asks(step: StepView) -> Verdict | None:
    if step.args.get("amount") == 13:
        return Verdict.deny("thirteen is unlucky", code="unlucky")
    return Verdict.ask("is that so?") if step.name != "free" else None


class Answers:
    """An approver that is told what to say, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        return self.answers.pop(0)


def nobody(request: ApprovalRequest) -> Approval:
    raise AssertionError(f"asked about {request.name}{request.args}")


def events(session: Session) -> list[dict[str, Any]]:
    trace = trace_of(session.store, session.run_id)
    return check_events(trace.data, trace.where)


def told(session: Session, kind: str) -> list[dict[str, Any]]:
    return [each for each in events(session) if each["event"] == kind]


def guarded(store: Path, approver: Any, **settings: Any) -> Session:
    return Session("job", store=store, gate=[asks], approver=approver, **settings)


# --- what is on record ----------------------------------------------------------------------------


def test_the_request_names_the_key_under_which_the_tool_runs(tmp_path: Path) -> None:
    from rollcage import current_step

    @tool
    def work() -> str:
        """Say under which key it runs."""
        step = current_step()
        assert step is not None
        return step.idempotency_key

    approver = Answers(Approval(True, by="ann"))
    with guarded(tmp_path, approver):
        assert work() == approver.asked[0].idempotency_key


# --- edited arguments -----------------------------------------------------------------------------


def test_the_gate_is_asked_again_once_somebody_has_approved(tmp_path: Path) -> None:
    closed: list[bool] = []

    def closing(_: StepView) -> Verdict:
        return Verdict.deny("closed by now") if closed else Verdict.ask("may it?")

    def approver(_: ApprovalRequest) -> Approval:
        closed.append(True)
        return Approval(True, by="ann")

    with (
        Session("job", store=tmp_path, gate=[closing], approver=approver),
        pytest.raises(Blocked, match="closed by now"),
    ):
        send("a")
    assert ran == []


def test_who_edits_a_call_approves_it_whatever_else_a_rule_asks_about_it(tmp_path: Path) -> None:
    """A denial of the edited call still counts."""

    def by_amount(step: StepView) -> Verdict:
        if step.args["amount"] == 13:
            return Verdict.deny("thirteen is unlucky")
        return Verdict.ask(f"an amount of {step.args['amount']}?")

    approver = Answers(*(Approval.edit({"to": "bob", "amount": n}, by="ann") for n in (5, 13)))
    with Session("job", store=tmp_path, gate=[by_amount], approver=approver) as session:
        assert pay("bob", 500) == "paid 5 to bob"
        with pytest.raises(Blocked, match="unlucky"):
            pay("bob", 700)
    assert [request.args["amount"] for request in approver.asked] == [500, 700]
    assert ran == [("bob", 5)]
    assert len(told(session, "requested")) == len(told(session, "decided")) == 2


def test_who_edits_a_call_answers_other_rules_that_ask_about_it(tmp_path: Path) -> None:
    def large(step: StepView) -> Verdict | None:
        return Verdict.ask("so much?") if step.args["amount"] > 100 else None

    def odd(step: StepView) -> Verdict | None:
        return Verdict.ask("odd?") if step.args["amount"] % 2 else None

    approver = Answers(Approval.edit({"to": "bob", "amount": 5}, by="ann"))
    with Session("job", store=tmp_path, gate=[large, odd], approver=approver) as session:
        assert pay("bob", 500) == "paid 5 to bob"
    assert len(told(session, "requested")) == len(approver.asked) == 1


def test_what_is_left_out_of_edited_arguments_has_its_default(tmp_path: Path) -> None:
    with guarded(tmp_path, Answers(Approval.edit({"to": "bob"}, by="ann"))):
        assert pay("bob", 500) == "paid 1 to bob"


@tool(secret=["pin"])
def withdraw(amount: int, pin: str, password: pydantic.SecretStr | None = None) -> int:
    """Withdraw money."""
    ran.append((amount, pin, password and password.get_secret_value()))
    return amount


def test_a_secret_stays_as_it_was_where_a_call_is_edited(tmp_path: Path) -> None:
    secret = pydantic.SecretStr("hunter2")
    approver = Answers(Approval.edit({"amount": 5}, by="ann"))
    with guarded(tmp_path, approver):
        assert withdraw(500, "one-2-3", secret) == 5
    assert ran == [(5, "one-2-3", "hunter2")]
    shown = dict(approver.asked[0].args)
    assert "hunter2" not in str(shown)
    assert "one-2-3" not in str(shown["pin"])
    with guarded(tmp_path, nobody, replay="resume"):
        assert withdraw(500, "one-2-3", secret) == 5
    with guarded(tmp_path, Answers(Approval.edit({**shown, "amount": 6}, by="ann")), replay="off"):
        assert withdraw(500, "one-2-3", secret) == 6
    assert ran[1:] == [(6, "one-2-3", "hunter2")]


def test_values_that_json_lacks_are_edited_in_the_form_of_the_request(tmp_path: Path) -> None:
    @tool
    def remind(at: dt.datetime, what: Any) -> str:
        """Set a reminder."""
        return f"{at.isoformat()} {what!r}"

    def tomorrow(request: ApprovalRequest) -> Approval:
        return Approval.edit({**request.args, "at": "2031-01-02T03:04:05"}, by="ann")

    with guarded(tmp_path, tomorrow):
        said = remind(dt.datetime(2030, 1, 1, tzinfo=dt.UTC), dt.date(2030, 1, 1))
    assert said == "2031-01-02T03:04:05 datetime.date(2030, 1, 1)"


def test_an_edited_call_that_failed_is_asked_about_as_it_is_now(tmp_path: Path) -> None:
    @tool
    def work(times: int) -> int:
        """Fail once."""
        ran.append(times)
        if len(ran) == 1:
            raise OSError("disk full")
        return times

    with (
        pytest.raises(OSError, match="disk full"),
        guarded(tmp_path, Answers(Approval.edit({"times": 2}, by="ann"))),
    ):
        work(1)
    approver = Answers(Approval(True, by="ann"))
    with guarded(tmp_path, approver):
        assert work(1) == 2
    assert (approver.asked[0].args, ran) == ({"times": 2}, [2, 2])
    with guarded(tmp_path, nobody, replay="resume"):
        assert work(1) == 2


@pytest.mark.parametrize("effect", ["pure", "read", "write"])
def test_edits_of_any_effect_come_back(tmp_path: Path, effect: Any) -> None:
    @tool(effect=effect)
    def look(at: str) -> str:
        """Look."""
        ran.append(at)
        return at

    with guarded(tmp_path, Answers(Approval.edit({"at": "b"}, by="ann"))):
        assert look("a") == "b"
    with guarded(tmp_path, nobody, replay="resume"):
        assert look("a") == "b"
    assert ran == ["b"]


def test_edited_calls_of_a_turn_come_back_in_any_order(tmp_path: Path) -> None:
    def doubled(request: ApprovalRequest) -> Approval:
        return Approval.edit({"text": request.args["text"] * 2}, by="ann")

    def turn(session: Session, slots: list[int]) -> dict[int, str]:
        said: dict[int, str] = {}
        for slot in slots:
            with session.place(turn="t", slot=slot):
                said[slot] = send("a" if slot < 2 else "aa")
        return said

    with guarded(tmp_path, doubled) as session:
        first = turn(session, [0, 1, 2])
    with guarded(tmp_path, nobody, replay="resume") as session:
        assert turn(session, [2, 1, 0]) == first
    assert ran == ["aa", "aa", "aaaa"]


# --- answered instead -----------------------------------------------------------------------------


class Receipt(pydantic.BaseModel):
    number: int


@tool
def order(what: str) -> Receipt:
    """Order something."""
    ran.append(what)
    return Receipt(number=1)


def test_an_answer_has_the_declared_type(tmp_path: Path) -> None:
    with guarded(tmp_path, Answers(Approval.respond({"number": 7}, by="ann"))):
        assert order("a") == Receipt(number=7)
    with guarded(tmp_path, nobody, replay="resume"):
        assert order("a") == Receipt(number=7)


@pytest.mark.parametrize(
    "value", ["a text", object(), {"number": "none"}], ids=["text", "object", "fields"]
)
def test_an_answer_of_another_type_is_refused(tmp_path: Path, value: Any) -> None:
    with (
        guarded(tmp_path, Answers(Approval.respond(value, by="ann"))),
        pytest.raises(Blocked, match="gives no such result") as no,
    ):
        order("a")
    assert (no.value.verdict_code, ran) == ("approval_response_invalid", [])


def test_an_answer_that_could_not_come_back_is_refused(tmp_path: Path) -> None:
    @tool
    def anything() -> Any:
        """Give anything back."""

    with (
        guarded(tmp_path, Answers(Approval.respond(object(), by="ann"))),
        pytest.raises(Blocked, match="it can't be kept") as no,
    ):
        anything()
    assert no.value.verdict_code == "approval_response_invalid"


def test_an_answer_that_the_tool_promises_never_to_give_is_refused(tmp_path: Path) -> None:
    @tool(max_output=20)
    def summary() -> str:
        """Sum something up."""
        return ""

    long, short = (Approval.respond("x" * size, by="ann") for size in (30, 10))
    with guarded(tmp_path, Answers(long, short)):
        with pytest.raises(Blocked, match=r"the approval can't be used: .*20") as no:
            summary()
        assert no.value.verdict_code == "approval_response_invalid"
        assert summary() == "x" * 10


def test_a_large_answer_is_kept(tmp_path: Path) -> None:
    with guarded(tmp_path, Answers(Approval.respond("x" * 70_000, by="ann"))):
        assert pay("bob") == "x" * 70_000
    with guarded(tmp_path, nobody, replay="resume"):
        assert pay("bob") == "x" * 70_000


# --- what can't be edited or answered -------------------------------------------------------------


FRAMEWORK = Contract(name="f", parameters={"properties": {"x": {}}}, framework="some")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Approval.edit({"x": 2}, by="ann"), "approval_edit_unsupported"),
        (Approval.respond("x", by="ann"), "approval_response_invalid"),
    ],
    ids=["edit", "respond"],
)
@pytest.mark.parametrize("instead", [None, Instead()], ids=["silent", "neither"])
def test_where_an_adapter_does_not_say_how_it_is_refused(
    tmp_path: Path, answer: Approval, code: str, instead: Instead | None
) -> None:
    with guarded(tmp_path, Answers(answer)) as session, pytest.raises(Blocked) as no:
        session.run_call(FRAMEWORK, {"x": 1}, lambda **_: ran.append("ran"), instead=instead)
    assert (no.value.verdict_code, ran) == (code, [])


def test_an_adapter_says_how_its_calls_are_edited_and_answered(tmp_path: Path) -> None:
    def native(**_: Any) -> str:
        raise NotImplementedError  # it takes the framework's own arguments

    instead = Instead(lambda **values: f"edited {values}", lambda value: f"answered {value}")
    approver = Answers(Approval.edit({"x": 2}, by="ann"), Approval.respond("y", by="ann"))
    with guarded(tmp_path, approver) as session:
        assert session.run_call(FRAMEWORK, {"x": 1}, native, instead=instead) == "edited {'x': 2}"
        assert session.run_call(FRAMEWORK, {"x": 1}, native, instead=instead) == "answered y"
    with guarded(tmp_path, nobody, replay="resume") as session:
        assert session.run_call(FRAMEWORK, {"x": 1}, native, instead=instead) == "edited {'x': 2}"
        assert session.run_call(FRAMEWORK, {"x": 1}, native, instead=instead) == "answered y"


# --- a rejection ----------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "read", "write"])
def test_a_rejection_of_any_effect_holds(tmp_path: Path, effect: Any) -> None:
    @tool(effect=effect)
    def look(at: str) -> str:
        """Look."""
        ran.append(at)
        return at

    with guarded(tmp_path, Answers(Approval.reject())), pytest.raises(Blocked):
        look("a")
    with guarded(tmp_path, nobody, replay="resume"), pytest.raises(Blocked):
        look("a")


def test_where_nobody_is_asked_any_more_the_gate_decides(tmp_path: Path) -> None:
    with guarded(tmp_path, Answers(Approval.reject("not today"))), pytest.raises(Blocked):
        send("a")
    with Session("job", store=tmp_path, replay="resume"):
        assert send("a") == "sent a"


# --- answers that do not count --------------------------------------------------------------------


def test_who_asks_may_say_no(tmp_path: Path) -> None:
    approver = Answers(Approval.reject("changed my mind", by="carl"))
    with guarded(tmp_path, approver, actor="carl"), pytest.raises(Blocked, match="my mind") as no:
        send("a")
    assert no.value.verdict_code == "approval_rejected"


@pytest.mark.parametrize("of", ["other", "0" * 16])
def test_an_approval_of_another_call_is_refused(tmp_path: Path, of: str) -> None:
    with (
        guarded(tmp_path, Answers(Approval(True, by="ann", of=of))),
        pytest.raises(Blocked, match="for another call") as no,
    ):
        send("a")
    assert no.value.verdict_code == "approval_other_call"


def test_an_approval_may_say_which_call_it_is_of(tmp_path: Path) -> None:
    with guarded(tmp_path, lambda request: Approval(True, by="ann", of=request.id)):
        assert send("a") == "sent a"
    with guarded(tmp_path, lambda r: Approval(True, by="ann", of=r.idempotency_key), replay="off"):
        assert send("a") == "sent a"


@pytest.mark.parametrize(
    "fields",
    [
        {"by": 1},
        {"reason": None},
        {"by": "\ud800"},
        {"args": [1]},
        {"approved": False, "args": {}},
        {"approved": True, "response": "no Response"},
        {"approved": 1},
    ],
    ids=str,
)
def test_an_approval_that_contradicts_itself_denies(tmp_path: Path, fields: dict[str, Any]) -> None:
    broken: Any = Approval(**{"approved": True, **fields})
    with guarded(tmp_path, Answers(broken)), pytest.raises(Blocked) as no:
        send("a")
    assert (no.value.verdict_code, ran) == ("approver_failed", [])


# --- pauses, and halts ----------------------------------------------------------------------------


class Pause(Exception):
    """How a framework interrupts a run until somebody has decided."""


def test_an_edited_call_runs_as_another_call(tmp_path: Path) -> None:
    approver = Answers(Approval.edit({"to": "bob", "amount": "5"}, by="ann"))
    with guarded(tmp_path, approver):
        assert pay("bob", 500) == "paid 5 to bob"
    assert ran == [("bob", 5)]


@pytest.mark.parametrize("replay", ["resume", "offline", "verify"])
def test_a_replay_gives_the_edited_call_back_and_asks_nobody(tmp_path: Path, replay: Any) -> None:
    approver = Answers(
        Approval.edit({"to": "bob", "amount": 5}, by="ann"), Approval(True, by="ann")
    )
    with guarded(tmp_path, approver) as again:
        pay("bob", 500)
        pay("eve", 2)
    for _ in range(2):  # a second generation replays what the first replayed
        with guarded(tmp_path, nobody, replay=replay) as again:
            assert pay("bob", 500) == "paid 5 to bob"
            assert pay("eve", 2) == "paid 2 to eve"
        assert again.stats.hits == 2
    assert ran == [("bob", 5), ("eve", 2)]


def test_a_deny_wins_over_an_approver(tmp_path: Path) -> None:
    approver = Answers(Approval.edit({"to": "bob", "amount": 13}, by="ann"))
    with guarded(tmp_path, approver), pytest.raises(Blocked, match="unlucky") as no:
        pay("bob", 500)
    assert (no.value.verdict_code, ran) == ("unlucky", [])
    with (
        Session("job", store=tmp_path, replay="offline"),
        pytest.raises(Blocked, match="unlucky"),
    ):
        pay("bob", 500)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"to": "bob", "amount": "many"}, "amount"),
        ({"amount": 5}, "to: Field required"),
        ({"to": "bob", "amount": 5, "memo": "x"}, "unknown argument 'memo'"),
        ({"to": {"$rollcage": "nonsense"}}, "no encoding is called"),
        ({"to": object()}, "to"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_edited_arguments_pass_the_tools_own_schema(
    tmp_path: Path, args: dict[str, Any], said: str
) -> None:
    with (
        guarded(tmp_path, Answers(Approval.edit(args, by="ann"))),
        pytest.raises(Blocked, match=said) as no,
    ):
        pay("bob", 500)
    assert (no.value.verdict_code, ran) == ("approval_edit_invalid", [])


def test_an_edit_that_changes_nothing_is_an_approval(tmp_path: Path) -> None:
    with guarded(tmp_path, Answers(Approval.edit({"amount": 5, "to": "bob"}, by="ann"))):
        assert pay("bob", 5) == "paid 5 to bob"


@pytest.mark.parametrize(
    "args",
    [
        {"amount": 5, "pin": "nought-0"},
        {"amount": 5, "password": "guessed"},
        {"amount": 5, "pin": {"$rollcage": "secret", "value": "00" * 32}},
    ],
    ids=["pin", "password", "sealed"],
)
def test_a_secret_cannot_be_edited(tmp_path: Path, args: dict[str, Any]) -> None:
    with (
        guarded(tmp_path, Answers(Approval.edit(args, by="ann"))),
        pytest.raises(Blocked, match="approval can't be used") as no,
    ):
        withdraw(500, "one-2-3")
    assert no.value.verdict_code in ("approval_edit_secret", "approval_edit_invalid")
    assert ran == []
    for path in tmp_path.rglob("*.jsonl"):
        assert b'nought-0"' not in path.read_bytes()
        assert b"guessed" not in path.read_bytes()


def test_an_answered_call_does_not_run(tmp_path: Path) -> None:
    approver = Answers(Approval.respond("paid in cash", by="ann", reason="was there"))
    with guarded(tmp_path, approver):
        assert pay("bob", 500) == "paid in cash"
    assert ran == []


@pytest.mark.parametrize("effect", ["pure", "read", "write", "scope"])
@pytest.mark.parametrize("replay", ["resume", "offline", "verify"])
def test_a_replay_gives_the_answer_back_and_asks_nobody(
    tmp_path: Path, effect: Any, replay: Any
) -> None:
    @tool(effect=effect)
    def work(what: str) -> str:
        """Work."""
        ran.append(what)
        return what

    settings: dict[str, Any] = {}
    approver = Answers(Approval.respond("mine", by="ann"), Approval(True, by="ann"))
    with guarded(tmp_path, approver, **settings) as again:
        assert work("a") == "mine"
        assert send("b") == "sent b"
    for _ in range(2):
        with guarded(tmp_path, nobody, replay=replay, **settings) as again:
            assert work("a") == "mine"
            assert send("b") == "sent b"
        assert again.stats.hits == 2
    assert ran == ["b"]


def test_nothing_of_an_answered_call_is_captured_or_undone(tmp_path: Path) -> None:
    @tool(undo=lambda: None, observe=lambda args: {"x": len(args)}, probe=lambda: None)
    def change(what: str) -> str:
        """Change something."""
        ran.append(what)
        return what

    with guarded(tmp_path, Answers(Approval.respond("no need", by="ann"))) as session:
        assert change("a") == "no need"
        assert session.undo().complete


def test_a_rejection_counts_again_for_that_very_call_only(tmp_path: Path) -> None:
    approver = Answers(Approval.reject("not today", by="ann"), Approval(True, by="ann"))
    with guarded(tmp_path, approver):
        with pytest.raises(Blocked, match="not today"):
            send("a")
        assert send("b") == "sent b"
    for _ in range(2):
        with guarded(tmp_path, nobody, replay="resume"):
            with pytest.raises(Blocked, match="not today") as no:
                send("a")
            assert send("b") == "sent b"
        assert no.value.verdict_code == "approval_rejected"
    approver = Answers(Approval(True, by="ann"))
    with guarded(tmp_path, approver, replay="resume"):
        with pytest.raises(Blocked, match="not today"):
            send("a")
        assert send("b") == "sent b"
        assert send("a") == "sent a"  # the same call once more: it is asked about
    with guarded(tmp_path, Answers(Approval(True, by="ann")), replay="off"):
        assert send("a") == "sent a"  # another run
    assert ran == ["b", "a", "a"]


@pytest.mark.parametrize("name", ["carl", " Carl", "CARL"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda by: Approval(True, by=by),
        lambda by: Approval.edit({"text": "b"}, by=by),
        lambda by: Approval.respond("b", by=by),
    ],
    ids=["approve", "edit", "respond"],
)
def test_who_asks_cannot_approve(
    tmp_path: Path, answer: Callable[[str], Approval], name: str
) -> None:
    with (
        guarded(tmp_path, Answers(answer(name)), actor="carl"),
        pytest.raises(Blocked, match="another person has to") as no,
    ):
        send("a")
    assert (no.value.verdict_code, ran) == ("approval_by_proposer", [])


async def test_an_answer_that_comes_once_the_session_was_left_lets_nothing_run(
    tmp_path: Path,
) -> None:
    import asyncio

    reached, left = asyncio.Event(), asyncio.Event()

    async def slow(_: ApprovalRequest) -> Approval:
        reached.set()
        await left.wait()
        return Approval(True, by="ann")

    async with guarded(tmp_path, slow) as session:
        call = asyncio.ensure_future(session.acall(send, text="a"))
        await reached.wait()
    left.set()
    with pytest.raises(Exception, match="the session was left"):
        await call
