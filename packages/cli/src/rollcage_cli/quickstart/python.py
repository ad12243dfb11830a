"""The agent in plain Python: a hand-written loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollcage import Session, tool

from rollcage_cli.quickstart.job import FINAL, TURNS, declared, functions

__all__ = ["run"]


def decide(turn: int) -> list[dict[str, Any]]:
    """Return the calls of this turn, in place of a model; none at the end."""
    return [each._asdict() for each in TURNS[turn]] if turn < len(TURNS) else []


def run(outbox: Path, session: Session | None, *, dies: bool) -> str:
    """Run the agent; an open session guards it."""
    tools: list[Any] = list(functions(outbox, dies=dies))
    ask = decide
    if session is not None:
        tools = declared(outbox, dies=dies)
        ask = tool(effect="read", name="model")(decide)
    named = {each.__name__: each for each in tools}
    turn = 0
    while calls := ask(turn):
        for call in calls:
            named[call["tool"]](**call["args"])
        turn += 1
    return FINAL
