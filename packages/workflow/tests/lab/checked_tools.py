"""Tools of plans that are only checked: none may run."""

from typing import Any

import pydantic
from rollcage import tool

__all__ = ["TOOLS", "Person", "fetch", "helper", "mark", "person", "send"]


class Person(pydantic.BaseModel):
    name: str
    tags: list[str] = []
    boss: "Person | None" = None


@tool(effect="read")
def fetch(week: int) -> dict[str, int]:
    raise AssertionError


@tool(effect="write")
def send(to: str, text: str = "") -> str:
    raise AssertionError


@tool(effect="write", undo=list, idempotent=True)
def mark(what: str) -> int:
    raise AssertionError


@tool(effect="scope")
def helper(task: str) -> str:
    raise AssertionError


@tool(effect="read")
def person() -> Person:
    raise AssertionError


TOOLS: list[Any] = [fetch, send, mark, helper, person]
