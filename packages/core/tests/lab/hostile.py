"""Logs with all kinds of lines, and what somebody might forge of them."""

import copy
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import undo_tools as files
from copying import Copy
from rollcage import Session, resolve_step, tool, undo_run
from rollcage.contract.contract import Contract
from rollcage.errors import UnknownOutcome
from rollcage.gate.approval import Approval
from rollcage.gate.verdict import Verdict
from rollcage.stages.approvals import Approvals
from rollcage.trace.chain import chained
from rollcage.trace.folder import Folder
from rollcage.values.answer import Answer

__all__ = ["MUTANTS", "SECONDS", "hostile_disk", "in_time", "mutated", "pay", "valid_logs"]

MUTANTS = int(os.environ.get("ROLLCAGE_MUTANTS", "150"))  # of each log
SECONDS = 5  # that reading one may take at most: many are read in one

NUMBERS = (0, -1, 1, 2, 10**6, 2**63, -(2**63), 0.5, 1e308)
TEXTS = ("", "a", "#", "#" + "0" * 64, "-1", "-x", "0" * 64, "\u202e", "mine", "ok", "error")
KINDS = (
    "run", "attempt", "ended", "step", "outcome", "refused", "requested", "decided", "left",
    "undoing", "back", "undone", "rolled", "accepted", "forked", "changed", "held", "gone",
    "pruned", "claimed", "was", "gate", "policy", "ordered", "acme.own", "nothing",
)  # fmt: skip


@tool(effect="write", once="pay/{n}")
def pay(n: int) -> str:
    return f"paid {n}"


@tool(effect="write")
def lose(n: int) -> None:
    raise TimeoutError(str(n))


def program(store: Path, disk: Path) -> None:
    """Do a bit of everything."""
    with Session("job", store=store) as session:
        files.both(one=str(disk / "a"), two=str(disk / "b"))
        with session.turn(), session.branch("one"):
            files.read_file(path=str(disk / "a"))
        with session.turn() as turn:
            for slot in (1, 0):
                with turn.slot(slot):
                    pay(slot)
        with pytest.raises(KeyError), session.transaction():
            files.put_file(path=str(disk / "c"), text="x")
            raise KeyError
        lose(1)


@pytest.fixture(scope="module")
def hostile_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the recorded calls were about."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def valid_logs(
    tmp_path_factory: pytest.TempPathFactory, hostile_disk: Path
) -> list[list[dict[str, Any]]]:
    """Logs with all kinds of lines."""
    store = tmp_path_factory.mktemp("hostile")
    with pytest.raises(UnknownOutcome) as halt:
        program(store, hostile_disk)
    resolve_step(store, halt.value.run, halt.value.step, happened=False)
    with pytest.raises(UnknownOutcome) as halt:
        program(store, hostile_disk)
    run = halt.value.run
    resolve_step(store, run, halt.value.step, happened=True, result=None, by="bob")
    change = {"outcome": {"status": "ok", "value": "changed"}}
    fork = Session("fork", store=store, stages=[Copy(run, 2, change, live=True)])
    with fork:
        pay(7)
    undo_run(store, run, to=3)

    def asks(view: Any) -> Verdict | None:
        return Verdict.ask("why") if view.effect == "write" else None

    approver = Approvals(lambda _: Approval(True, by="bob"))
    with Session("asked", store=store, gate=[asks], approver=approver) as asked:
        pay(9)
        asked.refused("fly", {})
    model = Contract(name="claude", parameters={}, effect="read")
    with Session("talk", store=store) as talk:
        messages: list[Any] = []
        for said in ("hello", "and then", "and then"):
            messages.append({"role": "user", "content": said})
            talk.run_call(model, {"messages": [*messages]}, answered, kind="model", answer=read)
    return [
        [orjson.loads(line) for line in Folder(store).read(each)]
        for each in (run, fork.run_id, asked.run_id, talk.run_id)
    ]


def answered(messages: list[Any]) -> str:
    return f"answer {len(messages)}"


def read(value: str) -> Answer:
    return Answer(text=value, usage={"input_tokens": 1, "output_tokens": 1})


def value(chance: random.Random, depth: int = 0) -> Any:
    """Choose any JSON."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return chance.random() < 0.5
    if kind == 2:
        return chance.choice(NUMBERS)
    if kind in (3, 4):
        return chance.choice(TEXTS)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind == 6:
        return {chance.choice(TEXTS): value(chance, depth + 1) for _ in range(2)}
    nested: Any = 0
    for _ in range(chance.choice([5, 150, 300])):
        nested = [nested]
    return nested


def mutated(log: list[dict[str, Any]], chance: random.Random) -> list[bytes]:
    """Change a valid log in some places, and chain it anew."""
    lines: list[dict[str, Any]] = orjson.loads(orjson.dumps(log))
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(lines))
        line = lines[at]
        match chance.randrange(9):
            case 0:
                name = chance.choice([*line])
                line[name] = {"messages": value(chance)} if name == "args" else value(chance)
            case 1:
                other = chance.choice(lines)
                name = chance.choice([*other])
                line[name] = copy.deepcopy(other[name])
            case 2:
                line.pop(chance.choice([*line]))
            case 3:
                line["event"] = chance.choice(KINDS)
            case 4:
                lines.insert(chance.randrange(len(lines) + 1), dict(line))
            case 5:
                lines.pop(at)
            case 6:
                to = chance.randrange(len(lines))
                lines[at], lines[to] = lines[to], lines[at]
            case 7:
                name = chance.choice(["replayed", "left", "beyond"])
                line[name] = [[chance.choice(NUMBERS), chance.choice(NUMBERS)]]
            case _:
                name = chance.choice(["step", "again", "from", "retries", "block", "steps", "pos"])
                line[name] = chance.choice([*range(8), [1, 2], 10**9])
        if not lines:
            return []
    try:
        return chained({n: v for n, v in each.items() if n != "hash"} for each in lines)
    except TypeError:  # too deep for a line
        return []


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fail where a reader is kept busy."""

    def late(*_: object) -> None:
        raise AssertionError("a reader is kept busy")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
