"""Approvals, orders, limits and secrets, together and at random, in runs that are cut anywhere."""

import asyncio
import contextlib
import functools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from limits import Limits
from rollcage import DidNotHappen, Happened, Session, compensate, open_store, tool, undo_run
from rollcage.errors import (
    ApprovalInvalid,
    ApprovalRequired,
    Blocked,
    RunStopped,
    SessionHalted,
)
from rollcage.gate import Approval, Pending, StepView, Verdict
from rollcage.session.declare import declaration
from rollcage.stages import orders
from rollcage.stages.approvals import Approvals
from rollcage.stages.orders import lift_order, pause_run, stop_run
from rollcage.stages.queue import ApprovalQueue
from rollcage.stages.secrets import Secrets
from rollcage.trace.chain import Chain
from rollcage.trace.folder import FolderLog

SECRET = "hunter2-the-second"
ran: list[Any] = []
SEEDS = int(os.environ.get("ROLLCAGE_STAGES_SEEDS", "20"))


@pytest.fixture(autouse=True)
def nothing() -> None:
    ran.clear()


@tool(name="meet.write", effect="write")
def write(n: int) -> int:
    ran.append(n)
    return n


@tool(name="meet.say", effect="write")
def say(text: str) -> None:
    ran.append(text)


@tool(name="meet.echo", effect="read")
def echo(text: str) -> str:
    ran.append(text)
    return text


@tool(name="meet.enter", effect="read", secret=["token"])
def enter(token: str) -> str:
    return "in"


def clean(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_what_was_rejected_or_answered_does_not_count(tmp_path: Path) -> None:
    answers = [
        Approval.reject(by="ann"), Approval.respond(7, by="ann"), Approval(True, by="ann"),
        Approval(True, by="ann"),
    ]  # fmt: skip
    session = Session(
        "job", store=tmp_path, gate=[lambda _: Verdict.ask("look")],
        approver=lambda _: answers.pop(0), stages=[Limits({"meet.write": 1})],
    )  # fmt: skip
    with session:
        with pytest.raises(Blocked):
            write(1)
        assert write(2) == 7
        assert write(3) == 3
        with pytest.raises(Blocked, match="once"):
            write(4)
        assert len(answers) == 1  # nobody was asked


def test_an_approved_call_waits_as_well(tmp_path: Path) -> None:
    def approver(request: Any) -> Approval:
        stop_run(tmp_path, request.run)
        return Approval(True, by="ann")

    gate = [lambda view: Verdict.ask("look")]
    session = Session("job", store=tmp_path, gate=gate, approver=approver)
    with pytest.raises(RunStopped), session:
        write(1)
    assert not ran
    lift_order(tmp_path, session.run_id)
    with Session("job", store=tmp_path, gate=gate, approver=lambda _: 1 / 0):
        assert write(1) == 1  # it was approved


def test_in_what_rules_say_and_people_are_asked(tmp_path: Path) -> None:
    def rule(view: StepView) -> Verdict | None:
        if view.name == "meet.say":
            return Verdict.ask(f"writes {view.args['text']}")
        return Verdict.deny(f"says {view.args['text']}") if view.name == "meet.echo" else None

    shown: list[Any] = []

    def show(request: Any) -> Pending:
        shown.append(request)
        return Pending("later")

    def program(approver: Any) -> None:
        with Session("job", store=tmp_path, gate=[rule], approver=approver, stages=[Secrets()]):
            enter(SECRET)
            with pytest.raises(Blocked):
                echo(SECRET)
            say(SECRET)

    with pytest.raises(ApprovalRequired):
        program(Approvals(show))
    assert SECRET not in repr(shown)
    (waits,) = ApprovalQueue(tmp_path).waiting()
    assert SECRET not in repr(waits)
    clean(tmp_path)
    no = Approval.reject(f"not {SECRET}", by="ann")
    with pytest.raises(Blocked):
        program(lambda _: no)
    clean(tmp_path)
    assert SECRET not in ran


def test_a_call_that_is_paused_gives_its_claim_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(name="meet.once", effect="write", once="pay/{n}")
    def pay(n: int) -> int:
        ran.append(n)
        return n

    wait = FolderLog.wait
    run: list[str] = []

    def waits(log: FolderLog) -> None:
        wait(log)
        if run:
            name = run.pop()
            pause_run(tmp_path, name)
            threading.Timer(0.02, lift_order, (tmp_path, name)).start()

    monkeypatch.setattr(FolderLog, "wait", waits)
    for _ in range(2):
        with Session("job", store=tmp_path, replay="off") as session:
            write(0)
            if not _:
                run.append(session.run_id)
            assert pay(7) == 7
        withdrawn = [line for line in open_store(tmp_path).read(session.run_id) if b":null" in line]
        assert len(withdrawn) == 1 - _
    assert ran == [0, 7, 0]


# --- at random, cut anywhere ---------------------------------------------------------------------


class Killed(BaseException):
    """What a SIGKILL is in one process: from here on nothing is written or done."""


class World:
    """What programs did, and the moments at which they can be killed or stopped."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.left = -1
        self.dead = False
        self.asked: dict[str, set[str]] = {}
        self.at_zero: Callable[[], None] | None = None
        self.lock = threading.RLock()

    def tick(self) -> None:
        with self.lock:
            if self.dead:
                raise Killed
            if self.left < 0:
                return
            self.left -= 1
            if self.left < 0 and self.at_zero is not None:
                self.at_zero()
            elif self.left < 0:
                self.dead = True
                raise Killed

    def do(self, label: str, text: str) -> str:
        self.tick()
        with self.lock:
            self.done.append((label, text))
        self.tick()
        return f"{label}: {text}"


world = World()


def happened(args: dict[str, Any]) -> Any:
    label, text = args["label"], args["text"]
    return Happened(f"{label}: {text}") if (label, text) in world.done else DidNotHappen()


@tool(name="meet.redo", effect="write", probe=lambda args: DidNotHappen())
def redo(label: str, text: str) -> None:
    world.tick()
    if (label, text) in world.done:
        world.done.remove((label, text))
    world.tick()


@tool(
    name="meet.put",
    effect="write",
    probe=happened,
    undo=lambda args: [compensate(redo, label=args["label"], text=args["text"])],
)
def put(label: str, text: str) -> str:
    return world.do(label, text)


@tool(name="meet.get", effect="read")
def get(label: str, text: str) -> str:
    world.tick()
    return f"{label}: {text}"


@tool(name="meet.pure", effect="pure")
def pure(label: str, text: str) -> str:
    return f"{label}: {text}"


TOOLS: dict[str, Any] = {"put": put, "get": get, "pure": pure}
Op = tuple[str, Any, Any]


def program_of(chance: random.Random, size: int = 6, depth: int = 0) -> list[Op]:
    """A program: calls, turns of calls, and blocks of all kinds. Every call has a label."""
    ops: list[Op] = []
    for _ in range(chance.randint(1, size)):
        kind = chance.choice(
            ["call"] * 4 + ["turn"] * 2 + ["branch", "transaction", "session", "body"]
        )
        answer = chance.choice(["yes", "no", "edit", "answer", "later", "nolater", "free", "free"])
        label = f"{answer}-{chance.getrandbits(32):08x}"
        if kind == "call" or depth > 1:
            ops.append(("call", chance.choice(["put", "put", "put", "get", "pure"]), label))
        elif kind == "turn":
            ops.append(("turn", None, program_of(chance, 4, 9)))
        else:
            ops.append((kind, label, program_of(chance, 3, depth + 1)))
    return ops


def rule(view: StepView) -> Verdict | None:
    label = view.args.get("label", "free")
    return None if label.startswith("free") or view.name == "meet.redo" else Verdict.ask("look")


def answer(label: str, *, now: bool) -> Approval | Pending:
    kind = label.partition("-")[0]
    if kind in ("later", "nolater") and now:
        return Pending("later")
    if kind in ("no", "nolater"):
        return Approval.reject("no", by="ann")
    if kind == "edit":
        return Approval.edit({"label": label, "text": "edited"}, by="ann")
    if kind == "answer":
        return Approval.respond("answered", by="ann")
    return Approval(True, by="ann")


def expected(ops: list[Op]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for kind, what, rest in ops:
        if kind != "call":
            found += expected(rest)
        elif what == "put" and rest.partition("-")[0] not in ("no", "nolater", "answer"):
            found.append((rest, "edited" if rest.startswith("edit") else "text"))
    return sorted(found)


def labels(ops: list[Op]) -> dict[str, str]:
    """The calls that are asked about, by label, and their tools."""
    found: dict[str, str] = {}
    for kind, what, rest in ops:
        found |= {rest: what} if kind == "call" else labels(rest)
    return {label: name for label, name in found.items() if not label.startswith("free")}


def approve(request: Any) -> Any:
    world.tick()
    world.asked.setdefault(request.args["label"], set()).add(request.id)
    found = answer(request.args["label"], now=True)
    world.tick()
    return found


class Attempts:
    """The attempts at a program: sync or async, in any order within a turn."""

    def __init__(self, store: Any, ops: list[Op], chance: random.Random, *, is_async: bool) -> None:
        self.store, self.ops, self.chance, self.is_async = store, ops, chance, is_async
        self.results: dict[str, Any] = {}
        self.session: Session | None = None

    def make(self, replay: Any) -> Session:
        stages = [Secrets(), Limits({"meet.put": 1000})] if replay != "offline" else []
        self.session = Session(
            "job", store=self.store, replay=replay, gate=[rule], approver=approve, stages=stages
        )
        return self.session

    def run(self, replay: Any = "continue") -> BaseException | None:
        """Run the program once; return what ended it."""
        world.dead = False
        try:
            if self.is_async:
                asyncio.run(self._arun(replay))
            else:
                with self.make(replay) as session:
                    self._ops(session, self.ops)
        except (Killed, ApprovalRequired, RunStopped, SessionHalted) as error:
            return error
        finally:
            world.left, world.dead = -1, False
            if self.session is not None and self.session._attempt is not None:
                log = self.session._attempt.log
                if log is not None:
                    with contextlib.suppress(Exception):
                        log.log.close()
        return None

    def _ops(self, session: Session, ops: list[Op]) -> None:
        for kind, what, rest in ops:
            if kind == "call":
                self._call(session, what, rest)
            elif kind == "turn":
                order = list(enumerate(rest))
                self.chance.shuffle(order)
                with session.turn() as turn:
                    for n, (_, name, label) in order:
                        with turn.slot(n):
                            self._call(session, name, label)
            elif kind == "branch":
                with session.branch(what):
                    self._ops(session, rest)
            elif kind == "transaction":
                with session.transaction(what):
                    self._ops(session, rest)
            elif kind == "session":
                with Session(what, store=self.store) as inner:
                    self._ops(inner, rest)
            else:
                contract = declaration(tool(name=f"meet.{what}", effect="scope")(scope))[1]
                session.run_call(contract, {}, functools.partial(self._body, session, rest))

    def _body(self, session: Session, ops: list[Op]) -> str:
        self._ops(session, ops)
        return "done"

    def _call(self, session: Session, name: str, label: str) -> None:
        try:
            self._note(label, session.call(TOOLS[name], label=label, text="text"))
        except Blocked as error:
            self._note(label, error.verdict_code)

    def _note(self, label: str, given: Any) -> None:
        """Each attempt gives the same."""
        assert self.results.setdefault(label, given) == given

    async def _arun(self, replay: Any) -> None:
        async with self.make(replay) as session:
            await self._aops(session, self.ops)

    async def _aops(self, session: Session, ops: list[Op]) -> None:
        for kind, what, rest in ops:
            if kind == "call":
                await self._acall(session, what, rest)
            elif kind == "turn":
                with session.turn() as turn:
                    await asyncio.gather(
                        *(self._slot(session, turn, n, op) for n, op in enumerate(rest))
                    )
            elif kind == "branch":
                with session.branch(what):
                    await self._aops(session, rest)
            elif kind == "transaction":
                async with session.transaction(what):
                    await self._aops(session, rest)
            elif kind == "session":
                async with Session(what, store=self.store) as inner:
                    await self._aops(inner, rest)
            else:
                contract = declaration(tool(name=f"meet.{what}", effect="scope")(scope))[1]

                async def inside(rest: list[Op] = rest) -> str:
                    await self._aops(session, rest)
                    return "done"

                await session.arun_call(contract, {}, inside)

    async def _slot(self, session: Session, turn: Any, n: int, op: Op) -> None:
        with turn.slot(n):
            await self._acall(session, op[1], op[2])

    async def _acall(self, session: Session, name: str, label: str) -> None:
        try:
            self._note(label, await session.acall(TOOLS[name], label=label, text="text"))
        except Blocked as error:
            self._note(label, error.verdict_code)

    def decide(self) -> None:
        """Somebody decides on whatever waits."""
        queue = ApprovalQueue(self.store)
        for request in queue.waiting():
            with contextlib.suppress(ApprovalInvalid):
                found = answer(request.args["label"], now=False)
                assert isinstance(found, Approval)
                queue.decide(request.id, found)

    def finish(self, *, kills: int) -> None:
        """Run until it ends well; kill it, or stop it, at random moments."""
        for _ in range(200):
            world.left = self.chance.randint(0, 40) if kills > 0 else -1
            kills -= 1
            world.at_zero = None
            if self.chance.random() < 0.3:
                world.at_zero = self._stop
            error = self.run()
            world.at_zero = None
            if self.session is not None and self.session.run_id:
                lift_order(self.store, self.session.run_id)
            if error is None:
                return
            if isinstance(error, ApprovalRequired) or self.chance.random() < 0.3:
                self.decide()
        raise AssertionError("it never ends")

    def _stop(self) -> None:
        if self.session is not None and self.session.run_id:
            stop_run(self.store, self.session.run_id)


def scope() -> str:
    return "done"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_programs_that_are_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_async: bool
) -> None:
    """Each effect as often as was decided, each call asked about once, whatever is killed."""
    append = Chain.append

    def ticking(chain: Chain, *args: Any) -> None:
        world.tick()
        append(chain, *args)
        world.tick()

    monkeypatch.setattr(Chain, "append", ticking)
    monkeypatch.setattr(orders, "_LOOK", 0.001)
    monkeypatch.setattr(orders, "_OFTEN", 0.0)
    global world  # noqa: PLW0603 - the tools of this module act on it
    world = World()
    chance = random.Random(seed)  # noqa: S311 - a test
    ops = program_of(chance)
    store = open_store(tmp_path)
    attempts = Attempts(store, ops, chance, is_async=is_async)
    attempts.finish(kills=chance.randint(0, 4))
    assert sorted(world.done) == expected(ops)
    results = attempts.results
    assert attempts.session is not None
    run = attempts.session.run_id
    tools = labels(ops)
    for label, name in tools.items():
        if name != "get":  # a new write leaves a read behind, which is then made anew
            assert len(world.asked.get(label, ())) <= 1, label
        kind = label.partition("-")[0]
        said = {"no": "approval_rejected", "nolater": "approval_rejected", "answer": "answered"}
        assert results[label] == said.get(
            kind, f"{label}: {'edited' if kind == 'edit' else 'text'}"
        )
    assert ApprovalQueue(store).waiting() == []
    count = len(store.read(run))
    assert attempts.run() is None
    assert len(store.read(run)) == count + 2  # an attempt that began and ended
    assert attempts.run("offline") is None
    # undone to anywhere, it is asked about again and done again
    steps = attempts.session.attempt.run.last
    report = undo_run(store, run, to=chance.randint(0, steps) or None, tools=[put, redo])
    assert report.complete
    asked, world.asked = world.asked, {}
    attempts.finish(kills=chance.randint(0, 2))
    assert sorted(world.done) == expected(ops)
    for label, ids in world.asked.items():
        assert len(ids) == 1 or tools[label] == "get"
        assert not ids & asked.get(label, set())
