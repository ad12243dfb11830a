"""A law: an approval counts once, for that very call and policy, and never after an undo.

Random programs are asked about now, later, or never; their calls are approved, edited, answered,
denied, or left until it is too late; they are cut between calls and inside of them, resumed under
another policy, and undone. The log and what the bodies did are held against what was decided.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Guard, Options, Session, compensate, open_store, resolve_step, tool, undo_run
from rollcage.errors import ApprovalInvalid, Blocked, Halt, SessionHalted
from rollcage.gate.approval import Approval, ApprovalRequest, Pending
from rollcage.gate.verdict import Verdict
from rollcage.session.options import Clock
from rollcage.stages.queue import ApprovalQueue

Line = dict[str, Any]
ran: list[tuple[str, int]] = []
chance = random.Random()  # noqa: S311 - it makes programs, no secrets
clock = [10**18]


class Asks(Guard):
    """A policy that asks about every write, under a digest of its own."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def decide(self, call: Any) -> Verdict | None:
        return Verdict.ask("sure?") if call.contract.name == "law.write" else None

    def describes(self, session: Session) -> Line:
        return {"digest": self.digest}


@tool(name="law.back", effect="write")
def back(n: int) -> None:
    ran.append(("back", n))


@tool(name="law.write", effect="write", undo=lambda args: [compensate(back, n=args["n"])])
def write(n: int) -> int:
    if chance.random() < 0.1:
        raise KeyboardInterrupt  # the process dies inside: nobody knows
    ran.append(("write", n))
    return n


@tool(name="law.agent", effect="scope")
def agent(ns: list[int]) -> list[int]:
    return [write(n) for n in ns]


def perform(session: Session, program: list[Any]) -> None:
    for kind, ns in program:
        if chance.random() < 0.08:
            raise KeyError("cut")
        with contextlib.suppress(Blocked):
            if kind == "agent":
                agent(ns)
            elif kind == "branch":
                with session.branch(f"b{ns[0]}"):
                    for n in ns:
                        write(n)
            elif kind == "turn":
                with session.turn() as turn:
                    for slot, n in enumerate(ns):
                        with turn.slot(slot):
                            write(n)
            elif kind == "session":
                with Session(f"s{ns[0]}", store=session.store):
                    write(ns[0])
            else:
                write(ns[0])


def answer(request: ApprovalRequest) -> Approval | Pending:
    """What somebody decides, now or not."""
    way = chance.choice(["yes", "yes", "yes", "edit", "answer", "no", "later", "later", "fails"])
    if way == "yes":
        return Approval(True, by="ann")
    if way == "edit":
        return Approval.edit({"n": request.args["n"] + 1000}, by="ann")
    if way == "answer":
        return Approval.respond(-1, by="ann")
    if way == "no":
        return Approval.reject("no", by="ann")
    if way == "later":
        return Pending("later")
    raise RuntimeError("the approver fails")


def decide_some(store: Path) -> None:
    """Somebody decides on what waits, in time or too late."""
    queue = ApprovalQueue(store)
    for request in queue.waiting():
        now = chance.choice([clock[0] // 1000, clock[0] // 1000, request.expires])
        with contextlib.suppress(ApprovalInvalid, RuntimeError):
            found = answer(request) if chance.random() < 0.8 else Pending("later")
            if isinstance(found, Approval):
                queue.decide(request.id, found, now=now)
    if chance.random() < 0.1:
        clock[0] += 2 * 24 * 3600 * 10**9  # whatever waits has expired


def attempt(store: Path, program: list[Any], digest: str) -> str:
    ticks = Clock(wall=lambda: clock[0], monotonic=lambda: clock[0])
    ends = contextlib.suppress(Halt, SessionHalted, KeyError, KeyboardInterrupt)
    session = Session(
        "law", store=store, gate=[Asks(digest)], approver=answer, replay="continue",
        options=Options(clock=ticks),
    )  # fmt: skip
    with ends, session:
        perform(session, program)
    return session.run_id


def check(lines: list[Line]) -> None:
    """Hold the log against the law."""
    requested: dict[str, Line] = {}
    decided: dict[str, Line] = {}
    steps: dict[int, Line] = {}
    first: dict[str, int] = {}  # what was asked for at a place
    began: Counter[str] = Counter()
    policy, undone_since = "", set[str]()
    for line in lines:
        kind = line["event"]
        if kind == "attempt":
            policy = line["gate"][0]["digest"] if "gate" in line else ""  # an undo has none
        elif kind == "requested":
            assert line["id"] not in decided, "what was decided is asked about again"
            assert line["policy"] == policy
            requested[line["id"]] = line
        elif kind == "decided":
            assert line["id"] in requested
            assert line["id"] not in decided, "decided twice"
            decided[line["id"]] = line
        elif kind == "undone":
            undone_since |= set(decided)
        elif kind == "step" and line["name"] == "law.write":
            steps[line["step"]] = line
            first.setdefault(line["fingerprint"], line["args"]["n"])
            if "waits" in line:
                continue
            approval = line["approval"]
            decision = decided[approval]
            assert decision["decision"] in ("approved", "edited", "responded")
            assert requested[approval]["policy"] == policy, "it was approved under another policy"
            assert approval not in undone_since, "it was approved before an undo"
            asked = first[line["fingerprint"]]  # what an edit made of it counts for that edit alone
            is_edited = decision["decision"] == "edited"
            assert line["args"]["n"] == (asked + 1000 if is_edited else asked)
            began[approval] += line.get("outcome", 0) is not None and "answered" not in line
    ended = Counter[str]()
    for line in lines:
        if line["event"] == "outcome" and line["step"] in steps and line["outcome"] is not None:
            step = steps[line["step"]]
            if "approval" in step:
                ended[step["approval"]] += 1
    assert all(count == 1 for count in ended.values()), "an approval was used twice"


@pytest.mark.parametrize("seed", range(120))
def test_an_approval_counts_once_for_that_call(tmp_path: Path, seed: int) -> None:
    chance.seed(seed)
    ran.clear()
    numbers = iter(range(1, 100))
    program = [
        (kind, [next(numbers) for _ in range(chance.randint(1, 3))])
        for kind in chance.choices(["write", "write", "agent", "branch", "turn", "session"], k=4)
    ]
    run = ""
    for _ in range(8):
        run = attempt(tmp_path, program, chance.choice(["one", "one", "one", "two"])) or run
        lines = [orjson.loads(line) for line in open_store(tmp_path).read(run)]
        check(lines)
        decide_some(tmp_path)
        for line in lines:
            if line["event"] == "step" and line["name"] == "law.write" and "waits" not in line:
                with contextlib.suppress(Exception):
                    resolve_step(tmp_path, run, line["step"], happened=False)
        if chance.random() < 0.15:
            with contextlib.suppress(Exception):
                undo_run(tmp_path, run)
    lines = [orjson.loads(line) for line in open_store(tmp_path).read(run)]
    performed = Counter(n for what, n in ran if what == "write")
    bodies = Counter(
        line["args"]["n"]
        for line in lines
        if line["event"] == "step"
        and line["name"] == "law.write"
        and "waits" not in line
        and "answered" not in line
    )
    assert all(count <= bodies[n] for n, count in performed.items()), "a body ran off the record"
