"""Small programs that are resumed as others: what answers each call, and what is written.

`resumed.txt` has rows of sessions at one run, and under each row what came of it. A session is a
word that says how it runs, and a program, as `warn (0a 1r) x{b} !`:

    a b c d     writes, which can be undone; `f` fails, and nobody knows whether `u` happened
    r s, p, m   reads, a pure call, a model
    (0a 1b)     a turn; its calls may name their slots
    (=ab:0a …)  a turn whose message has these calls
    (^xy:…)     a turn that opens these branches, each after the one before it
    x{…} T{…}   a branch (x, y or z), a transaction
    i{…}        a session inside (i or j)
    O[…] S[…]   a write, and a scope, whose bodies make calls
    <a … >a     a write that is begun, and read to its end
    !           an error of the program

The word is a way to treat divergence (`halt`, `undo`, `warn`), `offline`, `verify`, or `retried`:
failures are made again. Between sessions, the run may be undone (`back`, or `back 3` to a step),
steps that are in doubt may have happened (`happened`) or `not`, and the log may be cut behind some
lines (`cut 5`).

Behind each call stands the step that answered it, or `*` if it was made; then come the lines that
were written. Whoever changes what answers a call, or what is recorded, sees it here:

    python -m tests.laws.resumed    # writes the file anew
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from rollcage import (
    Contract,
    Halt,
    Options,
    Session,
    SessionError,
    compensate,
    open_store,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.calls.block import TurnHandle
from rollcage.calls.stage import Stage
from rollcage.replay.call import Call
from rollcage.trace.run import Event, Outcome, Step, fold_log
from rollcage.trace.store import drop

from tests.laws.lab import folder

__all__ = ["KEPT", "kept", "told"]

KEPT: Final = Path(__file__).with_name("resumed.txt")
_FIELDS: Final = (
    "why", "places", "steps", "reopens", "status", "left", "replayed", "restarted", "again", "from",
    "beyond", "after", "unasked", "during", "declared", "epoch", "retries", "rank", "waits",
    "halted",
)  # fmt: skip


class Program:
    """Runs the text of a program in a session."""

    here: Program

    def __init__(self, session: Session, text: str, said: list[str]) -> None:
        self._session, self._text, self._at, self._said = session, text, 0, said
        self._turns: list[TurnHandle] = []
        self._begun: dict[str, Iterator[str]] = {}
        self.by = "?"

    def row(self) -> None:
        """Run up to the end of a row."""
        while self._at < len(self._text) and self._text[self._at] not in ")}]":
            self._node()

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _node(self) -> None:
        word = self._next()
        slot: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if word.isdigit():
            slot, word = self._turns[-1].slot(int(word)), self._next()
        if word == "!":
            raise KeyError
        if word in "(xyzTij":
            with slot, self._block(word):
                self.row()
            self._at += 1
        elif word != " ":
            self.by = "?"
            with slot, contextlib.suppress(ValueError):
                self._call(word)

    @contextlib.contextmanager
    def _block(self, word: str) -> Iterator[None]:
        around, session = self._session, self._session
        block: contextlib.AbstractContextManager[Any]
        if word == "(":
            block = session.turn(**self._said_of_turn())
        elif word == "T":
            block = session.transaction()
        elif word in "ij":
            block = Session(word, store=session.store, stages=[Watch()])
        else:
            block = session.branch(word)
        self._at += word != "("
        with block as entered:
            if isinstance(entered, TurnHandle):
                self._turns.append(entered)
            elif isinstance(entered, Session):
                self._session = entered
            try:
                yield
            finally:
                self._session = around
                if isinstance(entered, TurnHandle):
                    self._turns.pop()

    def _said_of_turn(self) -> dict[str, Any]:
        """Return what is said of a turn: its calls, and the branches that it opens."""
        said: dict[str, Any] = {}
        while self._text[self._at] in "=^":
            kind = self._next()
            end = self._text.index(":", self._at)
            words = self._text[self._at : end]
            self._at = end + 1
            if kind == "=":
                said["calls"] = [(_name(word), {"of": word}) for word in words]
            else:
                said["opens"] = {name: words[at - 1] if at else "" for at, name in enumerate(words)}
        return said

    def _call(self, word: str) -> None:
        match word:
            case "O" | "S":
                end = self._end()
                (outer if word == "O" else scope)(of=word)
                self._at = end
            case "<":
                word = self._next()
                self._begun[word] = self._session.call(stream, of=word)
                next(self._begun[word])
                word = f"<{word}"
            case ">":
                word = self._next()
                list(self._begun.pop(word))
            case "m":
                self._session.run_call(MODEL, {"of": word}, answer, kind="model")
            case "f":
                with contextlib.suppress(ValueError):
                    fail(of=word)
            case _:
                TOOLS.get(word, write)(of=word)
        self._said.append(f"{word}{self.by}")

    def _end(self) -> int:
        """Return the end of the body that begins here, which may not run."""
        depth = 0
        for at in range(self._at, len(self._text)):
            depth += {"[": 1, "]": -1}.get(self._text[at], 0)
            if not depth:
                return at + 1
        raise ValueError(self._text)

    def body(self) -> None:
        """Run a body."""
        self._at += 1
        self.row()


@tool(name="takeback", idempotent=True)
def take_back(of: str) -> None: ...


def _undo(args: Mapping[str, Any]) -> list[Any]:
    return [compensate("takeback", **args)]


@tool(effect="write", name="write", undo=_undo)
def write(of: str) -> str:
    return of


@tool(effect="write", name="fail", raises=(ValueError,), undo=_undo)
def fail(of: str) -> str:
    raise ValueError(of)


@tool(effect="write", name="lose", undo=_undo)
def lose(of: str) -> str:
    raise TimeoutError(of)


@tool(effect="read", name="read")
def read(of: str) -> str:
    return of


@tool(effect="pure", name="pure")
def pure(of: str) -> str:
    return of


@tool(effect="write", name="outer", undo=_undo)
def outer(of: str) -> str:
    Program.here.body()
    return of


@tool(effect="scope", name="scope")
def scope(of: str) -> str:
    Program.here.body()
    return of


@tool(effect="write", name="stream", undo=_undo)
def stream(of: str) -> Iterator[str]:
    yield of
    yield of


def answer(of: str) -> str:
    return of


MODEL: Final = Contract.of(answer)
TOOLS: Final = {"r": read, "s": read, "p": pure, "u": lose}


def _name(word: str) -> str:
    return {"O": "outer", "S": "scope", "f": "fail", "m": "answer"}.get(
        word, {"r": "read", "s": "read", "p": "pure", "u": "lose"}.get(word, "write")
    )


class Watch(Stage):
    """Tells the program which step answers a call."""

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        Program.here.by = "*" if step is None else f"={step.n}"


class Told:
    """Tells what comes of the sessions of a row."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.text: list[str] = []
        self._seen: dict[str, int] = {}

    def play(self, act: str) -> None:
        """Do what one part of a row says."""
        word, _, rest = act.partition(" ")
        try:
            match word:
                case "back":
                    to = int(rest) if rest else None
                    report = undo_run(self.store, self._newest(), to=to, tools=[take_back])
                    undone = (f"{each.step}={each.status}" for each in report.steps)
                    self.text.append(" ".join(["back", *undone]))
                case "cut":
                    self._cut(int(rest))
                case "happened" | "not":
                    self._resolve(happened=word == "happened")
                case _:
                    self._session(word, rest)
        except (Halt, SessionError) as error:
            self.text.append(type(error).__name__)
        self._lines()

    def _newest(self) -> str:
        return open_store(self.store).runs()[0].run

    def _cut(self, lines: int) -> None:
        log = next(self.store.rglob(f"{self._newest()}.jsonl"))
        kept = log.read_bytes().splitlines(keepends=True)[: max(lines, 2)]
        log.write_bytes(b"".join(kept))
        drop(open_store(self.store), "heads", log.stem)
        self._seen[log.stem] = len(kept)

    def _resolve(self, *, happened: bool) -> None:
        run = self._newest()
        store = open_store(self.store)
        for step in [*fold_log(store.read(run), run, {}).steps.values()]:
            if step.effect == "write" and step.in_doubt:
                resolve_step(self.store, run, step.n, happened=happened)

    def _session(self, how: str, text: str) -> None:
        more: dict[str, Any] = {"stages": [Watch()]}
        if how in ("offline", "verify"):
            more["replay"] = how
        elif how == "retried":
            more |= {"on_divergence": "warn", "options": Options(retry_failed=True)}
        else:
            more["on_divergence"] = how
        said = ["-"]
        try:
            with Session("job", store=self.store, **more) as session:
                program = Program.here = Program(session, text, said)
                program.row()
        except (KeyError, Halt, SessionError) as error:
            said.append(type(error).__name__)
        self.text.append(" ".join(said))

    def _lines(self) -> None:
        store = open_store(self.store)
        for run in sorted({each.run for each in store.runs()}):
            lines = store.read(run)
            for line in lines[self._seen.get(run, 0) :]:
                shown = _shown(orjson.loads(line))
                if shown:
                    self.text.append(f"  {shown}")
            self._seen[run] = len(lines)


def _shown(event: Event) -> str:
    """Return a line as text; empty for a line that begins a run or an attempt."""
    said: list[str] = [event["event"]]
    match said[0]:
        case "run" | "attempt":
            return ""
        case "step":
            name = event["args"]["of"] if event["effect"] != "branch" else event["name"]
            place = f"{event['start']}-{event['pos']} {event['turn']}.{event['slot']}"
            said = [str(event["step"]), name, place]
        case _ if "step" in event:
            said.append(str(event["step"]))
    if "outcome" in event:
        said.append("never" if event["outcome"] is None else event["outcome"]["status"])
    for field in _FIELDS:
        if value := event.get(field):
            said.append(field if value is True else f"{field} {_text(value)}")
    return " ".join(said)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def told(row: str) -> str:
    """Return what comes of a row of sessions."""
    with folder() as root:
        story = Told(root)
        for act in row.split(" / "):
            story.play(act)
    return "\n".join(story.text)


def kept() -> dict[str, str]:
    """Return the rows that are kept, and what came of each."""
    blocks = KEPT.read_text(encoding="utf-8").split("\n\n")
    return {row: text for row, _, text in (each.strip("\n").partition("\n") for each in blocks)}


if __name__ == "__main__":
    texts = (f"{row}\n{told(row)}\n" for row in kept())
    KEPT.write_text("\n".join(texts), encoding="utf-8")
