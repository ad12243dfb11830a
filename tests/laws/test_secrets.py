"""No secret reaches a disk, a terminal, a report or a request, wherever a program quotes it.

What an attempt was told it conceals, so the run is resumed, undone and forked by those who know the
secret and by those who don't.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import (
    Approval,
    Blocked,
    DidNotHappen,
    Guard,
    Happened,
    Options,
    Session,
    SessionError,
    Verdict,
    compensate,
    plan_undo,
    tool,
    undo_run,
)
from rollcage_fork import Fork
from rollcage_policy import DetectedSecrets

from tests.laws.lab import folder
from tests.laws.law import LAW, chances
from tests.laws.programs import seeds

pytestmark = [
    pytest.mark.law,
    pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning"),
]

SECRET = "ghp" + "_" + "cAn4" * 9  # made up: of a form that is also detected
FORMS = (
    SECRET,
    json.dumps(SECRET)[1:-1],
    quote(SECRET, safe=""),
    *(base64.b64encode(b"x" * shift + SECRET.encode()).decode()[4:-4] for shift in range(3)),
)

heard: list[str] = []  # what was shown to people, and to observers
stands: dict[str, str] = {}  # the world: by key, what was written
DOES = ("ok", "ok", "ok", "fails", "breaks")


def _do(key: str, does: str) -> str:
    stands[key] = f"{key} with {SECRET}"
    if does == "fails":
        del stands[key]
        raise ValueError(f"{key} can't use {SECRET}")
    if does == "breaks":
        raise TimeoutError(f"no answer with {SECRET}")
    return f"did {key}"


@tool(name="law.login", effect="read", secret=["password"])
def login(password: str) -> str:
    return "in"


@tool(name="law.remove", idempotent=True)
def remove(key: str) -> str:
    return f"removed {key}" if stands.pop(key, "") else "nothing"


def _undo(args: dict[str, Any]) -> Any:
    return [compensate(remove, key=args["key"])]


def _probe(args: dict[str, Any]) -> Any:
    return Happened(f"did {args['key']}") if args["key"] in stands else DidNotHappen()


def _broken(args: dict[str, Any]) -> Any:
    raise ValueError(f"can't tell of {SECRET}: {args}")


@tool(name="law.write", undo=_undo, probe=_probe, raises=(ValueError,))
def write(key: str, does: str, text: str) -> str:
    return _do(key, does)


@tool(name="law.told", undo=_undo, probe=_probe, raises=(ValueError,))
def told(key: str, does: str, text: str) -> str:
    return f"{_do(key, does)} {SECRET}"


@tool(name="law.once", once="{key}/{text}", undo=_undo, probe=_probe, raises=(ValueError,))
def once(key: str, does: str, text: str) -> str:
    return _do(key, does)


@tool(
    name="law.seen",
    observe=lambda args: {args["key"]: {"text": stands.get(args["key"])}},
    undo=_undo,
    probe=_probe,
    raises=(ValueError,),
)
def seen(key: str, does: str, text: str) -> str:
    return _do(key, does)


@tool(name="law.blind", probe=_broken, undo=_undo, raises=(ValueError,))
def blind(key: str, does: str, text: str) -> str:
    return _do(key, does)


@tool(name="law.planned", undo=_broken, raises=(ValueError,))
def planned(key: str, does: str, text: str) -> str:
    return _do(key, does)


@tool(name="law.look", effect="read")
def look(key: str, does: str, text: str) -> Any:
    if does != "ok":
        raise ValueError(f"{key} of {SECRET}")
    return {"said": [text, SECRET], SECRET: quote(SECRET)}


@tool(name="law.chunks", undo=_undo, probe=_probe, raises=(ValueError,))
def chunks(key: str, does: str, text: str) -> Iterator[str]:
    yield SECRET
    yield _do(key, does)
    yield SECRET


TOOLS = (write, told, once, seen, blind, planned, look, chunks, remove)
TEXTS = ("plain", SECRET, f"token={quote(SECRET)}&", json.dumps({"t": SECRET}))


class Rule(Guard):
    """Asks about some calls and denies others, and says why."""

    def decide(self, call: Any) -> Verdict | None:
        key = str(call.values.get("key", ""))
        if key.startswith("ask"):
            return Verdict.ask(f"may it use {SECRET}?")
        return Verdict.deny(f"never {SECRET}") if key.startswith("deny") else None


def approve(request: Any) -> Approval:
    heard.append(repr(request) + str(request.args))
    if "no" in str(request.args.get("key")):
        return Approval.reject(f"it has {SECRET}", by="bob")
    return Approval(True, by="bob", reason=f"{SECRET} is fine")


# --- programs ------------------------------------------------------------------------------------

Part = tuple[str, tuple[Any, ...], tuple[Any, ...]]  # its kind, its words, the parts in it

KEYS = st.sampled_from(["a", "b", "ask", "ask no", "deny"])
CALL = st.tuples(
    st.just("call"),
    st.tuples(
        st.sampled_from(range(len(TOOLS) - 1)), KEYS, st.sampled_from(DOES), st.sampled_from(TEXTS)
    ),
    st.just(()),
)
SAYS = st.tuples(
    st.sampled_from(["refused", "unknown", "undo", "undo branch", "invalid"]),
    st.tuples(st.sampled_from(TEXTS)),
    st.just(()),
)
LEAF = st.one_of(CALL, CALL, CALL, SAYS)
AROUND = (
    "branch", "transaction", "rolled back", "session", "own run", "turn", "agent", "id", "slot",
)  # fmt: skip


def _around(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    row = st.lists(parts, min_size=1, max_size=3).map(tuple)
    return st.tuples(st.sampled_from(AROUND), st.tuples(st.sampled_from(TEXTS)), row)


PARTS = st.lists(st.recursive(LEAF, _around, max_leaves=5), min_size=1, max_size=4).map(tuple)


class RolledBack(Exception):
    """Takes a transaction back."""


class Dies(BaseException):
    """Stands for the end of a process."""


class Program:
    """Runs a program in a session, up to some call."""

    def __init__(self, parts: Sequence[Part], store: str, dies: int = -1) -> None:
        self.parts, self.store, self.dies = parts, store, dies
        self.made = 0

    def __call__(self, session: Session, *, knows: bool = True) -> None:
        if knows:
            login(SECRET)
        self.row(session, self.parts, "")

    def row(self, session: Session, parts: Sequence[Part], path: str) -> None:
        for number, part in enumerate(parts):
            self.part(session, part, f"{path}.{number}")

    def part(self, session: Session, part: Part, path: str) -> None:
        kind, words, inner = part
        word = str(words[0])
        match kind:
            case "call":
                index, key, does, text = words
                if self.made == self.dies:
                    raise Dies
                self.made += 1
                with contextlib.suppress(ValueError, Blocked):
                    got = session.call(TOOLS[index], key=f"{key}{path}", does=does, text=text)
                    if index == TOOLS.index(chunks):
                        list(got)
            case "refused":
                session.refused(word, {word: [word]}, reason=word, call_id=word)
            case "unknown":
                session.refused("no_such_tool", {"x": word})
            case "invalid":
                with contextlib.suppress(ValueError):
                    session.call(write, **{word: word})
            case "undo" | "undo branch":
                with contextlib.suppress(SessionError):
                    name = word if kind == "undo branch" else None
                    heard.append(str(session.undo(branch=name)))
            case _:
                with contextlib.suppress(RolledBack), self.block(session, kind, word) as within:
                    self.row(within, inner, path)
                    if kind == "rolled back":
                        raise RolledBack(word)

    @contextlib.contextmanager
    def block(self, session: Session, kind: str, word: str) -> Iterator[Session]:
        make: dict[str, Callable[[], Any]] = {
            "branch": lambda: session.branch(word),
            "transaction": lambda: session.transaction(word),
            "rolled back": lambda: session.transaction(word),
            "session": lambda: Session(word, store=self.store, input=[word]),
            "own run": lambda: Session("own", store=f"{self.store}-own", input=[word]),
            "turn": lambda: session.turn(opens={word: ()}),
            "agent": lambda: session.place(agent=word),
            "id": lambda: session.place(call_id=word),
            "slot": lambda: session.place(turn=word, slot=0, calls=[("law.write", {"key": word})]),
        }
        with make[kind]() as made:
            yield made if isinstance(made, Session) else session


def clean(root: Path) -> None:
    """Check that nothing was written or said that quotes the secret."""
    for path in root.rglob("*"):
        assert SECRET not in path.name
        if path.is_file() and path.name != "key":
            held = path.read_bytes().decode(errors="replace")
            for form in FORMS:
                assert form not in held, (path.name, *[x for x in held.splitlines() if form in x])
    for said in heard:
        assert SECRET not in said, said


class Ears(logging.Handler):
    """Hears what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        heard.append(logging.Formatter().format(record))


@contextlib.contextmanager
def listening() -> Iterator[None]:
    heard.clear()
    stands.clear()
    ears, logger = Ears(), logging.getLogger("rollcage")
    logger.addHandler(ears)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
        heard.extend(str(each.message) for each in warned)
    finally:
        logger.removeHandler(ears)


def attempt(store: Path, program: Program, *, detects: bool, **how: Any) -> Session:
    """Run or resume a program; it may end in any way."""
    stages: list[Any] = [*how.pop("stages", ())]
    if detects:
        stages.append(DetectedSecrets())
    session = Session(
        "job",
        store=store,
        gate=[Rule()],
        approver=approve,
        stages=stages,
        observers=[lambda event: heard.append(f"{event!r} {event.data()}")],
        options=Options(tools=TOOLS),
        **how,
    )
    with contextlib.suppress(Exception, Dies), session:
        program(session)
    return session


@LAW
@given(PARTS, seeds)
def test_no_secret_is_written_or_told(parts: tuple[Part, ...], seed: int) -> None:
    chance = chances(seed)
    with folder() as root, listening():
        store = root / "store"
        detects = chance.random() < 0.3
        how: dict[str, Any] = {"detects": detects}
        first = attempt(store, Program(parts, str(store), chance.randint(-1, 4)), **how)
        clean(root)
        for _ in range(2):
            way = chance.choice(["halt", "undo", "warn"])
            edited = parts if chance.random() < 0.5 else parts[1:] or parts
            told = Program(edited, str(store), chance.randint(-1, 6))
            session = attempt(store, told, replay="continue", on_divergence=way, **how)
            heard.append(repr(session.stats))
            clean(root)
        run = first.run_id
        with contextlib.suppress(Exception):
            fork = Fork(run, live=chance.random() < 0.5)
            attempt(store, Program(parts, str(store)), stages=[fork], **how)
        clean(root)
        attempt(store, Program(parts, str(store)), replay="offline", **how)
        with contextlib.suppress(SessionError):
            plan_undo(store, run, tools=TOOLS)
        with contextlib.suppress(SessionError):
            undo_run(store, run, tools=TOOLS)  # who undoes was told no secret
        clean(root)
