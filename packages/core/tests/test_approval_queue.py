"""The durable queue: asked in one process, decided in another, used in a third; once."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pydantic
import pytest
from rollcage import (
    Approval,
    ApprovalCorrupt,
    ApprovalInvalid,
    ApprovalRequest,
    ApprovalRequired,
    Blocked,
    StepView,
    StoreError,
    Verdict,
    compensate,
    tool,
)
from rollcage.gate import ApprovalQueue, Pending, QueueApprover, Queued
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.step.clock import Clock
from rollcage.store import JsonlStore
from rollcage.trace import check_events
from rollcage_policy import Policy
from texts_sent import asend, nothing_ran, ran, send  # noqa: F401 - pytest finds it here

HOUR = 3600 * 1_000_000_000  # ns


def asks(step: StepView) -> Verdict | None:
    return None if step.args.get("text") == "safe" else Verdict.ask("is that so?")


def policy(reason: str, **approval: Any) -> Policy:
    """A policy that asks about everything."""
    return Policy.parse(
        f"""
        version = 1
        default = "allow"
        [[rules]]
        id = "all"
        decision = "ask"
        reason = "{reason}"
        [approval]
        """
        + "".join(f"{name} = {value!r}\n" for name, value in approval.items())
    )


class Desk:
    """A store, the sessions that run in it, and its queue."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.queue = ApprovalQueue(root)
        self.now = time.time_ns()
        self.policy: Policy | None = None

    def session(self, name: str = "job", *, wait: float = 0, **settings: Any) -> Session:
        self.now += 1_000_000  # of two runs, one is newer
        approver = settings.pop("approver", None) or QueueApprover(self.root, wait=wait)
        clock = Clock(wall=lambda: self.now)
        by: dict[str, Any] = {"rules": [asks]} if self.policy is None else {"policy": self.policy}
        return Session(name, store=self.root, approver=approver, clock=clock, **by, **settings)

    def halted(self, text: str = "a", name: str = "job", **settings: Any) -> str:
        """Let a session halt at its call; the id of the request."""
        before = set(self.queue.ids())
        with pytest.raises(ApprovalRequired), self.session(name, **settings):
            send(text)
        (new,) = set(self.queue.ids()) - before
        return new

    def refused(self, text: str = "a", name: str = "job", **settings: Any) -> str:
        """With which code a session's call is refused."""
        with pytest.raises(Blocked) as no, self.session(name, **settings):
            send(text)
        assert ran == []
        return no.value.verdict_code

    def decide(self, request: str, said: Approval | None = None) -> Queued:
        said = said or Approval(True, by="ann")
        return self.queue.decide(request, said, now=self.now // 1000)

    def file(self, request: str, part: str) -> Path:
        return self.root / "approvals" / f"{request}.{part}.json"

    def events(self, session: Session) -> list[dict[str, Any]]:
        trace = JsonlStore(self.root).read(session.run_id)
        return check_events(trace.data, trace.where)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "store")


# --- from process to process ----------------------------------------------------------------------


JOB = """
import sys
from rollcage import Verdict, tool
from rollcage.gate import QueueApprover
from rollcage.session.session import Session

store, log = sys.argv[1:3]

@tool
def write(text: str) -> str:
    with open(log, "a") as file:
        file.write(text + "\\n")
    return f"wrote {text}"

def asks(step):
    return Verdict.ask("may it?") if step.args["text"] == "risky" else None

with Session("job", store=store, rules=[asks], approver=QueueApprover(store)) as session:
    with session.turn():  # both are of one message of the model
        print(write("safe"))
        print(write("risky"))
    print(write("last"))
"""

DECIDE = """
import sys
from rollcage import Approval
from rollcage.gate import ApprovalQueue

queue = ApprovalQueue(sys.argv[1])
(request,) = queue.ids()
queue.decide(request, eval(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("said", "printed", "written"),
    [
        ("Approval(True, by='ann')", "wrote risky", ["safe", "risky", "last"]),
        ("Approval.edit({'text': 'mild'}, by='ann')", "wrote mild", ["safe", "mild", "last"]),
        ("Approval.respond('by hand', by='ann')", "by hand", ["safe", "last"]),
    ],
    ids=["approve", "edit", "respond"],
)
def test_a_run_stops_and_goes_on_in_another_process_days_later(
    tmp_path: Path, python: Any, said: str, printed: str, written: list[str]
) -> None:
    store, log = str(tmp_path / "store"), tmp_path / "log"
    for _ in range(2):  # the second one finds that nobody has decided yet
        halted = python(JOB, store, str(log))
        assert halted.returncode == 1
        assert "ApprovalRequired: write requires approval: may it?" in halted.stderr
        assert log.read_text().split() == ["safe"]
    assert python(DECIDE, store, said).returncode == 0
    resumed = python(JOB, store, str(log))
    assert (resumed.returncode, resumed.stdout.splitlines()) == (
        0,
        ["wrote safe", printed, "wrote last"],
    )
    assert log.read_text().split() == written
    again = python(JOB.replace('"job"', '"job", replay="resume"'), store, str(log))
    assert again.stdout == resumed.stdout  # nobody is asked twice
    assert log.read_text().split() == written
    assert len(list((tmp_path / "store" / "approvals").glob("*.request.json"))) == 1


def test_a_rejection_reaches_the_next_process(tmp_path: Path, python: Any) -> None:
    store, log = str(tmp_path / "store"), tmp_path / "log"
    python(JOB, store, str(log))
    assert python(DECIDE, store, "Approval.reject('too risky', by='ann')").returncode == 0
    for _ in range(2):
        refused = python(JOB, store, str(log))
        assert "Blocked: too risky" in refused.stderr
    assert log.read_text().split() == ["safe"]


RACE = """
import sys
from rollcage.gate import ApprovalQueue

queue = ApprovalQueue(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(queue.use(sys.argv[2], "run", now=1))
"""


def test_of_many_processes_one_uses_an_approval(desk: Desk) -> None:
    request = desk.halted()
    desk.decide(request)
    command = [sys.executable, "-c", textwrap.dedent(RACE), str(desk.root), request]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(command, **pipes) for _ in range(6)]
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    won = 0
    for each in racers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in racers:
        won += "True" in each.communicate(timeout=60)[0]
    assert won == 1


def test_a_call_may_wait_for_its_decision(desk: Desk) -> None:
    decided = threading.Thread(target=_decide_when_asked, args=(desk, Approval(True, by="ann")))
    decided.start()
    with desk.session(wait=60):
        assert send("a") == "sent a"
    decided.join()


async def test_an_async_call_waits_without_holding_up_the_loop(desk: Desk) -> None:
    decided = threading.Thread(target=_decide_when_asked, args=(desk, Approval(True, by="ann")))
    async with desk.session(wait=60):
        call = asyncio.ensure_future(asend("a"))
        assert await asend("safe") == "sent safe"
        decided.start()
        assert await call == "sent a"
    decided.join()


def _decide_when_asked(desk: Desk, said: Approval) -> None:
    while not desk.queue.ids():
        threading.Event().wait(0.01)
    desk.decide(desk.queue.ids()[0], said)


async def test_calls_at_once_are_decided_one_by_one(desk: Desk) -> None:
    async def play() -> list[Any]:
        async with desk.session() as session:
            with session.turn():
                calls = [asend("a"), asend("safe"), asend("b")]
                return await asyncio.gather(*calls, return_exceptions=True)

    said: list[Any] = []
    for _ in range(3):
        try:
            said = await play()
        except ApprovalRequired:
            for request in desk.queue.ids():
                queued = desk.queue.get(request)
                assert queued is not None
                if queued.decision is None:
                    desk.decide(request)
        else:
            break
    assert said == ["sent a", "sent safe", "sent b"]
    assert sorted(ran) == ["a", "b", "safe"]


# --- what the queue holds -------------------------------------------------------------------------


def test_a_request_is_in_the_queue_as_it_was_asked(desk: Desk) -> None:
    request = desk.halted(actor="carl")
    queued = desk.queue.get(request)
    assert queued is not None
    asked = queued.request
    assert (asked.name, asked.args, asked.requested_by) == ("send", {"text": "a"}, "carl")
    assert (asked.verdict.reason, asked.verdict.rule) == ("is that so?", "asks")
    assert asked.idempotency_key.startswith(request)
    now = desk.now // 1000
    assert queued.state(now) == "waiting"
    assert queued.state(asked.expires) == "expired"
    decided = desk.decide(request)
    assert (decided.state(now), decided.decided_at) == ("decided", now)
    with desk.session():
        send("a")
    used = desk.queue.get(request)
    assert used is not None
    assert (used.state(now), used.use, used.decision) == ("used", "used", Approval(True, "ann"))


def test_a_secret_is_not_in_the_queue(desk: Desk) -> None:
    @tool(secret=["pin"])
    def withdraw(pin: str, password: pydantic.SecretStr) -> str:
        """Withdraw money."""
        return "done"

    with pytest.raises(ApprovalRequired), desk.session():
        withdraw("4711-4711", pydantic.SecretStr("hunter2"))
    (request,) = desk.queue.ids()
    desk.decide(request)
    with desk.session():
        assert withdraw("4711-4711", pydantic.SecretStr("hunter2")) == "done"
    for path in desk.root.rglob("*"):
        if path.is_file():
            assert b"4711-4711" not in path.read_bytes()
            assert b"hunter2" not in path.read_bytes()


def test_what_was_said_first_counts(desk: Desk) -> None:
    request = desk.halted()
    desk.decide(request, Approval.reject("no", by="bob"))
    with pytest.raises(ApprovalInvalid, match="was already decided by bob"):
        desk.decide(request)
    assert desk.refused() == "approval_rejected"
    with pytest.raises(ApprovalInvalid, match="was already decided"):
        desk.decide(request)


def test_what_was_said_just_now_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    request = desk.halted()
    other = ApprovalQueue(desk.root)
    look = other.get

    def too_late(approval: str) -> Queued | None:
        queued = look(approval)
        desk.decide(approval, Approval.reject("no", by="bob"))
        return queued

    monkeypatch.setattr(other, "get", too_late)
    with pytest.raises(ApprovalInvalid, match="just now"):
        other.decide(request, Approval(True, by="ann"), now=desk.now // 1000)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (Approval(True, by="carl"), "another person has to"),
        (Approval.respond("x", by="Carl "), "another person has to"),
        (Approval.edit({"text": object()}, by="ann"), "JSON can't hold it"),
        (Approval(True, by="ann", of="another"), "for another call"),
    ],
    ids=["self", "answers", "no JSON", "other"],
)
def test_a_word_that_cannot_count_is_refused_where_it_is_said(
    desk: Desk, said: Approval, message: str
) -> None:
    request = desk.halted(actor="carl")
    with pytest.raises(ApprovalInvalid, match=message):
        desk.decide(request, said)
    queued = desk.queue.get(request)
    assert queued is not None
    assert queued.decision is None


def test_an_unknown_request_can_not_be_decided(desk: Desk) -> None:
    with pytest.raises(ApprovalInvalid, match="there is no request"):
        desk.decide("0" * 16)
    assert not desk.root.exists()
    with pytest.raises(StoreError, match="not an approval's id"):
        desk.decide("../../etc")


def test_an_expired_request_can_not_be_decided(desk: Desk) -> None:
    request = desk.halted()
    desk.now += 25 * HOUR
    with pytest.raises(ApprovalInvalid, match="in time"):
        desk.decide(request)


# --- approvals that do not count, each with its code ----------------------------------------------


def test_an_approval_counts_once(desk: Desk) -> None:
    request = desk.halted()
    desk.decide(request)
    with desk.session():
        send("a")
    again = desk.halted(replay="off", name="other")
    assert again != request
    ran.clear()
    shutil.copy(desk.file(request, "decision"), desk.file(again, "decision"))
    assert desk.refused(name="other") == "approval_other_run"


def test_the_same_call_once_more_is_asked_about_once_more(desk: Desk) -> None:
    fails = [True]

    @tool
    def work() -> str:
        """Fail once."""
        if fails and fails.pop():
            raise OSError("disk full")
        return "done"

    with pytest.raises(ApprovalRequired), desk.session():
        work()
    (request,) = desk.queue.ids()
    desk.decide(request)
    with pytest.raises(OSError, match="disk full"), desk.session():
        work()
    with pytest.raises(ApprovalRequired), desk.session():
        work()  # what failed runs again, under the same idempotency key: not by that approval
    again = f"{request}-2"
    assert desk.queue.ids() == [request, again]
    shutil.copy(desk.file(request, "decision"), desk.file(again, "decision"))
    with pytest.raises(Blocked) as no, desk.session():
        work()
    assert no.value.verdict_code == "approval_used"
    desk.file(again, "decision").unlink()
    desk.decide(again)
    with desk.session():
        assert work() == "done"


@tool(effect="write")
def drop(text: str) -> None:
    ran.append(f"drop {text}")


@tool(effect="write", undo=lambda args: [compensate(drop, text=args["text"])])
def put(text: str) -> None:
    ran.append(f"put {text}")


def undone(desk: Desk, to: int) -> None:
    """Undo the job's newest run down to a step, as `rollcage undo --to` does."""
    newest = max(JsonlStore(desk.root).runs(), key=lambda each: each.run)
    undo_run(desk.root, newest.run, to=to, tools=[put, drop])


def test_an_approval_of_before_an_undo_does_not_count_after_it(desk: Desk) -> None:
    def work() -> Session:
        with desk.session(replay="continue") as session:
            put("safe")
            put("a")
        return session

    def asked() -> str:
        before = set(desk.queue.ids())
        with pytest.raises(ApprovalRequired):
            work()
        (new,) = set(desk.queue.ids()) - before
        return new

    first = asked()
    undone(desk, 1)
    desk.decide(first)  # whoever looked at it did not know of the undo
    second = asked()
    assert second.partition("-")[0] != first
    desk.decide(second)
    work()
    assert ran == ["put safe", "put a"]
    undone(desk, 1)
    old = desk.queue.get(second)
    assert old is not None

    def replays(request: ApprovalRequest) -> Approval:
        """An approver that gives the answer of before the undo once more."""
        assert request.key == old.request.key
        assert request.idempotency_key != old.request.idempotency_key
        return Approval(True, by="ann", of=second)

    with (
        pytest.raises(Blocked) as no,
        desk.session(replay="continue", approver=replays),
    ):
        put("safe")
        put("a")
    assert no.value.verdict_code == "approval_other_call"
    undone(desk, 1)
    third = asked()
    assert len({first, second, third.partition("-")[0]}) == 3
    assert ran == ["put safe", "put a", "drop a"]


def test_an_approval_that_somebody_else_uses_now_does_not_count(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.decide(desk.halted())
    approver = QueueApprover(desk.root)
    look = approver.queue.get

    def overtaken(approval: str) -> Queued | None:
        queued = look(approval)
        desk.queue.use(approval, "another", now=1)
        return queued

    monkeypatch.setattr(approver.queue, "get", overtaken)
    assert desk.refused(approver=approver) == "approval_used"


def test_an_approval_of_other_arguments_is_refused(desk: Desk) -> None:
    first = desk.halted("a")
    desk.decide(first)
    second = desk.halted("b")
    shutil.copy(desk.file(first, "decision"), desk.file(second, "decision"))
    assert desk.refused("b") == "approval_other_call"
    shutil.copy(desk.file(first, "request"), desk.file(second, "request"))
    assert desk.refused("b") == "approval_other_call"


def test_an_approval_under_another_policy_is_refused(desk: Desk) -> None:
    desk.policy = policy("is that so?")
    desk.decide(desk.halted())
    desk.policy = policy("is that still so?")
    assert desk.refused() == "approval_other_policy"
    again = desk.halted()  # by the policy of today
    desk.decide(again)
    with desk.session():
        assert send("a") == "sent a"


def test_what_waits_under_another_policy_is_asked_anew(desk: Desk) -> None:
    desk.policy = policy("is that so?")
    request = desk.halted()
    desk.policy = policy("is that still so?")
    again = desk.halted()
    assert again == f"{request}-2"
    queued = desk.queue.get(request)
    assert queued is not None
    assert queued.use == "approval_other_policy"


def test_an_approval_is_refused_once_it_is_expired(desk: Desk) -> None:
    desk.decide(desk.halted())
    desk.now += 25 * HOUR
    assert desk.refused() == "approval_expired"
    desk.decide(desk.halted())
    with desk.session():
        assert send("a") == "sent a"


def test_a_call_that_nobody_decided_on_in_time_is_refused(desk: Desk) -> None:
    desk.halted()
    desk.now += 25 * HOUR
    assert desk.refused() == "approval_expired"


def test_an_approver_may_let_requests_expire_sooner(desk: Desk) -> None:
    approver = QueueApprover(desk.root, expires=60)
    desk.decide(desk.halted(approver=approver))
    desk.now += 61 * 1_000_000_000
    assert desk.refused(approver=approver) == "approval_expired"


@pytest.mark.parametrize("hours", [-1, -24 * 365])
def test_a_clock_that_jumps_back_denies(desk: Desk, hours: int) -> None:
    desk.decide(desk.halted())
    desk.now += hours * HOUR
    assert desk.refused() == "approval_clock"
    desk.now -= hours * HOUR
    with desk.session():  # it is right again
        assert send("a") == "sent a"


def test_a_word_from_the_future_denies(desk: Desk) -> None:
    request = desk.halted()
    desk.now += HOUR
    desk.decide(request)
    desk.now -= HOUR
    assert desk.refused() == "approval_clock"


@pytest.mark.parametrize(
    ("hours", "code"),
    [(-1, "approval_clock"), (25, "approval_expired"), (10**6, "approval_expired")],
)
def test_a_clock_that_jumps_while_a_call_waits_denies(desk: Desk, hours: int, code: str) -> None:
    def jumping(_: ApprovalRequest) -> Approval:
        desk.now += hours * HOUR
        return Approval(True, by="ann")

    assert desk.refused(approver=jumping) == code


def test_who_asks_cannot_approve_though_the_queue_says_so(desk: Desk) -> None:
    desk.decide(desk.halted(actor="bob"), Approval(True, by="ann"))
    assert desk.refused(actor="ann") == "approval_by_proposer"


def test_only_who_may_approve_does(desk: Desk) -> None:
    desk.policy = policy("is that so?", approvers=["ann", "eve"])
    desk.decide(desk.halted(), Approval(True, by="bob"))
    assert desk.refused() == "approval_not_entitled"
    desk.decide(desk.halted(), Approval(True, by="Annette"))
    assert desk.refused() == "approval_not_entitled"
    desk.decide(desk.halted(), Approval(True, by="Ann"))
    with desk.session():
        assert send("a") == "sent a"


def test_a_policy_says_for_how_long_an_approval_counts(desk: Desk) -> None:
    desk.policy = policy("is that so?", expires="1h")
    desk.decide(desk.halted())
    desk.now += HOUR
    assert desk.refused() == "approval_expired"


def test_a_policy_that_is_loaded_while_a_call_waits_makes_its_approval_void(desk: Desk) -> None:
    desk.policy = policy("is that so?")
    sessions: list[Session] = []

    def meanwhile(_: ApprovalRequest) -> Approval:
        sessions[0].load_policy(policy("is that still so?"))
        return Approval(True, by="ann")

    with pytest.raises(Blocked) as no, desk.session(approver=meanwhile) as session:
        sessions.append(session)
        send("a")
    assert (no.value.verdict_code, ran) == ("approval_other_policy", [])


# --- damage ---------------------------------------------------------------------------------------


Damage = Callable[[Path], None]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def changed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"send"', b'"sent"').replace(b"ann", b"eve"))


def forged(path: Path) -> None:
    document = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**document, "mac": "00" * 32}))


def listed(path: Path) -> None:
    path.write_bytes(b"[1, 2]")


def unsealed(path: Path) -> None:
    document = orjson.loads(path.read_bytes())
    del document["mac"]
    path.write_bytes(orjson.dumps(document))


@pytest.mark.parametrize("damage", [cut_short, emptied, changed, forged, listed, unsealed])
@pytest.mark.parametrize("part", ["request", "decision"])
def test_a_damaged_queue_denies_and_says_so(desk: Desk, damage: Damage, part: str) -> None:
    request = desk.halted()
    desk.decide(request)
    path = desk.file(request, part)
    whole = path.read_bytes()
    damage(path)
    assert desk.refused() == "approval_tampered"
    with pytest.raises(ApprovalCorrupt, match=f"its {part} was changed or is incomplete"):
        desk.queue.get(request)
    with pytest.raises(ApprovalCorrupt):
        desk.decide(request)
    path.write_bytes(whole)
    with desk.session():  # what was asked and said is there again
        assert send("a") == "sent a"


def test_a_damaged_use_denies(desk: Desk) -> None:
    request = desk.halted()
    desk.decide(request)
    desk.queue.use(request, "run", now=1)
    emptied(desk.file(request, "use"))
    assert desk.refused() == "approval_tampered"


def test_a_decision_without_its_request_denies(desk: Desk) -> None:
    request = desk.halted()
    desk.decide(request)
    desk.file(request, "request").unlink()
    assert desk.refused() == "approval_tampered"


def test_a_decision_on_an_earlier_form_of_the_request_denies(desk: Desk) -> None:
    request = desk.halted()
    desk.decide(request)
    desk.file(request, "request").unlink()
    queued_elsewhere = Desk(desk.root)
    decision = desk.file(request, "decision").read_bytes()
    desk.file(request, "decision").unlink()
    queued_elsewhere.now += 1_000_000  # asked again, with another expiry
    with pytest.raises(ApprovalRequired), queued_elsewhere.session():
        send("a")
    desk.file(request, "decision").write_bytes(decision)
    assert queued_elsewhere.refused() == "approval_tampered"


def test_a_store_with_another_key_denies(desk: Desk) -> None:
    desk.decide(desk.halted())
    (desk.root / "key").write_bytes(b"k" * 32)
    assert desk.refused() == "approval_tampered"


@pytest.fixture
def unwritable(desk: Desk) -> Path:
    """A queue that can't be kept: a file lies where its folder should."""
    path = desk.root / "approvals"
    path.parent.mkdir(parents=True)
    path.write_text("in the way")
    return path


def test_a_store_that_is_away_denies(desk: Desk, unwritable: Path) -> None:
    assert desk.refused() == "approval_unavailable"
    unwritable.unlink()
    desk.halted()  # and is asked once it is back


def test_a_half_written_part_is_none(desk: Desk) -> None:
    request = desk.halted()
    (desk.root / "approvals" / f".{request}.decision.json.0000").write_bytes(b'{"decision":"app')
    (desk.root / "approvals" / "notes.txt").write_text("not ours")
    assert desk.queue.ids() == [request]
    queued = desk.queue.get(request)
    assert queued is not None
    assert queued.decision is None


def test_without_a_word_the_approver_says_how_to_give_it(desk: Desk) -> None:
    request = desk.halted()
    asked = desk.queue.get(request)
    assert asked is not None
    said = QueueApprover(desk.root)(asked.request)
    command = f"rollcage approve {request} --store {desk.root}"
    assert said == Pending(f"waiting for approval as {request}: {command}")
