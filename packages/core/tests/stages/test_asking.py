"""A rule asks, and somebody decides: once, on this very call, before anything of it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pydantic
import pytest
from cuts import cut_log
from rollcage import (
    Approval,
    ApprovalRequest,
    ApprovalRequired,
    Blocked,
    Halt,
    Session,
    SessionHalted,
    StepView,
    Verdict,
    open_store,
    tool,
)
from rollcage.stages.approvals import Approvals
from texts_sent import asend, nothing_ran, ran, send  # noqa: F401 - pytest finds it here


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if step.kind == "tool" else None


class Answers:
    """An approver that is told what to say, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (True, "the approver returned no approval"),
        (None, "the approver returned no approval"),
        (Approval(cast("bool", "yes")), "the approver returned no approval"),
        (ConnectionError("away"), "the approver failed: ConnectionError"),
    ],
    ids=repr,
)
def test_whatever_goes_wrong_with_an_approver_denies(
    tmp_path: Path, answer: Any, said: str
) -> None:
    with (
        Session("job", store=tmp_path, gate=[asks], approver=Answers(answer)),
        pytest.raises(Blocked, match=said),
    ):
        send("a")
    assert ran == []


def test_without_an_approver_the_session_halts(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), Session("job", store=tmp_path, gate=[asks]):
        with pytest.raises(ApprovalRequired, match="send needs approval: is that so"):
            send("a")
        with pytest.raises(SessionHalted):
            send("b")
    assert ran == []


def test_what_is_recorded_needs_no_approval(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, replay="off"):
        send("a")
    approver = Answers(Approval(True, by="ann"))
    with Session("job", store=tmp_path, replay="resume", gate=[asks], approver=approver) as s:
        assert send("a") == "sent a"
        assert approver.asked == []
        assert send("b") == "sent b"
    assert len(approver.asked) == 1
    assert (s.stats.hits, s.stats.misses, ran) == (1, 1, ["a", "b"])


def test_a_rejection_replays_as_one(tmp_path: Path) -> None:
    approver = Answers(Approval(False, reason="not today"))
    with (
        Session("job", store=tmp_path, gate=[asks], approver=approver),
        pytest.raises(Blocked),
    ):
        send("a")
    with (
        Session("job", store=tmp_path, replay="offline"),
        pytest.raises(Blocked, match="not today"),
    ):
        send("a")


def test_a_secret_is_not_shown_to_an_approver(tmp_path: Path) -> None:
    @tool
    def login(password: pydantic.SecretStr) -> str:
        """Log in."""
        return "in"

    approver = Answers(Approval(True, by="ann"))
    with Session("job", store=tmp_path, gate=[asks], approver=approver):
        login(pydantic.SecretStr("hunter2"))
    assert "hunter2" not in str(approver.asked)


# --- async ---------------------------------------------------------------------------------------


async def later(request: ApprovalRequest) -> Approval:
    await asyncio.sleep(0)
    return Approval(request.args["text"] != "bad", by="ann")


class AsyncApprover:
    """One that is no coroutine function, and is async all the same."""

    async def __call__(self, request: ApprovalRequest) -> Approval:
        return await later(request)


@pytest.mark.parametrize(
    "approver",
    [later, AsyncApprover(), lambda request: Approval(request.args["text"] != "bad", "ann")],
)
async def test_an_async_call_waits_for_its_approver(
    tmp_path: Path, approver: Callable[[ApprovalRequest], Any]
) -> None:
    async with Session("job", store=tmp_path, gate=[asks], approver=approver):
        good, bad = await asyncio.gather(asend("a"), asend("bad"), return_exceptions=True)
    assert (good, type(bad), ran) == ("sent a", Blocked, ["a"])


def test_a_sync_call_does_not_wait_for_an_async_approver(tmp_path: Path) -> None:
    with (
        Session("job", store=tmp_path, gate=[asks], approver=later),
        pytest.raises(Blocked, match="the approver failed: SessionError"),
    ):
        send("a")
    assert ran == []


async def test_the_session_may_be_halted_while_a_call_waits(tmp_path: Path) -> None:
    sessions: list[Session] = []

    async def halting(_: ApprovalRequest) -> Approval:
        sessions[0].halt(Halt("stop"))
        return Approval(True, by="ann")

    with pytest.raises(Halt, match="stop"):
        async with Session("job", store=tmp_path, gate=[asks], approver=halting) as session:
            sessions.append(session)
            with pytest.raises(SessionHalted):
                await asend("a")
    assert ran == []


async def test_streams_wait_too(tmp_path: Path) -> None:
    from rollcage import Contract

    contract = Contract(name="s", parameters={}, effect="read")

    def body(**_: Any) -> Any:
        yield from "ab"

    async def abody(**_: Any) -> Any:
        for each in "ab":
            yield each

    approver = Answers(Approval(True, by="ann"), Approval(True, by="ann"), Approval(False))
    async with Session("job", store=tmp_path, gate=[asks], approver=approver) as session:
        assert list(session.stream(contract, {}, body)) == ["a", "b"]
        assert [each async for each in session.astream(contract, {}, abody)] == ["a", "b"]
        with pytest.raises(Blocked):
            list(session.stream(contract, {}, body))


# --- frameworks that go away to ask --------------------------------------------------------------


class Pause(Exception):
    """How a framework interrupts a run until somebody has decided."""


# --- a framework that makes a call again ----------------------------------------------------------


def test_a_denial_stands_before_what_was_done(tmp_path: Path) -> None:
    denying: list[bool] = []

    def rule(_: StepView) -> Verdict | None:
        return Verdict.deny("no more") if denying else None

    with Session("job", store=tmp_path, gate=[rule]) as session:
        with session.place(turn="m1", slot=0):
            send("a")
        denying.append(True)
        with session.place(turn="m1", slot=0), pytest.raises(Blocked, match="no more"):
            send("a")


def test_a_halted_session_repeats_nothing(tmp_path: Path) -> None:
    with pytest.raises(Halt, match="stop"), Session("job", store=tmp_path) as session:
        with session.place(turn="m1", slot=0):
            send("a")
        session.halt(Halt("stop"))
        with session.place(turn="m1", slot=0), pytest.raises(SessionHalted):
            send("a")


async def test_a_call_that_is_cancelled_while_it_waits_did_not_happen(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def forever(_: ApprovalRequest) -> Approval:
        reached.set()
        await asyncio.Event().wait()
        raise NotImplementedError

    async with Session("job", store=tmp_path, gate=[asks], approver=forever) as session:
        call = asyncio.ensure_future(asend("a"))
        await reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert session.halted is None
    assert ran == []


# --- approvers that a session is given later -----------------------------------------------------


@pytest.mark.parametrize("first", [None, "approver", "stage"])
@pytest.mark.parametrize("is_entered", [False, True])
def test_an_approver_takes_the_place_of_another(
    tmp_path: Path, first: str | None, is_entered: bool
) -> None:
    before, after = Answers(), Answers(Approval(True, by="ann"))
    given: Any = {"approver": before, "stage": Approvals(before), None: None}[first]
    session = Session("job", store=tmp_path, gate=[asks], approver=given)
    if not is_entered:
        session.ask(after)
    with session:
        if is_entered:
            session.ask(after)
        assert send("a") == "sent a"
    assert (len(before.asked), len(after.asked)) == (0, 1)


class Pauses(BaseException):
    """What a framework stops by, to ask outside of the process."""


class PausesAsErrorError(Exception):
    """What another framework stops by: it is an error as any other, if nobody says so."""


@pytest.mark.parametrize("kind", [Pauses, PausesAsErrorError])
@pytest.mark.parametrize("is_entered", [False, True])
@pytest.mark.parametrize("first", [None, "stage"])
def test_what_a_framework_pauses_by_goes_through(
    tmp_path: Path, first: str | None, is_entered: bool, kind: type[BaseException]
) -> None:
    def pauses(_: ApprovalRequest) -> Any:
        raise kind

    given: Any = None if first is None else Approvals(Answers(), pauses=(KeyError,))
    session = Session("job", store=tmp_path, gate=[asks], approver=given)
    if not is_entered:
        session.ask(pauses, pauses=(kind,))
    with pytest.raises(kind), session:
        if is_entered:
            session.ask(pauses, pauses=(kind,))
        send("a")
    yes = Answers(Approval(True, by="ann"))
    with Session("job", store=tmp_path, gate=[asks], approver=yes) as again:
        assert send("a") == "sent a"
    assert again.run_id == session.run_id
    assert ran == ["a"]


def test_an_inner_session_s_approver_decides_on_what_its_gate_asks(tmp_path: Path) -> None:
    approver = Answers(Approval(True, by="ann"), Approval(True, by="ann"))
    with Session("outer", store=tmp_path):
        for name, text in (("one", "a"), ("two", "b")):
            with Session(name, store=tmp_path, gate=[asks], approver=approver):
                assert send(text) == f"sent {text}"
        assert send("c") == "sent c"
    assert [each.args["text"] for each in approver.asked] == ["a", "b"]


def test_an_approver_is_told_what_is_on_record(tmp_path: Path) -> None:
    approver = Answers(Approval(True, by="ann"))
    how: Any = {"gate": [asks], "approver": approver, "actor": "bob"}
    with (
        Session("job", store=tmp_path, **how) as session,
        session.branch("b"),
        session.turn() as turn,
        session.place(turn=turn, slot=3, agent="eve", call_id="c1"),
    ):
        send("a")
    (asked,) = approver.asked
    lines = [orjson.loads(line) for line in open_store(tmp_path).read(session.run_id)]
    waits = next(line for line in lines if line.get("waits"))
    line = next(line for line in lines if line["event"] == "requested")
    step = session.attempt.run.steps[waits["step"]]
    assert (asked.kind, asked.name, asked.args) == ("tool", waits["name"], waits["args"])
    assert (asked.key, asked.branch, asked.turn) == (waits["key"], waits["branch"], waits["turn"])
    assert (asked.slot, asked.agent, asked.call_id) == (3, "eve", "c1")
    assert (asked.run, asked.root, asked.requested_by) == (session.run_id,) * 2 + ("bob",)
    assert (asked.id, asked.at, asked.expires) == (line["id"], line["time"], line["expires"])
    assert asked.expires - asked.at == 24 * 60 * 60 * 1_000_000
    assert (asked.verdict.decision, asked.verdict.reason) == ("ask", "is that so?")
    assert asked.idempotency_key == session.attempt.run.idempotency_key(step)
    assert asked.policy == line["policy"] == ""
    assert not any("during" in line for line in lines if line.get("name") == waits["name"])


def test_a_decided_request_that_a_kill_left_in_the_queue_is_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    left: dict[str, Any] = {}

    def approver(_: ApprovalRequest) -> Approval:
        left.update((key, store.get("requests", key)) for key in store.keys("requests"))
        return Approval(True, by="ann")

    with Session("job", store=tmp_path, gate=[asks], approver=approver) as session:
        send("a")
    assert store.keys("requests") == []
    cut_log(tmp_path / "logs" / f"{session.run_id}.jsonl", len(store.read(session.run_id)) - 1)
    for key, value in left.items():
        assert store.swap("requests", key, None, value)
    with Session("job", store=tmp_path, gate=[asks], approver=approver) as again:
        assert store.keys("requests") == []
        assert send("a") == "sent a"
    assert again.stats.hits == 1
