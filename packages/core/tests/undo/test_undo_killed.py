"""Random programs that are undone, and killed in that: whoever opens the run finishes it first.

A kill is a copy of the log's first lines, and the world as it was behind them: the body that ran
then is once done and once not.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Diverged,
    Session,
    UnknownOutcome,
    compensate,
    current_step,
    open_store,
    plan_undo,
    tool,
    undo_run,
)
from rollcage.trace.chain import Chain, parse

KEYS = "abc"


class Broken(Exception):
    """What breaks a block."""


class World:
    """A board that tools write, and what it was behind each line of the log."""

    def __init__(self) -> None:
        self.board: dict[str, str] = {}
        self.log: list[tuple[bytes, dict[str, str]]] = []
        self.keys: dict[str, str] = {}
        self.ran = 0

    def now(self) -> dict[str, str]:
        return dict(self.board)


world = World()


def observe(args: dict[str, Any]) -> dict[str, Any]:
    return {args["cell"]: world.board.get(args["cell"])}


@tool(effect="write", name="killed.restore", idempotent=True)
def restore(cell: str, value: str | None) -> None:
    world.ran += 1
    if value is None:
        world.board.pop(cell, None)
    else:
        world.board[cell] = value


def undo(args: dict[str, Any], before: dict[str, Any]) -> Any:
    return [compensate(restore, cell=args["cell"], value=before[args["cell"]])]


@tool(effect="write", name="killed.write", observe=observe, undo=undo)
def write(cell: str, value: str) -> str:
    step = current_step()
    assert step is not None
    assert world.keys.setdefault(step.idempotency_key, value) == value
    world.ran += 1
    world.board[cell] = value
    return value


@tool(effect="read", name="killed.look")
def look(cell: str) -> str | None:
    return world.board.get(cell)


@tool(effect="scope", name="killed.agent")
def agent(body: str) -> None:
    run_nodes(CURRENT[0], eval(body))  # noqa: S307 - a program of this test


@tool(effect="write", name="killed.outer", observe=observe, undo=undo, idempotent=True)
def outer(cell: str, value: str) -> str:
    look(cell)
    world.board[cell] = value
    return value


CURRENT: list[Session] = []
Node = tuple[Any, ...]


def run_nodes(session: Session, nodes: tuple[Node, ...]) -> None:
    for kind, *rest in nodes:
        match kind:
            case "write":
                write(cell=rest[0], value=rest[1])
            case "outer":
                outer(cell=rest[0], value=rest[1])
            case "look":
                look(cell=rest[0])
            case "turn":
                with session.turn() as turn:
                    for slot, (cell, value) in enumerate(rest[0]):
                        with turn.slot(slot):
                            write(cell=cell, value=value)
            case "agent":
                agent(body=repr(rest[0]))
            case "branch":
                with session.branch(rest[0]):
                    run_nodes(session, rest[1])
            case "block":
                try:
                    with session.transaction():
                        run_nodes(session, rest[0])
                        if rest[1]:
                            raise Broken
                except Broken:
                    pass


def program(chance: random.Random, depth: int = 2, size: int = 4) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for _ in range(chance.randint(1, size)):
        value = f"v{chance.randrange(1000)}"
        cell = chance.choice(KEYS)
        kinds = ["write", "write", "outer", "look", "turn"]
        kind = chance.choice(kinds + ["agent", "branch", "block"] * (depth > 0))
        if kind in ("write", "outer"):
            nodes.append((kind, cell, value))
        elif kind == "look":
            nodes.append((kind, cell))
        elif kind == "turn":
            cells = chance.sample(KEYS, chance.randint(1, 3))
            nodes.append((kind, tuple((each, value + each) for each in cells)))
        elif kind == "agent":
            nodes.append((kind, program(chance, depth - 1, 2)))
        elif kind == "branch":
            nodes.append((kind, chance.choice("xy"), program(chance, depth - 1, 2)))
        else:
            nodes.append((kind, program(chance, depth - 1, 3), chance.random() < 0.5))
    return tuple(nodes)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note what the world was behind each line."""
    append = Chain.append

    def noted(self: Chain, *args: Any) -> None:
        append(self, *args)
        world.log.append((self.log.last, world.now()))

    monkeypatch.setattr(Chain, "append", noted)


def session_of(root: Path, nodes: tuple[Node, ...], **how: Any) -> str:
    """Run a program to its end."""
    with Session("job", store=open_store(root), **how) as session:
        CURRENT[:] = [session]
        run_nodes(session, nodes)
    return session.run_id


def killed_at(root: Path, run: str, lines: list[bytes], board: dict[str, str]) -> Path:
    """A store in which a run was killed behind some lines, with the world as it was then."""
    store = open_store(root)
    log = store.open(run)
    for line in lines:
        log.append(line)
    log.wait()
    log.close()
    store.swap("names", "job", None, run.encode())
    world.board = dict(board)
    return root


def to_some_step(run: str, root: Path, chance: random.Random) -> int | None:
    """A step at the outermost place that an undo may keep; None: everything goes."""
    steps: list[int | None] = [
        e["step"] for e in parse(open_store(root).read(run), run) if e["event"] == "step"
    ]
    return chance.choice([None, *steps])


def moments(run: str, start: int) -> list[int]:
    """How many lines of all that was noted a kill may leave."""
    return list(range(start, len(world.log) + 1))


CASES = 40


@pytest.mark.parametrize("seed", range(CASES))
def test_a_run_that_is_killed_in_its_undo(tmp_path: Path, seed: int) -> None:
    global world  # noqa: PLW0603 - what its tools change
    chance = random.Random(seed)  # noqa: S311 - the same programs each time
    nodes = (*program(chance), ("write", "c", "end"))  # no rolled-back block is at the frontier
    world = World()
    world.board = {"a": "as it was"}
    run = session_of(tmp_path / "whole", nodes)
    done = world.now()
    to = to_some_step(run, tmp_path / "whole", chance)
    if chance.random() < 0.3:
        plan = plan_undo(open_store(tmp_path / "whole"), run, to=to)
        assert plan.complete, plan
    start = len(world.log)
    assert undo_run(open_store(tmp_path / "whole"), run, to=to).complete
    undone = world.now()
    if to is None:
        assert undone == {"a": "as it was"}
    lines = [line for line, _ in world.log]
    boards = [board for _, board in world.log]
    places = moments(run, start + 1)
    for number, at in enumerate(chance.sample(places, min(4, len(places)))):
        root = killed_at(tmp_path / f"{number}", run, lines[:at], boards[at - 1])
        if chance.random() < 0.5 and at < len(lines):  # the body that ran then had its effect
            world.board = dict(boards[at])
        world.log = list(zip(lines[:at], boards[:at], strict=True))
        before = at
        if chance.random() < 0.5:
            assert undo_run(open_store(root), run, to=to).complete
            assert world.now() == undone
        again = chance.randint(before, len(world.log))
        if again < len(world.log):  # killed again, in what went on with it
            kept = world.log[:again]
            root = killed_at(
                tmp_path / f"{number} again", run, [line for line, _ in kept], kept[-1][1]
            )
        kinds = [e["event"] for e in parse(open_store(root).read(run), run)]
        was_undone = "undoing" in kinds or "undone" in kinds
        if chance.random() < 0.3 and was_undone:  # somebody else opens it, with another program
            with Session("job", store=open_store(root), run=run):
                pass
            assert world.now() in (undone, done) or to is not None
        world.keys = {}
        session_of(root, nodes)
        assert world.now() == done, f"seed {seed}, killed behind line {at}"
        ran = world.ran
        session_of(root, nodes, replay="continue")
        assert world.ran == ran, "all of it is on record"
        session_of(root, nodes, replay="offline")


@pytest.mark.parametrize("seed", range(CASES))
def test_a_program_that_is_changed_and_killed_takes_back_the_rest(
    tmp_path: Path, seed: int
) -> None:
    """Law 13 with states that are observed: what is left in the world is the edited program's."""
    global world  # noqa: PLW0603 - what its tools change
    chance = random.Random(1000 + seed)  # noqa: S311 - the same programs each time
    nodes = program(chance)
    edited = list(nodes)
    at = chance.randrange(len(edited))
    match chance.randrange(3):
        case 0:
            del edited[at]
        case 1:
            edited.insert(at, ("write", chance.choice(KEYS), "new"))
        case _:
            edited[at] = ("turn", tuple((cell, f"new{cell}") for cell in "ab"))
    world = World()
    session_of(tmp_path / "alone", tuple(edited))
    alone = world.now()
    world = World()
    run = session_of(tmp_path / "whole", nodes)
    lines, boards = [each for each, _ in world.log], [each for _, each in world.log]
    cut = chance.randint(2, len(lines) - 1)  # before its end
    root = killed_at(tmp_path / "cut", run, lines[:cut], boards[cut - 1])
    world.log = list(zip(lines[:cut], boards[:cut], strict=True))
    world.keys = {}
    for kill in range(3):
        try:
            session_of(root, tuple(edited), on_divergence="undo")
        except (Diverged, UnknownOutcome):
            # it could not be told what became of a write, or nothing can be taken back in order:
            # then nothing was touched, and nothing new was done
            return
        assert world.now() == alone, f"seed {seed}, kill {kill}"
        at = chance.randint(cut, len(world.log))
        kept = world.log[:at]
        root = killed_at(tmp_path / f"{kill}", run, [line for line, _ in kept], kept[-1][1])
        world.log, world.keys = list(kept), {}
        if parse(open_store(root).read(run), run)[-1]["event"] == "ended":
            return
