"""Calls that wait for a decision: asked now or later, here or elsewhere, once or cut anywhere."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Guard, Options, Session, compensate, open_store, resolve_step, tool, undo_run
from rollcage.errors import (
    ApprovalInvalid,
    ApprovalRequired,
    Blocked,
    Diverged,
    Halt,
    SessionError,
    SessionHalted,
    StoreError,
)
from rollcage.gate import Approval, ApprovalRequest, Pending, StepView, Verdict
from rollcage.stages.approvals import Approvals
from rollcage.stages.queue import ApprovalQueue, QueueApprover

ran: list[Any] = []
asked: list[str] = []


@pytest.fixture(autouse=True)
def nothing() -> None:
    ran.clear()
    asked.clear()


@tool(effect="write")
def send(to: str) -> str:
    ran.append(to)
    return f"sent {to}"


@tool(effect="write", name="approvals.take_back")
def take_back(to: str) -> None:
    ran.remove(to)


@tool(effect="write", undo=lambda args: [compensate(take_back, to=args["to"])])
def put(to: str) -> str:
    ran.append(to)
    return f"put {to}"


@tool(effect="read")
def look(at: str) -> str:
    ran.append(at)
    return f"seen {at}"


@tool(effect="pure")
def count(of: str) -> int:
    ran.append(of)
    return len(of)


def asks(view: StepView) -> Verdict | None:
    if view.name in ("send", "put", "look", "count", "fails"):
        return Verdict.ask("somebody has to look at it")
    return None


def yes(request: ApprovalRequest) -> Approval:
    asked.append(request.id)
    return Approval(True, by="ann")


def nobody(request: ApprovalRequest) -> Approval:
    raise AssertionError(f"asked about {request.name} {dict(request.args)}")


def lines(store: Path, run: str, *kinds: str) -> list[dict[str, Any]]:
    found = map(orjson.loads, open_store(store).read(run))
    return [line for line in found if not kinds or line["event"] in kinds]


def guarded(store: Path, approver: Any = yes, **more: Any) -> Session:
    return Session("job", store=store, gate=[asks], approver=approver, **more)


# --- now -----------------------------------------------------------------------------------------


def test_an_approved_call_runs_once_and_replays_without_asking(tmp_path: Path) -> None:
    with guarded(tmp_path) as session:
        assert send("a") == "sent a"
    assert [line["event"] for line in lines(tmp_path, session.run_id)] == [
        "run", "attempt", "step", "requested", "decided", "step", "outcome", "ended",
    ]  # fmt: skip
    (decided,) = lines(tmp_path, session.run_id, "decided")
    assert (decided["decision"], decided["by"]) == ("approved", "ann")
    with guarded(tmp_path, nobody, replay="continue"):
        assert send("a") == "sent a"
    with guarded(tmp_path, nobody, replay="offline"):
        assert send("a") == "sent a"
    assert ran == ["a"]


def test_a_session_without_an_approver_halts_and_has_nothing_of_it(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), Session("job", store=tmp_path, gate=[asks]) as session:
        send("a")
    assert lines(tmp_path, session.run_id, "requested") == []
    assert lines(tmp_path, session.run_id, "step") == []
    assert not ran


@pytest.mark.parametrize("effect", ["send", "look", "count"])
def test_a_rejection_holds_for_that_call_alone(tmp_path: Path, effect: str) -> None:
    work: Callable[[str], Any] = {"send": send, "look": look, "count": count}[effect]
    answers = [Approval.reject("not today", by="ann"), Approval(True, by="ann")]
    with guarded(tmp_path, lambda _: answers.pop(0)):
        with pytest.raises(Blocked, match="not today") as no:
            work("a")
        work("b")
    assert no.value.verdict_code == "approval_rejected"
    before: list[Any] = []
    for replay in ("continue", "continue", "offline"):
        with guarded(tmp_path, nobody, replay=replay) as session:
            with pytest.raises(Blocked, match="not today"):
                work("a")
            work("b")
        kinds = [line["event"] for line in lines(tmp_path, session.run_id)]
        assert kinds.count("refused") == 1
        before.append(kinds)
    assert ran == ["b"]


def test_a_call_that_was_rejected_is_asked_about_again_if_it_is_made_again(tmp_path: Path) -> None:
    answers = [Approval.reject(by="ann"), Approval(True, by="ann")]
    for approver in (lambda _: answers.pop(0), nobody):
        with guarded(tmp_path, approver, replay="continue"):
            with pytest.raises(Blocked):
                send("a")
            assert send("a") == "sent a"
    assert ran == ["a"]


def broken(_: ApprovalRequest) -> Approval:
    raise OSError("the line is dead")


@pytest.mark.parametrize(
    ("approver", "code"),
    [
        (broken, "approval_unavailable"),
        (lambda _: 1 / 0, "approver_failed"),
        (lambda _: True, "approver_failed"),
        (lambda _: None, "approver_failed"),
        (lambda _: Approval(True), "approval_unnamed"),
        (lambda _: Approval(True, by="\u200bann"), "approval_unnamed"),
        (lambda _: Approval(True, by="ann", of="another"), "approval_other_call"),
        (lambda _: Approval(True, by="Carol"), "approval_by_proposer"),
        (lambda _: Approval(True, by="CAROL"), "approval_by_proposer"),
        (lambda _: Approval(True, by="Car0l"), "approval_by_proposer"),
        (lambda _: Approval(True, by="\u0421\u0430rol"), "approval_by_proposer"),
        (lambda _: Approval.edit({"two": "b"}, by="ann"), "approval_edit_invalid"),
        (lambda _: Approval.respond(object(), by="ann"), "approval_response_invalid"),
    ],
)
def test_what_is_no_approval_denies_and_stays_so(tmp_path: Path, approver: Any, code: str) -> None:
    for each in (approver, nobody):
        with guarded(tmp_path, each, actor="Carol", replay="continue"):
            with pytest.raises(Blocked) as no:
                send("a")
            assert no.value.verdict_code == code
    assert not ran


def test_who_asked_first_can_never_approve(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), guarded(tmp_path, Approvals(), actor="carol"):
        send("a")
    carol = guarded(tmp_path, lambda _: Approval(True, by="carol"))  # says no actor
    with carol, pytest.raises(Blocked, match="another person"):
        send("a")


def test_only_some_may_approve(tmp_path: Path) -> None:
    def by(name: str) -> Approvals:
        return Approvals(lambda _: Approval(True, by=name), approvers=frozenset(["ann"]))

    with guarded(tmp_path, by("bob")), pytest.raises(Blocked, match="not one of the approvers"):
        send("a")
    with guarded(tmp_path, by("Ann"), replay="off"):
        send("a")
    assert ran == ["a"]


def test_an_edit_changes_what_runs_and_a_resume_finds_it(tmp_path: Path) -> None:
    with guarded(tmp_path, lambda _: Approval.edit({"to": "z"}, by="ann")) as session:
        assert send("a") == "sent z"
    for replay in ("continue", "offline"):
        with guarded(tmp_path, nobody, replay=replay):
            assert send("a") == "sent z"
    assert ran == ["z"]
    assert lines(tmp_path, session.run_id, "step")[-1]["args"] == {"to": "z"}


def test_a_guard_that_denies_wins_over_an_edit(tmp_path: Path) -> None:
    def never_z(view: StepView) -> Verdict | None:
        return Verdict.deny("not to z") if view.args["to"] == "z" else asks(view)

    with (
        Session(
            "job", store=tmp_path, gate=[never_z],
            approver=lambda _: Approval.edit({"to": "z"}, by="ann"),
        ) as session,
        pytest.raises(Blocked, match="not to z"),
    ):  # fmt: skip
        send("a")
    assert lines(tmp_path, session.run_id, "ended")[0]["status"] == "ok"
    assert not ran


def test_an_answer_stands_in_place_of_the_tool_and_is_not_undone(tmp_path: Path) -> None:
    with guarded(tmp_path, lambda _: Approval.respond("by hand", by="ann")) as session:
        assert put("a") == "by hand"
    for replay in ("continue", "offline"):
        with guarded(tmp_path, nobody, replay=replay):
            assert put("a") == "by hand"
    assert undo_run(tmp_path, session.run_id, tools=[put, take_back]).steps == ()
    assert not ran


async def test_async_and_sync_approvers(tmp_path: Path) -> None:
    async def later(request: ApprovalRequest) -> Approval:
        await asyncio.sleep(0)
        return yes(request)

    class Later:
        async def __call__(self, request: ApprovalRequest) -> Approval:
            return await later(request)

    for approver in (later, Later(), yes):
        async with guarded(tmp_path, approver, replay="off") as session:
            assert await session.acall(send, to="a") == "sent a"
    with guarded(tmp_path, later, replay="off") as session, pytest.raises(Blocked):
        send("b")  # nothing awaits it
    assert ran == ["a"] * 3


async def test_gathered_calls_wait_together(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    with pytest.raises((ApprovalRequired, SessionHalted)):
        async with guarded(tmp_path, Approvals()) as session:
            await asyncio.gather(*(session.acall(send, to=each) for each in names))
    waiting = ApprovalQueue(tmp_path).waiting()
    assert sorted(each.args["to"] for each in waiting) == names
    for each in waiting:
        ApprovalQueue(tmp_path).decide(each.id, Approval(True, by="ann"))
    async with guarded(tmp_path, nobody) as session:
        await asyncio.gather(*(session.acall(send, to=each) for each in names))
    assert sorted(ran) == names
    assert ApprovalQueue(tmp_path).waiting() == []


def test_threads_wait_together(tmp_path: Path) -> None:
    here = threading.Barrier(3, timeout=20)

    def together(request: ApprovalRequest) -> Approval:
        here.wait()
        return yes(request)

    with guarded(tmp_path, together) as session, ThreadPoolExecutor(3) as pool, session.turn():
        found = [pool.submit(copy_context().run, send, each) for each in "abc"]
        assert [each.result() for each in found] == ["sent a", "sent b", "sent c"]
    with guarded(tmp_path, nobody, replay="continue") as session, session.turn():
        assert [send(each) for each in "cab"] == ["sent c", "sent a", "sent b"]


async def test_a_call_that_is_cut_off_while_it_waits_keeps_its_place(tmp_path: Path) -> None:
    forever = asyncio.Event()

    async def never(request: ApprovalRequest) -> Approval:
        asked.append(request.id)
        await forever.wait()
        raise AssertionError

    async with guarded(tmp_path, never) as session:
        for _ in range(2):
            task = asyncio.create_task(session.acall(send, to="a"))
            while len(asked) < _ + 1:  # noqa: ASYNC110 - until it is asked
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert len(set(asked)) == 1  # the same request
    assert len(lines(tmp_path, session.run_id, "requested")) == 1
    async with guarded(tmp_path, yes, replay="continue") as session:
        assert await session.acall(send, to="a") == "sent a"
    assert asked[0] == asked[-1]
    assert ran == ["a"]


async def test_an_answer_that_comes_once_the_session_was_left_counts_later(tmp_path: Path) -> None:
    comes = asyncio.Event()

    async def late(request: ApprovalRequest) -> Approval:
        asked.append(request.id)
        await comes.wait()
        return Approval(True, by="ann")

    async with guarded(tmp_path, late) as session:
        task = asyncio.create_task(session.acall(send, to="a"))
        while not asked:  # noqa: ASYNC110 - until it is asked
            await asyncio.sleep(0)
    comes.set()
    with pytest.raises(SessionError):
        await task
    assert not ran
    async with guarded(tmp_path, nobody) as session:
        assert await session.acall(send, to="a") == "sent a"


# --- later ---------------------------------------------------------------------------------------


def test_what_a_policy_in_shadow_mode_says_is_in_no_request(tmp_path: Path) -> None:
    def rule(_: StepView) -> Verdict:
        return Verdict("ask", "sure?", "mine", shadow=Verdict.deny("never", code="never"))

    with Session("job", store=tmp_path, gate=[rule], approver=yes) as session:
        send("a")
    (requested,) = lines(tmp_path, session.run_id, "requested")
    assert (requested["verdict"]["code"], "shadow" in requested["verdict"]) == ("mine", False)
    began = lines(tmp_path, session.run_id, "step")[-1]
    assert began["verdict"]["shadow"]["code"] == "never"


def test_somebody_decides_later_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    session = guarded(tmp_path)
    for answer in (None, Approval(True, by="ann")):
        if answer is not None:
            queue = ApprovalQueue(tmp_path)
            (waits,) = queue.waiting()
            assert waits.args == {"to": "b"}
            queue.decide(waits.id, answer)
            with pytest.raises(ApprovalInvalid, match="decided"):
                queue.decide(waits.id, Approval.reject(by="bob"))
            assert queue.waiting() == []
        try:
            session = guarded(tmp_path, QueueApprover(tmp_path))
            with session:
                send_plain("a")
                send("b")
        except ApprovalRequired:
            assert answer is None
            assert lines(tmp_path, session.run_id, "ended")[-1]["status"] == "paused"
    assert ran == ["a", "b"]
    assert len(lines(tmp_path, session.run_id, "requested")) == 1


@tool(effect="write")
def send_plain(to: str) -> None:
    ran.append(to)


def test_a_live_writer_finds_a_decision_that_somebody_else_makes(tmp_path: Path) -> None:
    queue = ApprovalQueue(tmp_path)

    def decide() -> None:
        while not (waits := queue.waiting()):
            pass
        queue.decide(waits[0].id, Approval.edit({"to": "z"}, by="ann"))

    thread = threading.Thread(target=decide)
    thread.start()
    with guarded(tmp_path, QueueApprover(tmp_path, wait=30)):
        assert send("a") == "sent z"
    thread.join()


def test_a_request_expires(tmp_path: Path) -> None:
    now = [1_000_000_000_000_000_000]
    clock = type(Options().clock)(wall=lambda: now[0])
    options = Options(clock=clock)
    with pytest.raises(ApprovalRequired), guarded(tmp_path, Approvals(expires=60), options=options):
        send("a")
    (waits,) = ApprovalQueue(tmp_path).waiting()
    with pytest.raises(ApprovalInvalid, match="in time"):
        ApprovalQueue(tmp_path).decide(waits.id, Approval(True, by="ann"), now=waits.expires)
    ApprovalQueue(tmp_path).decide(waits.id, Approval(True, by="ann"), now=waits.at + 1)
    now[0] += 60 * 1_000_000_000
    with guarded(tmp_path, nobody, options=options), pytest.raises(Blocked, match="in time"):
        send("a")
    assert not ran


def test_a_decision_that_was_changed_denies(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), guarded(tmp_path, Approvals()):
        send("a")
    store = open_store(tmp_path)
    queue = ApprovalQueue(tmp_path)
    (waits,) = queue.waiting()
    queue.decide(waits.id, Approval.reject(by="ann"))
    data = store.get("decisions", waits.id)
    assert data is not None
    assert store.swap("decisions", waits.id, data, data.replace(b'"rejected"', b'"approved"'))
    with guarded(tmp_path, nobody), pytest.raises(Blocked) as no:
        send("a")
    assert no.value.verdict_code == "approval_tampered"
    assert not ran


def test_a_decision_on_one_request_is_none_on_another(tmp_path: Path) -> None:
    store, queue = open_store(tmp_path), ApprovalQueue(tmp_path)
    for name in "ab":
        with pytest.raises(ApprovalRequired), guarded(tmp_path, Approvals(), input=name):
            send(name)
    one, two = queue.waiting()
    queue.decide(one.id, Approval(True, by="ann"))
    store.swap("decisions", two.id, None, store.get("decisions", one.id))
    with (
        guarded(tmp_path, nobody, input=two.args["to"]),
        pytest.raises(Blocked, match="another call"),
    ):
        send(two.args["to"])


def test_who_asked_cannot_decide_later_either(tmp_path: Path) -> None:
    approvals = Approvals(approvers=frozenset(["ann", "carol"]))
    with pytest.raises(ApprovalRequired), guarded(tmp_path, approvals, actor="carol"):
        send("a")
    queue = ApprovalQueue(tmp_path)
    (waits,) = queue.waiting()
    for by in ("carol", "Car0l", "bob", ""):
        with pytest.raises(ApprovalInvalid):
            queue.decide(waits.id, Approval(True, by=by))
    with pytest.raises(ApprovalInvalid, match="no request"):
        queue.decide("0" * 16, Approval(True, by="ann"))
    queue.decide(waits.id, Approval(True, by="ann"))


def test_another_policy_asks_anew(tmp_path: Path) -> None:
    class Policy:
        digest = "one"

        def __call__(self, view: StepView) -> Verdict | None:
            return asks(view)

    policy = Policy()
    again: dict[str, Any] = {"store": tmp_path, "gate": [policy]}
    with pytest.raises(ApprovalRequired), Session("job", approver=Approvals(), **again):
        send("a")
    (waits,) = ApprovalQueue(tmp_path).waiting()
    ApprovalQueue(tmp_path).decide(waits.id, Approval(True, by="ann"))
    policy.digest = "two"
    with pytest.raises(ApprovalRequired), Session("job", approver=Approvals(), **again):
        send("a")
    assert not ran


# --- what is used up -----------------------------------------------------------------------------


def test_an_approval_is_used_once(tmp_path: Path) -> None:
    fails = [True, True, False]

    @tool(effect="write", name="fails", raises=[OSError])
    def work() -> str:
        if fails.pop(0):
            raise OSError("full")
        return "done"

    for _ in range(2):
        with pytest.raises(OSError, match="full"), guarded(tmp_path):
            work()
    with guarded(tmp_path):
        assert work() == "done"
    assert len(set(asked)) == len(asked) == 3
    with guarded(tmp_path, nobody, replay="continue"):
        assert work() == "done"


def test_what_did_not_happen_keeps_its_approval(tmp_path: Path) -> None:
    from rollcage import resolve_step
    from rollcage.errors import UnknownOutcome

    @tool(effect="write", name="fails")
    def work() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise KeyboardInterrupt
        return "done"

    with pytest.raises(KeyboardInterrupt), guarded(tmp_path) as session:
        work()
    with pytest.raises(UnknownOutcome) as unknown, guarded(tmp_path, nobody):
        work()
    resolve_step(tmp_path, session.run_id, unknown.value.step, happened=False)
    with guarded(tmp_path, nobody):
        assert work() == "done"


@pytest.mark.parametrize("decision", [Approval(True, by="ann"), Approval.reject(by="ann")])
def test_after_an_undo_it_is_asked_about_again(tmp_path: Path, decision: Approval) -> None:
    def program(approver: Any) -> Session:
        with guarded(tmp_path, approver, replay="continue") as session:
            send_plain("first")
            try:
                put("a")
            except Blocked:
                assert decision.decision == "rejected"
        return session

    def decides(request: ApprovalRequest) -> Approval:
        asked.append(request.id)
        return decision

    run = program(decides).run_id
    undo_run(tmp_path, run, to=1, tools=[put, take_back])
    assert ran == ["first"]
    program(decides)
    assert len(set(asked)) == 2
    program(nobody)
    assert ran == ["first", "a"] if decision.approved else ["first"]


def test_an_undo_before_the_decision_drops_the_request(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), guarded(tmp_path, Approvals()) as session:
        send_plain("a")
        send("b")
    (waits,) = ApprovalQueue(tmp_path).waiting()
    undo_run(tmp_path, session.run_id, to=1)
    ApprovalQueue(tmp_path).decide(waits.id, Approval(True, by="ann"))
    with pytest.raises(ApprovalRequired), guarded(tmp_path, Approvals()):
        send_plain("a")
        send("b")
    assert ran == ["a"]


# --- divergence ----------------------------------------------------------------------------------


def run_of(store: Path, *names: str, approver: Any = yes, on: Any = "halt") -> Session:
    with guarded(store, approver, replay="continue", on_divergence=on) as session:
        for name in names:
            put(name)
    return session


def test_a_new_call_halts_before_anybody_is_asked(tmp_path: Path) -> None:
    run_of(tmp_path, "a", "b")
    with pytest.raises(Diverged):
        run_of(tmp_path, "a", "c", approver=nobody)


@pytest.mark.parametrize("on", ["undo", "warn"])
def test_a_new_call_that_is_asked_about_leaves_what_is_ahead(tmp_path: Path, on: Any) -> None:
    run_of(tmp_path, "a", "b", "c")
    with pytest.raises(ApprovalRequired):
        run_of(tmp_path, "a", "d", approver=Approvals(), on=on)
    for each in ApprovalQueue(tmp_path).waiting():
        ApprovalQueue(tmp_path).decide(each.id, Approval(True, by="ann"))
    session = run_of(tmp_path, "a", "d", "b", on=on)
    assert sorted(ran) == (["a", "b", "d"] if on == "undo" else ["a", "b", "b", "c", "d"])
    asked.clear()
    run_of(tmp_path, "a", "d", "b", approver=nobody, on="halt")
    assert lines(tmp_path, session.run_id, "ended")[-1]["status"] == "ok"


def test_a_request_that_lost_its_rule_can_not_run_before_what_came_after(tmp_path: Path) -> None:
    with guarded(tmp_path, lambda _: Approval.reject(by="ann")):
        with pytest.raises(Blocked):
            send("a")
        send_plain("b")
    with pytest.raises(Diverged), Session("job", store=tmp_path, replay="continue"):
        send("a")
    assert ran == ["b"]


# --- sessions in sessions ------------------------------------------------------------------------


def test_a_session_inside_has_the_approver_and_the_terms_of_that_around(tmp_path: Path) -> None:
    def program(approver: Any, inner: Any = None) -> Session:
        store = open_store(tmp_path)
        session = Session("inner", store=store, gate=[asks], approver=inner)
        outer = Session("outer", store=store, approver=approver, actor="carol", replay="continue")
        with outer, session:
            send("a")
        return session

    with pytest.raises(ApprovalRequired):
        program(Approvals())
    (waits,) = ApprovalQueue(tmp_path).waiting()
    with pytest.raises(ApprovalInvalid):
        ApprovalQueue(tmp_path).decide(waits.id, Approval(True, by="carol"))
    ApprovalQueue(tmp_path).decide(waits.id, Approval(True, by="ann"))
    program(nobody)
    program(nobody)
    assert ran == ["a"]


def test_a_session_inside_asks_its_own_approver_for_its_own_rules(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with Session("outer", store=store, approver=nobody):
        with Session("inner", store=store, gate=[asks], approver=yes):
            send("a")
        only_b = Approvals(yes, approvers=frozenset("b"))
        with Session("inner", store=store, gate=[asks], approver=only_b), pytest.raises(Blocked):
            send("b")
    assert ran == ["a"]


def test_no_session_inside_chooses_who_approves_what_is_asked_around_it(tmp_path: Path) -> None:
    def agent(request: ApprovalRequest) -> Approval:
        asked.append("agent")
        return Approval(True, by="ann")

    store = open_store(tmp_path)
    with Session("outer", store=store, gate=[asks], approver=nobody):
        hows: list[dict[str, Any]] = [{}, {"replay": "off"}, {"gate": [asks]}]
        for how in hows:
            inner: Any = Session("inner", store=store, approver=agent, **how)
            with inner, pytest.raises(Blocked):
                send("a")
    assert "agent" not in asked
    assert ran == []


def test_a_store_that_fails_denies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with guarded(tmp_path) as session:
        get = session.store.get

        def failing(kind: str, key: str) -> bytes | None:
            if kind == "decisions":
                raise StoreError("gone")
            return get(kind, key)

        monkeypatch.setattr(session.store, "get", failing)
        with pytest.raises(Blocked) as no:
            send("a")
    assert no.value.verdict_code == "approval_unavailable"


def test_a_framework_may_ask_by_an_exception_and_come_back(tmp_path: Path) -> None:
    class Interrupt(Exception):
        pass

    answers: list[Any] = []

    def interrupts(request: ApprovalRequest) -> Approval:
        asked.append(request.id)
        if not answers:
            raise Interrupt
        return Approval(True, by="ann")

    approvals = Approvals(interrupts, pauses=(Interrupt,))
    with guarded(tmp_path, approvals) as session:
        send_plain("first")
        with pytest.raises(Interrupt):
            send("a")
        answers.append(1)
        assert send("a") == "sent a"
    assert len(set(asked)) == 1
    assert len(lines(tmp_path, session.run_id, "requested")) == 1
    assert lines(tmp_path, session.run_id, "ended")[-1]["status"] == "ok"


def test_a_call_is_not_asked_for_again_once_halted(tmp_path: Path) -> None:
    """It waits for the next attempt; the last line of this one says nothing else."""

    def halts(request: ApprovalRequest) -> Approval:
        asked.append(request.id)
        over = Halt("over")
        session.halt(over)
        raise over

    session = guarded(tmp_path, halts)
    with pytest.raises(Halt, match="over"), session:
        send("a")
    (ended,) = lines(tmp_path, session.run_id, "ended")
    assert "restarted" not in ended
    with guarded(tmp_path, yes, replay="continue"):
        assert send("a") == "sent a"
    assert (len(set(asked)), ran) == (1, ["a"])


def test_a_call_that_a_framework_takes_away_keeps_its_place_beside_others(tmp_path: Path) -> None:
    """Its sibling still runs: the next session finds one step for it, and asks nobody."""
    answers: list[int] = []
    ran: list[str] = []
    begun, over = threading.Event(), threading.Event()

    class Interrupt(Exception):
        pass

    def interrupts(_: ApprovalRequest) -> Approval:
        if not answers:
            raise Interrupt
        return Approval(True, by="ann")

    @tool(effect="write")
    def slow(text: str) -> str:
        begun.set()
        assert over.wait(10)
        ran.append(text)
        return text

    def turn_of(session: Session, slot: int) -> Any:
        return session.place(turn="message", slot=slot)

    approvals = Approvals(interrupts, pauses=(Interrupt,))
    with guarded(tmp_path, approvals) as session:

        def sibling() -> None:
            with turn_of(session, 0):
                session.call(slow, text="s")

        thread = threading.Thread(target=sibling)
        thread.start()
        assert begun.wait(10)
        with pytest.raises(Interrupt), turn_of(session, 1):
            send("a")
        over.set()
        thread.join()
        answers.append(1)
        with turn_of(session, 1):
            assert send("a") == "sent a"
    assert len(lines(tmp_path, session.run_id, "requested")) == 1
    (waits,) = (each["step"] for each in lines(tmp_path, session.run_id, "step") if "waits" in each)
    (after,) = (each for each in lines(tmp_path, session.run_id, "outcome") if "restarted" in each)
    assert after["restarted"] == [waits]  # readers of the log know that it is asked for again
    with guarded(tmp_path, lambda _: pytest.fail("asked again"), replay="continue") as session:
        with turn_of(session, 1):
            assert send("a") == "sent a"
        with turn_of(session, 0):
            assert session.call(slow, text="s") == "s"
    assert (ran, session.stats.hits) == (["s"], 2)


def test_pending_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(ApprovalRequired, match="ask ann"),
        guarded(tmp_path, lambda _: Pending("ask ann")),
    ):
        send("a")


def test_an_approval_of_what_was_edited_since_counts_no_longer(tmp_path: Path) -> None:
    """Approved under one policy, edited under another, and back: it is asked about again."""

    class Policy(Guard):
        def __init__(self, digest: str) -> None:
            self.digest = digest

        def decide(self, call: Any) -> Verdict | None:
            return Verdict.ask("sure?") if call.contract.name == "dies" else None

    dying = [True]

    @tool(effect="write", name="dies")
    def dies(to: str) -> str:
        if dying[0]:
            raise KeyboardInterrupt
        ran.append(to)
        return to

    shown: list[tuple[str, str]] = []

    def edits(request: ApprovalRequest) -> Approval:
        shown.append((request.policy, request.args["to"]))
        if request.policy == "two":
            return Approval.edit({"to": "edited"}, by="bob")
        return Approval(True, by="ann")

    def attempt(digest: str) -> Session:
        return Session("job", store=tmp_path, gate=[Policy(digest)], approver=edits)

    for number, digest in enumerate(["one", "two"]):
        with pytest.raises(KeyboardInterrupt), attempt(digest) as session:
            dies("first")
        resolve_step(tmp_path, session.run_id, number + 2, happened=False)
    dying[0] = False
    with attempt("one"):
        dies("first")
    assert shown[:2] == [("one", "first"), ("two", "first")]
    assert [(shown[-1][1])] == ran  # whoever approved it has seen it
    assert len(shown) == 3


def test_an_edit_counts_once_although_no_rule_asks_about_what_it_made(tmp_path: Path) -> None:
    """The undone call keeps its place beside its sibling, and the decision on it is used up."""

    def rule(view: StepView) -> Verdict | None:
        is_asked = view.name == "put" and view.args["to"] == "bob"
        return Verdict.ask("somebody has to look at it") if is_asked else None

    def edits(request: ApprovalRequest) -> Approval:
        asked.append(request.args["to"])
        return Approval.edit({"to": "cleo"}, by="ann")

    def program() -> str:
        how: dict[str, Any] = {"gate": [rule], "approver": edits, "replay": "continue"}
        with Session("job", store=tmp_path, **how) as session, session.turn() as turn:
            with turn.slot(0):
                put("ann")
            with turn.slot(1):
                put("bob")
        return session.run_id

    run = program()
    assert (ran, asked) == (["ann", "cleo"], ["bob"])
    assert undo_run(tmp_path, run, to=1, tools=[put, take_back]).complete
    assert program() == run
    assert (ran, asked) == (["ann", "cleo"], ["bob", "bob"])


def test_a_block_that_failed_by_a_rejection_is_not_made_anew(tmp_path: Path) -> None:
    """Nothing was changed in it, and what came after it was asked for because it had failed."""

    def decides(request: ApprovalRequest) -> Approval | Pending:
        asked.append(request.name)
        if request.name == "put":
            return Approval.reject("not that one", by="ann")
        return Pending("later") if len(asked) == 2 else Approval(True, by="ann")

    def program() -> None:
        with guarded(tmp_path, decides) as session:
            with contextlib.suppress(Blocked), session.transaction():
                put("a")
            send("b")

    with pytest.raises(ApprovalRequired):
        program()
    program()
    assert asked == ["put", "send", "send"]
    assert ran == ["b"]


def test_a_question_is_recorded_without_what_a_policy_in_shadow_mode_says(tmp_path: Path) -> None:
    shadow = Verdict.deny("hidden", code="shadowed")

    def both(view: StepView) -> Verdict | None:
        verdict = Verdict("ask", "sure?", "asks", "a rule")
        return dataclasses.replace(verdict, shadow=shadow) if view.name == "send" else None

    told: list[ApprovalRequest] = []

    def yes(request: ApprovalRequest) -> Approval:
        told.append(request)
        return Approval(True, by="eve")

    with Session("job", store=tmp_path, gate=[both], approver=yes) as session:
        assert send("ann") == "sent ann"
    lines = [orjson.loads(line) for line in open_store(tmp_path).read(session.run_id)]
    (asked_for,) = (line["verdict"] for line in lines if line["event"] == "requested")
    assert asked_for == {"decision": "ask", "reason": "sure?", "code": "asks", "rule": "a rule"}
    assert [request.verdict.as_data() for request in told] == [asked_for]
    made = [line["verdict"] for line in lines if line["event"] == "step" and "waits" not in line]
    assert [verdict["shadow"]["code"] for verdict in made] == ["shadowed"]
