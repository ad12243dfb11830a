"""Tools that put numbers somewhere and look at them, and an agent that acts upon what it sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session, UnknownOutcome, compensate, current_step, resolve_step, tool
from rollcage.trace.folder import Folder


class World:
    """What was put where, and by whom."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.ran: list[str] = []
        self.keys: list[str] = []
        self.fails = False


world = World()


@pytest.fixture(autouse=True)
def new_world() -> None:
    world.__init__()  # type: ignore[misc] # a new one of the same name


@tool(name="fork.reset", idempotent=True)
def reset(where: str, to: int | None) -> None:
    """Put back what was there."""
    if to is None:
        world.state.pop(where, None)
    else:
        world.state[where] = to


@tool(
    name="fork.put",
    observe=lambda args: {args["where"]: world.state.get(args["where"])},
    undo=lambda args, before: [compensate(reset, where=args["where"], to=before[args["where"]])],
    raises=[ValueError],
)
def put(where: str, what: int) -> str:
    """Put a number somewhere."""
    world.ran.append(f"put {where} {what}")
    step = current_step()
    world.keys.append(step.idempotency_key if step else "")
    if world.fails:
        raise ValueError("it fails")
    world.state[where] = what
    return f"{where} is {what}"


@tool(name="fork.look", effect="read")
def look(where: str) -> int:
    """Look what is there."""
    world.ran.append(f"look {where}")
    return world.state.get(where, 0)


@tool(name="fork.team", effect="scope")
def team(where: str) -> int:
    """Put twice what is there."""
    world.ran.append(f"team {where}")
    seen = look(where)
    put(f"{where}2", 2 * seen)
    return seen


@tool(name="fork.wrap")
def wrap(where: str) -> int:
    """Write by itself, and look inside."""
    seen = look(where)
    world.ran.append(f"wrap {where}")
    world.state[f"{where}w"] = seen
    return seen


def events(root: Path, run: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Folder(root).read(run)]


def numbered(root: Path, run: str, name: str) -> int:
    for event in events(root, run):
        if event["event"] == "step" and event["name"] == f"fork.{name}":
            return int(event["step"])
    raise LookupError(name)


def agent() -> list[Any]:
    """Look, and act upon what is seen."""
    put("a", 1)
    seen = look("a")
    put("b", seen * 10)
    return [seen, look("b")]


def recorded(root: Path, program: Callable[[], Any] = agent) -> str:
    with Session("job", store=root) as session:
        program()
    world.ran.clear()
    return session.run_id


def tell(root: Path, halt: UnknownOutcome) -> None:
    """Say the truth about a step of which nobody knows."""
    (line,) = [e for e in events(root, halt.run) if e["event"] == "step" and e["step"] == halt.step]
    args = line["args"]
    happened = world.state.get(args["where"]) == args["what"]
    told: dict[str, Any] = {"result": f"{args['where']} is {args['what']}"} if happened else {}
    resolve_step(root, halt.run, halt.step, happened=happened, **told)
