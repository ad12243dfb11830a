"""Plans of workers that are killed: what their tools do stands in files, one an execution."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from rollcage import DidNotHappen, Happened, compensate, current_step, tool
from rollcage_workflow import Plan

WORLD = Path()  # the folder, which each worker sets
STEPS = 20


def key() -> str:
    step = current_step()
    assert step is not None
    return step.idempotency_key


def write(where: str, line: str) -> None:
    """One line, at once: whoever is killed has written all of it or nothing."""
    file = os.open(WORLD / where, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def probe(key: str, args: Any) -> Any:
    path = WORLD / str(args["where"])
    done = path.read_text().splitlines() if path.exists() else []
    stands = sum(1 if line[0] == "+" else -1 for line in done if line[1:].startswith(key))
    return Happened(key) if stands > 0 else DidNotHappen()


@tool(effect="write", idempotent=True)
async def take_back(where: str, token: str) -> None:
    path = WORLD / where
    done = path.read_text().splitlines() if path.exists() else []
    standing = [line[1:] for line in done if line[0] == "+" and line[1:].startswith(token)]
    taken = [line[1:] for line in done if line[0] == "-" and line[1:].startswith(token)]
    if len(standing) > len(taken):
        write(where, f"-{standing[-1]}")


def undo(args: Any, result: str) -> Any:
    return [compensate(take_back, where=args["where"], token=result)]


@tool(effect="write", probe=probe, undo=undo)
async def mark(where: str, what: str) -> str:
    mine = key()
    write(where, f"+{mine}:{what}")
    await asyncio.sleep(random.uniform(0, 0.004))  # noqa: S311 - a moment to be killed in
    return mine


@tool(effect="write")
async def blind(where: str, what: str) -> str:
    """As `mark`, and nobody can tell whether it happened."""
    mine = key()
    write(where, f"+{mine}:{what}")
    await asyncio.sleep(random.uniform(0, 0.004))  # noqa: S311
    return mine


@tool(effect="read")
async def breaks(fails: bool) -> bool:
    if fails:
        raise ValueError("it breaks")
    return fails


def marks(name: str) -> dict[str, Any]:
    """A few in a row, then a few at once."""
    where = "=inputs.where"
    some: dict[str, Any] = {}
    for n in range(STEPS // 2):
        after = [f"s{n - 1}"] if n else []
        some[f"s{n}"] = {"call": name, "args": {"where": where, "what": f"s{n}"}, "after": after}
    for n in range(STEPS // 2, STEPS):
        after = [f"s{STEPS // 2 - 1}"]
        some[f"s{n}"] = {"call": name, "args": {"where": where, "what": f"s{n}"}, "after": after}
    return some


INPUTS = {"where": {"type": "string"}}
kills = Plan.model_validate({"name": "kills", "inputs": INPUTS, "steps": marks("mark")})
blinds = Plan.model_validate({"name": "blinds", "inputs": INPUTS, "steps": marks("blind")})
chaos = Plan.model_validate(
    {
        "name": "chaos",
        "inputs": {**INPUTS, "fails": {"type": "boolean"}},
        "steps": {
            **marks("mark"),
            "breaks": {
                "call": "breaks",
                "args": {"fails": "=inputs.fails"},
                "after": [f"s{n}" for n in range(STEPS // 2, STEPS)],
            },
        },
        "on_failure": "rollback",
    }
)
