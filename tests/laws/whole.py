"""Some runs told in full: each field of their lines, of events, lists, requests, plans and reports.

Time stands still but in bodies, so each time is known. Random ids have short names. Whoever changes
what is recorded, or what is told of it, sees it in `whole.txt`:

    python -m tests.laws.whole    # writes it anew
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from rollcage import (
    Approval,
    ApprovalQueue,
    ApprovalRequest,
    Blocked,
    Clock,
    Compensation,
    Contract,
    Halt,
    Happened,
    Instrument,
    Options,
    QueueApprover,
    Response,
    RunEvent,
    RunInfo,
    Session,
    StepEvent,
    StepView,
    Verdict,
    abandon_run,
    compensate,
    current_step,
    lift_order,
    list_runs,
    open_store,
    order_of,
    pause_run,
    plan_undo,
    recorded_events,
    resolve_step,
    stop_run,
    tool,
    undo_run,
)
from rollcage.stages.once import keep_claims, once_of
from rollcage.values.answer import Answer

from tests.laws.lab import folder

__all__ = ["KEPT", "whole"]

KEPT: Final = Path(__file__).with_name("whole.txt")
_IDS: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{64}\b|\b[0-9a-f]{16,32}\b")
_REAL: Final = 10**15  # µs: a time of the real clock
_WORDY: Final = 6  # spaces: a text for people
_UNTOLD: Final = ("hash", "nonce")


class Hand:
    """A clock that each body moves on, by more each time."""

    def __init__(self) -> None:
        self.now = self.works = 0

    def work(self) -> None:
        self.works += 1
        self.now += 1000 * self.works

    def clock(self) -> Clock:
        self.now, self.works = 2_000_000, 0
        return Clock(lambda: self.now, lambda: self.now)


HAND: Final = Hand()
WORLD: Final[dict[str, str]] = {}


def _seen(args: Mapping[str, Any]) -> dict[str, Any]:
    return {args["key"]: WORLD.get(args["key"])}


def _back(args: Mapping[str, Any], before: Mapping[str, Any]) -> list[Compensation]:
    return [compensate("whole.put", key=args["key"], value=before[args["key"]])]


@tool(effect="write", name="whole.put", observe=_seen, undo=_back, version="2")
def put(key: str, value: str | None) -> str:
    HAND.work()
    if value is None:
        del WORLD[key]
    else:
        WORLD[key] = value
    return f"{key} {get(key)}"


@tool(effect="read", name="whole.get")
def get(key: str) -> str:
    HAND.work()
    if key == "bad":
        raise ValueError(key)
    return WORLD.get(key, "")


@tool(effect="scope", name="whole.look")
def look(key: str) -> str:
    HAND.work()
    return get(key)


@tool(effect="pure", name="whole.add")
def add(one: int, other: int) -> int:
    HAND.work()
    return one + other


@tool(name="whole.pay", once="pay/{key}", probe=lambda args: Happened(f"found {args['key']}"))
def pay(key: str) -> str:
    HAND.work()
    step = current_step()
    if key == "lost":
        raise KeyboardInterrupt
    return f"{key} at {step.number}" if step is not None else ""


@tool(effect="write", name="whole.lines", idempotent=True)
def lines(of: str) -> Iterator[str]:
    HAND.work()
    yield of
    HAND.work()
    yield of.upper()


def answer(ask: str) -> str:
    HAND.work()
    return f"answer to {ask}"


MODEL: Final = Contract.of(answer)


def ask(session: Session, what: str) -> None:
    """Ask the model."""

    def read(text: str) -> Answer:
        return Answer(text=text, usage={"input_tokens": len(what), "output_tokens": len(text)})

    session.run_call(MODEL, {"ask": what}, answer, kind="model", answer=read)


def guard(view: StepView) -> Verdict | None:
    """Deny one call, and ask about another."""
    if view.args.get("key") == "denied":
        return Verdict.deny("no", code="never")
    asked = view.args.get("key") == "asked" and view.name == "whole.put"
    return Verdict.ask("sure?") if asked else None


class Teller(Instrument):
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._names: dict[str, str] = {}

    def say(self, what: str, said: object = None) -> None:
        text = "" if said is None else orjson.dumps(_plain(said)).decode().replace('"', "")
        self.told.append(_IDS.sub(self._name, f"{what} {text}".rstrip()))

    def _name(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"#{len(self._names)}")

    def __call__(self, event: StepEvent, /) -> None:
        self.say("told", event)

    def opened(self, run: RunEvent, /) -> None:
        self.say("told", run)

    closed = opened

    @contextlib.contextmanager
    def around(self, run: str, step: int, /) -> Iterator[None]:
        self.say("into", [run, step])
        yield
        self.say("out of", step)


class Inner(Teller):
    """Is told of a nested session."""

    def __init__(self, outer: Teller) -> None:
        super().__init__()
        self._outer = outer

    def say(self, what: str, said: object = None) -> None:
        self._outer.say(f"inside: {what}", said)


def _plain(said: object) -> Any:
    """Return data as JSON has it, without empty fields, sentences, and words that are random."""
    if dataclasses.is_dataclass(said):
        said = {
            field.name: getattr(said, field.name)
            for field in dataclasses.fields(said)
            if field.name[0] != "_"
        }
    if isinstance(said, Mapping):
        every = {str(name): _plain(value) for name, value in said.items() if name not in _UNTOLD}
        return {name: value for name, value in every.items() if value not in ("", None, [], {})}
    if isinstance(said, list | tuple | set | frozenset):
        return [_plain(each) for each in said]
    if isinstance(said, bytes):
        return said.decode()
    if isinstance(said, int) and said > _REAL:
        return "now"
    if isinstance(said, str):
        return said if said.count(" ") < _WORDY else "…"
    if isinstance(said, int | float | bool | None):
        return said
    return type(said).__name__


class Story:
    """Runs sessions of a job, and tells of them in full."""

    def __init__(self, store: Path) -> None:
        self.store, self.teller = store, Teller()
        self._seen: dict[str, int] = {}
        self._listed: dict[str, RunInfo] = {}
        self._options = Options(clock=HAND.clock())
        WORLD.clear()

    def session(self, program: Callable[[Session], None], **how: Any) -> str:
        """Run a program in a session; return its run."""
        given: dict[str, Any] = {
            "store": self.store, "gate": [guard], "options": self._options,
            "observers": [self.teller], "on_divergence": "warn",
        }  # fmt: skip
        session = Session(**{"name": "job", **given, **how})
        try:
            with session:
                program(session)
        except (Halt, KeyError, KeyboardInterrupt) as error:
            self.teller.say(type(error).__name__, getattr(error, "request", None))
        stats = {name: getattr(session.stats, name) for name in session.stats.__slots__}
        self.teller.say("stats", {name: count for name, count in stats.items() if count})
        if session.report is not None:
            self.teller.say("report", session.report)
        self.lines()
        return session.run_id

    def lines(self) -> None:
        """Tell of the lines that were written since, and of the list of runs."""
        store = open_store(self.store)
        for info in reversed(list_runs(store)):
            its = store.read(info.run)
            copied = [at for at, line in enumerate(its) if b'"event":"forked"' in line]
            first = self._seen.setdefault(info.run, *copied or (0,))  # the others are told of
            for line in its[first:]:
                event = orjson.loads(line)
                self.teller.say(f"line {event.pop('event')}", event)
            self._seen[info.run] = len(its)
            if self._listed.get(info.run) != info:
                self.teller.say("listed", info)
            self._listed[info.run] = info


def begins(session: Session) -> None:
    """Make some calls of each kind."""
    with session.place(agent="ann", call_id="c1"):
        put("a", "1")
    with session.branch("side"), session.transaction("both"):
        look("a")
        put("b", "2")
    with contextlib.suppress(ValueError):
        get("bad")
    with session.place(agent="bob", call_id="c2"), contextlib.suppress(Blocked):
        put("denied", "3")
    ask(session, "x")
    add(1, 2)
    with session.turn() as turn:
        with turn.slot(1):
            pay("once")
        with turn.slot(0):
            list(session.call(lines, of="z"))


class Job:
    """A job whose run is stopped, asks, loses an outcome, and is undone in part."""

    def __init__(self, story: Story) -> None:
        self.story, self.say, self.store = story, story.teller.say, story.store
        self.run = ""

    def first(self, session: Session) -> None:
        begins(session)
        with Session("in", store=self.store, observers=[Inner(self.story.teller)]):
            put("c", "4")
        session.refused("oracle", {"of": "x"}, kind="model", call_id="c3")
        raise KeyError

    def stops(self, session: Session) -> None:
        put("a", "1")
        self.say("order", stop_run(self.store, session.run_id, by="eve", reason="enough"))
        get("a")

    def asks(self, session: Session) -> None:
        begins(session)
        with session.place(agent="ann", call_id="c4"):
            put("asked", "5")

    def loses(self, session: Session) -> None:
        self.asks(session)
        ask(session, "y")
        self.say("answers", session.recorded_answers())
        pay("lost")

    def undoes(self, session: Session) -> None:
        self.say("undone", session.undo(to=3).as_data())

    def other(self, session: Session) -> None:
        pay("once")
        session.pause("a letter")

    def is_recorded(self) -> None:
        self.say("--- first")
        self.run = self.story.session(self.first)
        self.say("--- stopped")
        self.story.session(self.stops)
        self.say("lifted", lift_order(self.store, self.run))

    def is_decided(self) -> None:
        self.say("--- asks")
        approver = QueueApprover(self.store)
        self.story.session(self.asks, actor="tom", approver=approver)
        queue = ApprovalQueue(self.store)
        (request,) = queue.waiting()
        self.say("waits", request)
        yes = Approval(True, by="eve", reason="why not")
        queue.decide(request.id, yes, now=HAND.now // 1000)
        self.say("--- decided")
        pause_run(self.store, self.run, by="eve", reason="lunch")
        self.say("order", order_of(self.store, self.run))
        self.say("lifted", lift_order(self.store, self.run))
        self.story.session(self.loses, approver=approver)
        self.say("effect", once_of(self.store, "pay/lost"))

    def is_looked_at(self) -> None:
        self.say("--- offline")
        self.story.session(self.asks, replay="offline")
        self.say("--- verified")
        self.story.session(begins, replay="verify")

    def ends(self) -> None:
        self.say("--- resolved")
        steps = [
            orjson.loads(line).get("step", 0) for line in open_store(self.store).read(self.run)
        ]
        resolve_step(self.store, self.run, max(steps), happened=True, result="by hand", by="eve")
        self.story.lines()
        self.story.session(self.loses, approver=QueueApprover(self.store))
        self.say("--- another")
        self.story.session(self.other, name="else", input={"n": 1}, actor="kim")
        self.say("effect", once_of(self.store, "pay/once"))

    def is_copied(self) -> None:
        self.say("--- copied")

        def copies(session: Session) -> None:
            begins(session)
            put("d", "6")
            pay("often")
            raise KeyError

        how: dict[str, Any] = {"name": "copy", "approver": lambda _: Approval(True, by="eve")}
        copy = self.story.session(copies, source=self.run, **how)
        self.say("effect", once_of(self.store, "pay/often"))
        tools: list[Callable[..., Any]] = [put, pay, lines]
        seen = plan_undo(self.store, copy, tools=tools)
        self.say("plan", seen.as_data())
        mended = [seen.steps[-1].step]
        plan = plan_undo(self.store, copy, tools=tools, accept=mended)
        self.say("plan", plan.as_data())
        report = undo_run(self.store, copy, tools=tools, accept=mended, expected=plan)
        self.say("undone", report.as_data())  # nobody observes it, as it has the real clock
        self.story.lines()
        self.say("effect", once_of(self.store, "pay/often"))
        self.say("kept", keep_claims(open_store(self.store), copy))
        self.say("effect", once_of(self.store, "pay/often"))

    def is_answered(self) -> None:
        self.say("--- answered")

        def answers(request: ApprovalRequest) -> Approval:
            self.say("asked", request)
            match request.args["value"]:
                case "no":
                    return Approval(False, by="eve", reason="too much")
                case "less":
                    return Approval(True, by="eve", args={"key": "asked", "value": "1"})
            return Approval(False, by="eve", response=Response("said by eve"))

        def asks(session: Session) -> None:
            for value in ("no", "less", "what"):
                with contextlib.suppress(Blocked):
                    self.say("given", put("asked", value))
            with session.branch("side"), contextlib.suppress(Blocked):
                put("asked", "no")
            get("a")
            raise KeyError

        how: dict[str, Any] = {"name": "answered", "approver": answers}
        self.story.session(asks, **how)
        self.story.session(asks, **how)
        self.story.session(asks, name="answered", replay="offline")
        self.story.session(asks, name="answered", replay="verify")

    def is_undone(self) -> None:
        self.say("--- undone")
        self.say("plan", plan_undo(self.store, self.run, tools=[put, pay, lines]).as_data())
        self.story.session(self.undoes, replay="continue")
        rest = plan_undo(self.store, self.run, tools=[put, pay, lines], to=20)
        self.say("plan", rest.as_data())
        yes = lambda _: Approval(True, by="eve")  # noqa: E731 - it is one of many
        self.story.session(self.undoes, replay="continue", approver=yes)
        abandon_run(self.store, self.run)
        self.say("--- recorded")
        for event in recorded_events(open_store(self.store).read(self.run)):
            self.say("recorded", event)
        self.story.lines()


def whole(store: Path) -> str:
    """Return the text of all that is recorded and told of some runs."""
    story = Story(store)
    job = Job(story)
    job.is_recorded()
    job.is_decided()
    job.is_looked_at()
    job.ends()
    job.is_copied()
    job.is_answered()
    job.is_undone()
    return "\n".join([*story.teller.told, ""])


if __name__ == "__main__":
    with folder() as root:
        KEPT.write_text(whole(root), encoding="utf-8")
