"""Observers are notified of what becomes of each step; a finished log tells the same again."""

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from rollcage import (
    Instrument,
    Options,
    RunEvent,
    Session,
    StepEvent,
    compensate,
    open_store,
    recorded_events,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.contract.compensation import Compensation
from rollcage.contract.contract import Contract
from rollcage.errors import ApprovalRequired, Blocked, Diverged, Fenced, Halt
from rollcage.gate.approval import Approval
from rollcage.gate.verdict import StepView, Verdict
from rollcage.trace.chain import parse
from rollcage.values.answer import Answer

Told = RunEvent | StepEvent
state: dict[str, int] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    state.clear()


def seen(args: dict[str, Any]) -> dict[str, int]:
    return {args["key"]: state.get(args["key"], 0)}


def back(args: dict[str, Any], before: dict[str, int]) -> list[Compensation]:
    return [compensate(put, key=args["key"], n=before[args["key"]])]


@tool(effect="write", observe=seen, undo=back, name="obs.put")
def put(key: str, n: int) -> int:
    state[key] = n
    return n


@tool(effect="read", name="obs.get")
def get(key: str) -> int:
    return state.get(key, 0)


@tool(effect="read", name="obs.outer")
def outer(key: str) -> int:
    return get(key) + put(key, 7)


@tool(effect="write", name="obs.fail", raises=(ValueError,))
def fail() -> None:
    raise ValueError("no")


class Kept(Instrument):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.bodies: list[tuple[int, str]] = []

    def __call__(self, event: StepEvent, /) -> None:
        self.told.append(event)

    def opened(self, run: RunEvent, /) -> None:
        self.told.append(run)

    def closed(self, run: RunEvent, /) -> None:
        self.told.append(run)

    @contextlib.contextmanager
    def around(self, run: str, step: int, /) -> Iterator[None]:
        self.bodies.append((step, "in"))
        yield
        self.bodies.append((step, "out"))

    @property
    def steps(self) -> list[tuple[str, int, str]]:
        return [(e.what, e.step, e.name) for e in self.told if isinstance(e, StepEvent)]


def recorded(folder: Path, run: str) -> list[Told]:
    return list(recorded_events(open_store(folder).read(run)))


def comparable(told: list[Told]) -> Counter[Any]:
    """What was told, but for what only a live observer knows: when a hit was, and whose."""
    found: Counter[Any] = Counter()
    for event in told:
        if isinstance(event, RunEvent):
            time = event.time if event.what == "closed" else 0  # an attempt begins with its line
            found[event.what, event.run, event.name, event.mode, event.attempt, event.status, time,
                  event.error] += 1  # fmt: skip
        else:
            hit = event.what == "replayed"
            found[event.what, event.run, event.step, 0 if hit else event.time, event.kind,
                  event.name, event.effect, event.agent, event.branch, event.parent,
                  "" if hit else event.call_id, event.status, event.duration, event.error,
                  event.origin, event.undoes, event.approval, event.attempt] += 1  # fmt: skip
    return found


def test_what_becomes_of_each_step(tmp_path: Path) -> None:
    def model(ask: str) -> str:
        return ask

    def no(view: StepView) -> Verdict | None:
        return Verdict.deny("no") if view.args.get("n") == 13 else None

    def program(kept: Kept) -> Session:
        session = Session("job", store=tmp_path, observers=[kept], gate=[no])
        with session, session.place(agent="ann", call_id="c1"):
            put("a", 1)
            with session.branch("side"), session.transaction("both"):
                outer("a")
            with pytest.raises(Blocked):
                put("a", 13)
            with pytest.raises(ValueError, match="no"):
                fail()
            session.run_call(Contract.of(model), {"ask": "x"}, model, kind="model")
        return session

    live = Kept()
    first = program(live)
    assert live.steps == [
        ("started", 1, "obs.put"),
        ("settled", 1, "obs.put"),
        ("started", 4, "obs.outer"),
        ("started", 5, "obs.get"),
        ("settled", 5, "obs.get"),
        ("started", 6, "obs.put"),
        ("settled", 6, "obs.put"),
        ("settled", 4, "obs.outer"),
        ("blocked", 0, "obs.put"),
        ("started", 7, "obs.fail"),
        ("settled", 7, "obs.fail"),
        ("started", 8, "model"),
        ("settled", 8, "model"),
    ]
    opened, closed = live.told[0], live.told[-1]
    assert isinstance(opened, RunEvent)
    assert isinstance(closed, RunEvent)
    assert (opened.what, opened.mode, opened.name) == ("opened", "record", "job")
    assert (closed.what, closed.status) == ("closed", "ok")
    by = {(e.what, e.step): e for e in live.told if isinstance(e, StepEvent)}
    assert (by["started", 1].agent, by["started", 1].call_id) == ("ann", "c1")
    assert (by["settled", 5].parent, by["settled", 5].branch) == (4, "")
    assert (by["settled", 4].parent, by["settled", 4].branch) == (None, "side/both")
    assert (by["settled", 7].status, by["settled", 7].error) == ("error", "ValueError")
    assert by["settled", 8].kind == "model"
    assert (by["blocked", 0].verdict or {})["reason"] == "no"
    assert by["settled", 1].data()["outcome"]["value"] == 1
    assert by["started", 1].get("key") == by["started", 1].data()["key"]
    assert comparable(recorded(tmp_path, first.run_id)) == comparable(live.told)
    steps = [n for n, _ in live.bodies]
    assert steps == [1, 1, 4, 5, 5, 6, 6, 4, 7, 7, 8, 8]

    again = Kept()
    more = Session(
        "job", store=tmp_path, observers=[again], replay="continue", on_divergence="warn"
    )
    with more:
        put("a", 1)
        put("b", 1)
    assert again.steps == [
        ("replayed", 1, "obs.put"),
        ("started", 9, "obs.put"),
        ("settled", 9, "obs.put"),
    ]
    hit = next(e for e in again.told if isinstance(e, StepEvent))
    assert (hit.origin, hit.duration) == ((first.run_id, 1), by["settled", 1].duration)
    assert again.bodies == [(9, "in"), (9, "out")]
    undone = Kept()
    undo_run(tmp_path, first.run_id, to=1, observers=[undone])
    whats = [(what, name) for what, _, name in undone.steps]
    assert ("undone", "obs.put") in whats
    takes_back = next(e for e in undone.told if isinstance(e, StepEvent) and e.what == "started")
    assert takes_back.undoes == (first.run_id, 9)
    told = [*live.told, *again.told, *undone.told]
    assert comparable(recorded(tmp_path, first.run_id)) == comparable(told)


def test_a_lost_outcome_and_its_resolution_are_told(tmp_path: Path) -> None:
    @tool(effect="write", name="obs.cut")
    def cut() -> int:
        raise KeyboardInterrupt

    live = Kept()
    session = Session("job", store=tmp_path, observers=[live])
    with pytest.raises(KeyboardInterrupt), session:
        cut()
    assert [e.status for e in live.told if isinstance(e, StepEvent)] == ["", "unknown"]
    resolve_step(tmp_path, session.run_id, 1, happened=True, result=3)
    found = [e for e in recorded(tmp_path, session.run_id) if isinstance(e, StepEvent)]
    assert [(e.what, e.status) for e in found] == [
        ("started", ""), ("settled", "unknown"), ("settled", "ok"),
    ]  # fmt: skip
    assert found[-1].time == parse(open_store(tmp_path).read(session.run_id), "it")[-1]["time"]
    again = Kept()
    with Session("job", store=tmp_path, observers=[again]):
        assert cut() == 3
    assert again.steps == [("replayed", 1, "obs.cut")]


def test_a_write_that_a_kill_cut_off_is_told_with_the_next_attempt(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        put("a", 1)
        get("a")
    cut_log(tmp_path / "logs" / f"{session.run_id}.jsonl", 3)  # its intent is the last
    live = Kept()
    with contextlib.suppress(Halt), Session("job", store=tmp_path, observers=[live]) as again:
        pass
    found = recorded(tmp_path, session.run_id)
    first, second = (e.attempt for e in found if isinstance(e, RunEvent) and e.what == "opened")
    assert [(e.what, e.status, e.attempt) for e in found] == [
        ("opened", "", first), ("started", "", first), ("settled", "unknown", first),
        ("opened", "", second), ("closed", "partial", second),
    ]  # fmt: skip
    assert again.run_id == session.run_id
    assert [each.attempt for each in live.told] == [second, second]


def test_a_question_is_told_and_its_answer(tmp_path: Path) -> None:
    def ask(view: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if view.args.get("key") == "b" else None

    live = Kept()
    session = Session(
        "job",
        store=tmp_path,
        observers=[live],
        gate=[ask],
        approver=lambda _: Approval(True, by="ann"),
    )
    with session:
        put("a", 1)
        put("b", 2)
    assert [what for what, *_ in live.steps] == [
        "started",
        "settled",
        "asked",
        "started",
        "settled",
    ]
    asked, began = (e for e in live.told if isinstance(e, StepEvent) and e.approval)
    assert asked.what == "asked"
    assert asked.approval == began.approval
    assert comparable(recorded(tmp_path, session.run_id)) == comparable(live.told)


@pytest.mark.parametrize("mode", ["continue", "offline"])
def test_a_hit_is_told_with_what_was_known_of_it_before(tmp_path: Path, mode: Any) -> None:
    def ask(view: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if view.name == "obs.put" else None

    def program(**how: Any) -> Session:
        session = Session("job", store=tmp_path, gate=[ask], **how)
        with session, session.place(agent="ann", call_id="c1"):
            get("a")
            put("b", 2)
        return session

    live, later = Kept(), Kept()
    first = program(observers=[live], approver=lambda _: Approval(True, by="eve"))
    program(observers=[later], replay=mode)
    said = {e.step: e for e in live.told if isinstance(e, StepEvent) and e.what == "settled"}
    hits = [e for e in later.told if isinstance(e, StepEvent)]
    assert [(e.what, e.step) for e in hits] == [("replayed", n) for n in sorted(said)]
    for hit in hits:
        before = said[hit.step]
        assert hit.duration == before.duration
        assert hit.origin == (first.run_id, hit.step)
        assert (hit.status, hit.call_id, hit.agent) == ("ok", "c1", "ann")
        assert (hit.kind, hit.effect, hit.name) == (before.kind, before.effect, before.name)
        assert hit.attempt not in ("", before.attempt)


def test_a_call_decided_before_an_observer_came_is_told_with_who_decided(tmp_path: Path) -> None:
    def ask(view: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if view.name == "obs.put" else None

    session = Session("job", store=tmp_path, gate=[ask])
    with pytest.raises(ApprovalRequired), session:
        put("b", 2)
    live = Kept()
    approve = lambda _: Approval(True, by="eve")  # noqa: E731 - it is one of many
    with Session("job", store=tmp_path, gate=[ask], approver=approve, observers=[live]):
        put("b", 2)
    steps = [e for e in live.told if isinstance(e, StepEvent)]
    assert [e.what for e in steps][-2:] == ["started", "settled"]
    started = next(e for e in steps if e.what == "started")
    lines = parse(open_store(tmp_path).read(session.run_id), "it")
    (asked,) = (line for line in lines if line["event"] == "requested")
    assert started.approval == asked["id"]
    assert started.get("approved_by") == "eve"


def test_who_decided_before_a_crash_is_told_behind_it(tmp_path: Path) -> None:
    def ask(view: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if view.name == "obs.put" else None

    how: dict[str, Any] = {"gate": [ask], "approver": lambda _: Approval(True, by="eve")}
    with Session("job", store=tmp_path, **how) as session:
        put("b", 2)
    lines = parse(open_store(tmp_path).read(session.run_id), "it")
    decided = [line["event"] for line in lines].index("decided")
    cut_log(tmp_path / "logs" / f"{session.run_id}.jsonl", decided + 1)
    live = Kept()
    with Session("job", store=tmp_path, observers=[live], **how):
        put("b", 2)
    (began,) = (e for e in live.told if isinstance(e, StepEvent) and e.what == "started")
    assert began.get("approved_by") == "eve"


def test_a_model_that_does_not_exist_is_told_as_one(tmp_path: Path) -> None:
    live = Kept()
    with Session("job", store=tmp_path, observers=[live]) as session:
        session.refused("oracle", {}, kind="model")
        session.refused("hammer", {})
    refused = [e for e in live.told if isinstance(e, StepEvent)]
    assert [(e.what, e.name, e.kind) for e in refused] == [
        ("blocked", "oracle", "model"), ("blocked", "hammer", "tool"),
    ]  # fmt: skip


def test_a_call_that_is_told_may_call_on(tmp_path: Path) -> None:
    """The lock is free: another thread's call goes on while an observer is busy."""
    other_done, errors = threading.Event(), list[str]()

    def slow(event: StepEvent) -> None:
        if event.name == "obs.put" and event.what == "settled" and not other_done.wait(30):
            errors.append("nobody else could go on")

    with Session("job", store=tmp_path, observers=[slow]) as session:

        def other() -> None:
            with session.place(slot=5):
                session.call(get, key="a")
            other_done.set()

        thread = threading.Thread(target=other)
        thread.start()
        put("a", 1)
        thread.join()
    assert errors == []


def test_an_observer_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Instrument):
        def __call__(self, event: StepEvent, /) -> None:
            raise RuntimeError("broken")

        opened = closed = around = __call__  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - all of it fails

    live = Kept()
    with Session("job", store=tmp_path, observers=[Broken(), live]):
        assert put("a", 1) == 1
    assert [what for what, *_ in live.steps] == ["started", "settled"]
    assert caplog.text.count("an observer failed on") == 5


def test_one_that_wants_nothing_costs_nothing(tmp_path: Path) -> None:
    class Idle(Kept):
        def wanted(self) -> bool:
            return False

    idle = Idle()
    with Session("job", store=tmp_path, observers=[idle]) as session:
        put("a", 1)
        assert not any("Observing" in type(each).__name__ for each in session.stages)
    assert idle.told == []


def test_sessions_inside_of_others_are_told(tmp_path: Path) -> None:
    whole, inner, both = Kept(), Kept(), Kept()
    with Session("job", store=tmp_path, observers=[whole, both]):
        put("a", 1)
        with Session("inner", store=tmp_path, observers=[inner, both]):
            outer("a")
        put("a", 2)
    assert both.steps == whole.steps
    assert [name for _, _, name in inner.steps if _] == ["obs.outer", "obs.get", "obs.get",
        "obs.put", "obs.put", "obs.outer"]  # fmt: skip
    opened, *_, closed = inner.told
    assert isinstance(opened, RunEvent)
    assert isinstance(closed, RunEvent)
    assert (opened.name, closed.what) == ("inner", "closed")
    assert len([e for e in both.told if isinstance(e, RunEvent)]) == 2


def test_a_session_inside_hears_of_its_own_calls(tmp_path: Path) -> None:
    """Not of those that the session around it makes meanwhile, here and there, now or again."""
    for replay in ("auto", "continue"):
        inner = Kept()
        mode: Any = replay
        with Session("job", store=tmp_path, replay=mode) as outer:
            theirs = outer.tool(put)
            with Session("inner", store=tmp_path, observers=[inner]):
                put("a", 1)
                theirs("b", 2)
                outer.tool(get)("b")
        assert {n for _, n, _ in inner.steps} == {2}
        assert {n for n, _ in inner.bodies} == ({2} if replay == "auto" else set())


def test_a_session_that_outlives_the_one_around_it(tmp_path: Path) -> None:
    """Its end is told when it is left, with what ended it."""
    inner = Kept()
    around = Session("job", store=tmp_path)
    around.__enter__()
    session = Session("inner", store=tmp_path, observers=[inner])
    session.__enter__()
    put("a", 1)
    around.__exit__(None, None, None)
    assert [each.what for each in inner.told] == ["opened", "started", "settled"]
    error = KeyError("k")
    session.__exit__(KeyError, error, None)
    closed = inner.told[-1]
    assert isinstance(closed, RunEvent)
    assert (closed.what, closed.error) == ("closed", "KeyError")


def test_the_end_is_told_although_it_is_not_on_record(tmp_path: Path) -> None:
    live = Kept()
    session = Session("job", store=tmp_path, observers=[live])
    with pytest.raises(Halt) as halted, session:
        put("a", 1)
        other = Session("job", store=tmp_path, options=Options(take=True))
        asyncio.run(_enter_and_leave(other))
        put("a", 2)
    assert isinstance(halted.value, Fenced)
    closed = live.told[-1]
    assert isinstance(closed, RunEvent)
    assert (closed.what, closed.status) == ("closed", "")


async def _enter_and_leave(session: Session) -> None:
    context = __import__("contextvars").Context()  # outside of the session that is open here

    def run() -> None:
        with session:
            pass

    await asyncio.get_running_loop().run_in_executor(None, context.run, run)


def test_what_only_looks_is_told_of_hits(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as first:
        put("a", 1)
        get("a")
    for mode in ("offline", "verify"):
        live = Kept()
        replay: Any = mode
        with Session("job", store=tmp_path, observers=[live], replay=replay):
            put("a", 1)
            get("a")
        assert live.steps == [("replayed", 1, "obs.put"), ("replayed", 2, "obs.get")]
        opened, closed = live.told[0], live.told[-1]
        assert isinstance(opened, RunEvent)
        assert isinstance(closed, RunEvent)
        assert (opened.mode, opened.run, closed.status) == (mode, first.run_id, "")


async def test_streams_are_entered_for_each_chunk(tmp_path: Path) -> None:
    @tool(effect="read", name="obs.chunks")
    def chunks() -> Iterator[int]:
        yield 1
        yield 2

    @tool(effect="read", name="obs.achunks")
    async def achunks() -> AsyncIterator[int]:
        yield 1

    live = Kept()
    async with Session("job", store=tmp_path, observers=[live]) as session:
        assert [each async for each in achunks()] == [1]
        assert list(chunks()) == [1, 2]
        assert await session.acall(get, key="a") == 0
    assert Counter(n for n, _ in live.bodies) == {1: 6, 2: 8, 3: 2}
    assert comparable(recorded(tmp_path, session.run_id)) == comparable(live.told)


# --- random programs -----------------------------------------------------------------------------


class Died(Exception):
    """A program that ends early."""


def program_of(chance: random.Random, depth: int = 0) -> list[Any]:
    kinds = ["put", "get", "fail", "outer", "model", "denied", "asked"]
    if depth < 2:
        kinds += ["branch", "transaction", "rolled", "turn", "session"]
    return [
        (kind, chance.choice("abc"), chance.randint(1, 5), program_of(chance, depth + 1))
        if kind in ("branch", "transaction", "rolled", "turn", "session")
        else (kind, chance.choice("abc"), chance.randint(1, 5), [])
        for kind in chance.choices(kinds, k=chance.randint(1, 4))
    ]


def call(session: Session, kind: str, key: str, n: int) -> None:
    match kind:
        case "put":
            put(key, n)
        case "get":
            get(key)
        case "outer":
            outer(key)
        case "fail":
            with contextlib.suppress(ValueError):
                fail()
        case "model":
            session.run_call(MODEL, {"ask": key}, _say, kind="model", answer=_answer)
        case _:
            place = session.place(agent="ann", call_id=f"c{n}")
            with contextlib.suppress(Blocked), place:
                put(key, 13 if kind == "denied" else 17)


def perform(session: Session, store: Path, ops: list[Any], left: list[int]) -> None:
    for at, (kind, key, n, inner) in enumerate(ops):
        left[0] -= 1
        if left[0] < 0:
            raise Died
        match kind:
            case "turn":
                with session.turn():
                    perform(session, store, inner, left)
            case "branch":
                with session.branch(f"b{at}"):
                    perform(session, store, inner, left)
            case "session":
                with Session(f"s{at}", store=store) as nested:
                    perform(nested, store, inner, left)
            case "transaction":
                with session.transaction(f"t{at}"):
                    perform(session, store, inner, left)
            case "rolled":
                with contextlib.suppress(ZeroDivisionError), session.transaction(f"r{at}"):
                    perform(session, store, inner, left)
                    raise ZeroDivisionError
            case _:
                call(session, kind, key, n)


MODEL = Contract(name="model", parameters={"properties": {"ask": {}}})


def _say(ask: str) -> str:
    return ask


def _answer(value: str) -> Answer:
    return Answer(text=value, usage={"input_tokens": 3})


def judge(view: StepView) -> Verdict | None:
    """Deny one number, and ask about another."""
    match view.args.get("n"):
        case 13:
            return Verdict.deny("no", code="unlucky")
        case 17:
            return Verdict.ask("sure?")
    return None


class Written:
    """Tell what a log says became of each step, as a reader of its lines would."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.owners: dict[str, dict[str, Any]] = {}
        self.done: dict[int, dict[str, Any]] = {}
        self.by: dict[str, str] = {}
        self.running: dict[int, dict[str, Any]] = {}
        self.told: list[dict[str, Any]] = []
        self.id, self.attempt, self.now = lines[0]["run"], "", 0
        for line in lines:
            self.now = line.get("time", self.now)
            self._replayed(line.get("replayed", ()))
            getattr(self, f"_{line['event']}", lambda _: None)(line)

    def _tell(self, what: str, begun: dict[str, Any], line: dict[str, Any], **more: Any) -> None:
        path = list[str]()
        around = self.owners.get(begun["branch"])
        while around is not None and around["effect"] == "branch":
            path, around = [around["name"], *path], self.owners.get(around["branch"])
        outcome = {} if what in ("started", "undone") else line.get("outcome") or {}
        undone = int(begun["branch"][1:].split(".")[0]) if begun["branch"][:1] == "-" else 0
        self.told.append({
            "what": what, "step": line.get("step", 0), "run": self.id, "name": begun["name"],
            "effect": begun.get("effect", ""), "agent": begun.get("agent", ""),
            "kind": "model" if begun.get("effect") == "model" else "tool",
            "branch": "/".join(path), "parent": around and around["step"],
            "status": outcome.get("status", ""), "error": outcome.get("error", {}).get("type", ""),
            "usage": outcome.get("usage"), "verdict": line.get("verdict"),
            "approval": line.get("approval", ""), "call_id": begun.get("call_id", ""),
            "undoes": (self.id, undone) if undone else None, "duration": None, "origin": None,
            "attempt": self.attempt, "time": line.get("time", self.now),
            "by": self.by.get(line.get("approval", "")), **more,
        })  # fmt: skip

    def _replayed(self, spans: Any) -> None:
        for n in [n for first, last in spans for n in range(first, last + 1)]:
            if self.steps[n]["effect"] != "branch":
                line = {"step": n, "outcome": self.done[n]["outcome"]}
                took = self.done[n]["duration"]
                self._tell(
                    "replayed", self.steps[n], line, call_id="", duration=took, origin=(self.id, n)
                )

    def _attempt(self, line: dict[str, Any]) -> None:
        self.attempt = line["id"]

    def _step(self, line: dict[str, Any]) -> None:
        self.steps[line["step"]] = self.owners["#" + line["fingerprint"]] = line
        if line["effect"] != "branch" and "waits" not in line:
            self.running[line["step"]] = line
            self._tell("started", line, line)
            if "outcome" in line:
                self._outcome(line)

    def _outcome(self, line: dict[str, Any]) -> None:
        n = line["step"]
        begun, self.done[n] = self.steps[n], line
        if begun["effect"] != "branch":
            self.running.pop(n, None)
            after = begun["time"] + line["duration"]
            self._tell("settled", begun, line, duration=line["duration"], time=after)

    def _requested(self, line: dict[str, Any]) -> None:
        self._tell("asked", self.steps[line["step"]], line, call_id="", approval=line["id"])

    def _decided(self, line: dict[str, Any]) -> None:
        self.by[line["id"]] = line["by"]

    def _refused(self, line: dict[str, Any]) -> None:
        if "halted" not in line:
            self._tell("blocked", line, line)

    def _back(self, line: dict[str, Any]) -> None:
        n = line["step"]
        self._tell(
            "undone", self.steps[n], line, status=line["status"], origin=(self.id, n), call_id=""
        )

    def _ended(self, line: dict[str, Any]) -> None:
        for n, begun in self.running.items():
            if begun["effect"] == "write":
                self._tell("settled", begun, {**line, "step": n}, status="unknown", error="")
        self.running.clear()


@pytest.mark.parametrize("seed", range(40))
def test_a_finished_log_tells_the_same_again(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test
    ops = program_of(chance)
    told: list[Told] = []
    run = ""
    for left in (*(chance.randint(0, 8) for _ in range(3)), 10**6):
        live = Kept()
        session = Session(
            "job", store=tmp_path, observers=[live], gate=[judge],
            approver=lambda _: Approval(True, by="ann"),
        )  # fmt: skip
        with contextlib.suppress(Died, Diverged), session:  # a rolled back block goes otherwise
            perform(session, tmp_path, ops, [left])
        if run and session.run_id != run:
            break
        run, told = session.run_id, told + live.told
    assert comparable(recorded(tmp_path, run)) == comparable(told)
    undone = Kept()
    undo_run(tmp_path, run, observers=[undone])
    found = recorded(tmp_path, run)
    assert comparable(found) == comparable(told + undone.told)
    written = Written(parse(open_store(tmp_path).read(run), run)).told
    said = [event for event in found if isinstance(event, StepEvent)]
    assert [_plain(event) for event in said] == written


def _plain(event: StepEvent) -> dict[str, Any]:
    """All that an event says, but for `simulated`, which no step is here."""
    fields = {each.name for each in dataclasses.fields(event)} - {"_written", "simulated"}
    return {name: getattr(event, name) for name in fields} | {"by": event.get("approved_by")}
